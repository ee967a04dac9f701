"""Which tensor of a positional program is which input of a recipe, and which dim is which.

Recipes have names, programs have positions. A binding pairs them so that extents agree and every
dim of the recipe is the same dims of the program wherever it occurs; there may be several, in
canonical order: tensors in the program's own order first. Inputs of the recipe that the program
lacks can be held at a value (eps = 0, a norm weight of 1).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.frontend.positional.lower import Layout, Lowered
from mirage_kernels.generator.ir import Axis, Graph, Node, Space, TensorType, Value

Held = Mapping[str, float | str]  # input -> the number it is held at, or the dim whose extent
Row = tuple[str, ...]  # the dims of the graph that one positional dim consists of
Dims = tuple[str | None, ...]  # the recipe's dims of a tensor, None where the extent is 1
Parts = Mapping[str, Row]  # a tensor's dims in the recipe, each as a row of the graph's; () if 1
MOST_ORDERS = 720  # orders of the inputs that are tried: those of six tensors
MOST_BINDINGS = 64


@dataclass(frozen=True)
class Terms:
    """What a recipe is stated in: its inputs with their dims, the dims of its results, its spec.

    `spec` takes the extents of the recipe's dims. `held` inputs have one value everywhere.
    """

    name: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: tuple[tuple[str, ...], ...]
    held: Held
    spec: Callable[[Mapping[str, int]], Graph]

    @property
    def free(self) -> dict[str, tuple[str, ...]]:
        """The inputs that are not held."""
        return {n: dims for n, dims in self.inputs.items() if n not in self.held}


@dataclass(frozen=True)
class Choice:
    """A binding as a person reads it: per tensor its name and dims, None where the extent is 1."""

    inputs: tuple[tuple[str, Dims], ...]
    outputs: tuple[Dims, ...]

    def __str__(self) -> str:
        return ", ".join(
            f"{name}[{' '.join(d if d else '1' for d in dims)}]" for name, dims in self.inputs
        )


@dataclass(frozen=True)
class Bound:
    """A program in a recipe's terms: its graph with renamed dims, the parts of every tensor.

    `ties` are rows that the recipe gives one name: their extents must stay equal.
    """

    choice: Choice
    graph: Graph
    inputs: tuple[Parts, ...]
    outputs: tuple[Parts, ...]
    ties: tuple[tuple[Row, ...], ...]

    def extents(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the extents of the recipe's dims, given those of the graph's."""
        found: dict[str, int] = {}
        for dim, row in (pair for parts in (*self.inputs, *self.outputs) for pair in parts.items()):
            found[dim] = max(found.get(dim, 1), _extent(row, sizes))
        return found


def bindings(terms: Terms, program: Lowered) -> Iterator[Bound]:
    """Yield the bindings, at most `MOST_BINDINGS`; raise VerifyError when there can be none.

    First those in which a dim of the recipe is the same dims of the program wherever it occurs;
    a recipe may also give one name to dims that only have the same extent (a head's D).
    """
    free = terms.free
    if len(free) != len(program.inputs) or len(terms.outputs) != len(program.outputs):
        raise VerifyError(
            f"{terms.name} takes {_tensors(free)} and gives {len(terms.outputs)} result, "
            f"the graph takes {len(program.inputs)} tensors and gives {len(program.outputs)}",
            "inputs that the graph lacks can be held at a value: --hold eps=0,norm_weight=1",
        )
    found = itertools.islice(_choices(terms, program), MOST_BINDINGS)
    first = next(found, None)
    if first is None:
        theirs = ", ".join(str(shape(layout, program)) for layout in program.inputs)
        raise VerifyError(
            f"no input of {terms.name} fits: it takes {_tensors(free)}, the graph {theirs}"
        )
    return (bound_as(choice, program, terms) for choice in (first, *found))


def _choices(terms: Terms, program: Lowered) -> Iterator[Choice]:
    free = terms.free
    layouts = [*program.inputs, *program.outputs]
    orders = list(itertools.islice(itertools.permutations(free), MOST_ORDERS))
    done = set()
    for strict, order in itertools.product((True, False), orders):
        wanted = [*(free[name] for name in order), *terms.outputs]
        search = _Matching(program.extents, strict)
        for dims in search.all(list(zip(wanted, layouts, strict=True)), {}):
            inputs = tuple(zip(order, dims[: len(order)], strict=True))
            choice = Choice(inputs, tuple(dims[len(order) :]))
            if choice not in done:
                done.add(choice)
                yield choice


@dataclass(frozen=True)
class _Matching:
    """Ways to name the positions of tensors by a recipe's dims."""

    extents: Mapping[str, int]
    strict: bool

    def all(
        self, pairs: Sequence[tuple[tuple[str, ...], Layout]], known: Mapping[str, Row]
    ) -> Iterator[list[Dims]]:
        """Yield the names of all tensors' positions, given the rows of the dims so far."""
        if not pairs:
            yield []
            return
        wanted, layout = pairs[0]
        slots: list[str | None] = [*wanted, *[None] * max(0, len(layout) - len(wanted))]
        for dims in dict.fromkeys(itertools.permutations(slots, len(layout))):
            rows = self.consistent(wanted, dims, layout, known)
            if rows is not None:
                for rest in self.all(pairs[1:], rows):
                    yield [dims, *rest]

    def consistent(
        self, wanted: tuple[str, ...], dims: Dims, layout: Layout, known: Mapping[str, Row]
    ) -> dict[str, Row] | None:
        """Return the rows of the dims known after one more tensor, None if they disagree."""
        named = dict(zip(dims, layout, strict=True))
        spare = (row for d, row in zip(dims, layout, strict=True) if d is None)
        if any(_extent(row, self.extents) != 1 for row in spare):
            return None
        rows = dict(known)
        for dim in wanted:
            row = named.get(dim, ())
            before = rows.setdefault(dim, row)
            differs = _extent(before, self.extents) != _extent(row, self.extents)
            if differs or (self.strict and before != row):
                return None
        taken = [row for row in rows.values() if row]
        return None if self.strict and len(set(taken)) < len(taken) else rows


def bound_as(choice: Choice, program: Lowered, terms: Terms) -> Bound:
    """Return a program in a recipe's terms under a binding that fits."""
    tensors = [*(dims for _, dims in choice.inputs), *choice.outputs]
    stated = [*(terms.inputs[name] for name, _ in choice.inputs), *terms.outputs]
    named = [
        dict(zip(dims, layout, strict=True))
        for dims, layout in zip(tensors, (*program.inputs, *program.outputs), strict=True)
    ]
    rows: dict[str, list[Row]] = {}
    for dim, row in (pair for one in named for pair in one.items()):
        if dim is not None and row not in rows.setdefault(dim, []):
            rows[dim].append(row)
    names = _names(rows, program)

    def new(row: Row) -> Row:
        return tuple(names[part] for part in row)

    parts = [
        {dim: new(one.get(dim, ())) for dim in dims}
        for one, dims in zip(named, stated, strict=True)
    ]
    count = len(choice.inputs)
    ties = tuple(tuple(map(new, found)) for found in rows.values() if len(found) > 1)
    graph = renamed(program.graph, names)
    return Bound(choice, graph, tuple(parts[:count]), tuple(parts[count:]), ties)


def _names(rows: Mapping[str, Sequence[Row]], program: Lowered) -> dict[str, str]:
    """Return the new names of a program's dims: the recipe's, numbered where a dim is split."""
    names: dict[str, str] = {}
    for dim, found in rows.items():
        for number, row in enumerate(found):
            base = "also_" * number + dim
            for i, part in enumerate(row):
                names.setdefault(part, base if len(row) == 1 else f"{base}_{i}")
    for dim in program.extents:  # of extent 1, and nothing to the recipe
        names.setdefault(dim, f"one_{dim}")
    return names


def _extent(row: Row, sizes: Mapping[str, int]) -> int:
    return math.prod(sizes[part] for part in row)


def shape(layout: Layout, program: Lowered) -> list[int]:
    """Return the positional extents of an input or result."""
    return [_extent(row, program.extents) for row in layout]


def _tensors(inputs: Mapping[str, tuple[str, ...]]) -> str:
    return ", ".join(f"{name}[{' '.join(dims)}]" for name, dims in inputs.items())


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """Return a graph with dims renamed at every level; those without a new name keep theirs."""

    def new(dim: str) -> str:
        return names.get(dim, dim)

    def axis_of(axis: Axis) -> Axis:
        return replace(axis, dim=new(axis.dim))

    def value_of(value: Value) -> Value:
        dims = tuple(replace(d, name=new(d.name)) for d in value.type.dims)
        return Value(value.name, TensorType(dims, value.type.dtype))

    def node_of(node: Node) -> Node:
        return replace(
            node,
            outs=tuple(map(value_of, node.outs)),
            over=new(node.over),
            cuts=tuple(new(c) if c is not None else None for c in node.cuts),
            loop_cut=new(node.loop_cut) if node.loop_cut else None,
            body=renamed(node.body, names) if node.body is not None else None,
        )

    space = graph.space
    if space is not None:
        space = Space(tuple(map(axis_of, space.grid)), axis_of(space.loop) if space.loop else None)
    return replace(graph, nodes=tuple(map(node_of, graph.nodes)), space=space)
