"""Running block graphs for real: block by block, iteration by iteration, uneven edges included.

The last tile along a dim is simply shorter, which is what a kernel's predicated loads and stores
amount to. Results start out poisoned, so a place that no block writes never compares equal.
Where blocks combine, all of them run up to that point first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import partial, reduce
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
Cutter = tuple[Axis, int]  # an axis, and the extent that it cuts
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
        self.carried = self.body.of("accum", "accum_rescaled", "last")
        self.stored: Found = {}
        for axis in self.space.axes:
            if axis.dim not in sizes:
                raise GraphError(f"{self.kernel}: axis {axis.name} cuts {axis.dim!r}, no dim here")

    def run(self, args: Sequence[Array]) -> list[Array]:
        """Run every block; return what they stored together."""
        grid = self.space.grid
        counts = (range(count(a, self.sizes[a.dim])) for a in grid)
        names = [a.name for a in grid]
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
        found = {
            node.name: self.cut(full, node.cuts, point)
            for node, full in zip(self.body.inputs, args, strict=True)
        }
        self.run_phase(Phase.BEFORE, found, (point, 0))
        loop = self.space.loop
        if loop is not None:
            span = self.span(loop.dim, point)
            whole = {n: found[n.name] for n in self.body.inputs if n.loop_cut}
            for step in range(count(loop, span)):
                for node, full in whole.items():
                    found[node.name] = self.tile(full, node.loop_cut, (loop, span), step)
                earlier = dict(found) if step else {}
                self.run_phase(Phase.LOOP, found, (point, step), earlier)
                for node in self.body.of("output"):
                    if node.loop_cut:
                        self.store(node, found[node.name], point, ((loop, span), step))
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
        made = self.reading[node.op](node, [found[a] for a in node.args])
        found.update(zip((v.name for v in node.outs), made, strict=True))

    def peak(self, node: Node, x: Array, place: Place, before: Array | None) -> Array:
        """Return the running bound of `x` along the dim of a `peak`."""
        real = x.parts if x.real else self.arithmetic.number(x.parts[0])
        seed = self.seed(node.name, *place)
        parts = self.arithmetic.peak(real, x.dims.index(node.over), seed)
        if before is not None:
            parts = self.arithmetic.higher(before.parts, parts)
        dims = tuple(d for d in x.dims if d != node.over)
        return type(x)(dims, self.arithmetic.finish(node, parts))

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
            if not node.op.startswith("combine"):
                for point, found in blocks:
                    self.evaluate(node, found, (point, 0))
                continue
            # Teams of blocks that differ only along the reduced axis sum their values.
            axes = [a.name for a in self.space.reduced if a.dim == node.over]
            teams: dict[str, tuple[Point, list[Found]]] = {}
            for point, found in blocks:
                others = {name: i for name, i in point.items() if name not in axes}
                teams.setdefault(_label(others), (others, []))[1].append(found)
            for place, team in teams.values():
                total = self.total(node, team, place)
                for found in team:
                    found[node.name] = total

    def total(self, node: Node, team: Sequence[Found], point: Point) -> Array:
        """Return the sum over one team of blocks, for their common peak if it has peaks."""
        values = [found[node.args[0]] for found in team]
        if node.op == "combine_rescaled":
            peaks = [found[node.args[1]] for found in team]
            common = self.common_peak(peaks, self.seed(f"common {node.args[1]}", point, 0))
            values = [self.rescaled(x, own, common) for x, own in zip(values, peaks, strict=True)]
        total = reduce(partial(self.sum, node), values)
        return type(total)(total.dims, self.arithmetic.finish(node, total.parts))

    def common_peak(self, peaks: Sequence[Array], seed: int) -> Array:
        """Return a bound of all the peaks; the same for every value that is rescaled by them."""
        if len({p.parts[0].shape for p in peaks}) > 1:
            raise GraphError("blocks combine values with peaks of different shapes")
        each = zip(*(p.parts for p in peaks), strict=True)
        stacked: Parts = tuple(np.stack(same, axis=-1) for same in each)
        parts = self.arithmetic.peak(stacked, stacked[0].ndim - 1, seed)
        return type(peaks[0])(peaks[0].dims, parts)

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

        What several blocks or steps store in one place must be the same: any may be the last.
        """
        if node.name not in self.stored:
            parts = {parts_of(a.dim): count(a, self.sizes[a.dim]) for a in self.space.reduced}
            sizes = {**self.sizes, **parts}
            shape = [sizes[d] for d in node.out.type.names]
            poison = tuple(_poison(shape, p.dtype) for p in tile.parts)
            self.stored[node.name] = type(tile)(node.out.type.names, poison, tile.real)
        stored = self.stored[node.name]
        if len(tile.parts) < len(stored.parts):  # some blocks rescale, others had no need to
            stored = type(tile)(stored.dims, stored.parts[: len(tile.parts)], stored.real)
            self.stored[node.name] = stored
        place = self.cut(stored, node.cuts, point)
        if at is not None:
            place = self.tile(place, node.loop_cut, *at)
        for old, new in zip(place.parts, tile.parts, strict=False):
            if old.shape != new.shape:
                raise GraphError(
                    f"{node.name}: a tile of shape {new.shape} does not fit {old.shape}"
                )
            shared = at is not None or None in node.cuts
            if shared and not (_is_poison(old) | (old == new)).all():
                raise GraphError(f"{node.name}: blocks store different values in one place")
            old[...] = new


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
