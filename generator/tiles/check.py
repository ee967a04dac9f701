"""Runs tile programs before they are written: they must compute what their muGraph does, safely.

The programs keep their tiles, threads and stages. Tensors are as short as show all that happens:
two tiles along every dim that is cut, three along loops, with the edges of the real extents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import (
    DType,
    Graph,
    Indexed,
    Node,
    TensorType,
    of_results,
    retile,
)
from mirage_kernels.generator.ir.distances import Distances
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.tiles.conversions import converted
from mirage_kernels.generator.tiles.indices import draws, gathered, scattered
from mirage_kernels.generator.tiles.interpret import Interpreter
from mirage_kernels.generator.tiles.lower import block_program, block_programs
from mirage_kernels.generator.tiles.passes import with_held_rows
from mirage_kernels.generator.tiles.program import BlockProgram

CLOSE = 1e-9  # relative difference of float64 results that are the same
EDGE = 3  # elements of the last tile along a dynamic dim
STEPS = 3  # of a loop
Tensors = dict[str, npt.NDArray[np.float64]]
Run = Callable[[Tensors], Mapping[str, npt.NDArray[np.float64]]]
SHORT, VECTOR = 128, 16  # of a static dim that nothing cuts: longer ones are cut down, alike


def require_same(graph: Graph, threads: int, stages: int, indexed: Sequence[Indexed] = ()) -> None:
    """Raise PlanError or TileError if programs of a muGraph's tiles differ from it, or race.

    Tensors that are `indexed` are read and written through random index tensors.
    """
    own = of_results(indexed, graph.outputs)
    short, programs, sizes = shortened_programs(graph, threads, stages, own)
    compare(short, programs, sizes, own)


def shortened_programs(
    graph: Graph, threads: int, stages: int, indexed: Mapping[str, Indexed] | None = None
) -> tuple[Graph, list[BlockProgram], dict[str, int]]:
    """Return a short muGraph, its programs, and extents: threads hold rows where long ones do."""
    short, sizes = shortened(graph)
    long = block_programs(graph, threads, stages, indexed)
    made = (block_program(short, node, threads, stages, vectors=True) for node in converted(short))
    plain = [program.with_indices(indexed or {}) for program in made]
    pairs = zip(plain, long, strict=True)
    return short, [with_held_rows(own) if whole.held else own for own, whole in pairs], sizes


def compare(
    graph: Graph,
    programs: Sequence[BlockProgram],
    sizes: Mapping[str, int],
    indexed: Mapping[str, Indexed] | None = None,
) -> None:
    """Run a muGraph and the programs of its kernels on random tensors of given extents.

    Raises PlanError where a result differs, TileError where threads race.
    """
    run = partial(Interpreter(graph, sizes).run, programs)
    require_results(graph, run, sizes, indexed or {})


def require_results(
    graph: Graph, run: Run, sizes: Mapping[str, int], indexed: Mapping[str, Indexed] | None = None
) -> None:
    """Raise PlanError if what is run computes something else than a muGraph, on random tensors."""
    inputs, indexed = drawn(graph, sizes, np.random.default_rng(0)), indexed or {}
    names = {name: graph.values[name].type.names for name in indexed}
    shapes = {name: tuple(sizes[d] for d in own) for name, own in names.items()}
    pairs = {n: dict(zip(names[n], shapes[n], strict=True)) for n in indexed}
    memory = dict(draws(indexed, pairs))
    for name in (n.name for n in graph.inputs if n.name in indexed):
        own = indexed[name]
        taken = gathered(own, names[name], (memory[name], memory[own.by]), shapes[name])
        inputs[name] = Array(names[name], (taken,))
    with np.errstate(all="ignore"):
        given = [inputs[n.name] for n in graph.inputs]
        wanted = results(graph, given, array_reading(FLOAT64, sizes))
        tensors = {name: np.asarray(x.parts[0], np.float64) for name, x in inputs.items()}
        tensors |= {name: x.copy() for name, x in memory.items()}
        tensors |= {n.name: np.arange(sizes[n.over], dtype=np.float64) for n in graph.of("iota")}
        found = run(tensors)
    for name, exact in zip(graph.outputs, wanted, strict=True):
        right = np.asarray(exact.over(graph.values[name].type.names).parts[0], np.float64)
        if name in indexed:
            pair = memory[name], memory[indexed[name].by]
            right = scattered(indexed[name], names[name], pair, right)
        scale = np.max(np.abs(right[np.isfinite(right)]), initial=1e-300)
        if not np.allclose(found[name], right, rtol=0, atol=CLOSE * scale, equal_nan=True):
            raise PlanError(f"the tile program of {name} differs from its muGraph at {sizes}")


def shortened(graph: Graph, steps: int = STEPS) -> tuple[Graph, dict[str, int]]:
    """Return a muGraph with short static extents and its own tiles, and extents of all dims.

    Loops have so many steps, and conditions hide some of these.
    """
    graph = _with_short_parts(Distances.of(graph).short(graph))
    sizes = short_extents(graph, steps)
    return _with_extents(graph, sizes), sizes


def _with_short_parts(graph: Graph) -> Graph:
    """Return the muGraph with few steps of its loops for each block that shares one."""
    tiles = {}
    for space in graph.spaces:
        for axis in space.reduced:
            if space.loop is not None and axis.dim == space.loop.dim:
                tiles[axis.tile_key] = min(axis.tile, STEPS * space.loop.tile)
    return retile(graph, tiles)


def short_extents(graph: Graph, steps: int = STEPS) -> dict[str, int]:
    """Return extents by dim: some tiles, and the edge that the real extent has."""
    tiles: dict[str, list[int]] = {}
    for space in graph.spaces:
        for axis in space.axes:
            count = steps if axis is space.loop else 2
            tiles.setdefault(axis.dim, []).append(count * axis.tile)
    found = {}
    for d in (d for n in graph.inputs for d in n.out.type.dims):
        longest, least = max(tiles.get(d.name, [0])), min(tiles.get(d.name, [d.size]))
        if d.dynamic:
            found[d.name] = min(longest + min(EDGE, least - 1), d.size) if longest else EDGE
        else:
            uncut = d.size if d.size <= SHORT else SHORT // 2 + d.size % VECTOR
            found[d.name] = min(d.size, longest + d.size % least) if longest else uncut
    return found


def _with_extents(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the muGraph with its static extents as given, its tiles as they are."""

    def cut(type_: TensorType) -> TensorType:
        dims = (d if d.dynamic else d.with_size(sizes.get(d.name, d.size)) for d in type_.dims)
        return replace(type_, dims=tuple(dims))

    def made(node: Node) -> Node:
        return replace(node, outs=tuple(replace(v, type=cut(v.type)) for v in node.outs))

    return retile(replace(graph, nodes=tuple(map(made, graph.nodes))), {})


def drawn(graph: Graph, sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, Array]:
    """Return random inputs of a muGraph at given extents."""
    found = {}
    longest = max(sizes.values(), default=1)
    for node in graph.inputs:
        shape = tuple(sizes[d] for d in node.out.type.names)
        if node.out.type.dtype is DType.INT32:
            numbers = rng.integers(1, longest + 1, shape)
            found[node.name] = Array(node.out.type.names, (numbers,), real=False)
        elif node.out.type.dtype is DType.BOOL:
            found[node.name] = Array(node.out.type.names, (rng.random(shape) < 0.5,), real=False)
        else:
            values = rng.standard_normal(shape) if shape else np.asarray(rng.uniform(0.1, 1.0))
            found[node.name] = Array(node.out.type.names, (values,))
    return found
