"""The plan of held tokens: blocks with all of the depth, whose tokens are operands in registers.

Where weights are multiplied as they are loaded, tokens can take the M side of a warpgroup's
product, from registers, and weights the N side, as they lie in shared memory: each byte is read
from there once (csrc/tile/held.cuh). Weights that the loop computes with would have to be written
back there, so they stay with the plans of `variants.py` and `split.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirage_kernels.generator.plan.apart import users_of
from mirage_kernels.generator.plan.program import Do, Layout, Statement, TileProgram
from mirage_kernels.generator.plan.split import (
    ALONE_BYTES,
    BOX_DEPTH,
    GROUP_ROWS,
    GROUP_WARPS,
    REGISTERS,
    REGISTERS_BESIDE,
    ROW_TILE,
    WARP_LANES,
    WITH_WARPGROUPS,
)
from mirage_kernels.generator.target import Target

BOXES = 2  # of a step: 128 contracted elements; one box was 5 % slower, four no faster
MOST_ROWS = 112  # the N side of the vocabulary's largest product
MOST_ROWS_IN_TURNS = 128  # of all weights; with more, steps are long enough for one warpgroup
MOST_BYTES_IN_FLIGHT = 96 * 1024  # of weights
MOST_STAGES_RECEIVING = 6  # while other blocks compute totals (variants.py)
FEWEST_STAGES = 2
FEWEST_STEPS = 8  # with fewer there is no loop to speak of, and ptxas orders its products
OCTET = 8  # rows of which a lane has sums


def can_hold(program: TileProgram) -> bool:
    """Say whether a program's loop does nothing but multiply what it loads."""
    if program.lines or not program.loop or len(program.roles.inner) > 1:
        return False
    if program.tokens_on_m or not program.swizzled or not program.sharing:
        return False
    layouts = {s.out: s.layout for s in program.loads}
    held = list(layouts.values())
    if held.count(Layout.TOKENS) != 1 or held.count(Layout.INNER) > 1:
        return False
    computed = [s for s in program.loop if s.do is not Do.LOAD]
    return all(_multiplies(s, layouts) for s in computed)


def _multiplies(s: Statement, layouts: Mapping[str, Layout]) -> bool:
    """Say whether a statement of the loop is a product of loaded rows with loaded tokens."""
    if s.do is not Do.CONTRACT or s.barrier:
        return False
    rows, tokens = (layouts.get(a) for a in s.args)
    return rows in (Layout.ROWS, Layout.INNER) and tokens is Layout.TOKENS


@dataclass(frozen=True)
class HeldBlock:
    """The size of one block, in what it keeps (csrc/tile/held.cuh)."""

    depth: int
    row_tensors: int
    accumulators: int
    inner: int = 0  # rows of a weight that the grid does not cut
    rows: int = 0
    tokens: int = 0
    groups: int = 1  # warpgroups that take turns at steps
    shared_by: int = 1  # blocks that share the inner rows
    received: int = 0  # inner rows of which other blocks compute the totals

    @staticmethod
    def of(program: TileProgram) -> HeldBlock:
        """Return what blocks of a program keep, without a size yet."""
        extents = {d.name: d.size for o in program.inputs for d in o.type.dims}
        loads = [s.layout for s in program.loads]
        program = users_of(program)
        whole = sum(extents[dim] for dim in program.roles.inner)
        inner, received = (0, whole) if program.received else (whole, 0)
        products = [s.layout for s in program.meetings].count(Layout.ACCUM)
        block = HeldBlock(extents[program.roles.depth], loads.count(Layout.ROWS), products, inner)
        return replace(block, shared_by=program.shared_by, received=received)

    def sized(self, rows: int, tokens: int) -> HeldBlock:
        """Return the block with a number of rows and tokens."""
        turns = rows * self.row_tensors + self.inner_lines <= MOST_ROWS_IN_TURNS
        even = self.depth % (2 * BOXES * BOX_DEPTH) == 0
        return replace(self, rows=rows, tokens=tokens, groups=2 if turns and even else 1)

    @property
    def inner_lines(self) -> int:
        """A block's rows of those that the grid does not cut, in whole row tiles."""
        return -(-self.inner // self.shared_by // ROW_TILE) * ROW_TILE

    @property
    def threads(self) -> int:
        """Threads: those who multiply, a warp that copies, perhaps one that receives."""
        return (self.groups * GROUP_WARPS + 1 + bool(self.received)) * WARP_LANES

    @property
    def registers(self) -> int:
        """Registers of a thread that multiplies: its sums, tokens, the rest."""
        sums = (self.accumulators * self.rows + self.inner_lines) // 2
        return sums + BOXES * BOX_DEPTH // 4 + REGISTERS_BESIDE

    @property
    def meeting_bytes(self) -> int:
        """What lies where the ring was: sums for the other warpgroup, finished lines."""
        lanes, octets = GROUP_WARPS * WARP_LANES, self.rows // OCTET // self.groups
        sums = self.groups * octets * lanes * 16 if self.groups > 1 else 0
        leaving = self.groups * GROUP_WARPS * ROW_TILE * octets * 16
        if self.inner:
            met = self.groups * self.tokens * (self.inner_lines + 4) * 4
            kept = self._kept(self.tokens) if self.shared_by == 1 else 0
            leaving += met + kept + self.tokens * (self.rows + 4) * 4
        return self.accumulators * sums + leaving

    def _kept(self, lines: int) -> int:
        """Return what lines of the inner dim take, kept for a product (csrc/tile/kept.cuh)."""
        inner = self.inner or self.received
        return -(-lines * (inner // OCTET | 1) * OCTET * 2 // 128) * 128

    def ring_bytes(self, stages: int) -> int:
        """Return what boxes of so many steps take."""
        lines = self.row_tensors * self.rows + self.inner_lines + self.tokens
        return stages * BOXES * lines * BOX_DEPTH * 2

    def shared_bytes(self, stages: int) -> int:
        """Return the shared memory of one block."""
        beside = self._kept(self.rows) if self.inner or self.received else 0
        if self.received:
            beside += self._kept(self.tokens) + self.tokens * (self.rows + 4) * 4
        if self.shared_by > 1:
            beside += self._kept(self.tokens) + 128  # and a barrier
        return max(ALONE_BYTES, self.ring_bytes(stages) + beside + 2 * stages * 8)

    def fits(self, stages: int, limit: int) -> bool:
        """Say whether a ring of so many stages fits, and what meets in its place."""
        return self.shared_bytes(stages) <= limit and self.meeting_bytes <= self.ring_bytes(stages)


def held_stages(block: HeldBlock, on: Target) -> int:
    """Return how many steps a block's ring holds; 0 where this plan cannot serve."""
    whole = block.depth % (block.groups * BOXES * BOX_DEPTH) == 0
    tiles = block.tokens % ROW_TILE == 0 and block.tokens <= GROUP_ROWS
    steps = block.depth // (BOXES * BOX_DEPTH)
    if on.arch not in WITH_WARPGROUPS or not whole or not tiles or steps < FEWEST_STEPS:
        return 0
    if max(block.rows, block.inner_lines) > MOST_ROWS or block.rows % (block.groups * OCTET):
        return 0
    if block.registers > min(255, REGISTERS // block.threads // 8 * 8):
        return 0
    step = BOXES * block.row_tensors * block.rows * BOX_DEPTH * 2
    deepest = max(FEWEST_STAGES, MOST_BYTES_IN_FLIGHT // step)
    if block.received:
        deepest = min(deepest, MOST_STAGES_RECEIVING)
    stages = range(block.groups, deepest + 1, block.groups)
    return max((s for s in stages if block.fits(s, on.shared_bytes)), default=0)
