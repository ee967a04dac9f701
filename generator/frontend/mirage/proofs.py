"""Proofs of positional programs: bound to a recipe, scaled down, equal on random field elements.

Recipes have names, programs have positions. A choice pairs them so that extents agree; there may be
several, in canonical order: tensors in the program's own order first. Under a choice recipe and
program run on the same elements, reshaped from the dims of one to those of the other. Inputs of the
recipe that the program lacks are held at a value (eps = 0, a norm weight of 1).

Extents are scaled down first: a dim that no axis cuts becomes a few elements, one that is cut a few
tiles of few elements. Where two kernels cut it differently, the tiles of one are still several of
the other's. What divided evenly still does.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mirage_kernels.generator import ir
from mirage_kernels.generator.errors import GraphError, RecipeError, VerifyError
from mirage_kernels.generator.frontend.declarations import dims_of
from mirage_kernels.generator.frontend.positional.lower import Lowered, flat, sizes_of
from mirage_kernels.generator.meaning.arrays import Array
from mirage_kernels.generator.recipe import Recipe, Shape, trace
from mirage_kernels.generator.search import verify
from mirage_kernels.generator.search.cases import Case
from mirage_kernels.generator.search.verify import Compared, Proof, Prover, Reference, Sizes

Held = Mapping[str, float | str]  # input -> the number it is held at, or the dim whose extent
Row = tuple[str, ...]  # the dims of the program that one dim of the recipe consists of; () if 1
Dims = tuple[str | None, ...]  # the recipe's dims of a tensor by position, None where it has none
MOST_ORDERS = 720  # orders of the inputs that are tried: those of six tensors
MOST_CHOICES = 4096
SEED = 4100
FEW_DRAWS = 25  # where more are needed at one size, a smaller one may do with fewer
MOST_WORK = 4_000_000  # as `_work_of` counts it
ELEMENTS_PER_STEP = 20  # elements of a tensor that take as long as an operator on a small tile


@dataclass(frozen=True)
class Choice:
    """A pairing as a person reads it: per tensor its name and dims, None where the extent is 1."""

    inputs: tuple[tuple[str, Dims], ...]
    outputs: tuple[Dims, ...]

    def __str__(self) -> str:
        return ", ".join(
            f"{name}[{' '.join(d if d else '1' for d in dims)}]" for name, dims in self.inputs
        )


class Bound(Prover):
    """A spec whose inputs are tensors of a program under a choice, to compare the two.

    Raises GraphError where the spec has no meaning with its held inputs, VerifyError for an input
    of positions or lengths that is not held.
    """

    def __init__(self, choice: Choice, spec: ir.Graph, held: Held, program: Lowered) -> None:
        self.choice, self.held, self.program = choice, held, program
        super().__init__(_over_inputs(choice, spec, held, program))
        named = [*(dims for _, dims in choice.inputs), *choice.outputs]
        self.tensors = list(zip(named, (*program.inputs, *program.outputs), strict=True))
        self.rows: dict[str, list[Row]] = {}  # all that a dim of the spec is
        for dims, layout in self.tensors:
            for dim, row in zip(dims, layout, strict=True):
                if dim is not None and row not in self.rows.setdefault(dim, []):
                    self.rows[dim].append(row)

    def stated(self, sizes: Sizes) -> dict[str, int]:
        """Return the extents of the spec's dims where the program's have these."""
        own = {d: 1 for n in self.spec.nodes for d in (*n.out.type.names, n.over) if d}
        for dim, rows in self.rows.items():
            own[_own(dim)] = math.prod(sizes[part] for part in rows[0])
        return own

    def reference(self, sizes: Sizes, seed: int) -> Reference:
        """Return the recipe on a draw, its inputs and results over the program's dims."""
        made = super().reference(self.stated(sizes), seed)
        arrays = []
        for x, (dims, layout) in zip((*made.inputs, *made.wanted), self.tensors, strict=True):
            rows = {_own(d): row for d, row in zip(dims, layout, strict=True) if d is not None}
            over = x.over([*rows, *(d for d in x.dims if d not in rows)])  # of one element
            whole = [math.prod(sizes[p] for p in rows.get(d, ())) for d in over.dims]
            shape = [sizes[name] for name in flat(layout)]
            parts = (np.broadcast_to(p, whole).reshape(shape) for p in over.parts)
            arrays.append(Array(flat(layout), tuple(parts), x.real))
        given = len(made.inputs)
        return Reference(made.field, arrays[:given], arrays[given:])

    def compared(self, graph: ir.Graph, sizes: Sizes, seed: int, draws: int) -> Compared:
        """Compare on draws of consecutive seeds; raise VerifyError where one differs."""
        for one in range(seed, seed + draws):
            self.compare(graph, Case({}, dict(sizes)), seed=one)
        bound = verify.rounded_up(draws * self.chance(graph, sizes))
        return Compared({}, dict(sizes), seed, draws, bound)

    def chance(self, graph: ir.Graph, sizes: Sizes) -> float:
        """Return log2 of how likely one draw accepts a wrong program, at most."""
        return verify.log2_chance(self.spec, graph, {**self.stated(sizes), **sizes})


def _own(dim: str) -> str:
    return f"{dim}'"  # no dim of a program is called so


def _over_inputs(choice: Choice, spec: ir.Graph, held: Held, program: Lowered) -> ir.Graph:
    """Return a spec with inputs in a program's order and names, numbers for those that are held."""
    builder = ir.Builder(ir.Level.KERNEL)
    names = {
        name: node.name for (name, _), node in zip(choice.inputs, program.graph.inputs, strict=True)
    }
    given = [spec.producers[name] for name in names]
    for node in (*given, *(n for n in spec.nodes if n not in given)):
        type_ = node.out.type
        dims = tuple(replace(d, name=_own(d.name)) for d in type_.dims)
        if node in given and not type_.dtype.is_real:
            raise VerifyError(f"{node.name} holds {type_.dtype.value}")
        if node.name in held:
            value, scalar = held[node.name], ir.Value(node.name, ir.TensorType((), type_.dtype))
            if isinstance(value, str):
                node = ir.Node("size", (), (scalar,), over=value)
            else:
                node = ir.Node("const", (), (scalar,), value=value)
            dims = ()
        out = ir.Value(names.get(node.name, node.name), ir.TensorType(dims, type_.dtype))
        args = tuple(names.get(a, a) for a in node.args)
        builder.add(replace(node, args=args, outs=(out,), over=node.over and _own(node.over)))
    return builder.graph(spec.outputs)


@dataclass(frozen=True)
class Terms:
    """A recipe, and at what its inputs are held that a program lacks.

    Raises RecipeError for a held input that the recipe lacks, or one held at none of its dims.
    """

    recipe: Recipe
    held: Held

    def __post_init__(self) -> None:
        inputs, name = self.recipe.inputs, self.recipe.name
        dims = {d for text in inputs.values() for d in dims_of(text)}
        for held, value in self.held.items():
            if held not in inputs:
                hint = f"inputs: {', '.join(inputs)}"
                raise RecipeError(f"{name} has no input {held!r} to hold", hint)
            if isinstance(value, str) and value not in dims:
                raise RecipeError(
                    f"{held} is held at {value!r}, which is no number and no dim of {name}",
                    f"dims: {', '.join(sorted(dims))}",
                )

    def bindings(self, program: Lowered) -> Iterator[Bound]:
        """Yield the recipe bound to a program; raise VerifyError where it does not fit."""
        recipe, results = self.recipe, [tuple(text.split()) for text in self.recipe.results]
        free = {n: dims_of(text) for n, text in recipe.inputs.items() if n not in self.held}
        ours = ", ".join(f"{name}[{' '.join(dims)}]" for name, dims in free.items())
        if (len(free), len(results)) != (len(program.inputs), len(program.outputs)):
            raise VerifyError(
                f"{recipe.name} takes {ours} and gives {len(results)} result, "
                f"the graph takes {len(program.inputs)} tensors and gives {len(program.outputs)}",
                "inputs that the graph lacks can be held at a value: --hold eps=0,norm_weight=1",
            )
        fitting = False
        specs: dict[tuple[int, ...], ir.Graph] = {}
        for choice, extents in itertools.islice(_choices(free, results, program), MOST_CHOICES):
            sizes = {name: extents.get(name, 1) for name in recipe.static_dims}
            key = tuple(sizes.values())
            specs[key] = specs.get(key) or trace(
                recipe, Shape("a checkpoint", sizes), ir.DType.FP16
            )
            with contextlib.suppress(VerifyError, GraphError):
                bound = Bound(choice, specs[key], self.held, program)
                fitting = True
                yield bound
        if not fitting:
            theirs = ", ".join(map(str, program.shapes[: len(free)]))
            raise VerifyError(
                f"no input of {recipe.name} fits: it takes {ours}, the graph {theirs}"
            )


def _choices(
    free: Mapping[str, Row], results: Sequence[Row], program: Lowered
) -> Iterator[tuple[Choice, dict[str, int]]]:
    """Yield the choices in which extents agree, with the extents of the recipe's dims."""
    for order in itertools.islice(itertools.permutations(free), MOST_ORDERS):
        wanted = [*(free[name] for name in order), *results]
        for found, extents in _named(list(zip(wanted, program.shapes, strict=True)), {}):
            inputs = tuple(zip(order, found, strict=False))
            yield Choice(inputs, tuple(found[len(order) :])), extents


def _named(
    tensors: Sequence[tuple[Row, Sequence[int]]], known: dict[str, int]
) -> Iterator[tuple[list[Dims], dict[str, int]]]:
    """Yield names of all tensors' positions that agree with the extents known so far."""
    if not tensors:
        yield [], known
        return
    wanted, extents = tensors[0]
    slots: list[str | None] = [*wanted, *[None] * max(0, len(extents) - len(wanted))]
    for dims in dict.fromkeys(itertools.permutations(slots, len(extents))):
        named = {d: n for d, n in zip(dims, extents, strict=True) if d is not None}
        now = {**dict.fromkeys(wanted, 1), **named}  # what has no position is of one element
        spare = math.prod(extents) == math.prod(named.values())
        if spare and all(known.get(d, n) == n for d, n in now.items()):
            for rest, sizes in _named(tensors[1:], known | now):
                yield [dims, *rest], sizes


@dataclass(frozen=True)
class Small:
    """How far to scale: elements of the smallest tile, tiles per axis, elements of dims not cut."""

    elements: int
    tiles: int
    whole: Sequence[int]  # in turn, dim by dim


ONCE = (Small(3, 2, whole=(3, 4, 5)), Small(1, 3, whole=(1, 2, 3)))
OFTEN = (
    Small(2, 2, whole=(2, 3, 4)),
    Small(1, 2, whole=(1,)),
    Small(2, 1, whole=(1,)),
    *(Small(1, 1, whole=(n,)) for n in (3, 2, 1)),
)


def prove(bound: Bound) -> Proof:
    """Return the record of a program's proof; raise VerifyError where it is not equal.

    One draw at some sizes; then as many as the wanted failure bound takes at the largest size where
    few are enough: sums of exp need sizes at which they have few terms.
    """
    graph = bound.program.graph
    ties = [rows for rows in bound.rows.values() if len(rows) > 1]
    done = [
        bound.compared(*scaled(graph, small, ties), seed, draws=1)
        for seed, small in enumerate(ONCE, start=SEED)
    ]
    often = [scaled(graph, small, ties) for small in OFTEN]
    enough: list[tuple[int, float, int]] = []  # draws, the chance of each, number of the size
    for number in sorted(range(len(often)), key=lambda i: -math.prod(often[i][1].values())):
        chance = bound.chance(*often[number])
        draws = verify.draws_needed(chance)
        if draws * chance <= verify.LOG2_WANTED:
            enough.append((draws, chance, number))
        if enough and draws <= FEW_DRAWS:
            break
    for draws, _, number in sorted(enough)[:1]:
        done.append(bound.compared(*often[number], SEED + len(ONCE), draws))
    return Proof.of(done)


def scaled(
    graph: ir.Graph, small: Small, ties: Sequence[Sequence[Row]] = ()
) -> tuple[ir.Graph, dict[str, int]]:
    """Return the graph with small tiles, and the extents of all its dims.

    The rows of a tie, which are one dim of the recipe, keep equal extents. Raises VerifyError for a
    graph that stays too large.
    """
    whole = sizes_of(graph)
    sizes, tiles = dict(whole), dict[tuple[str, int], int]()
    numbers = {dim: number for number, dim in enumerate(whole)}
    # No rule says how to scale tied rows that consist of several dims: they stay.
    fixed = {p for tie in ties if any(len(row) != 1 for row in tie) for row in tie for p in row}
    for group, counts in _groups(graph, whole, ties):
        smaller = _small_counts(counts, small.tiles)
        uncut = small.whole[min(numbers[dim] for dim in group) % len(small.whole)]
        for dim in () if group & fixed else group:
            elements = whole[dim] // math.lcm(*counts)
            most = small.elements if counts else uncut
            sizes[dim] = math.lcm(*smaller.values()) * min(elements, most)
            tiles |= {(dim, whole[dim] // n): sizes[dim] // smaller[n] for n in counts}
    made = replace(graph, nodes=tuple(_with_tiles(n, tiles) for n in graph.nodes))
    for axis in (a for a, _ in _axes_of(made) if a.reduced):
        sizes[ir.parts_of(axis.dim)] = ir.count(axis, sizes[axis.dim])
    if _work_of(made, sizes) > MOST_WORK:
        raise VerifyError(
            "the graph is too large to prove: it has dims that cannot be scaled down",
            "the recipe gives one name to dims that the graph splits in different ways",
        )
    return made, sizes


def _groups(
    graph: ir.Graph, whole: Sizes, ties: Sequence[Sequence[Row]]
) -> Iterator[tuple[set[str], set[int]]]:
    """Yield the dims that scale alike, and into how many tiles axes cut them.

    Alike scale dims that one axis cuts, and dims that are one of the recipe's.
    """
    groups = {dim: {dim} for dim in whole}
    axes = list(_axes_of(graph))
    together = [{axis.dim, *others} for axis, others in axes]
    for parts in (*together, *({part for row in tie for part in row} for tie in ties)):
        group = parts.union(*(groups[dim] for dim in parts))
        groups.update(dict.fromkeys(group, group))
    for group in {id(group): group for group in groups.values()}.values():
        yield group, {ir.count(a, whole[a.dim]) for a, _ in axes if a.dim in group}


def _small_counts(counts: set[int], tiles: int) -> dict[int, int]:
    """Return a few tiles for the least count, twice those, ...; others keep their ratios."""
    ordered = sorted(counts)
    if all(b % a == 0 for a, b in itertools.pairwise(ordered)):
        return {count: min(ordered[0], tiles) * 2**i for i, count in enumerate(ordered)}
    unit = math.gcd(*ordered)
    return {count: count // unit * min(unit, tiles) for count in ordered}


def _work_of(graph: ir.Graph, sizes: Sizes) -> int:
    """Return how many elements the largest tensor has, or what running all tiles costs as much."""
    most = max(math.prod(sizes[d] for d in v.type.names) for n in graph.nodes for v in n.outs)
    steps = 0
    for body in (n.body for n in graph.blocks if n.body):
        axes = body.space.axes if body.space else ()
        steps += math.prod(ir.count(a, sizes[a.dim]) for a in axes) * len(body.nodes)
    return max(most, ELEMENTS_PER_STEP * steps)


def _axes_of(graph: ir.Graph) -> Iterator[tuple[ir.Axis, set[str]]]:
    """Yield every axis of every block graph, and which other dims than its own it cuts."""
    for body in (n.body for n in graph.blocks if n.body):
        for i, axis in enumerate(body.space.axes if body.space else ()):
            named = ((*n.cuts, n.loop_cut)[i] for n in body.inputs)
            yield axis, {dim for dim in named if dim} - {axis.dim}


def _with_tiles(node: ir.Node, tiles: Mapping[tuple[str, int], int]) -> ir.Node:
    if node.body is None or node.body.space is None:
        return node
    space = node.body.space
    cut = [replace(a, tile=tiles.get((a.dim, a.tile), a.tile)) for a in space.axes]
    made = ir.Space(tuple(cut[: len(space.grid)]), cut[-1] if space.loop else None)
    return replace(node, body=replace(node.body, space=made))
