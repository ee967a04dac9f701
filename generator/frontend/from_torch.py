"""Recipes from PyTorch functions: `torch.export` traces one, dims get names, the rest is as ever.

    recipe = from_torch(function, {"x": torch.empty(8, 4096), "w": ...}, dynamic={"x": {0: "M"}})

Extents that the function makes one, as a matrix product does, are one dim. A tensor dim that the
function splits, as a norm of groups does, is several dims of the recipe, side by side in memory.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mirage_kernels.generator.errors import GraphError, RecipeError
from mirage_kernels.generator.frontend.export import (
    applied,
    dtype_of,
    exported,
    name_of,
    place_of,
)
from mirage_kernels.generator.frontend.positional.lower import Lowered, flat, lower, sizes_of
from mirage_kernels.generator.frontend.positional.program import Program
from mirage_kernels.generator.frontend.symbolic import Tensor, apply, size
from mirage_kernels.generator.ir import DType, Graph, Node
from mirage_kernels.generator.recipe import Recipe, Shape

if TYPE_CHECKING:
    import torch

Examples = Mapping[str, "torch.Tensor"] | Sequence["torch.Tensor"]
Dynamic = Mapping[str, Mapping[int, str]]
BOUND = 2**20  # of dynamic extents
ROWS = 3  # of dynamic dims when a function is compared with its trace
OTHER = 7  # a dynamic extent is so much larger in the second trace, which must be the same


def from_torch(
    function: Callable[..., Any],
    example_inputs: Examples,
    *,
    dynamic: Dynamic | None = None,
    name: str = "",
) -> Recipe:
    """Return the recipe of a PyTorch function or module.

    `example_inputs` are its tensor arguments, by name or in order, on any device (`meta` needs no
    memory): their extents are those of the recipe's one shape. `dynamic` names dims whose extents
    are known at run time only: `{"x": {0: "M"}}`. Parameters and buffers of a module become inputs.
    The recipe's reference is the function itself. Results are 16-bit tensors, whatever the function
    returns.

    Raises RecipeError, naming the operator and the line in the function's source, for an operator
    that kernels cannot be made of, and for a function whose program depends on a dynamic extent.
    """
    dynamic, example_inputs = dynamic or {}, _by_name(function, example_inputs)
    traced = _traced(function, _examples(example_inputs, dynamic, 0), dynamic)
    if dynamic:
        longer = _examples(example_inputs, dynamic, OTHER)
        traced, other = _with_sizes(traced, _traced(function, longer, dynamic))
        if _shape_of(other) != _shape_of(traced):
            raise RecipeError(
                f"{name_of(function)} computes something else at another extent of a dynamic dim",
                "make that dim static, or take extents from the tensors' shapes",
            )
    return _recipe(function, traced, example_inputs, name or name_of(function))


@dataclass(frozen=True)
class Traced:
    """A function's graph of named dims; its inputs, and how results and inputs are laid out."""

    lowered: Lowered
    names: tuple[str, ...]  # of inputs
    dtypes: tuple[DType, ...]
    dynamic: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]  # of inputs, then of results

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.lowered.graph


def _by_name(function: Callable[..., Any], given: Examples) -> dict[str, torch.Tensor]:
    """Return example inputs by the names of a function's parameters."""
    if isinstance(given, Mapping):
        return dict(given)
    called = getattr(function, "forward", function)
    names = [*inspect.signature(called).parameters]
    if len(given) > len(names):
        raise RecipeError(
            f"{name_of(function)} takes {len(names)} inputs, not the {len(given)} examples",
            f"its parameters: {', '.join(names)}",
        )
    return dict(zip(names, given, strict=False))


def _with_sizes(traced: Traced, longer: Traced) -> tuple[Traced, Traced]:
    """Return two traces where a number that is the extent of one dynamic dim in both is that."""
    pairs = list(zip(traced.graph.nodes, longer.graph.nodes, strict=False))
    sizes = [sizes_of(t.graph) for t in (traced, longer)]
    for mine, theirs in pairs:
        values = (mine.value, theirs.value)
        dims = [d for d in traced.dynamic if tuple(s.get(d) for s in sizes) == values]
        if mine.op == theirs.op == "const" and mine.value != theirs.value and len(dims) == 1:
            size_node = replace(mine, op="size", over=dims[0], value=0.0)
            traced, longer = (
                replace(t, lowered=replace(t.lowered, graph=_replaced(t.graph, old, size_node)))
                for t, old in ((traced, mine), (longer, theirs))
            )
    return traced, longer


def _replaced(graph: Graph, old: Node, new: Node) -> Graph:
    nodes = tuple(replace(new, outs=n.outs) if n.name == old.name else n for n in graph.nodes)
    return replace(graph, nodes=nodes)


def _shape_of(traced: Traced) -> list[tuple[str, tuple[str, ...], str, float]]:
    """Return a graph without extents."""
    return [(n.op, n.args, n.over, n.value) for n in traced.graph.nodes]


def _examples(
    given: Mapping[str, torch.Tensor], dynamic: Dynamic, more: int
) -> dict[str, torch.Tensor]:
    """Return tensors without memory; dynamic dims are longer, one of a single element at least two.

    A dim of one element broadcasts, which is another program.
    """
    made = {}
    for name, tensor in given.items():
        dims = dynamic.get(name, {})
        shape = [max(n, 2) + more if d in dims else n for d, n in enumerate(tensor.shape)]
        same = shape == [*tensor.shape]
        meta = tensor.new_empty_strided(shape, tensor.stride(), device="meta") if same else None
        made[name] = tensor.new_empty(shape, device="meta") if meta is None else meta
    return made


# -- tracing ---------------------------------------------------------------------------------------


def _traced(
    function: Callable[..., Any], examples: Mapping[str, torch.Tensor], dynamic: Dynamic
) -> Traced:
    program, found, names, dtypes = Program(), dict[Any, Any](), list[str](), list[DType]()
    program_of_torch = exported(function, examples)
    results: Sequence[Any] = ()
    targets = {s.arg.name: s.target for s in program_of_torch.graph_signature.input_specs}
    for node in program_of_torch.graph.nodes:
        if node.op == "placeholder":
            value = node.meta["val"]
            name = re.sub(r"\W", "_", targets.get(node.name) or node.name)
            names.append(name)
            dtypes.append(dtype_of(value, name))
            extents = tuple(int(n) for n in value.shape) or (1,)
            found[node] = program.input(extents, dtypes[-1], tuple(value.stride()) or (1,))
        elif node.op == "call_function":
            try:
                found[node] = applied(program, node, found)
            except GraphError as error:
                place = place_of(function, examples, node)
                raise RecipeError(f"{place}: {error.sentence}", error.hint) from error
        elif node.op == "output":
            results = [found[r] for r in node.args[0]]
            wanted = [tuple(r.meta["val"].shape) or (1,) for r in node.args[0]]
        else:
            raise RecipeError(
                f"{name_of(function)} has a {node.op} in its graph", "none is known here"
            )
    program.results.extend(results)
    lowered = lower(program)
    for made, shape in zip(results, wanted, strict=True):
        if tuple(made.dims) != tuple(shape):
            raise RecipeError(
                f"a result of {name_of(function)} has the dims {list(shape)} by broadcasting alone",
                "return it without the dims that nothing varies along",
            )
    shapes = [tuple(t.dims) for t in (*program.inputs, *results)]
    renamed, named = _named(lowered, names, dynamic)
    return Traced(renamed, tuple(names), tuple(dtypes), named, tuple(shapes))


# -- names -----------------------------------------------------------------------------------------


def _named(
    lowered: Lowered, names: Sequence[str], dynamic: Dynamic
) -> tuple[Lowered, tuple[str, ...]]:
    """Return a graph with the names that dynamic dims were given, and these names."""
    wanted: dict[str, str] = {}
    for tensor, dims in dynamic.items():
        if tensor not in names:
            raise RecipeError(f"there is no input {tensor!r}", f"inputs: {', '.join(names)}")
        for at, name in dims.items():
            row = lowered.inputs[names.index(tensor)][at]
            if len(row) != 1:
                raise RecipeError(f"dim {at} of {tensor} is split: it cannot be dynamic")
            same = sum(
                other == name or other == f"{name}{n}" for n, other in enumerate(wanted.values(), 1)
            )
            wanted.setdefault(row[0], f"{name}{same + 1}" if same else name)
    taken = {*wanted.values()}
    own = [d for d in sizes_of(lowered.graph) if d not in wanted]
    free = (f"D{i}" for i in range(1000) if f"D{i}" not in {*own, *taken})
    new = wanted | {d: next(free) for d in own if d in taken}

    def row_of(row: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new.get(d, d) for d in row)

    layouts = [tuple(tuple(map(row_of, t)) for t in x) for x in (lowered.inputs, lowered.outputs)]
    return Lowered(_renamed(lowered.graph, new), *layouts), tuple(dict.fromkeys(wanted.values()))


def _renamed(graph: Graph, new: Mapping[str, str]) -> Graph:
    nodes = []
    for node in graph.nodes:
        outs = tuple(
            replace(
                v,
                type=replace(
                    v.type,
                    dims=tuple(replace(d, name=new.get(d.name, d.name)) for d in v.type.dims),
                ),
            )
            for v in node.outs
        )
        nodes.append(replace(node, outs=outs, over=new.get(node.over, node.over)))
    return replace(graph, nodes=tuple(nodes))


# -- the recipe ------------------------------------------------------------------------------------


class TracedFunction:
    """A PyTorch function that takes and returns tensors with the dims of its recipe."""

    def __init__(self, function: Callable[..., Any], traced: Traced, given: Sequence[str]) -> None:
        self.function, self.traced, self.given = function, traced, tuple(given)

    @property
    def extents(self) -> dict[str, int]:
        """Return the extents that it may be called with: a function's sizes may be fixed."""
        sizes = sizes_of(self.traced.graph)
        return {d: ROWS if d in self.traced.dynamic else n for d, n in sizes.items()}

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Call the function with tensors in the order of the recipe's inputs."""
        layouts = [self.traced.lowered.inputs[self.traced.names.index(n)] for n in self.given]
        sizes: dict[str, int] = {}
        named: dict[str, torch.Tensor] = {}
        for layout, tensor in zip(layouts, tensors, strict=True):
            sizes |= dict(zip(flat(layout), tensor.shape, strict=True))
        for name, layout, tensor in zip(self.given, layouts, tensors, strict=True):
            named[name] = tensor.reshape([math.prod(sizes[d] for d in row) for row in layout])
        made = self._called(named)
        results = made if isinstance(made, tuple | list) else (made,)
        shaped = [
            r.reshape([sizes[d] for d in flat(layout)])
            for r, layout in zip(results, self.traced.lowered.outputs, strict=True)
        ]
        return shaped[0] if len(shaped) == 1 else tuple(shaped)

    def _called(self, named: Mapping[str, torch.Tensor]) -> Any:
        import torch

        if not isinstance(self.function, torch.nn.Module):
            return self.function(**named)
        own = {n for n, _ in self.function.named_parameters()} | {
            n for n, _ in self.function.named_buffers()
        }
        state = {n: named[re.sub(r"\W", "_", n)] for n in own if re.sub(r"\W", "_", n) in named}
        inputs = {n: x for n, x in named.items() if n not in {re.sub(r"\W", "_", o) for o in own}}
        return torch.func.functional_call(self.function, state, kwargs=inputs)


def _recipe(
    function: Callable[..., Any], traced: Traced, examples: Mapping[str, torch.Tensor], name: str
) -> Recipe:
    graph = traced.graph
    used = {a for n in graph.nodes for a in n.args} | {*graph.outputs}
    inputs = dict(zip(traced.names, graph.inputs, strict=True))
    order = [n for n in (*examples, *traced.names) if n in inputs and inputs[n].name in used]
    order = list(dict.fromkeys(order))
    storage = {d for d in traced.dtypes if d is not DType.FP32}
    texts = {}
    for n in order:
        i = traced.names.index(n)
        kind = ":fp32" if storage and traced.dtypes[i] is DType.FP32 else ""
        texts[n] = " ".join(inputs[n].out.type.names) + kind
    sizes = sizes_of(graph)
    static = {d: sizes[d] for t in texts.values() for d in t.partition(":")[0].split()}
    static = {d: n for d, n in static.items() if d not in traced.dynamic}
    outputs = [" ".join(flat(layout)) for layout in traced.lowered.outputs]

    def program(**given: Tensor) -> Tensor | tuple[Tensor, ...]:
        return _replayed(graph, {inputs[n].name: x for n, x in given.items()})

    program.__name__ = name
    program.__doc__ = (inspect.getdoc(function) or f"{name}, a PyTorch function").partition("\n")[0]
    program.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in texts]
    )
    declared = Recipe(
        inputs=texts,
        output=outputs[0],
        also={f"result_{i}": text for i, text in enumerate(outputs[1:], start=1)},
        dynamic=dict.fromkeys(traced.dynamic, BOUND),
        reference=TracedFunction(function, traced, order),
        shapes=(Shape("the example inputs", static),),
    )
    return declared(program)


def _replayed(graph: Graph, given: Mapping[str, Tensor]) -> Tensor | tuple[Tensor, ...]:
    """Compute a graph again with symbolic tensors for its inputs."""
    found: dict[str, Tensor | float] = dict(given)
    builder = next(iter(given.values())).builder
    for node in graph.nodes:
        if node.op == "const":
            found[node.name] = node.value
        elif node.op == "size":
            found[node.name] = size(builder, node.over, DType.FP32)
        elif node.op != "input":
            found[node.name] = apply(node.op, *(found[a] for a in node.args), over=node.over)
    made = [found[o] for o in graph.outputs]
    results = tuple(r for r in made if isinstance(r, Tensor))
    return results[0] if len(results) == 1 else results
