"""Running block graphs for real: block by block, iteration by iteration, uneven edges included.

The last tile along a dim is simply shorter, which is what a kernel's predicated loads and stores
amount to. Results start out poisoned, so a place that no block writes never compares equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.ir import Axis, Graph, Node, Phase, count, phases_of
from mirage_kernels.generator.meaning.walk import Reading, Rule, results

if TYPE_CHECKING:
    from mirage_kernels.generator.meaning.arrays import Arithmetic, Array, Part

Point = Mapping[str, int]  # axis name -> index of the tile


def block_rules(
    reading: Reading[Array], arithmetic: Arithmetic, sizes: Mapping[str, int]
) -> dict[str, Rule[Array]]:
    """Return the rules of the ops that only block graphs have, and of nested graphs."""

    def block(node: Node, args: Sequence[Array]) -> list[Array]:
        assert node.body is not None
        stored: dict[str, Array] = {}
        for point in _points(node.body, sizes):
            for name, tile in _run_once(node.body, args, point, reading, sizes).items():
                _paste(stored, node.body, name, tile, point, sizes)
        return [stored[name] for name in node.body.outputs]

    def thread(node: Node, args: Sequence[Array]) -> list[Array]:
        assert node.body is not None
        return results(node.body, args, reading)

    def carried(node: Node, args: Sequence[Array]) -> list[Array]:
        old, new = args
        if old.dims != new.dims or old.parts[0].shape != new.parts[0].shape:
            raise GraphError(f"{node.name}: accumulates tiles of different shapes")
        parts = arithmetic.elementwise["add"](old.parts, new.parts)
        return [type(old)(old.dims, arithmetic.finish(node, parts))]

    def output(node: Node, args: Sequence[Array]) -> list[Array]:
        tile = args[0].over(node.out.type.names)
        return [type(tile)(tile.dims, arithmetic.finish(node, tile.parts), tile.real)]

    return {"block": block, "thread": thread, "accum": carried, "output": output}


def _points(body: Graph, sizes: Mapping[str, int]) -> Iterator[Point]:
    assert body.space is not None
    grid = body.space.grid
    for index in itertools.product(*(range(count(a, sizes[a.dim])) for a in grid)):
        yield dict(zip((a.name for a in grid), index, strict=True))


def _run_once(
    body: Graph, args: Sequence[Array], point: Point, reading: Reading[Array], sizes: Point
) -> dict[str, Array]:
    """Run one block; return what it stores, by output name."""
    assert body.space is not None
    phases = phases_of(body)
    found: dict[str, Array] = {}
    for node, full in zip(body.inputs, args, strict=True):
        found[node.name] = _grid_tile(node, full, body, point, sizes)
    _run(body, Phase.BEFORE, phases, found, reading)
    loop = body.space.loop
    if loop is not None:
        whole = {n.name: found[n.name] for n in body.inputs if n.loop_cut}
        for step in range(count(loop, sizes[loop.dim])):
            for node in body.inputs:
                if node.loop_cut:
                    tile = _cut(whole[node.name], node.loop_cut, loop, step, sizes)
                    found[node.name] = tile
            _run(body, Phase.LOOP, phases, found, reading)
            _accumulate(body, found, reading, first=step == 0)
    _run(body, Phase.AFTER, phases, found, reading)
    return {name: found[name] for name in body.outputs}


def _run(
    body: Graph,
    phase: Phase,
    phases: Mapping[str, Phase | None],
    found: dict[str, Array],
    reading: Reading[Array],
) -> None:
    for node in body.nodes:
        if phases[node.name] is phase and node.op not in ("input", "accum"):
            made = reading.rules[node.op](node, [found[a] for a in node.args])
            found.update(zip((v.name for v in node.outs), made, strict=True))


def _accumulate(
    body: Graph, found: dict[str, Array], reading: Reading[Array], *, first: bool
) -> None:
    for node in body.of("accum"):
        new = found[node.args[0]]
        if first:
            found[node.name] = new
        else:
            (found[node.name],) = reading.rules["accum"](node, [found[node.name], new])


def _bounds(dim: str, axis: Axis, step: int, extent: int, sizes: Point) -> tuple[int, int]:
    tile = axis.tile if dim == axis.dim else -(-extent // count(axis, sizes[axis.dim]))
    return min(step * tile, extent), min((step + 1) * tile, extent)


def _cut(x: Array, dim: str, axis: Axis, step: int, sizes: Point) -> Array:
    return x.cut(dim, *_bounds(dim, axis, step, x.extent(dim), sizes))


def _grid_tile(node: Node, full: Array, body: Graph, point: Point, sizes: Point) -> Array:
    assert body.space is not None
    tile = full
    for axis, dim in zip(body.space.grid, node.cuts, strict=True):
        if dim is not None:
            tile = _cut(tile, dim, axis, point[axis.name], sizes)
    return tile


def _poison(shape: Sequence[int], dtype: np.dtype[np.generic]) -> Part:
    """Return an array of what no computation yields: nan, or -1 where numbers are residues."""
    return np.full(shape, np.nan if dtype.kind == "f" else -1, dtype)


def _paste(
    stored: dict[str, Array], body: Graph, name: str, tile: Array, point: Point, sizes: Point
) -> None:
    """Write a block's tile to its place; raise GraphError when it does not fit there."""
    assert body.space is not None
    node = body.producers[name]
    dims = node.out.type.names
    if name not in stored:
        shape = [sizes[d] for d in dims]
        poison = [
            np.full(shape, np.nan if p.dtype.kind == "f" else -1, p.dtype) for p in tile.parts
        ]
        stored[name] = type(tile)(dims, tuple(poison), tile.real)
    place = stored[name]
    for axis, dim in zip(body.space.grid, node.cuts, strict=True):
        if dim is not None:
            place = _cut(place, dim, axis, point[axis.name], sizes)
    for target, source in zip(place.parts, tile.parts, strict=True):
        if target.shape != source.shape:
            raise GraphError(f"{name}: a tile of shape {source.shape} does not fit {target.shape}")
        target[...] = source
