"""The ways to do each operator of a block graph: by op kind, in every frame that fits.

elementwise   any frame; operands aligned with it, each in the fragment that the frame gives it
sum, peak     any frame; a dim dealt out to the warps leaves every warp a part
contract      operands as lines | contracted, either one on the M side, in the same lane map,
              any one dim dealt out to the warps; makes PAIRS of M lines | N lines
accum         in the form of what is added
combine       parts of all blocks through distributed shared memory, or device memory
input         one of the offered copies into shared memory, or straight into registers
output        from any fragment, at the cost of the sectors it touches
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from mirage_kernels.generator.ir import OPS, Kind, Node, Phase, count
from mirage_kernels.generator.plan.blocks import Block
from mirage_kernels.generator.plan.forms import (
    UNIFORM,
    Copy,
    Form,
    Fragment,
    Frame,
    Lanes,
    Place,
    Stored,
    Swizzle,
)
from mirage_kernels.generator.plan.frames import frames_of, operands_of, sides_of
from mirage_kernels.generator.plan.instruction_costs import Prices
from mirage_kernels.generator.plan.integer_program import Held, Way, Work


@dataclass(frozen=True)
class Offered:
    """Which choices there are; the writers offer fewer than the machine."""

    copies: tuple[Copy | None, ...] = (*Copy, None)  # None: straight into registers
    swizzles: tuple[Swizzle, ...] = tuple(Swizzle)
    slices: tuple[bool, ...] = (True, False)  # warps with their own slices of a tile, or one tile
    lanes: tuple[Lanes, ...] = (Lanes.OCTETS, Lanes.PAIRS)  # of a contraction's operands
    deals: str = "any"  # which dim of a product goes to the warps: "any", "depth", "lines"
    m_side: str = "any"  # whose lines take it: "any", "first" operand's, "static", "dynamic" ones


NOTHING = Work()
Devices = Mapping[str, tuple[Stored, ...]]  # how each tensor of device memory may lie


class Ways:
    """The ways of one block's operators."""

    def __init__(self, block: Block, offered: Offered, devices: Devices) -> None:
        self.block, self.offered, self.devices = block, offered, devices
        self.prices = Prices(block)
        self.frames = frames_of(block, offered.lanes)
        self.made: dict[str, list[Form]] = {}  # the forms that ways make a value in
        self.rules: dict[Kind, Callable[[Node], Iterator[Way]]] = {
            Kind.SOURCE: self.source,
            Kind.ELEMENTWISE: self.elementwise,
            Kind.REDUCE: self.reduce,
            Kind.STABILISER: self.reduce,
            Kind.CONTRACT: self.contract,
            Kind.CARRY: self.carry,
            Kind.OUTPUT: self.output,
        }

    def of(self, node: Node) -> tuple[Way, ...]:
        """Return a node's ways; nodes come in the order of the graph."""
        unique: dict[tuple[object, ...], Way] = {}
        for way in self.rules[OPS[node.op].kind](node):
            unique.setdefault((way.needs, way.makes, way.latencies, way.mode), way)
        forms = [form for way in unique.values() for _, form in way.makes]
        self.made[node.name] = list(dict.fromkeys(forms))
        return tuple(unique.values())

    def way(
        self, node: Node, needs: Sequence[Held], made: Form | None, work: Work = NOTHING
    ) -> Way:
        makes = () if made is None else ((self.block.held(node.name), made),)
        return Way(node.name, self.block.index, tuple(needs), makes, work)

    def needs(self, *values: tuple[str, Form]) -> list[Held]:
        return [(self.block.held(v), form) for v, form in values]

    def frames_for(self, node: Node, dims: set[str]) -> Iterator[Frame]:
        """Yield the frames in which a node over these dims may run."""
        late = self.block.phases[node.name] in (Phase.AFTER, Phase.JOINED)
        fitting = [f for f in self.frames if dims <= f.dims]
        if late or not fitting:
            order = tuple(d for d in self.block.dims(node.name) if d in dims)
            yield Frame(Lanes.SPREAD, order + tuple(sorted(dims - set(order))), ())
        yield from fitting

    def lane_frames(self, node: Node, dims: set[str]) -> list[Frame]:
        """Return the frames in which a sum stays within a warp."""
        frames = list(self.frames_for(node, dims))
        return [f for f in frames if f.lanes is not Lanes.SPREAD] or frames

    # -- operators -------------------------------------------------------------------------------

    def elementwise(self, node: Node) -> Iterator[Way]:
        width = self.block.width(node.name)
        for frame in self.frames_for(node, set(self.block.dims(node.name))):
            form = frame.of(self.block.dims(node.name))
            work = self.prices.often(node.name, self.prices.map(node.op, form, width))
            for choice in product(*(self.aligned(a, frame) for a in node.args)):
                needs = self.needs(*zip(node.args, choice, strict=True))
                pending = {f.pending for f in choice if f.pending} - set(form.rows + form.cols)
                made = replace(form, pending=pending.pop()) if pending else form
                yield self.answering(self.way(node, needs, made, work), node, choice)

    def aligned(self, value: str, frame: Frame) -> list[Fragment]:
        """Return the fragments in which a value lies aligned with a frame.

        A bound along the dim that the frame deals out may be each warp's own.
        """
        dims = self.block.dims(value)
        whole = frame.of(dims)
        if frame.split in self.block.own[value]:
            return [frame.of(dims, pending=frame.split), whole]
        return [whole]

    def answering(self, way: Way, node: Node, forms: Sequence[Fragment]) -> Way:
        """Have all users of a bound take it alike: each warp's own, or the whole block's."""
        for arg, form in zip(node.args, forms, strict=True):
            root = self.bound_of(arg)
            if root and self.block.phases[node.name] is Phase.LOOP:
                return replace(way, mode=(self.block.held(root), form.pending or "whole"))
        return way

    def bound_of(self, value: str) -> str:
        """Return the running bound that a value is made of alone."""
        node = self.block.body.producers[value]
        return value if node.op == "peak" else ""

    def reduce(self, node: Node) -> Iterator[Way]:
        (arg,) = node.args
        dims = self.block.dims(arg)
        if node.over not in dims:  # one element to add up
            yield from self.elementwise(node)
            return
        for frame in self.lane_frames(node, set(dims)):
            form = frame.of(dims)
            pending = node.over if frame.split == node.over else ""
            made = frame.of(self.block.dims(node.name), pending)
            work = self.prices.often(node.name, self.prices.reduce(form, node.over))
            work += self.joined_lanes(node, made, node.over in frame.rows)
            yield self.way(node, self.needs((arg, form)), made, work)

    def joined_lanes(self, node: Node, made: Fragment, over_rows: bool) -> Work:
        """Return the cost of joining lanes: in every pass, or once where sums are carried on."""
        users = self.block.body.users(node.name)
        work = self.prices.lanes(made, over_rows)
        if users and all(u.op == "accum" for u in users):
            return work.times(self.block.rounds)
        return self.prices.often(node.name, work)

    def contract(self, node: Node) -> Iterator[Way]:
        operands = operands_of(self.block, node)
        if operands is None:  # lines times the same lines
            yield from self.squares(node)
            return
        for lanes in self.offered.lanes:
            for first, second in sides_of(self.block, node, self.offered.m_side):
                yield from self.product(node, lanes, (first, second))

    def product(self, node: Node, lanes: Lanes, sides: tuple[str, str]) -> Iterator[Way]:
        """Yield the ways with `sides[0]` on the M side, one for every dim to deal out."""
        block, over = self.block, node.over
        depth = tuple(d for d in block.dims(sides[0]) if d == over)  # none if of extent 1
        lines = [tuple(d for d in block.dims(a) if d != over) for a in sides]
        shared = set(lines[0]) & set(lines[1])
        batch = block.tile.extent(shared)
        for split in self.dealt(depth, (*lines[0], *lines[1])):
            rows, cols = (Frame(lanes, x, depth, split).of((*x, *depth)) for x in lines)
            pending = over if split == over else ""
            columns = tuple(d for d in lines[1] if d not in shared)
            made = Frame(Lanes.PAIRS, lines[0], columns, split).of((*lines[0], *columns), pending)
            work = self.prices.contract(rows, cols, over, batch)
            needs = self.needs((sides[0], rows), (sides[1], cols))
            yield self.way(node, needs, made, self.prices.often(node.name, work))

    def dealt(self, depth: tuple[str, ...], lines: tuple[str, ...]) -> tuple[str, ...]:
        """Return the dims of which one goes to the warps; none where there is but one element."""
        every = tuple(dict.fromkeys((*depth, *lines)))
        return {"depth": depth, "lines": lines}.get(self.offered.deals) or every or ("",)

    def squares(self, node: Node) -> Iterator[Way]:
        dims = tuple(dict.fromkeys(d for a in node.args for d in self.block.dims(a)))
        for frame in self.lane_frames(node, set(dims)):
            forms = [frame.of(self.block.dims(a)) for a in node.args]
            made = frame.of(
                self.block.dims(node.name), node.over if frame.split == node.over else ""
            )
            once = self.prices.map("mul", frame.of(dims), 4)
            once += self.prices.reduce(frame.of(dims), node.over)
            work = self.prices.often(node.name, once)
            work += self.joined_lanes(node, made, node.over in frame.rows)
            yield self.way(node, self.needs(*zip(node.args, forms, strict=True)), made, work)

    # -- carries ---------------------------------------------------------------------------------

    def carry(self, node: Node) -> Iterator[Way]:
        rules = {"accum": self.accum, "last": self.last, "accum_rescaled": self.accum_rescaled}
        yield from rules.get(node.op, self.combine)(node)

    def fragments(self, value: str) -> list[Fragment]:
        return [f for f in self.made[value] if isinstance(f, Fragment)]

    def accum(self, node: Node) -> Iterator[Way]:
        (arg,) = node.args
        fused = self.block.body.producers[arg].op == "contract"  # an mma adds to what it is given
        for form in self.fragments(arg):
            work = self.prices.accumulate(form, 0.0 if fused else 1.0)
            yield self.way(node, self.needs((arg, form)), form, self.prices.often(arg, work))

    def last(self, node: Node) -> Iterator[Way]:
        (arg,) = node.args
        for form in self.fragments(arg):
            yield self.answering(self.way(node, self.needs((arg, form)), form), node, [form])

    def accum_rescaled(self, node: Node) -> Iterator[Way]:
        arg, bound = node.args
        for form in self.fragments(arg):
            frame = Frame(form.lanes, form.rows, form.cols, form.split)
            aligned = frame.of(self.block.dims(bound))
            choices = [aligned]
            if form.pending in self.block.own[bound]:
                choices.insert(0, replace(aligned, pending=form.pending))
            for chosen in choices:
                work = self.prices.often(arg, self.prices.rescale(form, chosen))
                way = self.way(node, self.needs((arg, form), (bound, chosen)), form, work)
                kind = (self.block.held(self.bound_of(bound) or bound), chosen.pending or "whole")
                yield replace(way, mode=kind)

    def combine(self, node: Node) -> Iterator[Way]:
        """Yield the sum over blocks: near ones through distributed shared memory, else any."""
        f, space = self.block.facts, self.block.body.space
        assert space is not None
        axis = next(a for a in space.reduced if a.dim == node.over)
        near = count(axis, self.block.sizes[axis.dim]) <= f.cluster_blocks
        dims = self.block.dims(node.name)
        spread = Frame(Lanes.SPREAD, dims, ()).of(dims)
        for place in (Place.CLUSTER, Place.DEVICE) if near else (Place.DEVICE,):
            latency = "cluster" if place is Place.CLUSTER else "device"
            stored = Stored(place, dims, Swizzle.PADDED)
            for forms in product(*(self.fragments(a) for a in node.args)):
                if len({f.pending for f in forms}) > 1 or len({f.lanes for f in forms}) > 1:
                    continue
                work = self.prices.exchange(forms[0], place).times(self.block.rounds)
                way = self.way(node, self.needs(*zip(node.args, forms, strict=True)), spread, work)
                makes = ((self.block.held(node.name), stored), *way.makes)
                latencies = (f"{self.block.index} {latency} {node.over}",)
                yield replace(way, makes=makes, latencies=latencies)

    # -- edges -----------------------------------------------------------------------------------

    def source(self, node: Node) -> Iterator[Way]:
        if node.op == "input" and node.out.type.dims:
            yield from self.input(node)
        elif not self.block.dims(node.name):
            yield self.way(node, [], UNIFORM)
        else:  # positions: counted where they are wanted
            for frame in self.frames_for(node, set(self.block.dims(node.name))):
                form = frame.of(self.block.dims(node.name))
                work = self.prices.often(node.name, self.prices.map("add", form, 4))
                yield self.way(node, [], form, work)

    def input(self, node: Node) -> Iterator[Way]:
        if not self.block.dims(node.name):
            yield self.way(node, [], UNIFORM)
            return
        for device in self.devices[self.block.tensor(node.name)]:
            needs: list[Held] = [(self.block.tensor(node.name), device)]
            for copy in self.offered.copies:
                if copy is None:
                    yield from self.direct(node, device, needs)
                elif copy is Copy.PLAIN or self.copyable(node, device):
                    yield from self.staged(node, device, copy)

    def copyable(self, node: Node, device: Stored) -> bool:
        """Say whether 16-byte copies can bring a tile in.

        Lines must begin at multiples of 16 bytes and tiles cut them there, cp.async and bulk copies
        alike (PTX ISA); lines of dynamic length give no such promise.
        """
        type_ = self.block.types[self.block.tensor(node.name)]
        fast = type_.dim(device.order[-1])
        extent = self.block.tile.extents.get(fast.name, 1)
        width = type_.dtype.bytes
        aligned = len(type_.dims) == 1 or (not fast.dynamic and fast.size * width % 16 == 0)
        return aligned and extent * width % 16 == 0

    def staged(self, node: Node, device: Stored, copy: Copy) -> Iterator[Way]:
        """Yield the ways through shared memory: by swizzle, for the block or warp by warp."""
        dims, width = self.block.dims(node.name), self.block.width(node.name)
        order = tuple(d for d in device.order if d in dims)
        slices = [*(dims if True in self.offered.slices else ())]
        slices += [""] if False in self.offered.slices else []
        for swizzle, slice_ in product(self.swizzles(copy, order), slices):
            stored = Stored(Place.SHARED, order, swizzle, slice_, copy=copy)
            lines = self.lines(order, slice_)
            work = self.prices.often(node.name, self.prices.copy(stored, width, lines))
            looped = self.block.phases[node.name] is Phase.LOOP
            held = self.block.tile.shared_bytes(stored, width) * (2 if looped else 1)
            needs = [(self.block.tensor(node.name), device)]
            way = self.way(node, needs, stored, work + Work(shared_bytes=held))
            yield self.exposed(way) if copy is Copy.PLAIN and looped else way

    def exposed(self, way: Way) -> Way:
        """Have a way pay for the latency of device memory in every pass: no ring hides it."""
        return replace(way, latencies=(f"{self.block.index} {Phase.LOOP.name} exposed",))

    def lines(self, order: tuple[str, ...], slice_: str) -> int:
        """Return the contiguous runs of a tile: a slice along the fast dim cuts each of them."""
        runs = self.block.tile.extent(order[:-1])
        return runs * (self.block.warps if slice_ == order[-1] else 1)

    def swizzles(self, copy: Copy, order: tuple[str, ...]) -> list[Swizzle]:
        """Return how a copy may arrange what it brings.

        The tensor copy swizzles by itself, in the one way that has 128-byte rows (PTX ISA, tensor
        swizzling modes); a bulk copy keeps a line together and so can only pad lines.
        """
        able = {
            Copy.TENSOR: (Swizzle.NONE, Swizzle.XOR),
            Copy.BULK: (Swizzle.NONE, Swizzle.PADDED),
        }.get(copy, tuple(Swizzle))
        wanted = [s for s in self.offered.swizzles if s in able]
        return wanted if len(order) > 1 else [Swizzle.NONE]

    def direct(self, node: Node, device: Stored, needs: list[Held]) -> Iterator[Way]:
        dims, width = self.block.dims(node.name), self.block.width(node.name)
        users = self.block.body.users(node.name)
        looped = self.block.phases[node.name] is Phase.LOOP
        for frame in [f for f in self.frames if set(dims) <= f.dims] + [
            Frame(Lanes.SPREAD, dims, ()) for u in users if u.op != "contract"
        ]:
            form = frame.of(dims)
            rows_together = device.order[-1] in form.rows and form.lanes is not Lanes.SPREAD
            work = self.prices.often(node.name, self.prices.direct(form, width, rows_together))
            held = Work(registers=self.block.tile.registers(form, width))
            way = self.way(node, needs, form, work + held)
            yield self.exposed(way) if looped else way

    def output(self, node: Node) -> Iterator[Way]:
        (arg,) = node.args
        dims, width = self.block.dims(arg), node.out.type.dtype.bytes
        for device in self.devices[self.block.tensor(node.name)]:
            makes = ((self.block.tensor(node.name), device),)
            for frame in self.frames_for(node, set(dims)):
                form = frame.of(dims)
                together = device.order[-1:] == form.rows[-1:] and form.lanes is not Lanes.SPREAD
                work = self.prices.direct(form, width, together).times(self.block.rounds)
                yield replace(self.way(node, self.needs((arg, form)), None, work), makes=makes)
