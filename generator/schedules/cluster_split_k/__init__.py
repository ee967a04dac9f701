"""Cluster split-K: two blocks of a cluster share rows and split the depth, for many tokens.

Every block of sliced-K reads all of its tokens from L2; from some 64 tokens on that takes longer
than the weights take from memory. Where two blocks split the depth, each reads half as much. A
block then has roles instead of equal warps (csrc/tile/cluster_split_k/block.cuh): one warp copies
TMA tiles, two or three warpgroups multiply, and one computes what concerns tokens alone. The
muGraph stays as it is: its loop is partitioned over blocks as it is over warps, and the sums are
reduced in a fixed order. It is faster than sliced-K above 32 tokens, above 16 where its warpgroups
take turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import lcm
from typing import ClassVar

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.arranged import Arranged
from mirage_kernels.generator.plan.layouts import WARP_LANES
from mirage_kernels.generator.plan.program import Do, Layout, Statement, TileProgram, needed
from mirage_kernels.generator.schedules import loop, tma
from mirage_kernels.generator.schedules.latency import TOKEN_BYTES, Streaming
from mirage_kernels.generator.schedules.schedule import Model, Ranked
from mirage_kernels.generator.target import Target

BLOCKS = 2  # of a cluster: all SMs hold pairs, not all larger clusters (docs/measurements.md)
GROUPS, MOST_GROUPS = 2, 3  # warpgroups that multiply
SETS, FEWEST_STAGES_OF_SETS = 2, 6  # steps that have registers of their own; of a ring of so many
FEW_IN_TURNS = 16  # tokens; up to so many sliced-K is as fast where warpgroups take turns
FEWEST_STAGES = 3
MOST_TMA_LINES = 256  # of the copy engine
MOST_BYTES_IN_FLIGHT = 80 * 1024  # of weights: more was slower
# The same of 8-bit weights where warpgroups take turns: 8.7 us, with 64 KB 8.9 (4096 -> 4096,
# 64 tokens), 8.5, with 80 KB 9.1 (32 tokens).
MOST_EIGHT_BIT_BYTES = 48 * 1024
MOST_WAVES = 4  # of blocks with weights of 8 bits; those of 16 go to register operands instead
TOKENS = 32  # what csrc/tile wants a block's tokens to be a multiple of

START_US = 2.0  # and end
STEP_CYCLES, COMPUTED_CYCLES = 250.0, 600.0  # per 64 elements of the depth, as tiles lie, computed
VECTOR_CYCLES = 1.8  # per element of the depth, where vectors along it are computed


@dataclass(frozen=True)
class ClusterSplitK(loop.WarpgroupKnobs):
    """Template constants of a cluster split-K kernel."""

    schedule: ClassVar[str] = "cluster_split_k"
    blocks = BLOCKS  # of a cluster, which split the loop

    tokens: int  # of one block
    rows: int  # of a cluster
    stages: int
    groups: int = GROUPS  # warpgroups that multiply

    @property
    def label(self) -> str:
        """Name the schedule: its blocks are always in pairs."""
        return self.schedule

    def config(self, program: TileProgram) -> dict[str, int]:
        """Return the knobs; of steps warpgroups, turns, TMA tiles, and sets of registers."""
        block, rows = SplitBlock(program), self.rows
        steps = {"groups": self.groups, "turns": block.turns(rows)}
        steps |= {"tma_tiles": block.tma_tiles(rows), "sets": block.sets(self)}
        return super().config(program) | steps

    @property
    def step_depth(self) -> int:
        """Return how much of the contracted dim one pass of the loop takes."""
        return BLOCKS * loop.TMA_DEPTH


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
    loaded = {s.out for s in program.loads}
    layouts = [s.layout for s in program.loads]
    if layouts.count(Layout.TOKENS) != 1 or not layouts.count(Layout.ROWS):
        return None
    if any(s.layout is Layout.ROW_SUMS for s in computed):
        return None
    if program.byte_rows and len({s.dtype for s in program.loads if s.layout is Layout.ROWS}) > 1:
        return None
    products = [s for s in computed if s.do is Do.CONTRACT]
    wide = {s.out for s in computed if s.dtype is DType.FP32}
    tokens = {p.args[1] for p in products}
    if len(tokens) > 1 or wide & {a for p in products for a in p.args}:
        return None
    (operand,) = tokens

    def role(*layouts: Layout) -> tuple[Statement, ...]:
        """Return the statements of values, with the computed vectors that they need."""
        own = [s for s in computed if s.layout in (*layouts, Layout.DEPTH)]
        return needed(own, {s.out for s in own if s.layout in layouts})

    return Split(
        role(Layout.TOKENS, Layout.TOKEN_SUMS),
        role(Layout.ROWS, Layout.ACCUM),
        "" if operand in loaded else operand,
    )


@dataclass(frozen=True)
class SplitBlock(loop.Block):
    """What blocks of a program keep, by their knobs (csrc/tile/cluster_split_k/block.cuh)."""

    @cached_property
    def computed_rows(self) -> int:
        """Tensors that are multiplied from registers, not as they lie."""
        products = {a for s in self.program.loop if s.do is Do.CONTRACT for a in s.args[:1]}
        as_loaded = {s.out for s in {*self.program.loads} - {*self.program.byte_rows}}
        return len(products - as_loaded)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of the weights of a row in a TMA tile."""
        return loop.TMA_DEPTH * self.weight_bytes

    @cached_property
    def unit(self) -> int:
        """What the depth of a block is a multiple of: TMA tiles, and groups of a row."""
        groups = (dict(o.grouped) for o in self.program.inputs)
        return lcm(loop.TMA_DEPTH, *(g.get(self.program.roles.depth, 1) for g in groups))

    @cached_property
    def prepares(self) -> bool:
        """Whether a warpgroup computes what concerns tokens alone."""
        made = split(self.program)
        return made is not None and bool(made.prepared)

    def turns(self, rows: int) -> int:
        """Return how many warpgroups take turns at steps, each with all rows.

        So that one reads while the other has the tensor cores, if all rows are one tile; with more
        of them a tile each is faster (96: measured).
        """
        step = BLOCKS * loop.TMA_DEPTH * GROUPS
        return GROUPS if rows <= loop.GROUP_ROWS and self.depth % step == 0 else 1

    def tma_tiles(self, rows: int) -> int:
        """Return the TMA tiles of a step.

        Turns are of two, 12.0 us against 12.6 (64 rows); shared steps are faster with one.
        """
        even = self.depth % (2 * BLOCKS * loop.TMA_DEPTH * GROUPS) == 0
        return 2 if self.turns(rows) > 1 and even else 1

    def own_rows(self, knobs: ClusterSplitK) -> int:
        """Return the rows that one warpgroup multiplies; the last one may have fewer."""
        columns = knobs.groups // self.turns(knobs.rows)
        return -(-knobs.rows // loop.TOKEN_TILE // columns) * loop.TOKEN_TILE

    def tiles(self, knobs: ClusterSplitK) -> int:
        """Return the same in whole tiles."""
        return -(-self.own_rows(knobs) // loop.GROUP_ROWS)

    def most_registers(self, knobs: ClusterSplitK) -> int:
        """Return what a thread may have: warpgroups multiply, one prepares, one warp copies."""
        threads = WARP_LANES * (loop.GROUP_WARPS * (knobs.groups + self.prepares) + 1)
        return loop.REGISTERS // threads // 8 * 8

    def registers(self, knobs: ClusterSplitK, sets: int = 1) -> int:
        """Return the registers of a thread that multiplies: sums, rows that are computed, the rest.

        So many `sets` of steps have registers for such rows.
        """
        sums = self.sums[Layout.ACCUM] * knobs.tokens // 2
        rows = sets * self.computed_rows * loop.TMA_DEPTH // 4
        return self.tiles(knobs) * (sums + rows) + loop.REGISTERS_BESIDE

    def sets(self, knobs: ClusterSplitK) -> int:
        """Return how many steps have registers of their own.

        With two, one step is read and computed with while the other's products run, and two of the
        ring's are not overwritten: 15.2 us against 15.7 (3584 -> 4608, with bias), 15.8 against
        16.0 (4096 -> 6144); of a ring of four 48 against 46.5 (8192 -> 10240).
        """
        deep = self.turns(knobs.rows) == 1 and knobs.stages >= FEWEST_STAGES_OF_SETS
        fits = self.registers(knobs, SETS) <= self.most_registers(knobs)
        return SETS if deep and fits else 1

    def shared_bytes(self, knobs: ClusterSplitK) -> int:
        """Return the shared memory of one block."""
        turns, tiles, tokens = self.turns(knobs.rows), self.tiles(knobs), knobs.tokens
        step = self.row_bytes * knobs.rows + loop.TMA_DEPTH * 2 * tokens
        ring = knobs.stages * self.tma_tiles(knobs.rows) * step
        lines = (knobs.groups // turns - 1) * self.own_rows(knobs) + tiles * loop.GROUP_ROWS
        line_bytes = self.row_bytes // self.loads[Layout.ROWS]
        overrun = -(-(lines - knobs.rows) * line_bytes // 1024) * 1024
        vectors = self.loads[Layout.DEPTH] * self.depth // BLOCKS * 2
        # Sums come from the other block, and from the other warpgroup.
        row_blocks = tokens // loop.TOKEN_TILE // BLOCKS * knobs.groups * tiles
        row_blocks += row_blocks // turns * (turns - 1)
        sums = self.sums[Layout.ACCUM] * row_blocks * loop.GROUP_WARPS * WARP_LANES * 16
        sums += self.sums[Layout.TOKEN_SUMS] * tokens * 4
        barriers = (3 * knobs.stages + 2) * loop.BARRIER_BYTES
        for s in self.program.group_reads:
            sums += loop.aligned(knobs.rows * self.group_bytes(s) // BLOCKS)
        return max(loop.ALONE_BYTES, ring + overrun + vectors + sums + barriers)


def arranged(program: TileProgram, knobs: ClusterSplitK) -> Arranged:
    """Return what the blocks of a cluster are together: those that take turns have a slice each.

    Sums meet beside the pipeline, which the other block may still read.
    """
    block, made = SplitBlock(program), split(program)
    assert made is not None
    turns = (block.turns(knobs.rows), block.tma_tiles(knobs.rows) * loop.TMA_DEPTH)
    found = tma.arranged(program, knobs, turns, program.reductions)
    roles = tuple(filter(None, (made.prepared, made.multiplied)))
    return replace(found, roles=roles, rewritten=made.rewritten, waits=False)


# -- the rule, and what is tried -------------------------------------------------------------------


def fits(program: TileProgram, on: Target) -> tuple[str, ...]:
    """Return why cluster split-K does not fit a program."""
    form = () if split(program) else ("its loop is more than products of rows with one operand",)
    return (*loop.reasons_against(on), *loop.columns_reason(program), *form)


def choose(program: TileProgram, tokens: int, on: Target) -> ClusterSplitK | None:
    """Return the knobs for a bucket, None where such blocks cannot serve or sliced-K is better."""
    block = SplitBlock(program)
    rows = loop.rows_for(block.rows, on.multiprocessors // BLOCKS)
    if tokens <= (FEW_IN_TURNS if block.turns(rows) > 1 else loop.FEW_TOKENS):
        return None
    waves = range(1, (MOST_WAVES if program.byte_rows else 1) + 1)
    tried = (loop.rows_for(block.rows, on.multiprocessors // BLOCKS * n) for n in waves)
    found = chain.from_iterable(_by_stages(program, rows, tokens, on) for rows in tried)
    return next(found, None)


def candidates(program: TileProgram, tokens: int, on: Target) -> Iterator[ClusterSplitK]:
    """Yield knobs to try for a bucket."""
    if tokens % TOKENS == 0:
        most, tile = program.extents[program.roles.rows], loop.ROW_TILE
        for rows in range(tile, most + tile, tile):
            yield from _by_stages(program, rows, tokens, on)


def _by_stages(program: TileProgram, rows: int, tokens: int, on: Target) -> Iterator[ClusterSplitK]:
    """Yield knobs whose rings fit, the deepest first; none where such blocks cannot serve.

    Three warpgroups have up to 192 rows, 44.9 us against 48.9 with two tiles each of two (8192 ->
    10240).
    """
    block, groups = SplitBlock(program), GROUPS
    if GROUPS < -(-rows // loop.GROUP_ROWS) <= MOST_GROUPS:
        groups = MOST_GROUPS
    least = ClusterSplitK(tokens, rows, FEWEST_STAGES, groups)
    if block.depth % (BLOCKS * block.unit) or rows > MOST_TMA_LINES:
        return
    if block.registers(least) > block.most_registers(least):
        return
    turns, tiles = block.turns(rows), block.tma_tiles(rows)
    step = tiles * block.row_bytes * rows
    few = program.byte_rows and turns > 1
    most = MOST_EIGHT_BIT_BYTES if few else MOST_BYTES_IN_FLIGHT
    deepest = max(FEWEST_STAGES * turns // tiles, most // step)
    for stages in range(deepest // turns * turns, FEWEST_STAGES - 1, -turns):
        knobs = replace(least, stages=stages)
        if block.shared_bytes(knobs) <= on.shared_bytes:
            yield knobs


def predict(program: TileProgram, on: Target) -> Model:
    """Return the model of a program (`schedules/latency.py`)."""
    work, block = Streaming(program.streamed, on), SplitBlock(program)
    products = sum(s.do is Do.CONTRACT for s in program.loop)
    step_cycles = COMPUTED_CYCLES if block.computed_rows else STEP_CYCLES
    steps = products * block.depth / (BLOCKS * loop.TMA_DEPTH)

    def model(knobs: ClusterSplitK, tokens: int) -> float:
        taken = work.weights_us(knobs) + work.tokens_us(knobs, TOKEN_BYTES)
        cycles = steps / block.turns(knobs.rows) * block.tiles(knobs) * step_cycles
        streamed = work.warpgroups_us(knobs, taken, cycles)
        return START_US + streamed + work.vectors_us(VECTOR_CYCLES)

    return model


SCHEDULE = Ranked(
    knobs=ClusterSplitK,
    fits=fits,
    choose=choose,
    candidates=candidates,
    registers=lambda program, knobs: SplitBlock(program).registers(knobs),
    shared_bytes=lambda program, knobs: SplitBlock(program).shared_bytes(knobs),
    predict=predict,
    arranged=arranged,
)
