"""Knobs of register-operand wgmma, and what a block of theirs keeps.

Where weights are multiplied as they are loaded, tokens can take the M side of a warpgroup's
product, from registers, and weights the N side, as they lie in shared memory: each byte is read
from there once (csrc/tile/register_operand).
What the loop computes of tokens alone it computes in those registers. Weights that the loop
computes with would have to be written back to shared memory, so they stay with sliced-K and cluster
split-K.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.layouts import WARP_LANES
from mirage_kernels.generator.plan.program import Do, Layout, Statement, TileProgram
from mirage_kernels.generator.schedules.loop import (
    ALONE_BYTES,
    BARRIER_BYTES,
    BOX_DEPTH,
    GROUP_WARPS,
    REGISTERS_BESIDE,
    ROW_TILE,
    LoopKnobs,
    Producers,
    kept_bytes,
    row_tiles,
)
from mirage_kernels.generator.schedules.producer_blocks import PAIR, RECEIVERS
from mirage_kernels.generator.schedules.prologue import main_program

BOXES = 2  # of a step: 128 contracted elements; one box was 5 % slower, four no faster
MOST_ROWS = 112  # that a block finishes; the N side of the vocabulary's largest product
MOST_ROWS_IN_TURNS = 128  # of all weights; with more, steps are long enough for one warpgroup
FEW_FOR_BARRIERS = 32  # tokens, where two warpgroups take turns
OCTET = 8  # rows of which a lane has sums
STORED = (DType.FP16, DType.BF16)  # what products take
SUMS_BYTES = GROUP_WARPS * WARP_LANES * 16  # of a warpgroup, of an octet


@dataclass(frozen=True)
class RegisterOperand(LoopKnobs):
    """Template constants of a kernel with tokens as register operands."""

    schedule: ClassVar[str] = "register_operand"

    tokens: int  # of one block
    rows: int  # of one block, or of the pair that shares them
    stages: int
    groups: int = 1  # warpgroups that take turns at steps
    blocks: int = 1  # of a cluster, which split the depth
    barriers: int = 1  # of a step: one, or one for each of its boxes
    prologue_warps: int = 0  # of a token's block in a prologue kernel, which makes tokens; 0: none
    producers: Producers | None = None

    @property
    def label(self) -> str:
        """Name the schedule, whether blocks are in pairs, and what other blocks do for them."""
        pairs = " in pairs" if self.blocks > 1 else ""
        prologue = ", prologue" if self.prologue_warps else ""
        producers = self.producers.label if self.producers else ""
        return f"{self.schedule}{pairs}{prologue}{producers}"

    @property
    def warps(self) -> int:
        """Return how many warps of a block multiply."""
        return self.groups * GROUP_WARPS

    @property
    def preference(self) -> tuple[int, ...]:
        """Order knobs that are predicted to be equally fast."""
        return (-self.warps, self.rows, self.blocks, -self.stages)

    def config(self, program: TileProgram) -> list[dict[str, int]]:
        """Return the constants of an emitted kernel's config, a declaration each."""
        (own,) = super().config(program)
        own |= {"groups": self.groups, "blocks": self.blocks}
        return [own | ({"barriers": self.barriers} if self.barriers > 1 else {})]

    @property
    def step_depth(self) -> int:
        """Return how much of the contracted dim one pass of the loop takes."""
        return self.blocks * self.groups * BOXES * BOX_DEPTH

    @property
    def producer_knobs(self) -> RegisterOperand:
        """Return what producer blocks are as blocks of their own: pairs that split the depth."""
        assert self.producers is not None
        p = self.producers
        return RegisterOperand(p.tokens, PAIR * p.rows, p.stages, p.groups, PAIR)


def can_run(program: TileProgram) -> bool:
    """Say whether a program's loop multiplies weights as it loads them."""
    if program.lines or not program.loop or len(program.roles.inner) > 1:
        return False
    loaded = {s.out: s.layout for s in program.loads}
    held = list(loaded.values())
    if held.count(Layout.TOKENS) != 1 or held.count(Layout.INNER) > 1:
        return False
    computed = [s for s in program.loop if s.do is not Do.LOAD]
    if any(s.do is not Do.CONTRACT for s in computed) and Layout.INNER in held:
        return False
    tokens = {s.out for s in program.loop if s.layout is Layout.TOKENS and s.dtype in STORED}
    return all(_of_tokens(s) or _multiplies(s, loaded, tokens) for s in computed)


def _of_tokens(s: Statement) -> bool:
    """Say whether a statement of the loop computes something of tokens, or of the depth, alone."""
    alone = (Layout.TOKENS, Layout.TOKEN_SUMS, Layout.DEPTH)
    return s.do in (Do.MAP, Do.SUM) and s.layout in alone


def _multiplies(s: Statement, loaded: Mapping[str, Layout], tokens: set[str]) -> bool:
    """Say whether a statement of the loop is a product of loaded rows with tokens."""
    if s.do is not Do.CONTRACT:
        return False
    return loaded.get(s.args[0]) in (Layout.ROWS, Layout.INNER) and s.args[1] in tokens


@dataclass(frozen=True)
class RegisterBlock:
    """What blocks of a program keep, by their knobs (csrc/tile/register_operand/block.cuh)."""

    depth: int
    row_tensors: int
    accumulators: int
    inner: int  # rows of a weight that the grid does not cut
    received: int  # inner rows of which other blocks compute the totals
    vectors: int  # along the depth
    token_sums: int
    mapped: int  # values of tokens, or of the depth, that the loop computes

    @staticmethod
    def of(program: TileProgram) -> RegisterBlock:
        """Return what blocks of a program keep, behind a prologue kernel if there has to be one."""
        program = main_program(program) if program.lines else program.streamed
        extents, loads = program.extents, [s.layout for s in program.loads]
        met = [s.layout for s in program.meetings]
        whole = sum(extents[dim] for dim in program.roles.inner)
        return RegisterBlock(
            depth=extents[program.roles.depth],
            row_tensors=loads.count(Layout.ROWS),
            accumulators=met.count(Layout.ACCUM),
            inner=0 if program.received else whole,
            received=whole if program.received else 0,
            vectors=loads.count(Layout.DEPTH),
            token_sums=met.count(Layout.TOKEN_SUMS),
            mapped=sum(s.do is Do.MAP and s.dtype in STORED for s in program.loop),
        )

    def sized(self, rows: int, tokens: int, blocks: int = 1) -> RegisterOperand:
        """Return knobs of so many rows and tokens with the best warpgroups and barriers.

        Two barriers of a step are worth it where tokens are multiplied as they come, and are many
        or those of one warpgroup: gated MLP 4096 -> 2 x 4096 at 64 tokens 18.59 us instead of
        18.67, 2 x 14336 at 32 tokens 57.5 instead of 57.8, LoRA R 16 10.98 instead of 11.06; but
        0.1 us more where two warpgroups take turns at 32 tokens, and 0.05 to 0.3 with a norm.
        """
        turns = rows * self.row_tensors + self.inner_lines <= MOST_ROWS_IN_TURNS
        even = self.depth % (2 * blocks * BOXES * BOX_DEPTH) == 0
        groups = 2 if turns and even and rows % (2 * blocks * OCTET) == 0 else 1
        slow = tokens > FEW_FOR_BARRIERS or groups == 1
        barriers = BOXES if slow and not self.mapped else 1
        return RegisterOperand(tokens, rows, 0, groups, blocks, barriers)

    @property
    def inner_lines(self) -> int:
        """A block's rows of those that the grid does not cut, in whole row tiles."""
        return row_tiles(self.inner)

    def threads(self, knobs: RegisterOperand) -> int:
        """Return those who multiply, a warp that copies, perhaps some that receive."""
        return (knobs.warps + 1 + (RECEIVERS if self.received else 0)) * WARP_LANES

    def registers(self, knobs: RegisterOperand) -> int:
        """Return the registers of a thread that multiplies: its sums, tokens, the rest."""
        sums = (self.accumulators * knobs.rows + self.inner_lines) // 2
        operands = (1 + self.mapped) * BOXES * BOX_DEPTH // 4
        return sums + operands + self.vectors * BOXES * BOX_DEPTH // 8 + REGISTERS_BESIDE

    def meeting_bytes(self, knobs: RegisterOperand) -> int:
        """Return what lies where the ring was: sums for the other warpgroup, finished lines."""
        groups, octets = knobs.groups, knobs.rows // OCTET // (knobs.blocks * knobs.groups)
        sums = groups * octets * SUMS_BYTES if groups > 1 else 0
        leaving = groups * GROUP_WARPS * ROW_TILE * octets * 16
        if self.inner:
            leaving += groups * knobs.tokens * (self.inner_lines + 4) * 4
            leaving += kept_bytes(knobs.tokens, self.inner) + knobs.tokens * (knobs.rows + 4) * 4
        return self.accumulators * sums + leaving

    def ring_bytes(self, knobs: RegisterOperand) -> int:
        """Return what the boxes of all stages take."""
        lines = self.row_tensors * knobs.rows + self.inner_lines + knobs.tokens
        return knobs.stages * BOXES * lines * BOX_DEPTH * 2

    def shared_bytes(self, knobs: RegisterOperand) -> int:
        """Return the shared memory of one block."""
        rows, tokens, blocks = knobs.rows // knobs.blocks, knobs.tokens, knobs.blocks
        beside = kept_bytes(rows, self.inner or self.received) if self.inner or self.received else 0
        if self.received:
            beside += kept_bytes(tokens, self.received) + tokens * (rows + 4) * 4
        octets = rows // OCTET * knobs.groups  # from all warpgroups of the other block
        beside += (blocks - 1) * self.accumulators * octets * SUMS_BYTES
        beside += self.vectors * self.depth // blocks * 2
        beside += self.token_sums * blocks * knobs.groups * tokens * 4
        barriers = (knobs.barriers + 1) * knobs.stages + 2
        return max(ALONE_BYTES, self.ring_bytes(knobs) + beside + barriers * BARRIER_BYTES)

    def fits(self, knobs: RegisterOperand, limit: int) -> bool:
        """Say whether the ring fits, and what meets in its place."""
        room = self.meeting_bytes(knobs) <= self.ring_bytes(knobs)
        return room and self.shared_bytes(knobs) <= limit
