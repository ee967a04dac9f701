"""Running block graphs for real: block by block, iteration by iteration, uneven edges included.

The last tile along a dim is simply shorter, which is what a kernel's predicated loads and stores
amount to. Results start out poisoned, so a place that no block writes never compares equal.
Where blocks combine, all of them run up to that point first.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.ir import Axis, Graph, Node, Phase, count, parts_of, phases_of
from mirage_kernels.generator.meaning.walk import Reading, Rule, results

if TYPE_CHECKING:
    from mirage_kernels.generator.meaning.arrays import Arithmetic, Array, Part, Parts

Point = Mapping[str, int]  # axis name -> index of the tile
Place = tuple[Point, int]  # a block, and a step of its loop
Found = dict[str, "Array"]


def block_rules(
    reading: Reading[Array], arithmetic: Arithmetic, sizes: Mapping[str, int]
) -> dict[str, Rule[Array]]:
    """Return the rules of the ops that only block graphs have, and of nested graphs."""

    def block(node: Node, args: Sequence[Array]) -> list[Array]:
        whole = {d: a.extent(d) for a in args for d in a.dims}
        return _Launch(node, reading, arithmetic, {**sizes, **whole}).run(args)

    def thread(node: Node, args: Sequence[Array]) -> list[Array]:
        assert node.body is not None
        return results(node.body, args, reading)

    def outside(node: Node, args: Sequence[Array]) -> list[Array]:
        raise GraphError(f"{node.name}: {node.op} has a meaning in a block graph only")

    def output(node: Node, args: Sequence[Array]) -> list[Array]:
        tile = args[0].over(node.out.type.names)
        return [type(tile)(tile.dims, arithmetic.finish(node, tile.parts), tile.real)]

    carried = ("accum", "accum_rescaled", "last", "combine", "combine_rescaled")
    return {"block": block, "thread": thread, "output": output, **dict.fromkeys(carried, outside)}


class _Launch:
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
        self.phases = _by_phase(self.body)
        self.looped = [n for n in self.body.inputs if n.loop_cut]
        self.carried = self.body.of("accum", "accum_rescaled", "last")
        self.stepwise = [n for n in self.body.of("output") if n.loop_cut]
        self.stored: Found = {}
        for axis in self.space.axes:
            if axis.dim not in sizes:
                raise GraphError(f"{self.kernel}: axis {axis.name} cuts {axis.dim!r}, no dim here")

    def run(self, args: Sequence[Array]) -> list[Array]:
        """Run every block; return what they stored together."""
        grid = self.space.grid
        counts = (range(count(a, self.sizes[a.dim])) for a in grid)
        points = [
            dict(zip((a.name for a in grid), i, strict=True)) for i in itertools.product(*counts)
        ]
        if not self.phases[Phase.JOINED]:
            for point in points:
                self.paste(self.run_block(args, point), point)
        else:
            blocks = [(point, self.run_block(args, point)) for point in points]
            self.join(blocks)
            for point, found in blocks:
                self.paste(found, point)
        return [self.stored[name] for name in self.body.outputs]

    def run_block(self, args: Sequence[Array], point: Point) -> Found:
        """Run one block: before its loop, every iteration, after it."""
        found = {
            node.name: self.cut(full, node.cuts, point)
            for node, full in zip(self.body.inputs, args, strict=True)
        }
        self.run_phase(Phase.BEFORE, found, (point, 0))
        loop = self.space.loop
        if loop is not None:
            whole = {n.name: found[n.name] for n in self.looped}
            span = self.span(loop.dim, point)
            for step in range(count(loop, span)):
                for node in self.looped:
                    found[node.name] = self.tile(
                        whole[node.name], node.loop_cut, (loop, span), step
                    )
                earlier = dict(found) if step else {}
                self.run_phase(Phase.LOOP, found, (point, step), earlier)
                for node in self.stepwise:
                    place = self.cut(self.whole(node, found[node.name]), node.cuts, point)
                    place = self.tile(place, node.loop_cut, (loop, span), step)
                    self.require_alike(node.name, place, found[node.name])
                    self.write(node.name, place, found[node.name])
                self.accumulate(found, earlier)
        self.run_phase(Phase.AFTER, found, (point, 0))
        return found

    def span(self, dim: str, point: Point) -> int:
        """Return how much of a dim the block at `point` has: all, or a reduced axis's part."""
        for axis in self.space.reduced:
            if axis.dim == dim:
                start = point[axis.name] * axis.tile
                return min(self.sizes[dim], start + axis.tile) - start
        return self.sizes[dim]

    def run_phase(
        self, phase: Phase, found: Found, place: Place, earlier: Mapping[str, Array] | None = None
    ) -> None:
        """Evaluate the nodes of one phase, in order; `earlier` holds the last step's values."""
        for node in self.phases[phase]:
            self.evaluate(node, found, place, (earlier or {}).get(node.name))

    def evaluate(self, node: Node, found: Found, place: Place, before: Array | None = None) -> None:
        """Evaluate one node; `before` is its value in the step before, if there is one."""
        if node.op == "peak":
            found[node.name] = self.peak(node, found[node.args[0]], place, before)
            return
        made = self.reading.rules[node.op](node, [found[a] for a in node.args])
        found.update(zip((v.name for v in node.outs), made, strict=True))

    def peak(self, node: Node, x: Array, place: Place, before: Array | None) -> Array:
        """Return the running bound of `x` along the dim of a `peak`."""
        seed = self.seed(node.name, *place)
        real = x.parts if x.real else self.arithmetic.number(x.parts[0])
        parts = self.arithmetic.peak(real, x.dims.index(node.over), seed)
        if before is not None:
            parts = self.arithmetic.higher(before.parts, parts)
        return type(x)(
            tuple(d for d in x.dims if d != node.over), self.arithmetic.finish(node, parts)
        )

    def seed(self, name: str, point: Point, step: int) -> int:
        """Return a number for a value of this kernel in one block and step, for none other."""
        return crc32(f"{self.kernel}.{name} {_label(point)} step {step}".encode())

    def accumulate(self, found: Found, earlier: Mapping[str, Array]) -> None:
        """Add this iteration's values to those carried across the loop."""
        for node in self.carried:
            new = found[node.args[0]]
            if earlier and node.op != "last":
                old = earlier[node.name]
                if node.op == "accum_rescaled":
                    peak = node.args[1]
                    old = self.rescaled(old, earlier[peak], found[peak])
                new = self.sum(node, old, new)
            found[node.name] = new

    def sum(self, node: Node, a: Array, b: Array) -> Array:
        """Return a + b, which a machine would keep in the same registers."""
        if a.dims != b.dims or a.parts[0].shape != b.parts[0].shape:
            raise GraphError(f"{node.name}: accumulates tiles of different shapes")
        parts = self.arithmetic.elementwise["add"](a.parts, b.parts)
        return type(a)(a.dims, self.arithmetic.finish(node, parts))

    def rescaled(self, x: Array, old: Array, new: Array) -> Array:
        """Return x * exp(old - new)."""
        factor = type(x)(old.dims, self.arithmetic.decay(old.parts, new.over(old.dims).parts))
        parts = self.arithmetic.elementwise["mul"](x.parts, factor.over(x.dims).parts)
        return type(x)(x.dims, parts)

    def join(self, blocks: Sequence[tuple[Point, Found]]) -> None:
        """Run what comes after the blocks have combined: node by node, in all blocks."""
        for node in self.phases[Phase.JOINED]:
            if node.op.startswith("combine"):
                self.combine(node, blocks)
                continue
            for point, found in blocks:
                self.evaluate(node, found, (point, 0))

    def combine(self, node: Node, blocks: Sequence[tuple[Point, Found]]) -> None:
        """Sum a value over the blocks that differ only along the reduced axis of a `combine`."""
        axes = [a.name for a in self.space.reduced if a.dim == node.over]
        teams: dict[str, list[Found]] = {}
        places: dict[str, Point] = {}
        for point, found in blocks:
            others = {name: i for name, i in point.items() if name not in axes}
            teams.setdefault(_label(others), []).append(found)
            places[_label(others)] = others
        for label, team in teams.items():
            total = self.total(node, team, places[label])
            for found in team:
                found[node.name] = total

    def total(self, node: Node, team: Sequence[Found], point: Point) -> Array:
        """Return the sum over one team of blocks, for their common peak if it has peaks."""
        values = [found[node.args[0]] for found in team]
        if node.op == "combine_rescaled":
            peaks = [found[node.args[1]] for found in team]
            common = self.common_peak(peaks, self.seed(f"common {node.args[1]}", point, 0))
            values = [self.rescaled(x, own, common) for x, own in zip(values, peaks, strict=True)]
        total = values[0]
        for value in values[1:]:
            total = self.sum(node, total, value)
        return type(total)(total.dims, self.arithmetic.finish(node, total.parts))

    def common_peak(self, peaks: Sequence[Array], seed: int) -> Array:
        """Return a bound of all the peaks; the same for every value that is rescaled by them."""
        if len({p.parts[0].shape for p in peaks}) > 1:
            raise GraphError("blocks combine values with peaks of different shapes")
        stacked: Parts = tuple(
            np.stack(same, axis=-1) for same in zip(*(p.parts for p in peaks), strict=True)
        )
        parts = self.arithmetic.peak(stacked, stacked[0].ndim - 1, seed)
        return type(peaks[0])(peaks[0].dims, parts)

    def cut(self, full: Array, cuts: Sequence[str | None], point: Point) -> Array:
        """Return the tile of a tensor that an imap or omap gives the block at `point`."""
        for axis, dim in zip(self.space.grid, cuts, strict=True):
            full = self.tile(full, dim, (axis, self.sizes[axis.dim]), point[axis.name])
        return full

    def tile(self, x: Array, dim: str | None, axis_span: tuple[Axis, int], step: int) -> Array:
        """Return the tile number `step` of the dim that an axis cuts; all of it if it cuts none.

        An axis that cuts another dim than its own, whose extent is the span, cuts it into equally
        many tiles.
        """
        if dim is None:
            return x
        axis, span = axis_span
        extent = x.extent(dim)
        length = axis.tile if dim == axis.dim else -(-extent // count(axis, span))
        return x.cut(dim, min(step * length, extent), min((step + 1) * length, extent))

    def paste(self, found: Found, point: Point) -> None:
        """Write a block's results to their places; raise GraphError when one does not fit."""
        for name in self.body.outputs:
            tile, node = found[name], self.body.producers[name]
            if node not in self.stepwise:
                place = self.cut(self.whole(node, tile), node.cuts, point)
                if None in node.cuts:  # other blocks store there too
                    self.require_alike(name, place, tile)
                self.write(name, place, tile)

    def whole(self, node: Node, tile: Array) -> Array:
        """Return a result as it is stored so far, with as many parts as its tile has."""
        if node.name not in self.stored:
            self.stored[node.name] = self.poisoned(node, tile)
        stored = self.stored[node.name]
        if len(tile.parts) < len(stored.parts):  # some blocks rescale, others had no need to
            stored = type(tile)(stored.dims, stored.parts[: len(tile.parts)], stored.real)
            self.stored[node.name] = stored
        return stored

    def require_alike(self, name: str, place: Array, tile: Array) -> None:
        """Raise GraphError where a block before has stored something else: any may be the last."""
        for old, new in zip(place.parts, tile.parts, strict=False):
            if old.shape != new.shape:
                continue  # which `write` refuses
            alike = _is_poison(old) | (old == new)
            if not alike.all():
                raise GraphError(f"{name}: blocks store different values in one place")

    def write(self, name: str, place: Array, tile: Array) -> None:
        """Write a tile to its place."""
        for target, source in zip(place.parts, tile.parts, strict=False):
            if target.shape != source.shape:
                raise GraphError(
                    f"{name}: a tile of shape {source.shape} does not fit {target.shape}"
                )
            target[...] = source

    def poisoned(self, node: Node, tile: Array) -> Array:
        """Return the unwritten result that an output's tiles are parts of."""
        parts = {parts_of(a.dim): count(a, self.sizes[a.dim]) for a in self.space.reduced}
        sizes = {**self.sizes, **parts}
        shape = [sizes[d] for d in node.out.type.names]
        poison = tuple(_poison(shape, p.dtype) for p in tile.parts)
        return type(tile)(node.out.type.names, poison, tile.real)


def _by_phase(body: Graph) -> dict[Phase, list[Node]]:
    """Return the nodes to evaluate in each phase, in order; what is carried comes between them."""
    phases = phases_of(body)
    carried = ("input", "accum", "accum_rescaled", "last")
    return {
        phase: [n for n in body.nodes if phases[n.name] is phase and n.op not in carried]
        for phase in Phase
    }


def _label(point: Point) -> str:
    return " ".join(f"{name}={i}" for name, i in point.items())


def _poison(shape: Sequence[int], dtype: np.dtype[np.generic]) -> Part:
    """Return an array of what no computation yields: nan, or -1 where numbers are residues."""
    return np.full(shape, np.nan if dtype.kind == "f" else -1, dtype)


def _is_poison(part: Part) -> npt.NDArray[np.bool_]:
    return np.isnan(part) if part.dtype.kind == "f" else np.asarray(part == -1)
