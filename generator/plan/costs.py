"""A kernel of a muGraph as the layout planner sees it, and what instructions cost it.

Costs are cycles of a multiprocessor, of one block's tiles, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import cached_property
from math import ceil, prod

from mirage_kernels.generator.ir import Graph, Node, Phase, TensorType, count, phases_of
from mirage_kernels.generator.meaning.cost import CHEAP
from mirage_kernels.generator.plan.hardware import WAVEFRONT_BYTES, HardwareParameters, hardware
from mirage_kernels.generator.plan.layouts import (
    LINE_TILE,
    VECTOR_BYTES,
    WARP_LANES,
    Copy,
    Fragment,
    Lanes,
    Stored,
    Tile,
    access,
)
from mirage_kernels.generator.target import Target

PAIRED = ("add", "sub", "mul")  # two 2-byte values at a time (csrc/tile/math/elementwise.cuh)
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
class Block:
    """One kernel: its graph without thread graphs, bound to tensors, at given extents."""

    node: Node
    body: Graph
    types: Mapping[str, TensorType]  # of the kernel graph's tensors
    sizes: Mapping[str, int]  # extents of whole dims
    warps: int
    on: Target

    @property
    def hardware(self) -> HardwareParameters:
        """What its multiprocessor does per cycle."""
        return hardware(self.on)

    @cached_property
    def phases(self) -> Mapping[str, Phase]:
        """When each value is computed."""
        return {name: phase for name, phase in phases_of(self.body).items() if phase is not None}

    @cached_property
    def depths(self) -> Mapping[str, int]:
        """For each value the operators of its phase on the longest path to it."""
        depths: dict[str, int] = {}
        for node in self.body.nodes:
            before = [depths[a] for a in node.args if self.phases[a] is self.phases[node.name]]
            depths |= {v.name: 1 + max(before, default=-1) for v in node.outs}
        return depths

    @cached_property
    def tile(self) -> Tile:
        """Extents of the tiles."""
        extents: dict[str, int] = {}
        for node in self.body.nodes:
            if node.op != "output":  # whose type is the whole tensor's
                for d in (d for v in node.outs for d in v.type.dims):
                    extents[d.name] = max(extents.get(d.name, 1), d.size)
        bounded = {d: min(n, self.sizes.get(d, n)) for d, n in extents.items()}
        return Tile(bounded, self.warps)

    def dims(self, value: str) -> tuple[str, ...]:
        """Return a value's dims, those of extent 1 left away."""
        names = self.body.values[value].type.names
        return tuple(d for d in names if self.tile.extents.get(d, 1) > 1)

    def width(self, value: str) -> int:
        """Return the size of a value's elements in bytes."""
        return self.body.values[value].type.dtype.bytes

    def looped(self, value: str) -> bool:
        """Say whether a value is computed in every pass of the loop."""
        return self.phases[value] is Phase.LOOP

    def tensor(self, value: str) -> TensorType:
        """Return the type of the tensor that an input or output node is bound to."""
        inputs = [n.name for n in self.body.inputs]
        if value in inputs:
            return self.types[self.node.args[inputs.index(value)]]
        return self.types[self.node.outs[self.body.outputs.index(value)].name]

    @cached_property
    def blocks(self) -> int:
        """Blocks of the grid."""
        assert self.body.space is not None
        return prod(count(a, self.sizes[a.dim]) for a in self.body.space.grid)

    @property
    def rounds(self) -> int:
        """Blocks that one multiprocessor runs, one after the other or side by side."""
        return -(-self.blocks // self.on.multiprocessors)

    @cached_property
    def passes(self) -> int:
        """Passes of the loop on one multiprocessor, of all its blocks."""
        assert self.body.space is not None
        return self.body.space.steps(self.sizes) * self.rounds

    def times(self, value: str) -> int:
        """Return how often a multiprocessor computes a value, in all passes of all its blocks."""
        return self.passes if self.looped(value) else self.rounds

    # -- costs -----------------------------------------------------------------------------------

    def traffic(self) -> Cost:
        """Return what a kernel pays anyhow: every distinct byte of its tensors once."""
        names = dict.fromkeys((*self.node.args, *(v.name for v in self.node.outs)))
        types = [self.types[name] for name in names]
        extents = ([self.sizes.get(d.name, d.size) for d in t.dims] for t in types)
        moved = sum(t.dtype.bytes * prod(e) for t, e in zip(types, extents, strict=True))
        return Cost(memory=moved / self.on.memory_bytes_per_us * self.hardware.cycles_per_us)

    def elements(self, layout: Fragment, cycles: float) -> Cost:
        """Return the cost of so many cycles of a warp for each element of its lanes."""
        return Cost(issue=self.warps * self.tile.lane_elements(layout) * cycles)

    def simple(self, layout: Fragment, count: float = 1.0) -> Cost:
        """Return the cost of `count` simple instructions per element: of an addition, a maximum."""
        return self.elements(layout, count * self.hardware.simple_cycles)

    def map(self, op: str, layout: Fragment, width: int) -> Cost:
        """Return the cost of an elementwise op whose result has this layout."""
        hw = self.hardware
        # ex2 takes a product before it; other functions are refined to fp32, a lead.
        steps = 1 if op in ("exp", "inner_exp") else 8
        each = hw.simple_cycles
        if op not in CHEAP:
            each = hw.special_cycles + steps * hw.simple_cycles
        if width == 2:
            each = each / 2 if op in PAIRED else each + hw.convert_cycles / 2
        return self.elements(layout, each)

    def contract(self, m_side: Fragment, n_side: Fragment, over: str) -> Cost:
        """Return the cost of a product on the tensor cores."""
        tile, hw = self.tile, self.hardware
        warp_dim = m_side.warp_dim or n_side.warp_dim
        m, n, k = (tile.extent(d, warp_dim) for d in (m_side.rows, n_side.rows, (over,)))
        count = tile.warps * ceil(m / MMA_M) * ceil(n / MMA_N) * ceil(k / MMA_K)
        return Cost(tensor=count * hw.mma_cycles, issue=count * hw.simple_cycles)

    def load(self, fragment: Fragment, stored: Stored, width: int) -> Cost:
        """Return the cost of reading a fragment from shared memory, every warp's partial sum."""
        copies = self.warps if stored.partial else 1
        return self.store(fragment, stored, width, copies) + self.simple(fragment, copies - 1)

    def store(self, fragment: Fragment, stored: Stored, width: int, copies: int = 1) -> Cost:
        """Return the cost of writing a fragment to shared memory, or of reading it."""
        once, often = access(fragment, stored, self.tile, width), self.warps * copies
        issue = often * once.instructions * self.hardware.simple_cycles
        return Cost(shared=often * once.wavefronts, issue=issue)

    def copy(self, stored: Stored, width: int, rows: int) -> Cost:
        """Return the cost of bringing a tile of so many contiguous rows into shared memory."""
        hw = self.hardware
        moved = self.tile.extent(stored.order) * width
        if stored.copy is Copy.CP_ASYNC:  # the instruction, its address, its predicate
            issue = moved / (WARP_LANES * VECTOR_BYTES) * 3 * hw.simple_cycles
        elif stored.copy is Copy.BULK:
            issue = rows * hw.bulk_cycles
        elif stored.copy is Copy.TENSOR:
            issue = ceil(rows / TMA_TILE_ROWS) * hw.bulk_cycles
        else:  # load, store, two addresses per element
            issue = moved / width / WARP_LANES * 4 * hw.simple_cycles
        return Cost(cache=self.cached(moved), shared=moved / WAVEFRONT_BYTES, issue=issue)

    def direct(self, fragment: Fragment, width: int, fast: str) -> Cost:
        """Return the cost of loads from device memory to registers, or stores, warp by warp.

        Sectors are touched whole; elements along the dim `fast` are contiguous in memory.
        """
        striped, run = fragment.lanes is Lanes.STRIPED, fragment.lanes.run
        rows_together = fast in fragment.rows and not striped
        copies = 1 if fragment.warp_dim or striped else self.warps
        together = LINE_TILE if rows_together else 4 * run
        waste = 1.0 if striped else max(1.0, SECTOR_BYTES / (together * width))
        moved = self.tile.extent(fragment.dims) * width * copies
        vector = min(VECTOR_BYTES, width * (1 if rows_together else run))
        issue = moved / (WARP_LANES * vector) * 2 * self.hardware.simple_cycles
        return Cost(cache=self.cached(moved * waste), issue=issue)

    def cached(self, moved: float) -> float:
        """Return the cycles in which L2 serves one block's bytes, all blocks asking at once."""
        at_once = min(self.blocks, self.on.multiprocessors)
        return moved * at_once / self.on.l2_bytes_per_us * self.hardware.cycles_per_us
