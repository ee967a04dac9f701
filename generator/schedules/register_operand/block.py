"""Knobs of register-operand blocks, and what such blocks keep."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.layouts import WARP_LANES
from mirage_kernels.generator.plan.program import Do, Layout, TileProgram
from mirage_kernels.generator.schedules import loop
from mirage_kernels.generator.schedules.producer_blocks import PAIR, RECEIVERS
from mirage_kernels.generator.schedules.prologue import main_program

STEP_TILES = 2  # TMA tiles of a step along the depth; one was 5 % slower, four no faster
STEP_DEPTH = STEP_TILES * loop.TMA_DEPTH
MOST_ROWS_IN_TURNS = 128  # of all weights; with more, steps are long enough for one warpgroup
FEW_FOR_BARRIERS = 32  # tokens, where two warpgroups take turns
COLUMN_TILE = 32  # rows of a TMA tile whose lines are the depth's, 64 bytes or twice as many
BLOCK_ROWS = 8  # rows of a block of which a lane has sums
STORED = (DType.FP16, DType.BF16)  # what products take
SUMS_BYTES = loop.GROUP_WARPS * WARP_LANES * 16  # of a warpgroup, of such a block
MOST_REGISTERS = 255  # of a thread


@dataclass(frozen=True)
class RegisterOperand(loop.WarpgroupKnobs):
    """Template constants of a kernel with tokens as register operands."""

    schedule: ClassVar[str] = "register_operand"

    tokens: int  # of one block
    rows: int  # of one block, or of the pair that shares them
    stages: int
    groups: int = 1  # warpgroups that take turns at steps
    blocks: int = 1  # of a cluster, which split the depth
    barriers: int = 1  # of a step: one, or one for each of its TMA tiles
    prologue_warps: int = 0  # of a token's block in a prologue kernel, which makes tokens; 0: none
    producers: loop.Producers | None = None

    @property
    def step_depth(self) -> int:
        """Return how much of the contracted dim one pass of the loop takes."""
        return self.blocks * self.groups * STEP_DEPTH

    @property
    def finished_rows(self) -> int:
        """Return how many rows a block finishes, of those that it shares."""
        return self.rows // self.blocks

    @property
    def producer_knobs(self) -> RegisterOperand:
        """Return what producer blocks are as blocks of their own: pairs that split the depth."""
        assert self.producers is not None
        p = self.producers
        return RegisterOperand(p.tokens, PAIR * p.rows, p.stages, p.groups, PAIR)


@dataclass(frozen=True)
class RegisterBlock(loop.Block):
    """What blocks of a program keep, by their knobs (csrc/tile/register_operand/block.cuh)."""

    @staticmethod
    def of(program: TileProgram) -> RegisterBlock:
        """Return what blocks of a program keep, behind a prologue kernel if there has to be one."""
        return RegisterBlock(main_program(program) if program.lines else program.streamed)

    @cached_property
    def row_tile(self) -> int:
        """Rows that a block has at least: of a product, or of a tile of columns."""
        return COLUMN_TILE if self.program.columns else loop.ROW_TILE

    @cached_property
    def mapped(self) -> int:
        """Values of tokens, or of the depth, that the loop computes."""
        return sum(s.do is Do.MAP and s.dtype in STORED for s in self.program.loop)

    def sized(self, rows: int, tokens: int, blocks: int = 1) -> RegisterOperand:
        """Return knobs of so many rows and tokens with the best warpgroups and barriers.

        Two barriers of a step are worth it where tokens are multiplied as they come, and are many
        or those of one warpgroup: gated MLP 4096 -> 2 x 4096 at 64 tokens 18.59 us instead of
        18.67, 2 x 14336 at 32 tokens 57.5 instead of 57.8, LoRA R 16 10.98 instead of 11.06; but
        0.1 us more where two warpgroups take turns at 32 tokens, and 0.05 to 0.3 with a norm.
        """
        turns = rows * self.loads[Layout.ROWS] + self.inner_lines <= MOST_ROWS_IN_TURNS
        even = self.depth % (2 * blocks * STEP_DEPTH) == 0
        groups = 2 if turns and even and rows % (2 * blocks * BLOCK_ROWS) == 0 else 1
        slow = tokens > FEW_FOR_BARRIERS or groups == 1
        barriers = STEP_TILES if slow and not self.mapped else 1
        return RegisterOperand(tokens, rows, 0, groups, blocks, barriers)

    @cached_property
    def inner_lines(self) -> int:
        """Inner rows of which a block computes the totals, in whole row tiles."""
        return 0 if self.program.received else loop.row_tiles(self.inner)

    def most_registers(self, knobs: RegisterOperand) -> int:
        """Return what a thread may have: of warps that multiply, one that copies, some receive."""
        threads = (knobs.warps + 1 + (RECEIVERS if self.program.received else 0)) * WARP_LANES
        return min(MOST_REGISTERS, loop.REGISTERS // threads // 8 * 8)

    def registers(self, knobs: RegisterOperand) -> int:
        """Return the registers of a thread that multiplies: its sums, tokens, the rest."""
        sums = (self.sums[Layout.ACCUM] * knobs.rows + self.inner_lines) // 2
        operands = (1 + self.mapped) * STEP_DEPTH // 4
        vectors = self.loads[Layout.DEPTH] * STEP_DEPTH // 8
        return sums + operands + vectors + loop.REGISTERS_BESIDE

    def reduction_bytes(self, knobs: RegisterOperand) -> int:
        """Return what lies where the ring was: sums for the other warpgroup, finished lines."""
        groups, row_blocks = knobs.groups, knobs.rows // BLOCK_ROWS // (knobs.blocks * knobs.groups)
        sums = groups * row_blocks * SUMS_BYTES if groups > 1 else 0
        leaving = groups * loop.GROUP_WARPS * loop.ROW_TILE * row_blocks * 16
        if self.inner_lines:
            leaving += groups * knobs.tokens * (self.inner_lines + 4) * 4
            leaving += (
                loop.kept_bytes(knobs.tokens, self.inner) + knobs.tokens * (knobs.rows + 4) * 4
            )
        return self.sums[Layout.ACCUM] * sums + leaving

    def ring_bytes(self, knobs: RegisterOperand) -> int:
        """Return what the TMA tiles of all stages take."""
        lines = self.loads[Layout.ROWS] * knobs.rows + self.inner_lines + knobs.tokens
        return knobs.stages * STEP_TILES * lines * loop.TMA_DEPTH * 2

    def shared_bytes(self, knobs: RegisterOperand) -> int:
        """Return the shared memory of one block."""
        rows, tokens, blocks = knobs.rows // knobs.blocks, knobs.tokens, knobs.blocks
        beside = loop.kept_bytes(rows, self.inner) if self.inner else 0
        if self.program.received:
            beside += loop.kept_bytes(tokens, self.inner) + tokens * (rows + 4) * 4
        row_blocks = rows // BLOCK_ROWS * knobs.groups  # from all warpgroups of the other block
        beside += (blocks - 1) * self.sums[Layout.ACCUM] * row_blocks * SUMS_BYTES
        beside += self.loads[Layout.DEPTH] * self.depth // blocks * 2
        beside += self.sums[Layout.TOKEN_SUMS] * blocks * knobs.groups * tokens * 4
        barriers = (knobs.barriers + 1) * knobs.stages + 2
        return max(
            loop.ALONE_BYTES, self.ring_bytes(knobs) + beside + barriers * loop.BARRIER_BYTES
        )

    def fits(self, knobs: RegisterOperand, limit: int) -> bool:
        """Say whether the ring fits, and what meets in its place."""
        meets = self.reduction_bytes(knobs) <= self.ring_bytes(knobs)
        return meets and self.shared_bytes(knobs) <= limit
