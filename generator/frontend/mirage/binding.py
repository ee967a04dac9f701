"""Which tensor of a positional program is which input of a recipe, and which dim is which.

Recipes have names, programs have positions. A binding pairs them so that extents agree and every
dim of the recipe is the same dims of the program wherever it occurs; there may be several, in
canonical order: tensors in the program's own order first. Inputs of the recipe that the program
lacks can be held at a value (eps = 0, a norm weight of 1).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.frontend.mirage.lower import Layout, Lowered
from mirage_kernels.generator.frontend.mirage.rename import renamed
from mirage_kernels.generator.ir import Graph

Held = Mapping[str, float | str]  # input -> the number it is held at, or the dim whose extent
Row = tuple[str, ...]  # the dims of the graph that one positional dim consists of
MOST_ORDERS = 720  # orders of the inputs that are tried: those of six tensors
MOST_BINDINGS = 64


@dataclass(frozen=True)
class Terms:
    """What a recipe is stated in: its inputs with their dims, the dims of its results."""

    name: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: tuple[tuple[str, ...], ...]
    held: Held

    @property
    def free(self) -> dict[str, tuple[str, ...]]:
        """The inputs that are not held."""
        return {n: dims for n, dims in self.inputs.items() if n not in self.held}


@dataclass(frozen=True)
class Choice:
    """A binding as a person reads it: per tensor its name and dims, None where the extent is 1."""

    inputs: tuple[tuple[str, tuple[str | None, ...]], ...]
    outputs: tuple[tuple[str | None, ...], ...]

    def __str__(self) -> str:
        return ", ".join(
            f"{name}[{' '.join(d if d else '1' for d in dims)}]" for name, dims in self.inputs
        )


@dataclass(frozen=True)
class Pair:
    """A tensor of a program under its name in the recipe: the recipe's dims, each as rows of ours.

    A dim of the recipe that the tensor lacks has no parts: its extent is 1.
    """

    name: str
    parts: Mapping[str, Row]


@dataclass(frozen=True)
class Bound:
    """A program in a recipe's terms: its graph with renamed dims, its inputs and results paired.

    `ties` are rows that the recipe gives one name: their extents must stay equal.
    """

    choice: Choice
    graph: Graph
    inputs: tuple[Pair, ...]
    outputs: tuple[Pair, ...]
    ties: tuple[tuple[Row, ...], ...]

    def extents(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the extents of the recipe's dims, given those of the graph's."""
        pairs = (p for pair in (*self.inputs, *self.outputs) for p in pair.parts.items())
        found: dict[str, int] = {}
        for dim, row in pairs:
            found[dim] = max(found.get(dim, 1), math.prod(sizes[part] for part in row))
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
    found = itertools.islice(_bindings(terms, program), MOST_BINDINGS)
    first = next(found, None)
    if first is None:
        theirs = ", ".join(str(_shape(layout, program)) for layout in program.inputs)
        raise VerifyError(
            f"no input of {terms.name} fits: it takes {_tensors(free)}, the graph {theirs}"
        )
    yield first
    yield from found


def _bindings(terms: Terms, program: Lowered) -> Iterator[Bound]:
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
                yield bound_as(choice, program, terms)


Dims = tuple[str | None, ...]


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
        if any(self.extent(row) != 1 for d, row in zip(dims, layout, strict=True) if d is None):
            return None
        named = {d: row for d, row in zip(dims, layout, strict=True) if d is not None}
        rows = dict(known)
        for dim in wanted:
            row = named.get(dim, ())
            before = rows.setdefault(dim, row)
            if self.extent(before) != self.extent(row) or (self.strict and before != row):
                return None
        taken = [row for row in rows.values() if row]
        return None if self.strict and len(set(taken)) < len(taken) else rows

    def extent(self, row: Row) -> int:
        """Return the number of elements along a row."""
        return math.prod(self.extents[part] for part in row)


def bound_as(choice: Choice, program: Lowered, terms: Terms) -> Bound:
    """Return a program in a recipe's terms under a binding that fits."""
    tensors = [*choice.inputs, *(("", dims) for dims in choice.outputs)]
    layouts = [*program.inputs, *program.outputs]
    rows: dict[str, list[Row]] = {}
    for (_, dims), layout in zip(tensors, layouts, strict=True):
        for dim, row in zip(dims, layout, strict=True):
            if dim is not None and row not in rows.setdefault(dim, []):
                rows[dim].append(row)
    names = _names(rows, program)
    pairs = []
    for (name, dims), layout, all_dims in zip(
        tensors,
        layouts,
        [*(terms.inputs[n] for n, _ in choice.inputs), *terms.outputs],
        strict=True,
    ):
        named = {d: row for d, row in zip(dims, layout, strict=True) if d is not None}
        parts = {d: tuple(names[p] for p in named.get(d, ())) for d in all_dims}
        pairs.append(Pair(name, parts))
    ties = (tuple(tuple(names[p] for p in row) for row in found) for found in rows.values())
    count = len(choice.inputs)
    return Bound(
        choice,
        renamed(program.graph, names),
        tuple(pairs[:count]),
        tuple(pairs[count:]),
        tuple(tie for tie in ties if len(tie) > 1),
    )


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


def _shape(layout: Layout, program: Lowered) -> list[int]:
    return [math.prod(program.extents[part] for part in row) for row in layout]


def _tensors(inputs: Mapping[str, tuple[str, ...]]) -> str:
    return ", ".join(f"{name}[{' '.join(dims)}]" for name, dims in inputs.items())
