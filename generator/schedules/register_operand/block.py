"""Register-operand wgmma (RS): tokens are stationary in registers, weights lie in shared memory.

Where weights are multiplied as they are loaded, tokens can take the M side of a warpgroup's
product, from registers, and weights the N side, as they lie in shared memory: each byte is read
from there once (csrc/tile/register_operand).
What the loop computes of tokens alone it computes in those
registers. Weights that the loop computes with would have to be written back to shared memory, so
they stay with sliced-K and cluster split-K.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.layouts import WARP_LANES
from mirage_kernels.generator.plan.program import Do, Layout, Statement, TileProgram
from mirage_kernels.generator.schedules.producer_blocks import (
    RECEIVERS,
    ROW_TILE,
    consumer_program,
)
from mirage_kernels.generator.schedules.register_operand.knobs import BOXES, RegisterOperand
from mirage_kernels.generator.schedules.sliced_k.shared_memory import kept_bytes
from mirage_kernels.generator.schedules.warpgroups import (
    ALONE_BYTES,
    BARRIER_BYTES,
    BOX_DEPTH,
    GROUP_WARPS,
    REGISTERS_BESIDE,
)

MOST_ROWS = 112  # that a block finishes; the N side of the vocabulary's largest product
MOST_ROWS_IN_TURNS = 128  # of all weights; with more, steps are long enough for one warpgroup
FEW_FOR_BARRIERS = 32  # tokens, where two warpgroups take turns
OCTET = 8  # rows of which a lane has sums
STORED = (DType.FP16, DType.BF16)  # what products take
SUMS_BYTES = GROUP_WARPS * WARP_LANES * 16  # of a warpgroup, of an octet


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
    """The size of one block, in what it keeps (csrc/tile/register_operand/block.cuh)."""

    depth: int
    row_tensors: int
    accumulators: int
    inner: int = 0  # rows of a weight that the grid does not cut
    rows: int = 0
    tokens: int = 0
    groups: int = 1  # warpgroups that take turns at steps
    blocks: int = 1  # of a cluster, which share rows and split the depth
    received: int = 0  # inner rows of which other blocks compute the totals
    vectors: int = 0  # along the depth
    token_sums: int = 0
    mapped: int = 0  # values of tokens, or of the depth, that the loop computes
    barriers: int = 1  # of a step: one, or one for each box

    @staticmethod
    def of(program: TileProgram) -> RegisterBlock:
        """Return what blocks of a program keep, without a size yet."""
        extents = program.extents
        loads = [s.layout for s in program.loads]
        program = consumer_program(program)
        whole = sum(extents[dim] for dim in program.roles.inner)
        inner, received = (0, whole) if program.received else (whole, 0)
        met = [s.layout for s in program.meetings]
        products = met.count(Layout.ACCUM)
        block = RegisterBlock(
            extents[program.roles.depth], loads.count(Layout.ROWS), products, inner
        )
        return replace(
            block,
            received=received,
            vectors=loads.count(Layout.DEPTH),
            token_sums=met.count(Layout.TOKEN_SUMS),
            mapped=sum(s.do is Do.MAP and s.dtype in STORED for s in program.loop),
        )

    def sized(self, rows: int, tokens: int, blocks: int = 1) -> RegisterBlock:
        """Return the block with a number of rows and tokens, one of those that split the depth."""
        turns = rows * self.row_tensors + self.inner_lines <= MOST_ROWS_IN_TURNS
        even = self.depth % (2 * blocks * BOXES * BOX_DEPTH) == 0
        even = even and rows % (2 * blocks * OCTET) == 0
        groups = 2 if turns and even else 1
        return replace(self, rows=rows, tokens=tokens, blocks=blocks, groups=groups)

    @property
    def side(self) -> int:
        """Rows of one product: all, or equal parts of more than one takes; 0 if there are none."""
        if self.rows <= MOST_ROWS:
            return self.rows
        parts = range(2, self.rows // ROW_TILE + 1)
        sides = (self.rows // n for n in parts if self.rows % (n * ROW_TILE) == 0)
        return next((side for side in sides if side <= MOST_ROWS), 0)

    @property
    def best_barriers(self) -> int:
        """Return how many barriers of a step are worth it.

        Two are, where tokens are multiplied as they come, and are many or those of one warpgroup:
        gated MLP 4096 -> 2 x 4096 at 64 tokens 18.59 us instead of 18.67, 2 x 14336 at 32 tokens
        57.5 instead of 57.8, LoRA R 16 10.98 instead of 11.06; but 0.1 us more where two
        warpgroups take turns at 32 tokens, and 0.05 to 0.3 with a norm.
        """
        slow = self.tokens > FEW_FOR_BARRIERS or self.groups == 1
        return BOXES if slow and not self.mapped else 1

    @property
    def inner_lines(self) -> int:
        """A block's rows of those that the grid does not cut, in whole row tiles."""
        return -(-self.inner // ROW_TILE) * ROW_TILE

    @property
    def threads(self) -> int:
        """Threads: those who multiply, a warp that copies, perhaps some that receive."""
        receivers = RECEIVERS if self.received else 0
        return (self.groups * GROUP_WARPS + 1 + receivers) * WARP_LANES

    @property
    def registers(self) -> int:
        """Registers of a thread that multiplies: its sums, tokens, the rest."""
        sums = (self.accumulators * self.rows + self.inner_lines) // 2
        operands = (1 + self.mapped) * BOXES * BOX_DEPTH // 4
        return sums + operands + self.vectors * BOXES * BOX_DEPTH // 8 + REGISTERS_BESIDE

    @property
    def meeting_bytes(self) -> int:
        """What lies where the ring was: sums for the other warpgroup, finished lines."""
        octets = self.rows // OCTET // (self.blocks * self.groups)
        sums = self.groups * octets * SUMS_BYTES if self.groups > 1 else 0
        leaving = self.groups * GROUP_WARPS * ROW_TILE * octets * 16
        if self.inner:
            met = self.groups * self.tokens * (self.inner_lines + 4) * 4
            leaving += met + kept_bytes(self.tokens, self.inner) + self.tokens * (self.rows + 4) * 4
        return self.accumulators * sums + leaving

    def ring_bytes(self, stages: int) -> int:
        """Return what boxes of so many steps take."""
        lines = self.row_tensors * self.rows + self.inner_lines + self.tokens
        return stages * BOXES * lines * BOX_DEPTH * 2

    def shared_bytes(self, stages: int) -> int:
        """Return the shared memory of one block."""
        rows = self.rows // self.blocks
        beside = kept_bytes(rows, self.inner or self.received) if self.inner or self.received else 0
        if self.received:
            beside += (
                kept_bytes(self.tokens, self.inner or self.received) + self.tokens * (rows + 4) * 4
            )
        octets = rows // OCTET * self.groups  # from all warpgroups of the other block
        beside += (self.blocks - 1) * self.accumulators * octets * SUMS_BYTES
        beside += self.vectors * self.depth // self.blocks * 2
        beside += self.token_sums * self.blocks * self.groups * self.tokens * 4
        barriers = (self.barriers + 1) * stages + 2
        return max(ALONE_BYTES, self.ring_bytes(stages) + beside + barriers * BARRIER_BYTES)

    def fits(self, stages: int, limit: int) -> bool:
        """Say whether a ring of so many stages fits, and what meets in its place."""
        return self.shared_bytes(stages) <= limit and self.meeting_bytes <= self.ring_bytes(stages)

    def of_knobs(self, knobs: RegisterOperand) -> RegisterBlock:
        """Return the block that knobs describe."""
        sized = self.sized(knobs.rows, knobs.tokens, knobs.blocks)
        return replace(sized, groups=knobs.groups, barriers=knobs.barriers)
