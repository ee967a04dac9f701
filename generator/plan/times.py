"""The time predicted for a kernel: one page on purpose, for every plan that streams weights.

It ranks what tuning compiles and measures; no claim rests on it. Times are those of launches that
overlap, with weights promised to be constant. A launch takes what the slowest of these takes:

* device memory, which hands out every weight once;
* the multiprocessor with the most blocks, whose port takes their weights, and more slowly where
  too few bytes are in flight;
* its warps, which issue the products, and wait for each where a scheduler has one warp only;

then the tokens, which every block reads anew from L2, while its weights wait; and a start and an
end by plan. Numbers are fits to tunings on an H200 (kernels/catalog.json, docs/measurements.md),
leads for all other GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.apart import PAIR, ROW_TILE, users_of
from mirage_kernels.generator.plan.facts import facts
from mirage_kernels.generator.plan.forms import LINE_TILE, WARP_LANES
from mirage_kernels.generator.plan.front import behind
from mirage_kernels.generator.plan.held import BOXES
from mirage_kernels.generator.plan.program import Do, Layout, TileProgram
from mirage_kernels.generator.plan.split import BOX_DEPTH, SplitBlock
from mirage_kernels.generator.plan.variants import (
    ALIGNED_ELEMENTS,
    CHUNK_DEPTH,
    REGISTERS_LEFT,
    REGISTERS_RECEIVING,
    RESERVED_BYTES,
    Footprint,
    Knobs,
)
from mirage_kernels.generator.target import Target

ELEMENT_BYTES = 2
ADDRESS_REGISTERS = 28  # beside a step and its accumulators: 24 and 30 by ptxas
SCHEDULERS = 4  # of a multiprocessor
OVERLAP = 1.06  # faster than memory alone: a launch starts before the one before it ends
WEIGHT_BYTES = 20.0  # per cycle, to one multiprocessor while its neighbour asks too
ALONE_BYTES = 28.0  # and where no more than every second one has a block
TOKEN_BYTES = 48.0  # per cycle, from L2, of a block alone on its multiprocessor
BESIDE = 0.7  # more of that where there are others beside it
BOX_TOKEN_BYTES = 115.0  # the same by boxes for tokens that are held in registers
# Of weights in flight, by multiprocessor: fewer wait for their latency.
HELD_IN_FLIGHT, IN_FLIGHT, COMPUTED_IN_FLIGHT = 24 * 1024, 32 * 1024, 36 * 1024
HALF_SEGMENTS = 1.065  # rows copied 64 bytes at a time, not 128: 14.8 us against 13.9
ODD_SEGMENTS = 1.15  # the same where half of a row tile stays empty: 26.7 us against 20
ALONE_CYCLES, TOGETHER_CYCLES = 24.0, 18.0  # per m16n8k16 of a scheduler, with one warp, with more
FEW_WARPS_US = 0.3  # of four warps that have a multiprocessor to themselves, not eight
STEP_CYCLES, COMPUTED_CYCLES = 250.0, 600.0  # per 64 elements of the depth, as boxes lie, computed
SHOWN = 0.1  # share of a resource's time that shows beside a busier one's
VECTOR_CYCLES = 0.5  # per element of the depth, where vectors along it are computed, by slices
SPLIT_VECTOR_CYCLES = 1.8  # the same by the plan that splits the depth
STATISTICS_US = 1.4  # of a token that a warp takes whole before the loop
START_US = {"lines": 1.9, "slices": 0.3, "held": 1.5, "split": 2.0}  # and end
PAIRED_ROW_US = 0.012  # of blocks that hold tokens in pairs: sums cross, beside no makers
INNER_US, INNER_CYCLES = 1.0, 2.4  # what held tokens pay for totals of inner lines, per element
WAVE_US = 0.8  # a block that follows another, from its first copy to its first product
MAKER_US = 2.0  # from a maker's start to its first product, and until its totals are received
FRONT_US = 1.3  # what a launch in front adds, beside its warps
LINE_WARP_US = 0.012  # warps of a line's block, by multiprocessor


@dataclass(frozen=True)
class Streaming:
    """A planned program on a target: all that its predicted time depends on beside the knobs."""

    program: TileProgram
    users: TileProgram  # the same without what other blocks compute
    footprint: Footprint
    on: Target

    @staticmethod
    def of(program: TileProgram, on: Target) -> Streaming:
        """Return what the predictions for a program need."""
        return Streaming(program, users_of(program), Footprint.of(program), on)

    @property
    def behind(self) -> Streaming:
        """What follows where tokens are made in front."""
        return Streaming.of(behind(self.program), self.on)

    @property
    def rows(self) -> int:
        """Rows of the streamed weights."""
        return self.program.extents[self.program.roles.rows]

    @property
    def depth(self) -> int:
        """The contracted extent."""
        return self.program.extents[self.program.roles.depth]

    def elements(self, names: tuple[str, ...], knobs: Knobs) -> int:
        """Return the elements that a block has of a value in the whole loop."""
        roles, count = self.program.roles, 1
        own = self.program.extents | {roles.rows: knobs.rows, roles.tokens: knobs.tokens}
        for name in names:
            count *= own[name]
        return count // knobs.blocks

    def read_bytes(self, knobs: Knobs, *, rows: bool) -> int:
        """Return the bytes that a block loads: of the weights that it shares with no other block
        (`rows`), or of all else.
        """
        loads = [s for s in self.users.loads if (s.layout is Layout.ROWS) is rows]
        return ELEMENT_BYTES * sum(self.elements(s.type.names, knobs) for s in loads)

    def fits(self, knobs: Knobs) -> bool:
        """Say whether a block of slices has what it needs, and all its warps work."""
        step = knobs.warps * knobs.chunks * CHUNK_DEPTH
        together = any(s.barrier for s in self.users.loop)  # all warps come to all barriers
        most = REGISTERS_RECEIVING if self.footprint.receives else REGISTERS_LEFT
        return (
            (self.depth % step == 0 if together else step <= max(self.depth, WARP_LANES))
            and knobs.stages - 1 <= ceil(self.depth / step)
            and self.footprint.registers(knobs) <= most
            and self.footprint.shared_bytes(knobs) <= self.on.shared_bytes
        )

    def resident(self, knobs: Knobs) -> int:
        """Return how many blocks a multiprocessor holds at once; those of boxes are alone."""
        if knobs.plan:
            return 1
        shared = self.footprint.shared_bytes(knobs) + RESERVED_BYTES
        registers = (self.footprint.registers(knobs) + ADDRESS_REGISTERS) * knobs.warps * WARP_LANES
        fitting = (self.on.shared_bytes + RESERVED_BYTES) // shared
        return max(1, min(fitting, self.on.registers // registers))

    def computes(self, layout: Layout) -> bool:
        """Say whether the loop computes with values of a layout, not only products."""
        maps = (s for s in self.users.loop if s.do is Do.MAP and s.layout is layout)
        return any(layout is not Layout.DEPTH or s.dtype is DType.FP32 for s in maps)

    @property
    def products(self) -> int:
        """Products of one pass of the loop."""
        return sum(s.do is Do.CONTRACT for s in self.users.loop)


def predicted_us(work: Streaming, knobs: Knobs, tokens: int = 0) -> float:
    """Return the time predicted for a full bucket of tokens; lines have to be told how many."""
    if not knobs.rows:
        return _lines_us(work, knobs, tokens)
    if knobs.front:
        return _front_us(work, knobs) + predicted_us(work.behind, replace(knobs, front=0))
    blocks = ceil(work.rows / knobs.rows) * knobs.blocks
    most = ceil(blocks / work.on.multiprocessors)  # of the busiest multiprocessor
    at_once = min(work.resident(knobs), most)
    taken = _weights_us(work, knobs, most, at_once) + _tokens_us(work, knobs, most, at_once)
    issued = most * (_boxes_us(work, knobs) if knobs.plan else _slices_us(work, knobs, at_once))
    busy = max(taken, issued) + (SHOWN * issued if knobs.plan else 0.0)
    waves = WAVE_US * (ceil(most / at_once) - 1)
    streamed = START_US[knobs.plan or "slices"] + busy + waves + _vectors_us(work, knobs)
    if not knobs.plan:
        streamed += FEW_WARPS_US * (knobs.warps * at_once <= SCHEDULERS)
        streamed += _meeting_us(work, knobs, most)
    if knobs.held and knobs.blocks > 1 and not knobs.apart:
        streamed += PAIRED_ROW_US * knobs.rows
    if knobs.held and work.footprint.inner_lines:
        kept = INNER_CYCLES * work.footprint.inner_lines * knobs.tokens
        streamed += INNER_US + kept / facts(work.on).cycles_per_us
    if work.program.statistics:
        streamed += STATISTICS_US * most * knobs.tokens / knobs.warps
    return _beside_makers_us(work, knobs, streamed)


def _weights_us(work: Streaming, knobs: Knobs, most: int, at_once: int) -> float:
    """Return the time in which weights come: from memory, and to the busiest multiprocessor."""
    own, clock = work.read_bytes(knobs, rows=True), facts(work.on).cycles_per_us
    all_bytes = own * knobs.blocks * work.rows / knobs.rows  # the last block may be partly empty
    from_memory = all_bytes / work.on.memory_bytes_per_us / OVERLAP
    few = work.rows / knobs.rows * knobs.blocks <= work.on.multiprocessors / 2
    port = (ALONE_BYTES if few else WEIGHT_BYTES) * clock
    if knobs.held:
        deep = (knobs.stages - 1) * own * BOXES * BOX_DEPTH * knobs.blocks / work.depth
        port *= min(1.0, deep / HELD_IN_FLIGHT)
    if knobs.plan:
        return max(from_memory, most * own / port)
    step = knobs.warps * knobs.chunks * CHUNK_DEPTH
    passes = ceil(work.depth / step)
    stretch = passes * step / work.depth  # warps without work in the last pass
    in_flight = at_once * min(knobs.stages - 1, passes) * own * step / work.depth
    computed = any(s.do is Do.MAP for s in work.users.loop)
    port *= min(1.0, in_flight / (COMPUTED_IN_FLIGHT if computed else IN_FLIGHT))
    segments = HALF_SEGMENTS if knobs.chunks == 1 else 1.0
    if knobs.chunks == 1 and knobs.rows % ROW_TILE:
        segments = ODD_SEGMENTS
    return segments * max(from_memory, most * own * stretch / port)


def _tokens_us(work: Streaming, knobs: Knobs, most: int, at_once: int) -> float:
    """Return the time that blocks spend on what all of them read, from L2."""
    again, clock = work.read_bytes(knobs, rows=False), facts(work.on).cycles_per_us
    if knobs.held:
        return most * again / (BOX_TOKEN_BYTES * clock)
    beside = BESIDE if at_once > 1 else 0.0
    return most * again / (TOKEN_BYTES * clock * (1 + beside))


def _slices_us(work: Streaming, knobs: Knobs, at_once: int) -> float:
    """Return the time in which a block's warps issue their products."""
    inner = sum(m.inner for m in work.footprint.meetings) // ROW_TILE
    lines = work.footprint.products * ceil(knobs.rows / ROW_TILE) + inner
    tiles = lines * ceil(knobs.tokens / LINE_TILE) * work.depth / ROW_TILE
    alone = knobs.warps * at_once <= SCHEDULERS
    cycles = ALONE_CYCLES if alone else TOGETHER_CYCLES
    return tiles / SCHEDULERS * cycles / facts(work.on).cycles_per_us


def _boxes_us(work: Streaming, knobs: Knobs) -> float:
    """Return the time in which a block's warpgroups issue their products."""
    steps, clock = work.depth / (knobs.blocks * BOX_DEPTH), facts(work.on).cycles_per_us
    if knobs.held:
        share = knobs.rows / (4 * ROW_TILE) / knobs.held  # of a group, in products of 64 lines
        return work.products * steps * share * STEP_CYCLES / clock
    block = SplitBlock.of(work.program).sized(knobs.rows, knobs.tokens)
    cycles = COMPUTED_CYCLES if block.computed_rows else STEP_CYCLES
    return work.products * steps / block.turns * block.tiles * cycles / clock


def _vectors_us(work: Streaming, knobs: Knobs) -> float:
    """Return the time of vectors along the depth that the loop computes in fp32."""
    if not work.computes(Layout.DEPTH):
        return 0.0
    each = SPLIT_VECTOR_CYCLES if knobs.blocks > 1 else VECTOR_CYCLES
    return each * work.depth / facts(work.on).cycles_per_us


def _meeting_us(work: Streaming, knobs: Knobs, most: int) -> float:
    """Return the time in which a block's partial sums go to shared memory and are added up."""
    f = facts(work.on)
    moved = sum(m.bytes(knobs) for m in work.footprint.meetings)
    return most * 2 * moved / f.wavefront_bytes / f.cycles_per_us


def _beside_makers_us(work: Streaming, knobs: Knobs, streamed: float) -> float:
    """Return the time of a launch in which some blocks compute totals for all others."""
    if not knobs.apart:
        return streamed
    few = PAIR if knobs.maker_groups else 1  # half of the depth, of twice as many rows
    lines = knobs.maker_rows + knobs.maker_tokens // few
    read = ELEMENT_BYTES * lines * work.depth
    crowded = WAVE_US * (ceil(work.rows / knobs.rows) * knobs.blocks > work.on.multiprocessors)
    made = MAKER_US + read / (TOKEN_BYTES * facts(work.on).cycles_per_us)
    return max(streamed, made + MAKER_US) + SHOWN * made + 2 * crowded


def _front_us(work: Streaming, knobs: Knobs) -> float:
    """Return the time of a launch in front, whose blocks hold a token each."""
    chunks = ceil(work.depth / (knobs.front * WARP_LANES * ALIGNED_ELEMENTS))
    return FRONT_US + LINE_WARP_US * (knobs.front + chunks)


def _lines_us(work: Streaming, knobs: Knobs, tokens: int) -> float:
    """Return the time of blocks that hold a token each."""
    statements = [s for s in work.program.lines if s.do in (Do.LOAD, Do.STORE)]
    lines = sum(work.program.roles.tokens in s.type.names for s in statements)
    moved = lines * tokens * work.depth * ELEMENT_BYTES / work.on.memory_bytes_per_us
    crowded = LINE_WARP_US * knobs.warps * max(1.0, tokens / work.on.multiprocessors)
    return START_US["lines"] + moved + crowded + knobs.chunks * LINE_WARP_US
