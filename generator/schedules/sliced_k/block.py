"""What a block of sliced-K keeps in registers and in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.layouts import LINE_TILE, WARP_LANES
from mirage_kernels.generator.plan.memory import Arrangement, Buffer, arrange
from mirage_kernels.generator.plan.program import Do, Layout, TileProgram
from mirage_kernels.generator.schedules.loop import (
    REGISTERS_BESIDE_PRODUCERS,
    REGISTERS_LEFT,
)
from mirage_kernels.generator.schedules.producer_blocks import ROW_TILE, consumer_program
from mirage_kernels.generator.schedules.sliced_k.knobs import SlicedK
from mirage_kernels.generator.schedules.sliced_k.shared_memory import (
    Kept,
    Meeting,
    kept_areas,
    own_inner,
)

RING = "steps"  # the ring's name among the buffers
MAPPED_DEPTH_REGISTERS = 16  # of fp32 vectors along the depth that the loop computes (ptxas)
MAPPED_BF16_REGISTERS = 24  # more than fp16: 13 to 38 by ptxas, for six architectures


@dataclass(frozen=True)
class Footprint:
    """What a tile program keeps per step and block, in units that follow from its knobs."""

    row_loads: int  # fragments of the streamed operands
    token_loads: int
    depth_loads: int
    meetings: tuple[Meeting, ...]
    maps_bf16: bool  # computes with bf16 elements, not only products
    maps_depth: bool  # computes vectors along the depth in fp32
    maps_tokens: bool  # computes tokens in fp32, with statistics known before the loop
    inner_lines: int = 0  # of streamed operands that the grid does not cut, in whole row tiles
    kept: tuple[Kept, ...] = ()
    receives: bool = False  # totals that producer blocks compute
    row_tile: int = ROW_TILE  # a block's rows are a multiple of it

    @staticmethod
    def of(program: TileProgram) -> Footprint:
        """Return a tile program's fragments by layout, and what meets."""
        program = consumer_program(program)
        loads = [s.layout for s in program.loads]
        mapped = [s for s in program.loop if s.do is Do.MAP]
        return Footprint(
            loads.count(Layout.ROWS),
            loads.count(Layout.TOKENS),
            loads.count(Layout.DEPTH),
            tuple(
                Meeting(s.out, s.layout, s.barrier, own_inner(program, s)) for s in program.meetings
            ),
            any(s.dtype is DType.BF16 for s in mapped),
            any(s.layout is Layout.DEPTH and s.dtype is DType.FP32 for s in mapped),
            bool(program.statistics),
            sum(own_inner(program, s) for s in program.loads),
            kept_areas(program),
            bool(program.received),
            ROW_TILE if program.roles.inner else LINE_TILE,
        )

    @property
    def products(self) -> int:
        """Accumulators over rows x tokens."""
        return [m.layout for m in self.meetings].count(Layout.ACCUM)

    @property
    def most_registers(self) -> int:
        """Registers that a thread may take."""
        return REGISTERS_BESIDE_PRODUCERS if self.receives else REGISTERS_LEFT

    def octets(self, knobs: SlicedK) -> int:
        """Return how many 16-byte octets a lane holds of one step."""
        lines = self.row_loads * knobs.rows + self.token_loads * knobs.tokens + self.inner_lines
        return knobs.chunks * (lines // LINE_TILE + self.depth_loads)

    def registers(self, knobs: SlicedK) -> int:
        """Return how many registers a thread needs for one step and its accumulators."""
        inner = sum(m.inner for m in self.meetings) // ROW_TILE
        tiles = self.products * -(-knobs.rows // ROW_TILE) + inner
        products = tiles * (knobs.tokens // LINE_TILE) * 4
        mapped = MAPPED_BF16_REGISTERS * self.maps_bf16
        mapped += MAPPED_DEPTH_REGISTERS * self.maps_depth
        mapped += knobs.tokens * knobs.chunks * self.maps_tokens
        return products + self.octets(knobs) * 4 + mapped

    def shared_bytes(self, knobs: SlicedK) -> int:
        """Return the shared memory of one block."""
        return self.arrangement(knobs).peak

    def arrangement(self, knobs: SlicedK) -> Arrangement:
        """Return where the ring and what meets after the loop lie in shared memory."""
        return arrange(self.buffers(knobs))

    def buffers(self, knobs: SlicedK) -> list[Buffer]:
        """Return the ring, what meets and what is kept, with the epochs in which they are live.

        All of it is taken to be read until the last epoch, that of the epilogue.
        """
        ring = knobs.warps * knobs.stages * self.octets(knobs) * 16 * WARP_LANES
        epochs = list(accumulate(int(m.barrier) for m in self.meetings))
        met = epochs[-1] if epochs else 0
        end = met + 2 + max((k.since for k in self.kept), default=0)
        since = {k.name: 0 if k.since < 0 else met + k.since for k in self.kept}
        since |= {m.name: epoch for m, epoch in zip(self.meetings, epochs, strict=True)}
        kept = [k for k in self.kept if k.since >= 0]
        areas: list[Meeting | Kept] = [*self.meetings, *kept]
        late = [Buffer(a.name, a.bytes(knobs), frozenset(range(since[a.name], end))) for a in areas]
        whole = frozenset(range(end))
        early = [Buffer(k.name, k.bytes(knobs), whole) for k in self.kept if k.since < 0]
        return [*early, Buffer(RING, ring, frozenset({0})), *late]
