"""Knobs of sliced-K, and what a block of theirs keeps in registers and in shared memory.

Every warp of a block takes slices of the depth; its sums meet in the end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import ClassVar

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.layouts import LINE_TILE, WARP_LANES
from mirage_kernels.generator.plan.memory import Arrangement, Buffer, arrange
from mirage_kernels.generator.plan.program import Do, Layout, Statement, TileProgram
from mirage_kernels.generator.schedules.loop import (
    REGISTERS_BESIDE_PRODUCERS,
    REGISTERS_LEFT,
    ROW_TILE,
    LoopKnobs,
    Producers,
    kept_bytes,
    row_tiles,
)

CHUNK_DEPTH = 32  # contracted elements that a warp takes of a row at once: 4 lanes x 16 bytes
PRODUCER_CHUNKS = 2
RING = "steps"  # the ring's name among the buffers
MAPPED_DEPTH_REGISTERS = 16  # of fp32 vectors along the depth that the loop computes (ptxas)
MAPPED_BF16_REGISTERS = 24  # more than fp16: 13 to 38 by ptxas, for six architectures


@dataclass(frozen=True)
class SlicedK(LoopKnobs):
    """Template constants of a sliced-K kernel."""

    schedule: ClassVar[str] = "sliced_k"

    tokens: int  # of one block
    rows: int  # of one block
    warps: int  # the loop is partitioned over
    chunks: int  # 16-byte pieces that a lane takes of a row per step: 32 elements of four lanes
    stages: int
    producers: Producers | None = None

    @property
    def label(self) -> str:
        """Name the schedule, and whether other blocks compute a product for it."""
        return self.schedule + (self.producers.label if self.producers else "")

    @property
    def preference(self) -> tuple[int, ...]:
        """Order knobs that are predicted to be equally fast."""
        tile = (self.producers.rows, self.producers.tokens) if self.producers else (0, 0)
        return (-self.warps, -self.chunks, self.rows, *tile, -self.stages)

    @property
    def launch(self) -> str:
        """Name the emitted function that launches it."""
        return "launch"

    def config(self, program: TileProgram) -> list[dict[str, int]]:
        """Return the constants of an emitted kernel's config, a declaration each."""
        return [{name: value for name, value in vars(self).items() if name != "producers"}]

    @property
    def step_depth(self) -> int:
        """Return how much of the contracted dim one pass of the loop takes."""
        return self.warps * self.chunks * CHUNK_DEPTH

    @property
    def producer_knobs(self) -> SlicedK:
        """Return what producer blocks are as blocks of their own."""
        assert self.producers is not None
        p = self.producers
        return SlicedK(p.tokens, p.rows, self.warps, PRODUCER_CHUNKS, p.stages)


@dataclass(frozen=True)
class Area:
    """A value in shared memory: partial sums of all warps, side by side, or one that is kept."""

    name: str
    layout: Layout
    inner: int = 0  # extent of the inner dim; 0: it has none
    since: int = (
        -1
    )  # barriers after the loop before it is written; -1: it lies there from the start
    partial: bool = False  # a sum of every warp

    def bytes(self, knobs: SlicedK) -> int:
        """Return its size (csrc/tile/reduce/across_warps.cuh, csrc/tile/mma/resident.cuh)."""
        if self.layout is Layout.FACTORS or (self.inner and not self.partial):
            lines = knobs.rows if self.layout is Layout.FACTORS else knobs.tokens
            return kept_bytes(lines, self.inner)
        elements = {
            Layout.ACCUM: knobs.tokens * (knobs.rows + 4),
            Layout.TOKEN_SUMS: knobs.tokens,
            Layout.ROW_SUMS: knobs.rows,
            Layout.INNER_ACCUM: knobs.tokens * (row_tiles(self.inner) + 4),
        }
        return elements[self.layout] * 4 * (knobs.warps if self.partial else 1)


@dataclass(frozen=True)
class Footprint:
    """What the blocks of a tile program keep per step and in all, by their knobs."""

    program: TileProgram

    @staticmethod
    def of(program: TileProgram) -> Footprint:
        """Return what blocks that stream keep."""
        return Footprint(program.streamed)

    @cached_property
    def loads(self) -> Counter[Layout]:
        """Fragments of the streamed operands."""
        return Counter(s.layout for s in self.program.loads)

    @cached_property
    def products(self) -> int:
        """Accumulators over rows x tokens."""
        return sum(s.layout is Layout.ACCUM for s in self.program.meetings)

    @cached_property
    def inner_tiles(self) -> int:
        """Row tiles of accumulators over inner rows that the grid does not cut."""
        return sum(row_tiles(self._inner(s)) for s in self.program.meetings) // ROW_TILE

    @property
    def row_tile(self) -> int:
        """What a block's rows are a multiple of."""
        return ROW_TILE if self.program.roles.inner else LINE_TILE

    @property
    def most_registers(self) -> int:
        """Registers that a thread may take."""
        return REGISTERS_BESIDE_PRODUCERS if self.program.received else REGISTERS_LEFT

    @cached_property
    def areas(self) -> tuple[Area, ...]:
        """What lies beside the ring, where sums meet, and what is kept of them, in this order."""
        program = self.program
        early = [*program.fetches, *program.statistics, *program.received]
        late = [s for stage in program.stages for s in stage.statements]
        if program.received:  # one warp multiplies while the others stream
            early += program.products
        else:
            late += program.products
        areas = [self._area(s) for s in early]
        since = 0
        for s in program.meetings:
            since += s.barrier
            areas.append(self._area(s, since, partial=True))
        for s, barriers in zip(late, accumulate(s.barrier for s in late), strict=True):
            if s.do in (Do.KEEP, Do.CONTRACT):
                areas.append(self._area(s, since + barriers))
        return tuple(areas)

    def _area(self, s: Statement, since: int = -1, *, partial: bool = False) -> Area:
        return Area(s.out, s.layout, self._inner(s), since, partial)

    def _inner(self, s: Statement) -> int:
        dim = self.program.roles.inner_of(s.type)
        return dim.size if dim else 0

    def octets(self, knobs: SlicedK) -> int:
        """Return how many 16-byte octets a lane holds of one step."""
        lines = self.loads[Layout.ROWS] * knobs.rows + self.loads[Layout.TOKENS] * knobs.tokens
        lines += sum(row_tiles(self._inner(s)) for s in self.program.loads)
        return knobs.chunks * (lines // LINE_TILE + self.loads[Layout.DEPTH])

    def registers(self, knobs: SlicedK) -> int:
        """Return how many registers a thread needs for one step and its accumulators."""
        tiles = self.products * -(-knobs.rows // ROW_TILE) + self.inner_tiles
        products = tiles * (knobs.tokens // LINE_TILE) * 4
        return products + self.octets(knobs) * 4 + self._mapped(knobs)

    def _mapped(self, knobs: SlicedK) -> int:
        """Return the registers of what the loop computes with elements, not only products."""
        maps = [s for s in self.program.loop if s.do is Do.MAP]
        vectors = any(s.layout is Layout.DEPTH and s.dtype is DType.FP32 for s in maps)
        registers = MAPPED_BF16_REGISTERS * any(s.dtype is DType.BF16 for s in maps)
        registers += MAPPED_DEPTH_REGISTERS * vectors
        return registers + knobs.tokens * knobs.chunks * bool(self.program.statistics)

    def shared_bytes(self, knobs: SlicedK) -> int:
        """Return the shared memory of one block."""
        return self.arrangement(knobs).peak

    def arrangement(self, knobs: SlicedK) -> Arrangement:
        """Return where the ring and what meets after the loop lie in shared memory.

        All of it is taken to be read until the last epoch, that of the epilogue.
        """
        ring = knobs.warps * knobs.stages * self.octets(knobs) * 16 * WARP_LANES
        end = max((a.since for a in self.areas), default=0) + 2
        buffers = [
            Buffer(a.name, a.bytes(knobs), frozenset(range(max(a.since, 0), end)))
            for a in self.areas
        ]
        first = sum(a.since < 0 for a in self.areas)
        buffers.insert(first, Buffer(RING, ring, frozenset({0})))
        return arrange(buffers)
