"""Running block graphs for real: block by block, iteration by iteration, uneven edges included.

The last tile along a dim is simply shorter, which is what a kernel's predicated loads and stores
amount to. Results start out poisoned, so a place that no block writes never compares equal.
Where blocks combine, all of them run up to that point first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.ir import Axis, Node, Phase, count, parts_of, phases_of
from mirage_kernels.generator.ir.ops import ACCUMS, MAXIMA
from mirage_kernels.generator.meaning.walk import Reading

if TYPE_CHECKING:
    from mirage_kernels.generator.meaning.arrays import Arithmetic, Array

Point = Mapping[str, int]  # axis name -> index of the tile
Cutter = tuple[Axis, int]  # an axis, and the extent that it cuts
Found = dict[str, "Array"]

_CARRIED = (*ACCUMS, "last")  # from one step of the loop to the next


class Launch:
    """One execution of a block graph over its whole grid."""

    def __init__(
        self,
        kernel: Node,
        reading: Reading[Array],
        arithmetic: Arithmetic,
        sizes: Mapping[str, int],
    ) -> None:
        assert kernel.body is not None
        assert kernel.body.space is not None
        self.kernel, self.body, self.space = kernel.name, kernel.body, kernel.body.space
        self.reading, self.arithmetic, self.sizes = reading, arithmetic, sizes
        phases = phases_of(self.body)
        nodes = [n for n in self.body.nodes if n.op not in ("input", *_CARRIED)]
        self.phases = {phase: [n for n in nodes if phases[n.name] is phase] for phase in Phase}
        self.stored: Found = {}
        for axis in self.space.axes:
            if axis.dim not in sizes:
                raise GraphError(f"{self.kernel}: axis {axis.name} cuts {axis.dim!r}, no dim here")

    def run(self, args: Sequence[Array]) -> list[Array]:
        """Run every block; return what they stored together."""
        counts = (range(count(a, self.sizes[a.dim])) for a in self.space.grid)
        names = [a.name for a in self.space.grid]
        points = [dict(zip(names, i, strict=True)) for i in itertools.product(*counts)]
        blocks: Iterable[tuple[Point, Found]]
        blocks = ((point, self.run_block(args, point)) for point in points)
        if self.phases[Phase.JOINED]:
            blocks = list(blocks)
            self.join(blocks)
        outputs = [self.body.producers[name] for name in self.body.outputs]
        for point, found in blocks:
            for node in outputs:
                if not node.loop_cut:
                    self.store(node, found[node.name], point)
        return [self.stored[name] for name in self.body.outputs]

    def run_block(self, args: Sequence[Array], point: Point) -> Found:
        """Run one block: before its loop, every iteration, after it."""
        inputs = zip(self.body.inputs, args, strict=True)
        found = {node.name: self.cut(full, node.cuts, point) for node, full in inputs}
        self.evaluate(self.phases[Phase.BEFORE], found, point)
        loop = self.space.loop
        if loop is not None:
            span = self.sizes[loop.dim]  # of it the block has all, or a reduced axis's part
            for axis in self.space.reduced:
                if axis.dim == loop.dim:
                    span = min(axis.tile, self.sizes[loop.dim] - point[axis.name] * axis.tile)
            whole = {n: found[n.name] for n in self.body.inputs if n.loop_cut}
            earlier: Found = {}  # the values of the step before
            for step in range(count(loop, span)):
                for node, full in whole.items():
                    found[node.name] = self.tile(full, node.loop_cut, (loop, span), step)
                self.evaluate(self.phases[Phase.LOOP], found, point, (step, earlier))
                for node in self.body.of("output"):
                    if node.loop_cut:
                        self.store(node, found[node.name], point, ((loop, span), step))
                self.accumulate(found, earlier)
                earlier = dict(found)
        self.evaluate(self.phases[Phase.AFTER], found, point)
        return found

    def evaluate(
        self, nodes: Iterable[Node], found: Found, point: Point, at: tuple[int, Found] | None = None
    ) -> None:
        """Evaluate nodes in order, `at` a step of the loop, after the values of the one before.

        A `peak` is the bound of this step's values, or of all since the loop began if it runs.
        """
        step, earlier = at or (0, {})
        for node in nodes:
            if node.op != "peak":
                made = self.reading[node.op](node, [found[a] for a in node.args])
                found.update(zip((v.name for v in node.outs), made, strict=True))
                continue
            x, seed = found[node.args[0]], self.seed(node.name, point, step)
            bound = self.arithmetic.peak(self.arithmetic.lift(x), x.dims.index(node.over), seed)
            if earlier and self.space.runs(node):
                bound = self.arithmetic.higher(earlier[node.name].parts, bound)
            dims = tuple(d for d in x.dims if d != node.over)
            found[node.name] = self.arithmetic.made(node, dims, bound)

    def seed(self, name: str, point: Point, step: int = 0) -> int:
        """Return a number for a value of this kernel in one block and step, for none other."""
        block = " ".join(f"{axis}={i}" for axis, i in point.items())
        return crc32(f"{self.kernel}.{name} {block} step {step}".encode())

    def accumulate(self, found: Found, earlier: Found) -> None:
        """Add this iteration's values to those carried across the loop."""
        for node in self.body.of(*_CARRIED):
            new = found[node.args[0]]
            if earlier and node.op != "last":
                old = earlier[node.name]
                if node.op == "accum_rescaled":
                    peak = node.args[1]
                    old = self.rescaled(old, earlier[peak], found[peak])
                new = self.join_two(node, old, new)
            found[node.name] = new

    def join_two(self, node: Node, a: Array, b: Array) -> Array:
        """Return a + b or max(a, b), which a machine would keep in the same registers."""
        if a.dims != b.dims or a.parts[0].shape != b.parts[0].shape:
            raise GraphError(f"{node.name}: accumulates tiles of different shapes")
        op = "max" if node.op in MAXIMA else "add"
        parts = self.arithmetic.elementwise[op](a.parts, b.parts)
        return self.arithmetic.made(node, a.dims, parts)

    def rescaled(self, x: Array, old: Array, new: Array) -> Array:
        """Return x * exp(old - new)."""
        decay = self.arithmetic.decay(old.parts, new.over(old.dims).parts)
        factor = replace(old, parts=decay, real=True).over(x.dims)
        parts = self.arithmetic.elementwise["mul"](x.parts, factor.parts)
        return replace(x, parts=parts, real=True)

    def join(self, blocks: Sequence[tuple[Point, Found]]) -> None:
        """Run what comes after the blocks have combined: node by node, in all blocks.

        Teams of blocks that differ only along the reduced axis sum their values.
        """
        for node in self.phases[Phase.JOINED]:
            if not node.op.startswith("combine"):
                for point, found in blocks:
                    self.evaluate([node], found, point)
                continue
            axes = [a.name for a in self.space.reduced if a.dim == node.over]
            teams: dict[tuple[tuple[str, int], ...], list[Found]] = {}
            for point, found in blocks:
                place = tuple((name, i) for name, i in point.items() if name not in axes)
                teams.setdefault(place, []).append(found)
            for place, team in teams.items():
                total = self.total(node, team, dict(place))
                for found in team:
                    found[node.name] = total

    def total(self, node: Node, team: Sequence[Found], place: Point) -> Array:
        """Return the sum or maximum over one team of blocks, for their common peak if there is."""
        values, last = [found[node.args[0]] for found in team], node.args[-1]
        if node.op == "combine_rescaled":
            peaks = [found[last] for found in team]
            common = self.common(last, peaks, place)
            values = [self.rescaled(x, own, common) for x, own in zip(values, peaks, strict=True)]
        elif node.op == "combine_max" and self.body.producers[last].op in ("peak", "last"):
            common = self.common(last, values, place)
            return self.arithmetic.made(node, common.dims, common.parts)
        total = reduce(partial(self.join_two, node), values)
        return self.arithmetic.made(node, total.dims, total.parts)

    def common(self, name: str, peaks: Sequence[Array], place: Point) -> Array:
        """Return the peak that a team of blocks has in common, the same one for all that ask."""
        if len({p.parts[0].shape for p in peaks}) > 1:
            raise GraphError("blocks combine values with peaks of different shapes")
        each = zip(*(p.parts for p in peaks), strict=True)
        stacked = tuple(np.stack(same, axis=-1) for same in each)
        seed = self.seed(f"common {name}", place)
        parts = self.arithmetic.peak(stacked, stacked[0].ndim - 1, seed)
        return replace(peaks[0], parts=parts, real=True)

    def cut(self, full: Array, cuts: Sequence[str | None], point: Point) -> Array:
        """Return the tile of a tensor that an imap or omap gives the block at `point`."""
        for axis, dim in zip(self.space.grid, cuts, strict=True):
            full = self.tile(full, dim, (axis, self.sizes[axis.dim]), point[axis.name])
        return full

    def tile(self, x: Array, dim: str | None, cutter: Cutter, step: int) -> Array:
        """Return the tile number `step` of the dim that an axis cuts; all of it if it cuts none.

        An axis that cuts another dim than its own, whose extent is the span, cuts it into equally
        many tiles.
        """
        if dim is None:
            return x
        axis, span = cutter
        extent = x.extent(dim)
        length = axis.tile if dim == axis.dim else -(-extent // count(axis, span))
        return x.cut(dim, min(step * length, extent), min((step + 1) * length, extent))

    def store(
        self, node: Node, tile: Array, point: Point, at: tuple[Cutter, int] | None = None
    ) -> None:
        """Write a tile to its place, `at` a step of the loop.

        What several blocks or steps store in one place must be the same: any may be the last. What
        nobody has stored is no computation's result: nan, or -1 where numbers are residues.
        """
        poisons = [np.nan if p.dtype.kind == "f" else -1 for p in tile.parts]
        if node.name not in self.stored:
            parts = {parts_of(a.dim): count(a, self.sizes[a.dim]) for a in self.space.reduced}
            shape = [{**self.sizes, **parts}[d] for d in node.out.type.names]
            made = zip(tile.parts, poisons, strict=True)
            poison = tuple(np.full(shape, nothing, p.dtype) for p, nothing in made)
            self.stored[node.name] = replace(tile, dims=node.out.type.names, parts=poison)
        stored = self.stored[node.name]
        if len(tile.parts) < len(stored.parts):  # some blocks rescale, others had no need to
            stored = replace(stored, parts=stored.parts[: len(tile.parts)])
            self.stored[node.name] = stored
        place = self.cut(stored, node.cuts, point)
        if at is not None:
            place = self.tile(place, node.loop_cut, *at)
        for old, new in zip(place.parts, tile.parts, strict=False):
            if old.shape != new.shape:
                shapes = f"a tile of shape {new.shape} does not fit {old.shape}"
                raise GraphError(f"{node.name}: {shapes}")
            untouched = np.isnan(old) if old.dtype.kind == "f" else old == -1
            shared = at is not None or None in node.cuts
            if shared and not (untouched | (old == new)).all():
                raise GraphError(f"{node.name}: blocks store different values in one place")
            old[...] = new
