"""The implementations of each operator of a block graph: by op kind, in every layout that fits.

A conversion brings a value from the layout that it is made in to one that is wanted. What lowering
refuses (running maxima, sums over blocks) has no implementation.

elementwise   any layout; operands aligned with it
sum           any layout; if the summed dim is partitioned over the warps, each has a partial sum
contract      operands as rows | contracted dim, either one on the M side, in one lane map, any one
              dim partitioned over the warps; makes an mma fragment of M rows | N rows
accum         in the layout of what is added
input         one of the offered copies into shared memory, or straight into registers
output        from any fragment, at the cost of the sectors it touches
conversion    shared -> registers: a staged tile; a barrier unless each warp reads its own part or
              an mbarrier reports the copy
              registers -> shared -> registers: stored by all threads, read by others, a barrier
              between; partial sums of warps lie side by side and are added up by the readers
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from mirage_kernels.generator.ir import OPS, Kind, Node, Phase
from mirage_kernels.generator.plan.costs import Block, Cost
from mirage_kernels.generator.plan.integer_program import Implementation, Latency
from mirage_kernels.generator.plan.layouts import (
    UNIFORM,
    Copy,
    Fragment,
    Lanes,
    Stored,
    Swizzle,
    ValueLayout,
)

Dims = tuple[str, ...]
IN_ORDER = (Swizzle.NONE,)
TRACKED = (Copy.BULK, Copy.TENSOR)  # an mbarrier reports their arrival, no block barrier has to
# How a copy may arrange what it brings: the tensor copy swizzles by itself, in the one way that has
# 128-byte rows (PTX ISA, tensor swizzling modes); a bulk copy keeps a row together and so can only
# pad rows.
ABLE = {Copy.TENSOR: (Swizzle.NONE, Swizzle.XOR), Copy.BULK: (Swizzle.NONE, Swizzle.PADDED)}


@dataclass(frozen=True)
class Offered:
    """Which choices there are: a writer may know fewer than the machine has."""

    copies: tuple[Copy | None, ...] = (*Copy, None)  # None: straight into registers
    swizzles: tuple[Swizzle, ...] = tuple(Swizzle)
    per_warp: tuple[bool, ...] = (True, False)  # each warp loads its own part of a tile, or not
    lanes: tuple[Lanes, ...] = (Lanes.VECTORS, Lanes.MMA)  # of a contraction's operands
    any_warp_dim: bool = True  # of a contraction; else the contracted one
    any_m_side: bool = True  # else the operand with static rows: weights, which are many


def fragments_of(block: Block, lanes: Sequence[Lanes]) -> tuple[Fragment, ...]:
    """Return the layouts in registers of a block: of operands and results of its contractions.

    Values that lack some of their dims are aligned with them. Where no contraction has a value's
    dims, its fast dim lies along the columns and the others along the rows.
    """
    found: dict[Fragment, None] = {}

    def add(lane_maps: Sequence[Lanes], rows: Dims, cols: Dims) -> None:
        for lane_map, warp_dim in product(lane_maps, (*rows, *cols)):
            found[Fragment(lane_map, rows, cols, warp_dim)] = None

    for node in block.body.of("contract"):
        over = (node.over,) if block.tile.extents[node.over] > 1 else ()
        both = operand_rows(block, node)
        for own, other in (both, both[::-1]) if set(both[0]) != set(both[1]) else ():
            add(lanes, own, over)
            add((Lanes.MMA,), own, other)
    covered = [set(f.dims) for f in found]
    for node in block.body.nodes:
        dims = block.dims(node.name) if node.op != "output" else ()
        if dims and not any(set(dims) <= c for c in covered):
            add(lanes, dims[:-1], dims[-1:])
    return tuple(found)


def operand_rows(block: Block, node: Node) -> tuple[Dims, Dims]:
    """Return the rows of a contraction's operands."""
    first, second = (tuple(d for d in block.dims(a) if d != node.over) for a in node.args)
    return first, second


class Implementations:
    """The implementations of one block's operators."""

    def __init__(self, block: Block, offered: Offered) -> None:
        self.block, self.offered, self.hw = block, offered, block.hardware
        self.fragments = fragments_of(block, offered.lanes)
        self.made: dict[str, list[ValueLayout]] = {}  # the layouts that a value may be made in
        self.rules: dict[Kind, Callable[[Node], Iterator[Implementation]]] = {
            Kind.SOURCE: self.source,
            Kind.ELEMENTWISE: self.aligned,
            Kind.REDUCE: self.aligned,
            Kind.CONTRACT: self.contract,
            Kind.CARRY: self.accum,
            Kind.OUTPUT: self.output,
        }

    def of(self, node: Node) -> tuple[Implementation, ...]:
        """Return a node's implementations; nodes come in the order of the graph."""
        unique: dict[tuple[object, ...], Implementation] = {}
        rule = self.rules.get(OPS[node.op].kind)
        for made in rule(node) if rule else ():
            unique.setdefault((made.needs, made.makes, made.latencies), made)
        layouts = (layout for made in unique.values() for layout in made.makes)
        self.made[node.name] = list(dict.fromkeys(layouts))
        return tuple(unique.values())

    def often(self, value: str, cost: Cost) -> Cost:
        """Return the cost of doing something whenever a value is computed."""
        return cost.times(self.block.times(value))

    def fitting(self, node: Node, dims: Dims) -> list[Fragment]:
        """Return the layouts in registers in which a node over these dims may run."""
        fitting = [f for f in self.fragments if set(dims) <= set(f.dims)]
        late = self.block.phases[node.name] in (Phase.AFTER, Phase.JOINED)
        return [Fragment(Lanes.STRIPED, dims, ()), *fitting] if late or not fitting else fitting

    # -- operators -------------------------------------------------------------------------------

    def aligned(self, node: Node) -> Iterator[Implementation]:
        """Yield an operator whose operands lie aligned with its result: elementwise, or a sum.

        A sum over a dim that is partitioned over the warps leaves each warp a partial sum.
        """
        block, name = self.block, node.name
        every = dict.fromkeys(d for a in node.args for d in block.dims(a))
        dims, result = tuple(every), block.dims(name)
        summed = node.over in every
        layouts = self.fitting(node, dims if summed else result)
        within_a_warp = [f for f in layouts if summed and f.lanes is not Lanes.STRIPED]
        # Over lanes in every pass, or once where sums are carried on.
        users = block.body.users(name)
        once = users and all(u.op == "accum" for u in users)
        for layout in within_a_warp or layouts:
            whole, own = layout.of(dims), ""
            if summed:
                own = node.over if layout.warp_dim == node.over else ""
                product_cost = block.map("mul", whole, 4) if node.op == "contract" else Cost()
                # Rows lie in eight, columns in four lanes.
                steps = 3 if node.over in layout.rows else 2
                shuffles = block.elements(layout.of(result), steps * self.hw.shuffle_cycles)
                cost = self.often(name, block.simple(whole) + product_cost)
                cost += shuffles.times(block.rounds if once else block.times(name))
            else:
                cost = self.often(name, block.map(node.op, whole, block.width(name)))
            needs = tuple((a, layout.of(block.dims(a))) for a in node.args)
            yield Implementation(name, needs, (layout.of(result, own),), cost)

    def contract(self, node: Node) -> Iterator[Implementation]:
        """Yield products on the tensor cores, one for each dim to partition over the warps."""
        block, over = self.block, node.over
        rows = operand_rows(block, node)
        if set(rows[0]) == set(rows[1]):
            yield from self.aligned(node)
            return
        dynamic = {d.name for t in block.types.values() for d in t.dims if d.dynamic}
        pairs = [node.args, node.args[::-1]]  # for the M and the N side, static rows on M first
        pairs.sort(key=lambda pair: bool(dynamic & ({*block.dims(pair[0])} - {over})))
        for lanes, sides in product(self.offered.lanes, pairs[: 1 + self.offered.any_m_side]):
            depth = tuple(d for d in block.dims(sides[0]) if d == over)  # none if of extent 1
            m_rows, n_rows = rows if sides == node.args else rows[::-1]
            every = tuple(dict.fromkeys((*depth, *m_rows, *n_rows)))
            warp_dims = every if self.offered.any_warp_dim else depth or every
            for warp_dim in warp_dims or ("",):
                m, n = (
                    Fragment(lanes, rows, depth, warp_dim).of((*rows, *depth))
                    for rows in (m_rows, n_rows)
                )
                made = Fragment(Lanes.MMA, m_rows, n_rows, warp_dim)
                made = made.of(made.dims, over if warp_dim == over else "")
                cost = self.often(node.name, block.contract(m, n, over))
                needs = tuple(zip(sides, (m, n), strict=True))
                yield Implementation(node.name, needs, (made,), cost)

    def accum(self, node: Node) -> Iterator[Implementation]:
        """Yield sums over the loop, in the layouts of what is added."""
        if node.op != "accum":
            return
        (arg,) = node.args
        fused = self.block.body.producers[arg].op == "contract"  # an mma adds to what it is given
        for layout in (m for m in self.made[arg] if isinstance(m, Fragment)):
            added = Cost() if fused else self.often(arg, self.block.simple(layout))
            cost = Cost(registers=self.block.tile.registers(layout, 4)) + added  # fp32
            yield Implementation(node.name, ((arg, layout),), (layout,), cost)

    # -- inputs and outputs ----------------------------------------------------------------------

    def source(self, node: Node) -> Iterator[Implementation]:
        """Yield the copies of an input that its alignment allows.

        16-byte copies need rows that begin at multiples of 16 bytes, and tiles that cut them there,
        cp.async and bulk copies alike (PTX ISA); rows of dynamic length give no such assurance.
        """
        if not self.block.dims(node.name):
            yield Implementation(node.name, (), (UNIFORM,), Cost())
            return
        if node.op != "input":
            return
        type_ = self.block.tensor(node.name)
        last, width = type_.dims[-1], type_.dtype.bytes
        aligned = len(type_.dims) == 1 or (not last.dynamic and last.size * width % 16 == 0)
        aligned = aligned and self.block.tile.extents.get(last.name, 1) * width % 16 == 0
        # The latency of device memory in every pass, where no pipeline hides it.
        cycles = self.hw.exposed_cycles * self.block.times(node.name)
        exposed = (("device memory", cycles),) if self.block.looped(node.name) else ()
        for copy in self.offered.copies:
            if copy is None:
                yield from self.direct(node, last.name, exposed)
            elif copy is Copy.PLAIN or aligned:
                waits = exposed if copy is Copy.PLAIN else ()
                yield from self.staged(node, type_.names, copy, waits)

    def staged(
        self, node: Node, device: Dims, copy: Copy, waits: tuple[Latency, ...]
    ) -> Iterator[Implementation]:
        """Yield copies into shared memory: by swizzle, for the block or warp by warp."""
        block, dims, width = self.block, self.block.dims(node.name), self.block.width(node.name)
        order = tuple(d for d in device if d in dims)
        warp_dims = [d for own in self.offered.per_warp for d in (dims if own else ("",))]
        swizzles = [s for s in self.offered.swizzles if s in ABLE.get(copy, Swizzle)]
        for swizzle, warp_dim in product(swizzles if len(order) > 1 else IN_ORDER, warp_dims):
            stored = Stored(order, swizzle, warp_dim, copy=copy)
            rows = block.tile.extent(order[:-1]) * (block.warps if warp_dim == order[-1] else 1)
            stages = 2 if block.looped(node.name) else 1
            cost = self.often(node.name, block.copy(stored, width, rows))
            cost += Cost(shared_bytes=block.tile.shared_bytes(stored, width) * stages)
            yield Implementation(node.name, (), (stored,), cost, waits)

    def direct(self, node: Node, fast: str, waits: tuple[Latency, ...]) -> Iterator[Implementation]:
        """Yield loads from device memory straight into registers."""
        dims, width = self.block.dims(node.name), self.block.width(node.name)
        layouts = [f for f in self.fragments if set(dims) <= set(f.dims)]
        if any(u.op != "contract" for u in self.block.body.users(node.name)):
            layouts.append(Fragment(Lanes.STRIPED, dims, ()))
        for made in (layout.of(dims) for layout in layouts):
            cost = self.often(node.name, self.block.direct(made, width, fast))
            cost += Cost(registers=self.block.tile.registers(made, width))
            yield Implementation(node.name, (), (made,), cost, waits)

    def output(self, node: Node) -> Iterator[Implementation]:
        (arg,) = node.args
        fast = self.block.tensor(node.name).names[-1]
        dims, width = self.block.dims(arg), node.out.type.dtype.bytes
        for layout in (f.of(dims) for f in self.fitting(node, dims)):
            cost = self.block.direct(layout, width, fast).times(self.block.rounds)
            yield Implementation(node.name, ((arg, layout),), (), cost)

    # -- conversions -----------------------------------------------------------------------------

    def conversions(self, value: str, wanted: Iterable[ValueLayout]) -> Iterator[Implementation]:
        """Yield every conversion of a value from a layout it is made in to one that is wanted."""
        goals = [goal for goal in dict.fromkeys(wanted) if isinstance(goal, Fragment)]
        for source, goal in product(self.made[value], goals):
            if goal.partial or goal == source:
                continue
            if isinstance(source, Fragment):
                yield self.exchange(value, source, goal)
            elif set(source.order) == set(goal.dims) and source.warp_dim in ("", goal.warp_dim):
                width = self.block.width(value)
                cost = self.often(value, self.block.load(goal, source, width))
                cost += Cost(registers=self.block.tile.registers(goal, width))
                waits = not source.warp_dim and source.copy not in TRACKED
                barriers = (self.barrier(value, "copies"),) if waits else ()
                yield Implementation(value, ((value, source),), (goal,), cost, barriers)

    def barrier(self, value: str, after: str) -> Latency:
        """Return a barrier of the loop or around it; values of one depth share theirs."""
        cycles = self.hw.barrier_cycles * self.block.times(value)
        return (f"barrier after {after}, {self.block.phases[value].value}", cycles)

    def exchange(self, value: str, source: Fragment, goal: Fragment) -> Implementation:
        """Return the conversion through shared memory, rows or columns the faster dims there."""
        block = self.block
        width = 4 if source.partial else block.width(value)  # partial sums are fp32
        found = []
        for order in dict.fromkeys((source.dims, source.cols + source.rows)):
            between = Stored(order, Swizzle.PADDED, partial=source.partial)
            stored = block.store(source, between, width)
            found.append((stored + block.load(goal, between, width), between))
        cost, between = min(found, key=lambda pair: pair[0].shared + pair[0].issue)
        bytes_ = block.tile.shared_bytes(between, width) if block.looped(value) else 0
        cost = self.often(value, cost) + Cost(shared_bytes=bytes_)
        waits = (self.barrier(value, f"depth {block.depths[value]}"),)
        return Implementation(value, ((value, source),), (goal,), cost, waits)
