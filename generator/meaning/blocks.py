"""Running block graphs for real: block by block, iteration by iteration, uneven edges included.

The last tile along a dim is simply shorter, which is what a kernel's predicated loads and stores
amount to. Results start out poisoned, so a place that no block writes never compares equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
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
        return _Launch(node.body, reading, sizes).run(args)

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


class _Launch:
    """One execution of a block graph over its whole grid."""

    def __init__(self, body: Graph, reading: Reading[Array], sizes: Mapping[str, int]) -> None:
        assert body.space is not None
        self.body, self.reading, self.sizes = body, reading, sizes
        self.space = body.space
        self.phases = phases_of(body)
        self.stored: dict[str, Array] = {}

    def run(self, args: Sequence[Array]) -> list[Array]:
        """Run every block; return what they stored together."""
        grid = self.space.grid
        for index in itertools.product(*(range(count(a, self.sizes[a.dim])) for a in grid)):
            point = dict(zip((a.name for a in grid), index, strict=True))
            found = self.run_block(args, point)
            for name in self.body.outputs:
                self.paste(name, found[name], point)
        return [self.stored[name] for name in self.body.outputs]

    def run_block(self, args: Sequence[Array], point: Point) -> dict[str, Array]:
        """Run one block: before its loop, every iteration, after it."""
        found = {
            node.name: self.cut(full, node.cuts, point)
            for node, full in zip(self.body.inputs, args, strict=True)
        }
        self.run_phase(Phase.BEFORE, found)
        loop = self.space.loop
        if loop is not None:
            looped = [n for n in self.body.inputs if n.loop_cut]
            whole = {n.name: found[n.name] for n in looped}
            for step in range(count(loop, self.sizes[loop.dim])):
                for node in looped:
                    found[node.name] = self.tile(whole[node.name], node.loop_cut, loop, step)
                self.run_phase(Phase.LOOP, found)
                self.accumulate(found, first=step == 0)
        self.run_phase(Phase.AFTER, found)
        return found

    def run_phase(self, phase: Phase, found: dict[str, Array]) -> None:
        """Evaluate the nodes of one phase, in order."""
        for node in self.body.nodes:
            if self.phases[node.name] is phase and node.op not in ("input", "accum"):
                made = self.reading.rules[node.op](node, [found[a] for a in node.args])
                found.update(zip((v.name for v in node.outs), made, strict=True))

    def accumulate(self, found: dict[str, Array], *, first: bool) -> None:
        """Add this iteration's values to those carried across the loop."""
        for node in self.body.of("accum"):
            new = found[node.args[0]]
            if not first:
                (new,) = self.reading.rules["accum"](node, [found[node.name], new])
            found[node.name] = new

    def cut(self, full: Array, cuts: Sequence[str | None], point: Point) -> Array:
        """Return the tile of a tensor that an imap or omap gives the block at `point`."""
        for axis, dim in zip(self.space.grid, cuts, strict=True):
            full = self.tile(full, dim, axis, point[axis.name])
        return full

    def tile(self, x: Array, dim: str | None, axis: Axis, step: int) -> Array:
        """Return the tile number `step` of the dim that an axis cuts; all of it if it cuts none.

        An axis that cuts another dim than its own cuts it into equally many tiles.
        """
        if dim is None:
            return x
        extent = x.extent(dim)
        length = axis.tile if dim == axis.dim else -(-extent // count(axis, self.sizes[axis.dim]))
        return x.cut(dim, min(step * length, extent), min((step + 1) * length, extent))

    def paste(self, name: str, tile: Array, point: Point) -> None:
        """Write a block's tile to its place; raise GraphError when it does not fit there."""
        node = self.body.producers[name]
        if name not in self.stored:
            shape = [self.sizes[d] for d in node.out.type.names]
            poison = tuple(_poison(shape, p.dtype) for p in tile.parts)
            self.stored[name] = type(tile)(node.out.type.names, poison, tile.real)
        place = self.cut(self.stored[name], node.cuts, point)
        for target, source in zip(place.parts, tile.parts, strict=True):
            if target.shape != source.shape:
                raise GraphError(
                    f"{name}: a tile of shape {source.shape} does not fit {target.shape}"
                )
            target[...] = source


def _poison(shape: Sequence[int], dtype: np.dtype[np.generic]) -> Part:
    """Return an array of what no computation yields: nan, or -1 where numbers are residues."""
    return np.full(shape, np.nan if dtype.kind == "f" else -1, dtype)
