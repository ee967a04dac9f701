"""Instruction costs: what implementations and layout conversions cost a multiprocessor."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from math import ceil, prod

from mirage_kernels.generator.ir import Node
from mirage_kernels.generator.plan.bank_conflicts import VECTOR_BYTES, Access, access
from mirage_kernels.generator.plan.blocks import Block
from mirage_kernels.generator.plan.hardware import WAVEFRONT_BYTES
from mirage_kernels.generator.plan.layouts import (
    LINE_TILE,
    WARP_LANES,
    Copy,
    Fragment,
    Lanes,
    Place,
    Stored,
)

SIMPLE = ("neg", "square", "relu", "add", "sub", "mul", "max", "less", "both", "where")
PAIRED = ("add", "sub", "mul")  # two 2-byte values at a time (csrc/tile/elementwise.cuh)
MMA_M, MMA_N, MMA_K = 16, 8, 16  # m16n8k16, PTX ISA
TMA_TILE_ROWS = 256  # of a tensor copy at most, PTX ISA
SECTOR_BYTES = 32  # what device memory and L2 move at least, CUDA C++ Programming Guide


@dataclass(frozen=True)
class Cost:
    """Cycles of a multiprocessor by resource; registers of a thread and shared memory in use."""

    memory: float = 0.0
    cache: float = 0.0
    shared: float = 0.0
    issue: float = 0.0
    tensor: float = 0.0
    registers: int = 0
    shared_bytes: int = 0

    @property
    def cycles(self) -> tuple[float, ...]:
        """Cycles by resource."""
        return (self.memory, self.cache, self.shared, self.issue, self.tensor)

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def times(self, count: int) -> Cost:
        """Return the cost of doing it so often; registers and bytes are taken once."""
        memory, cache, shared, issue, tensor = (c * count for c in self.cycles)
        return Cost(memory, cache, shared, issue, tensor, self.registers, self.shared_bytes)


@dataclass(frozen=True)
class InstructionCosts:
    """Costs in one block, once."""

    block: Block

    def tensors(self) -> Cost:
        """Return what a kernel pays anyhow: every distinct byte of its tensors once."""
        block = self.block
        names = dict.fromkeys((*block.node.args, *(v.name for v in block.node.outs)))
        types = [block.types[name] for name in names]
        extents = ([block.sizes.get(d.name, d.size) for d in t.dims] for t in types)
        moved = sum(t.dtype.bytes * prod(e) for t, e in zip(types, extents, strict=True))
        microseconds = moved / block.on.memory_bytes_per_us
        return Cost(memory=microseconds * block.hardware.cycles_per_us)

    def elements(self, layout: Fragment, cycles: float) -> Cost:
        """Return the cost of so many cycles of a warp for each element of its lanes."""
        tile = self.block.tile
        return Cost(issue=tile.warps * tile.lane_elements(layout) * cycles)

    def map(self, op: str, layout: Fragment, width: int) -> Cost:
        """Return the cost of an elementwise op whose result has this layout."""
        hw = self.block.hardware
        # ex2 takes a product before it; other functions are refined to fp32, a lead.
        steps = 1 if op == "exp" else 8
        function = hw.special_cycles + steps * hw.simple_cycles
        each = hw.simple_cycles if op in SIMPLE else function
        if width == 2:
            each = each / 2 if op in PAIRED else each + hw.convert_cycles / 2
        return self.elements(layout, each)

    def operator(self, node: Node, layout: Fragment, *, summed: bool) -> Cost:
        """Return the cost of an elementwise op, or of a sum over elements in this layout."""
        if not summed:
            return self.map(node.op if node.args else "add", layout, self.block.width(node.name))
        product = self.map("mul", layout, 4) if node.op == "contract" else Cost()
        return self.simple(layout) + product

    def simple(self, layout: Fragment, count: float = 1.0) -> Cost:
        """Return the cost of `count` simple instructions per element: of an addition, a maximum."""
        return self.elements(layout, count * self.block.hardware.simple_cycles)

    def rescale(self, layout: Fragment, maximum: Fragment) -> Cost:
        """Return the cost of x * exp(maximum before - after) + y."""
        return self.simple(layout, 2.0) + self.map("exp", maximum, 4)

    def shuffles(self, result: Fragment, over_rows: bool) -> Cost:
        """Return the cost of sums over lanes: rows lie in eight, columns in four of them."""
        steps = 3 if over_rows else 2
        return self.elements(result, steps * self.block.hardware.shuffle_cycles)

    def contract(self, m_side: Fragment, n_side: Fragment, over: str, batch: int) -> Cost:
        """Return the cost of a product on the tensor cores."""
        tile, hw = self.block.tile, self.block.hardware
        warp_dim = m_side.warp_dim or n_side.warp_dim
        m, n = (-(-tile.extent(side.rows, warp_dim) // batch) for side in (m_side, n_side))
        depth = tile.extent((over,), warp_dim)
        count = tile.warps * batch * ceil(m / MMA_M) * ceil(n / MMA_N) * ceil(depth / MMA_K)
        return Cost(tensor=count * hw.mma_cycles, issue=count * hw.simple_cycles)

    def load(self, fragment: Fragment, stored: Stored, width: int) -> Cost:
        """Return the cost of reading a fragment from shared memory, every warp's partial sum."""
        once = access(fragment, stored, self.block.tile, width)
        copies = self.block.warps if stored.partial else 1
        return self._accessed(once, copies) + self.simple(fragment, copies - 1)

    def store(self, fragment: Fragment, stored: Stored, width: int) -> Cost:
        """Return the cost of writing a fragment to shared memory."""
        return self._accessed(access(fragment, stored, self.block.tile, width))

    def _accessed(self, access: Access, count: int = 1) -> Cost:
        often, cycles = self.block.warps * count, self.block.hardware.simple_cycles
        return Cost(shared=often * access.wavefronts, issue=often * access.instructions * cycles)

    def copy(self, stored: Stored, width: int, rows: int) -> Cost:
        """Return the cost of bringing a tile of so many contiguous rows into shared memory."""
        hw = self.block.hardware
        moved = self.block.tile.extent(stored.order) * width
        if stored.copy is Copy.CP_ASYNC:  # the instruction, its address, its predicate
            issue = moved / (WARP_LANES * VECTOR_BYTES) * 3 * hw.simple_cycles
        elif stored.copy is Copy.BULK:
            issue = rows * hw.bulk_cycles
        elif stored.copy is Copy.TENSOR:
            issue = ceil(rows / TMA_TILE_ROWS) * hw.bulk_cycles
        else:  # load, store, two addresses per element
            issue = moved / width / WARP_LANES * 4 * hw.simple_cycles
        return Cost(cache=self._cached(moved), shared=moved / WAVEFRONT_BYTES, issue=issue)

    def direct(self, fragment: Fragment, width: int, fast: str) -> Cost:
        """Return the cost of loads from device memory to registers, or stores, warp by warp.

        Sectors are touched whole; elements along the dim `fast` are contiguous in memory.
        """
        striped, run = fragment.lanes is Lanes.STRIPED, fragment.lanes.run
        rows_together = fast in fragment.rows and not striped
        copies = 1 if fragment.warp_dim or striped else self.block.warps
        together = LINE_TILE if rows_together else 4 * run
        waste = 1.0 if striped else max(1.0, SECTOR_BYTES / (together * width))
        moved = self.block.tile.extent(fragment.dims) * width * copies
        vector = min(VECTOR_BYTES, width * (1 if rows_together else run))
        issue = moved / (WARP_LANES * vector) * 2 * self.block.hardware.simple_cycles
        return Cost(cache=self._cached(moved * waste), issue=issue)

    def _cached(self, moved: float) -> float:
        """Return the cycles in which L2 serves one block's bytes, all blocks asking at once."""
        on = self.block.on
        at_once = min(self.block.blocks, on.multiprocessors)
        return moved * at_once / on.l2_bytes_per_us * self.block.hardware.cycles_per_us

    def combine(self, fragment: Fragment, place: Place) -> Cost:
        """Return the cost of a sum over blocks: each writes its own and reads a part of all."""
        moved = self.block.tile.extent(fragment.dims) * 4
        if place is Place.CLUSTER:
            remote = moved / self.block.hardware.cluster_bytes
            return Cost(shared=moved / WAVEFRONT_BYTES + remote)
        return Cost(cache=2 * self._cached(moved))
