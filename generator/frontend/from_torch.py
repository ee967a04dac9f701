"""Recipes from PyTorch functions: `torch.export` traces one, dims get names, the rest is as ever.

    recipe = from_torch(function, {"x": torch.empty(8, 4096), "w": ...}, dynamic={"x": {0: "M"}})

Extents that the function makes one, as a matrix product does, are one dim. A tensor dim that the
function splits, as a norm of groups does, is several dims of the recipe, side by side in memory.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.conditions import as_numbers
from mirage_kernels.generator.frontend.counting import with_sizes
from mirage_kernels.generator.frontend.dim_names import Dims, Dynamic
from mirage_kernels.generator.frontend.examples import bound, require_examples
from mirage_kernels.generator.frontend.export import (
    ends_of,
    exported,
    input_names,
    name_of,
    place_of,
    plain,
)
from mirage_kernels.generator.frontend.portions import Portion, Traced, traced
from mirage_kernels.generator.frontend.positional.lower import flat, sizes_of
from mirage_kernels.generator.frontend.repeats import without_repeats
from mirage_kernels.generator.frontend.symbolic import Tensor, apply, size
from mirage_kernels.generator.ir import Dim, DType, Graph, Node
from mirage_kernels.generator.ir.dtypes import EIGHT_BITS
from mirage_kernels.generator.ir.ranges import ranges_of
from mirage_kernels.generator.partition.constants import with_numbers
from mirage_kernels.generator.recipe import Recipe, Shape

if TYPE_CHECKING:
    import torch

Examples = Mapping[str, Any] | Sequence[Any]  # tensors, and plain values that are constants
BOUND = 2**20  # of dynamic extents
ROWS = 3  # of dynamic dims when a function is compared with its trace
OTHER = 7  # a dynamic extent is so much larger in the second trace, which must be the same


def from_torch(
    function: Callable[..., Any],
    example_inputs: Examples,
    *,
    dynamic: Dims | None = None,
    name: str = "",
) -> Recipe:
    """Return the recipe of a PyTorch function or module.

    `example_inputs` are its tensor arguments, by name or in order, on any device (`meta` needs no
    memory): their extents are those of the recipe's one shape. Numbers, texts, True, False and None
    among them are constants of the program. `dynamic` names dims whose extents are known at run
    time only, by name or in order: `{"x": {0: "M"}}`. Parameters and buffers of a module become
    inputs.
    The recipe's reference is the function itself. Results are 16-bit tensors, whatever the function
    returns.

    Raises RecipeError, naming the operator and the line in the function's source, for an operator
    that kernels cannot be made of, and for a function whose program depends on a dynamic extent.
    """
    named, dynamic = name or name_of(function), dims_by_name(function, dynamic)
    function, given = bound(function, by_name(function, example_inputs))
    require_examples(named, given, dynamic)
    more = (0, OTHER) if dynamic else (0,)
    portions = [_portion(function, longer_by(given, dynamic, by)) for by in more]
    return portions_recipe(named, function, portions, dynamic, order=[*given])


def portions_recipe(
    name: str,
    function: Callable[..., Any],
    portions: Sequence[Portion],
    dynamic: Dynamic,
    *,
    order: Sequence[str] = (),
    rows: Mapping[str, int] | None = None,
    is_part: bool = False,
) -> Recipe:
    """Return the recipe of nodes, traced at two extents of the dims that `dynamic` names.

    `function` computes them and is the reference; `order` has inputs that come first, `rows` the
    extents of dynamic dims at which it is called. Inputs of a part have the types that the
    function's values have; where all inputs of a whole function are fp32, kernels store 16 bits.
    Raises RecipeError for what kernels cannot be made of.
    """
    first = traced(portions[0], dynamic)
    for longer in portions[1:]:
        other = traced(longer, dynamic)
        both = with_sizes(first.lowered, other.lowered, first.dynamic)
        first, other = (replace(t, lowered=x) for t, x in zip((first, other), both, strict=True))
        if _shape_of(other) != _shape_of(first):
            raise RecipeError(
                f"{portions[0].name} computes something else at another extent of a dynamic dim",
                "make that dim static, or take extents from the tensors' shapes",
            )
    known = rows or {}
    if not dynamic:  # rows of a static number: there is no call with others
        sizes = sizes_of(first.graph)
        known = {d: sizes[d] for d in first.dynamic}
    made = _recipe(name, TracedFunction(function, first, order, known), is_part=is_part)
    if not made.grouped:
        return made
    apart = portions_recipe(
        name,
        function,
        [replace(p, grouped=False) for p in portions],
        dynamic,
        order=order,
        rows=rows,
        is_part=is_part,
    )
    return replace(made, apart=apart)


def by_name(
    function: Callable[..., Any], given: Examples | Dims, what: str = "`example_inputs`"
) -> dict[str, Any]:
    """Return example inputs, or something else of each, by the names of a function's parameters."""
    called = getattr(function, "forward", function)
    try:
        names = [*inspect.signature(called).parameters]
    except ValueError as error:  # of what is written in C
        raise RecipeError(
            f"torch.export cannot trace {name_of(function)}, whose inputs have no names",
            f"wrap it: def function(x): return {name_of(function)}(x)",
        ) from error
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, list | tuple):
        raise RecipeError(
            f"{what} of {name_of(function)} has the type {type(given).__name__}",
            "give a dict by the inputs' names, or a list in their order",
        )
    if len(given) > len(names):
        raise RecipeError(
            f"{name_of(function)} takes {len(names)} inputs, not the {len(given)} of {what}",
            f"its parameters: {', '.join(names)}",
        )
    return dict(zip(names, given, strict=False))


def dims_by_name(function: Callable[..., Any], dynamic: Dims | None) -> Dynamic:
    """Return the names of dynamic dims by the names of a function's parameters."""
    given = by_name(function, dynamic or {}, "`dynamic`")
    for name, dims in ((n, d) for n, d in given.items() if d is not None):
        if not isinstance(dims, Mapping) or not all(isinstance(d, int) for d in dims):
            raise RecipeError(
                f"`dynamic` has {dims!r} for {name_of(function)}'s {name}",
                "give names by the numbers of dims, as {0: 'M'}",
            )
    return {name: dims for name, dims in given.items() if dims}


def _shape_of(traced: Traced) -> list[tuple[str, tuple[str, ...], str, float]]:
    """Return a graph without extents."""
    return [(n.op, n.args, n.over, n.value) for n in traced.graph.nodes]


def longer_by(
    given: Mapping[str, torch.Tensor], dynamic: Dynamic, more: Mapping[str, int] | int
) -> dict[str, torch.Tensor]:
    """Return tensors without memory; dynamic dims are longer, one of a single element at least two.

    A dim of one element broadcasts, which is another program.
    """
    made = {}
    for name, tensor in given.items():
        dims = dynamic.get(name, {})
        by = {d: more if isinstance(more, int) else more.get(n, 0) for d, n in dims.items()}
        shape = [max(n, 2) + by[d] if d in dims else n for d, n in enumerate(tensor.shape)]
        longer = tensor.new_empty(shape, device="meta")
        strides = tensor.stride() if longer.shape == tensor.shape else longer.stride()
        made[name] = tensor.new_empty_strided(shape, strides, device="meta")
    return made


# -- tracing ---------------------------------------------------------------------------------------


def _portion(function: Callable[..., Any], examples: Mapping[str, torch.Tensor]) -> Portion:
    """Return all that torch.export makes of a function."""
    program = exported(function, examples)
    with_numbers(program)
    _require_known(program, name_of(function))
    without_repeats(program.graph)
    as_numbers(program.graph)
    return Portion(
        name_of(function),
        [n for n in program.graph.nodes if n.op not in ("placeholder", "output")],
        input_names(program),
        [n for n in ends_of(program, name_of(function)) if n is not None],
        lambda node: place_of(function, examples, node),
    )


def _require_known(program: Any, name: str) -> None:
    """Raise RecipeError for a tensor that a function finds outside, and is not called with."""
    outside = program.graph_signature.inputs_to_lifted_tensor_constants
    for node in (n for n in program.graph.nodes if n.name in outside and n.users):
        raise RecipeError(
            f"{name} takes a tensor {[*node.meta['val'].shape]} that is neither an input nor a "
            "module's parameter or buffer",
            "let it be an input, or register it; numbers of a single element are constants",
        )


# -- the recipe ------------------------------------------------------------------------------------


class TracedFunction:
    """A PyTorch function that takes and returns tensors with the dims of its recipe."""

    def __init__(
        self,
        function: Callable[..., Any],
        traced: Traced,
        first: Sequence[str],
        rows: Mapping[str, int],
    ) -> None:
        self.function, self.traced, self.rows = function, traced, rows
        graph = traced.graph
        used = {a for n in graph.nodes for a in n.args} | {*graph.outputs}
        inputs = dict(zip(traced.names, graph.inputs, strict=True))
        order = (n for n in (*first, *traced.names) if n in inputs and inputs[n].name in used)
        self.given = tuple(dict.fromkeys(order))

    @property
    def extents(self) -> dict[str, int]:
        """Return the extents that it may be called with: a function's sizes may be fixed."""
        sizes = sizes_of(self.traced.graph)
        known = {d: self.rows.get(d, ROWS) for d in self.traced.dynamic}
        return sizes | {d: self.traced.extent(d, n) for d, n in known.items() if d in sizes}

    @property
    def layouts(self) -> dict[str, tuple[tuple[str, ...], ...]]:
        """Return the recipe's dims that each dim of an input is made of, by the input's name."""
        known = dict(zip(self.traced.names, self.traced.lowered.inputs, strict=True))
        return {name: known[name] for name in self.given}

    @property
    def grouped(self) -> dict[str, dict[str, int]]:
        """Return of how many neighbours an input has one element, by its name and their dim."""
        inputs = dict(zip(self.traced.names, self.traced.graph.inputs, strict=True))
        return {name: dict(inputs[name].grouped) for name in self.given if inputs[name].grouped}

    @property
    def orders(self) -> dict[str, tuple[int, ...]]:
        """Return for the dims of each of the recipe's inputs their places in the function's."""
        inputs = dict(zip(self.traced.names, self.traced.graph.inputs, strict=True))
        rows = {name: flat(layout) for name, layout in self.layouts.items()}
        return {n: tuple(map(row.index, inputs[n].out.type.names)) for n, row in rows.items()}

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Call the function with tensors in the order of the recipe's inputs."""
        layouts, orders = self.layouts, self.orders
        sizes: dict[str, int] = {}
        named: dict[str, torch.Tensor] = {}
        for name, tensor in zip(self.given, tensors, strict=True):
            places = range(tensor.dim())
            named[name] = tensor.permute(sorted(places, key=orders[name].__getitem__))
            groups = self.grouped.get(name, {})
            given = zip(flat(layouts[name]), named[name].shape, strict=True)
            sizes |= {d: n * groups.get(d, 1) for d, n in given}
        shapes = dict(zip(self.traced.names, self.traced.shapes, strict=True))
        for name, tensor in named.items():
            own = shapes[name]
            extents = [n if isinstance(n, int) else sizes[n[0]] // n[1] for n in own]
            named[name] = tensor.reshape(extents)
        made = self._called(named)
        several = made if isinstance(made, tuple | list) else (made,)
        results = [r for r in several if r is not None]
        shaped = [
            r.reshape([sizes[d] for d in flat(layout)])
            for r, layout in zip(results, self.traced.lowered.outputs, strict=True)
        ]
        return shaped[0] if len(shaped) == 1 else tuple(shaped)

    def _called(self, named: Mapping[str, torch.Tensor]) -> Any:
        import torch

        if not isinstance(self.function, torch.nn.Module):
            return self.function(**named)
        kept = (*self.function.named_parameters(), *self.function.named_buffers())
        own = {plain(n): n for n, _ in kept}
        state = {own[n]: x for n, x in named.items() if n in own}
        inputs = {n: x for n, x in named.items() if n not in own}
        return torch.func.functional_call(self.function, state, kwargs=inputs)


def _recipe(name: str, function: TracedFunction, *, is_part: bool) -> Recipe:
    traced, graph, order = function.traced, function.traced.graph, function.given
    inputs = dict(zip(traced.names, graph.inputs, strict=True))
    others = (DType.BOOL, DType.INT32, *EIGHT_BITS)
    mixed = is_part or not {*traced.dtypes} <= {DType.FP32, *others}
    texts = {}
    for n in order:
        i = traced.names.index(n)
        if not inputs[n].out.type.dims:
            raise RecipeError(
                f"input {n} of {name} has one element, and no dim that another tensor has",
                "kernels take such numbers from the host: give it as a plain number, a constant",
            )
        own = (*others, *([DType.FP32] if mixed else []))
        kind = f":{traced.dtypes[i].value}" if traced.dtypes[i] in own else ""
        texts[n] = " ".join(inputs[n].out.type.names) + kind
    sizes = sizes_of(graph)
    outputs = [" ".join(flat(layout)) for layout in traced.lowered.outputs]
    own_dims = {d: sizes[d] for t in texts.values() for d in t.partition(":")[0].split()}
    for alone in (d for text in outputs for d in text.split() if d not in own_dims):
        raise RecipeError(
            f"{name} returns {alone} = {sizes[alone]}, a dim of positions that no input has",
            "kernels have the dims of their inputs",
        )
    static = {d: n for d, n in own_dims.items() if d not in traced.dynamic}
    ranges = ranges_of(graph)

    def program(**given: Tensor) -> Tensor | tuple[Tensor, ...]:
        return _replayed(graph, {inputs[n].name: x for n, x in given.items()})

    program.__name__ = name
    said = inspect.getdoc(function.function) or f"{name}, a PyTorch function"
    program.__doc__ = said.partition("\n")[0]
    program.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in texts]
    )
    declared = Recipe(
        inputs=texts,
        output=outputs[0],
        also={f"result_{i}": text for i, text in enumerate(outputs[1:], start=1)},
        dynamic=dict.fromkeys(traced.dynamic, BOUND),
        ranges={n: ranges[inputs[n].name] for n in texts if inputs[n].name in ranges},
        reference=function,
        stores={f"result_{i}" if i else "output": type_ for i, type_ in traced.stores.items()},
        strided=traced.strided,
        indexed=traced.indexed,
        grouped=function.grouped,
        shapes=(Shape("the example inputs", static),),
    )
    return declared(program)


def _replayed(graph: Graph, given: Mapping[str, Tensor]) -> Tensor | tuple[Tensor, ...]:
    """Compute a graph again with symbolic tensors for its inputs."""
    found: dict[str, Tensor | float] = dict(given)
    builder = next(iter(given.values())).builder
    known = {d.name: d for x in given.values() for d in x.type.dims}
    for node in graph.nodes:
        if node.op == "const" and math.isfinite(node.value):
            found[node.name] = node.value
        elif node.op in ("iota", "const"):
            found[node.name] = Tensor(builder, builder.add(_of_dims(node, known)))
        elif node.op == "size":
            found[node.name] = size(builder, node.over, DType.FP32)
        elif node.op != "input":
            found[node.name] = apply(node.op, *(found[a] for a in node.args), over=node.over)
    results = tuple(r for o in graph.outputs if isinstance(r := found[o], Tensor))
    return results[0] if len(results) == 1 else results


def _of_dims(node: Node, known: Mapping[str, Dim]) -> Node:
    """Return a node without operands whose dims are those of inputs, dynamic ones as well."""
    types = [(v, tuple(known.get(d.name, d) for d in v.type.dims)) for v in node.outs]
    outs = (replace(v, type=replace(v.type, dims=dims)) for v, dims in types)
    return replace(node, outs=tuple(outs))
