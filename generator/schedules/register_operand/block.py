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
TAKEN_REGISTERS = 232  # of two warpgroups beside one that copies, which gives them its own


def groups_of(tokens: int) -> int:
    """Return the warpgroups that tokens need, each with as many as an instruction takes."""
    return -(-tokens // loop.GROUP_ROWS)


@dataclass(frozen=True)
class RegisterOperand(loop.WarpgroupKnobs):
    """Template constants of a kernel with tokens as register operands."""

    schedule: ClassVar[str] = "register_operand"

    tokens: int  # of one block
    rows: int  # of one block, or of the cluster that shares them
    stages: int
    groups: int = 1  # warpgroups: one for each 64 tokens, or two that take turns at steps
    blocks: int = 1  # of a cluster, which split the depth
    barriers: int = 1  # of a step: one, or one for each of its TMA tiles
    tma_tiles: int = STEP_TILES  # of a step; one where two would leave too few stages
    prologue_warps: int = 0  # of a token's block in a prologue kernel, which makes tokens; 0: none
    producers: loop.Producers | None = None

    @property
    def step_depth(self) -> int:
        """Return how much of the contracted dim one pass of the loop takes."""
        return self.blocks * self.turns * self.slice_depth

    @property
    def slice_depth(self) -> int:
        """Return the depth of a warpgroup's step."""
        return self.tma_tiles * loop.TMA_DEPTH

    @property
    def turns(self) -> int:
        """Return how many warpgroups have the same tokens and alternate between steps."""
        return self.groups // groups_of(self.tokens)

    @property
    def finished_rows(self) -> int:
        """Return how many rows a block finishes, of those that it shares."""
        return self.rows if self.by_tokens else self.rows // self.blocks

    @property
    def by_tokens(self) -> bool:
        """Say whether the blocks of a cluster finish some tokens of all rows, not some rows."""
        return self.blocks > PAIR

    @property
    def fills_shared(self) -> bool:
        """Say whether a ring of all the shared memory pays: more tokens, or less of the depth.

        14336 -> 4096 at 128 tokens: 34.5 us with four stages, 39.0 with three.
        """
        return self.by_tokens or groups_of(self.tokens) > 1

    @property
    def finished_blocks(self) -> int:
        """Return how many blocks of rows a warp finishes (csrc/tile/reduce)."""
        blocks = self.rows // BLOCK_ROWS
        if not self.by_tokens:
            return blocks // (self.blocks * self.turns)
        tiles = self.warps // self.turns // self.blocks  # of 16 tokens, that a block finishes
        return -(-blocks * tiles // self.warps)

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

    def sized(self, rows: int, tokens: int, blocks: int = 1, tiles: int = 2) -> RegisterOperand:
        """Return knobs of so many rows and tokens with the best warpgroups and barriers.

        Two barriers of a step are worth it where tokens are multiplied as they come, and are many
        or those of one warpgroup: gated MLP 4096 -> 2 x 4096 at 64 tokens 18.59 us instead of
        18.67, 2 x 14336 at 32 tokens 57.5 instead of 57.8, LoRA R 16 10.98 instead of 11.06; but
        0.1 us more where two warpgroups take turns at 32 tokens, and 0.05 to 0.3 with a norm.
        """
        turns = rows * self.loads[Layout.ROWS] + self.inner_lines <= MOST_ROWS_IN_TURNS
        even = self.depth % (2 * blocks * tiles * loop.TMA_DEPTH) == 0
        shared = blocks > PAIR or rows % (2 * blocks * BLOCK_ROWS) == 0
        alternate = turns and even and shared and tokens <= loop.GROUP_ROWS
        groups = 2 if alternate else groups_of(tokens)
        slow = tokens > FEW_FOR_BARRIERS or not alternate
        barriers = tiles if slow and not self.mapped else 1
        return RegisterOperand(tokens, rows, 0, groups, blocks, barriers, tiles)

    @cached_property
    def inner_lines(self) -> int:
        """Inner rows of which a block computes the totals, in whole row tiles."""
        return 0 if self.program.received else loop.row_tiles(self.inner)

    def most_registers(self, knobs: RegisterOperand) -> int:
        """Return what a thread may have: of warps that multiply, one that copies, some receive."""
        if groups_of(knobs.tokens) > 1:
            return TAKEN_REGISTERS
        threads = (knobs.warps + 1 + (RECEIVERS if self.program.received else 0)) * WARP_LANES
        return min(MOST_REGISTERS, loop.REGISTERS // threads // 8 * 8)

    def registers(self, knobs: RegisterOperand) -> int:
        """Return the registers of a thread that multiplies: its sums, tokens, the rest."""
        sums = (self.sums[Layout.ACCUM] * knobs.rows + self.inner_lines) // 2
        operands = knobs.slice_depth // 4  # computed tokens take the place of loaded ones
        vectors = self.loads[Layout.DEPTH] * knobs.slice_depth // 8
        return sums + operands + vectors + loop.REGISTERS_BESIDE

    def reduction_bytes(self, knobs: RegisterOperand) -> int:
        """Return what lies where the ring was: sums for the other warpgroup, finished lines."""
        groups, row_blocks = knobs.groups, knobs.finished_blocks
        crossing = knobs.turns > 1 and not knobs.by_tokens
        sums = groups * row_blocks * SUMS_BYTES if crossing else 0
        leaving = knobs.warps * loop.ROW_TILE * row_blocks * 16
        if self.inner_lines:
            leaving += groups * knobs.tokens * (self.inner_lines + 4) * 4
            leaving += (
                loop.kept_bytes(knobs.tokens, self.inner) + knobs.tokens * (knobs.rows + 4) * 4
            )
        return self.sums[Layout.ACCUM] * sums + leaving

    def incoming_bytes(self, knobs: RegisterOperand) -> int:
        """Return what all warpgroups of other blocks send: sums of what a block finishes."""
        row_blocks = knobs.finished_rows // BLOCK_ROWS * knobs.groups
        # By tokens a block has a share of every block's, of its own too.
        return (1 if knobs.by_tokens else knobs.blocks - 1) * row_blocks * SUMS_BYTES

    def ring_bytes(self, knobs: RegisterOperand) -> int:
        """Return what the TMA tiles of all stages take."""
        lines = self.loads[Layout.ROWS] * knobs.rows + self.inner_lines + knobs.tokens
        return knobs.stages * lines * knobs.slice_depth * 2

    def shared_bytes(self, knobs: RegisterOperand) -> int:
        """Return the shared memory of one block."""
        rows, tokens, blocks = knobs.finished_rows, knobs.tokens, knobs.blocks
        beside = loop.kept_bytes(rows, self.inner) if self.inner else 0
        if self.program.received:
            beside += loop.kept_bytes(tokens, self.inner) + tokens * (rows + 4) * 4
        beside += self.sums[Layout.ACCUM] * self.incoming_bytes(knobs)
        beside += self.loads[Layout.DEPTH] * self.depth // blocks * 2
        beside += self.sums[Layout.TOKEN_SUMS] * blocks * knobs.turns * tokens * 4
        barriers = (knobs.barriers + 1) * knobs.stages + 2
        return max(
            loop.ALONE_BYTES, self.ring_bytes(knobs) + beside + barriers * loop.BARRIER_BYTES
        )

    def fits(self, knobs: RegisterOperand, limit: int) -> bool:
        """Say whether the ring fits, and what meets in its place."""
        meets = self.reduction_bytes(knobs) <= self.ring_bytes(knobs)
        return meets and self.shared_bytes(knobs) <= limit
