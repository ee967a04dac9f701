"""Cluster split-K: two blocks of a cluster share rows and split the depth, for many tokens.

Every block of sliced-K reads all of its tokens from L2; from some 64 tokens on that takes longer
than the weights take from memory. Where two blocks split the depth, each reads half as much. A
block then has roles instead of equal warps (csrc/tile/cluster_split_k/block.cuh): one warp copies
boxes, two or three warpgroups multiply, and one computes what concerns tokens alone. The muGraph
stays as it is: its loop is dealt out to blocks as it is to warps, and the sums meet in a fixed
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.layouts import WARP_LANES
from mirage_kernels.generator.plan.program import Do, Layout, Statement, TileProgram
from mirage_kernels.generator.schedules.cluster_split_k.knobs import (
    BLOCKS,
    GROUPS,
    MOST_GROUPS,
)
from mirage_kernels.generator.schedules.producer_blocks import TOKEN_TILE
from mirage_kernels.generator.schedules.warpgroups import (
    ALONE_BYTES,
    BARRIER_BYTES,
    BOX_DEPTH,
    GROUP_ROWS,
    GROUP_WARPS,
    REGISTERS,
    REGISTERS_BESIDE,
)

SETS, FEWEST_STAGES_OF_SETS = 2, 6  # steps that have registers of their own; of a ring of so many


@dataclass(frozen=True)
class Split:
    """The statements of a loop by the warps that run them."""

    prepared: tuple[Statement, ...]  # of tokens alone
    multiplied: tuple[Statement, ...]
    rewritten: str  # computed tokens that products take instead of the loaded ones; "": none


def split(program: TileProgram) -> Split | None:
    """Return a program's loop by roles, None if this plan cannot carry it."""
    later = (program.fetches, program.stages, program.products, program.lines, program.also)
    if any(later) or program.roles.inner or not program.loop:
        return None
    computed = [s for s in program.loop if s.do is not Do.LOAD]
    loaded = {s.out: s for s in program.loads}
    layouts = [s.layout for s in program.loads]
    if layouts.count(Layout.TOKENS) != 1 or not layouts.count(Layout.ROWS):
        return None
    if any(s.layout is Layout.ROW_SUMS for s in computed):
        return None
    products = [s for s in computed if s.do is Do.CONTRACT]
    if any(a not in loaded and _type(computed, a) is DType.FP32 for p in products for a in p.args):
        return None
    tokens = {p.args[1] for p in products}
    if len(tokens) > 1:
        return None
    (operand,) = tokens
    alone = [s for s in computed if s.layout in (Layout.TOKENS, Layout.TOKEN_SUMS)]
    rows = [s for s in computed if s.layout in (Layout.ROWS, Layout.ACCUM)]
    return Split(
        _with_vectors(computed, alone),
        _with_vectors(computed, rows),
        "" if operand in loaded else operand,
    )


def _type(statements: Iterable[Statement], name: str) -> DType:
    return next(s.dtype for s in statements if s.out == name)


def _with_vectors(
    computed: Sequence[Statement], role: Sequence[Statement]
) -> tuple[Statement, ...]:
    """Return a role's statements with the computed vectors that they need, in the loop's order."""
    needed = {a for s in role for a in s.args}
    vectors: list[Statement] = []
    for s in reversed(computed):
        if s.layout is Layout.DEPTH and s.out in needed:
            vectors.append(s)
            needed |= set(s.args)
    return tuple(s for s in computed if s in vectors or s in role)


@dataclass(frozen=True)
class SplitBlock:
    """The size of one block, in what it keeps (csrc/tile/cluster_split_k/block.cuh)."""

    depth: int
    row_tensors: int
    computed_rows: int  # that are multiplied from registers, not as they lie
    vectors: int
    accumulators: int
    token_sums: int
    prepares: bool = False  # whether a warpgroup computes what concerns tokens alone
    rows: int = 0
    tokens: int = 0
    groups: int = GROUPS  # warpgroups that multiply
    turns: int = 1  # of them take turns at steps, each with all rows
    boxes: int = 1  # of a step

    @staticmethod
    def of(program: TileProgram) -> SplitBlock:
        """Return what blocks of a program keep, without a size yet."""
        extents = program.extents
        loads, loaded = [s.layout for s in program.loads], {s.out for s in program.loads}
        sums, made = [m.layout for m in program.meetings], split(program)
        return SplitBlock(
            extents[program.roles.depth],
            loads.count(Layout.ROWS),
            len({a for s in program.loop if s.do is Do.CONTRACT for a in s.args[:1]} - loaded),
            loads.count(Layout.DEPTH),
            sums.count(Layout.ACCUM),
            sums.count(Layout.TOKEN_SUMS),
            made is not None and bool(made.prepared),
        )

    def sized(self, rows: int, tokens: int) -> SplitBlock:
        """Return the block with a number of rows and tokens.

        Its warpgroups take turns at steps, so that one reads while the other has the tensor cores,
        if all rows are one tile; with more of them a tile each is faster (96: measured), so three
        warpgroups have 160 rows, 44.9 us against 48.9 with two tiles each of two (8192 -> 10240).
        Turns are of two boxes, 12.0 us against 12.6 (64 rows); shared steps are faster with one.
        """
        step = BLOCKS * BOX_DEPTH * GROUPS
        turns = GROUPS if rows <= GROUP_ROWS and self.depth % step == 0 else 1
        boxes = 2 if turns > 1 and self.depth % (2 * step) == 0 else 1
        groups = MOST_GROUPS if GROUPS < -(-rows // GROUP_ROWS) <= MOST_GROUPS else GROUPS
        sized = replace(self, rows=rows, tokens=tokens, groups=groups)
        return replace(sized, turns=turns, boxes=boxes)

    @property
    def columns(self) -> int:
        """Warpgroups that have rows of their own."""
        return self.groups // self.turns

    @property
    def own_rows(self) -> int:
        """Rows that one warpgroup multiplies, in whole octets; the last one may have fewer."""
        return -(-self.rows // TOKEN_TILE // self.columns) * TOKEN_TILE

    @property
    def tiles(self) -> int:
        """The same in whole tiles."""
        return -(-self.own_rows // GROUP_ROWS)

    @property
    def most_registers(self) -> int:
        """Registers that a thread may have: warpgroups multiply, one prepares, one warp copies."""
        threads = WARP_LANES * (GROUP_WARPS * (self.groups + self.prepares) + 1)
        return REGISTERS // threads // 8 * 8

    @property
    def operands(self) -> int:
        """Registers of a step's rows that are computed with."""
        return self.computed_rows * self.tiles * BOX_DEPTH // 4

    @property
    def registers(self) -> int:
        """Registers of a thread that multiplies: its sums, rows in registers, the rest."""
        return self.accumulators * self.tiles * self.tokens // 2 + self.operands + REGISTERS_BESIDE

    def sets(self, stages: int) -> int:
        """Return how many steps have registers of their own.

        With two, one step is read and computed with while the other's products run, and two of the
        ring's are not overwritten: 15.2 us against 15.7 (3584 -> 4608, with bias), 15.8 against
        16.0 (4096 -> 6144); of a ring of four 48 against 46.5 (8192 -> 10240).
        """
        fits = self.registers + (SETS - 1) * self.operands <= self.most_registers
        return SETS if fits and self.turns == 1 and stages >= FEWEST_STAGES_OF_SETS else 1

    @property
    def meeting_bytes(self) -> int:
        """What sums take that come from the other block, and from the other warpgroup."""
        octets = self.tokens // TOKEN_TILE // BLOCKS * self.groups * self.tiles
        octets += octets // self.turns * (self.turns - 1)
        sums = self.accumulators * octets * GROUP_WARPS * WARP_LANES * 16
        return sums + self.token_sums * self.tokens * 4

    def ring_bytes(self, stages: int) -> int:
        """Return what boxes of so many steps take."""
        lines = self.row_tensors * self.rows + self.tokens
        return stages * self.boxes * lines * BOX_DEPTH * 2

    def shared_bytes(self, stages: int) -> int:
        """Return the shared memory of one block."""
        lines = (self.columns - 1) * self.own_rows + self.tiles * GROUP_ROWS
        overrun = (lines - self.rows) * BOX_DEPTH * 2
        rest = -(-overrun // 1024) * 1024 + self.vectors * self.depth // BLOCKS * 2
        rest += self.meeting_bytes + (3 * stages + 2) * BARRIER_BYTES
        return max(ALONE_BYTES, self.ring_bytes(stages) + rest)
