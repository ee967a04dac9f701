"""Candidates of a kernel's knobs for one bucket of tokens, and the time predicted for each.

The model is one page on purpose: it ranks what tuning compiles and measures, no claim rests on it.
A kernel takes its launch, then the time of its busiest resource and a tenth of the others', then
what nothing hides: the first bytes' way and the meeting of the warps' sums, once per wave of blocks
(blocks that share a multiprocessor hide one another's). Resources:

* device memory reads every weight once, no faster than the bytes in flight allow, and the
  multiprocessor with the most blocks has to take them all;
* L2 hands out the weights and, to every block anew, the tokens and all else not cut by rows;
* shared memory takes every byte of a step once and gives it once;
* the tensor cores multiply whole tiles, the other units what is mapped and summed in the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, product
from math import ceil

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.plan.apart import ROW_TILE
from mirage_kernels.generator.plan.choose import OVERLAPPED
from mirage_kernels.generator.plan.facts import facts
from mirage_kernels.generator.plan.program import Do, Layout, TileProgram
from mirage_kernels.generator.plan.variants import (
    BUCKETS,
    CHUNK_DEPTH,
    LINE_TILE,
    REGISTERS_LEFT,
    RESERVED_BYTES,
    WARP_LANES,
    Footprint,
    Knobs,
    variants,
    with_makers,
)
from mirage_kernels.generator.target import Target

WARPS, CHUNKS, STAGES = (4, 8), (1, 2), (2, 3, 4, 5, 6)
STAGES_OF_EACH = 2  # numbers of stages tried of knobs that are alike otherwise
ELEMENT_BYTES = 2
FILL_US = 0.8  # a lead: from a block's first copy to its first product, and its last store
HALF_SEGMENTS = 1.065  # rows copied 64 bytes at a time, not 128: 14.8 us against 13.9
PORT_BYTES = 48.0  # per cycle, from L2 to one multiprocessor: a lead, of 64 at best
ADDRESS_REGISTERS = 28  # beside a step and its accumulators: 24 and 30 by ptxas


@dataclass(frozen=True)
class Candidate:
    """Knobs and their predicted time; `rule` marks what variants.py chooses without measurement."""

    knobs: Knobs
    predicted_us: float
    rule: bool = False


@dataclass(frozen=True)
class Streaming:
    """A planned program on a target: all that its predicted time depends on beside the knobs."""

    program: TileProgram
    footprint: Footprint
    on: Target

    @staticmethod
    def of(program: TileProgram, on: Target) -> Streaming:
        """Return what the predictions for a program need."""
        return Streaming(program, Footprint.of(program), on)

    @property
    def extents(self) -> dict[str, int]:
        """Extents of the static dims."""
        dims = (d for o in self.program.inputs for d in o.type.dims)
        return {d.name: d.size for d in dims if not d.dynamic}

    @property
    def rows(self) -> int:
        """Rows of the streamed weights."""
        return self.extents[self.program.roles.rows]

    @property
    def depth(self) -> int:
        """The contracted extent."""
        return self.extents[self.program.roles.depth]

    def elements(self, names: tuple[str, ...], knobs: Knobs) -> int:
        """Return the elements that a block has of a value in the whole loop."""
        roles, count = self.program.roles, 1
        own = self.extents | {roles.rows: knobs.rows, roles.tokens: knobs.tokens}
        for name in names:
            count *= own[name]
        return count

    def read_bytes(self, knobs: Knobs, *, rows: bool) -> int:
        """Return the bytes that a block loads: of the weights that it shares with no other block
        (`rows`), or of all else.
        """
        loads = [s for s in self.program.loads if (s.layout is Layout.ROWS) is rows]
        return ELEMENT_BYTES * sum(self.elements(s.type.names, knobs) for s in loads)

    def fits(self, knobs: Knobs) -> bool:
        """Say whether a block has the registers and the shared memory, and all its warps work."""
        step = knobs.warps * knobs.chunks * CHUNK_DEPTH
        together = any(s.barrier for s in self.program.loop)  # all warps come to all barriers
        return (
            (self.depth % step == 0 if together else step <= max(self.depth, WARP_LANES))
            and knobs.stages - 1 <= ceil(self.depth / step)
            and self.footprint.registers(knobs) <= REGISTERS_LEFT
            and self.footprint.shared_bytes(knobs) <= self.on.shared_bytes
        )

    def resident(self, knobs: Knobs) -> int:
        """Return how many blocks a multiprocessor holds at once."""
        shared = self.footprint.shared_bytes(knobs) + RESERVED_BYTES
        registers = (self.footprint.registers(knobs) + ADDRESS_REGISTERS) * knobs.warps * WARP_LANES
        fitting = (self.on.shared_bytes + RESERVED_BYTES) // shared
        return max(1, min(fitting, self.on.registers // registers))


def predicted_us(work: Streaming, knobs: Knobs) -> float:
    """Return the time predicted for a full bucket of tokens."""
    tiles = ceil(work.rows / knobs.rows)
    most = ceil(tiles / work.on.multiprocessors)  # blocks of the busiest multiprocessor
    at_once = min(work.resident(knobs), most)
    busy = _busy_us(work, knobs, (tiles, most, at_once))
    loop = (1 - OVERLAPPED) * max(busy) + OVERLAPPED * sum(busy)
    waves = ceil(most / at_once) if at_once == 1 else 1
    return work.on.launch_us + loop + waves * FILL_US + waves * at_once * _meeting_us(work, knobs)


def _busy_us(work: Streaming, knobs: Knobs, blocks: tuple[int, int, int]) -> list[float]:
    """Return the time of every resource; blocks = all, of the busiest multiprocessor, at once."""
    tiles, most, at_once = blocks
    f, on = facts(work.on), work.on
    own, again = work.read_bytes(knobs, rows=True), work.read_bytes(knobs, rows=False)
    step = knobs.warps * knobs.chunks * CHUNK_DEPTH
    passes = ceil(work.depth / step)
    stretch = passes * step / work.depth  # warps without work in the last pass
    in_flight = at_once * min(knobs.stages - 1, passes) * own * step / work.depth
    share = on.memory_bytes_per_us / on.multiprocessors
    alone = share * in_flight / f.bytes_in_flight
    weights = own * work.rows / knobs.rows  # of all blocks: the last may be partly empty
    port = PORT_BYTES * f.cycles_per_us
    segments = HALF_SEGMENTS if knobs.chunks == 1 else 1.0
    return [
        max(segments * weights / on.memory_bytes_per_us, most * own * stretch / alone),
        max((weights + tiles * again) / on.l2_bytes_per_us, most * (own + again) / port),
        most * stretch * 2 * (own + again) / f.wavefront_bytes / f.cycles_per_us,
        most * stretch * _tensor_cycles(work, knobs) * f.mma_cycles / f.cycles_per_us,
        most * stretch * _mapped(work, knobs) / WARP_LANES * f.simple_cycles / f.cycles_per_us,
    ]


def _tensor_cycles(work: Streaming, knobs: Knobs) -> float:
    """Return how many m16n8k16 a block issues."""
    products = sum(s.do is Do.CONTRACT for s in work.program.loop)
    tiles = (knobs.rows // ROW_TILE) * ceil(knobs.tokens / LINE_TILE)
    return products * tiles * work.depth / ROW_TILE


def _mapped(work: Streaming, knobs: Knobs) -> int:
    """Return the elements that a block maps or sums in the loop."""
    units = [s for s in work.program.loop if s.do is Do.MAP]
    return sum(work.elements(s.type.names, knobs) for s in units)


def _meeting_us(work: Streaming, knobs: Knobs) -> float:
    """Return the time in which a block's partial sums go to shared memory and are added up."""
    f = facts(work.on)
    moved = sum(m.bytes(knobs) for m in work.footprint.meetings)
    return 2 * moved / f.wavefront_bytes / f.cycles_per_us


def candidates(program: TileProgram, tokens: int, on: Target, *, top: int) -> list[Candidate]:
    """Return what to measure for a bucket: the rule's choice, then `top` others as predicted.

    All fit a block, and all arrange shared memory as the rule's choice does, so that any of them
    can stand in one emitted file. Raises PlanError for a program that nothing fits.
    """
    work = Streaming.of(program, on)
    rule = _rule(program, tokens, on)
    below = work.footprint.arrangement(rule).below
    alike = (k for k in _all(work, tokens) if work.footprint.arrangement(k).below == below)
    ranked = sorted((_ranked(work, k) for k in alike if k != rule), key=_order)
    first = Candidate(rule, predicted_us(work, rule), rule=True)
    return [first, *sorted(_varied(ranked), key=_order)[:top]]


def _rule(program: TileProgram, tokens: int, on: Target) -> Knobs:
    """Return the rule's choice for a bucket."""
    if tokens not in BUCKETS:
        raise PlanError(f"there is no bucket of {tokens} tokens", f"buckets: {BUCKETS}")
    for variant in variants(program, on):
        if variant.knobs.tokens == tokens:
            return variant.knobs
    raise PlanError(f"{program.recipe}: a block cannot hold {tokens} tokens of this kernel")


def _all(work: Streaming, tokens: int) -> Iterator[Knobs]:
    """Yield every choice of knobs that fits a block."""
    for rows in range(ROW_TILE, ceil(work.rows / ROW_TILE) * ROW_TILE + 1, ROW_TILE):
        if work.footprint.registers(Knobs(tokens, rows, 4, 1, 2)) > REGISTERS_LEFT:
            return
        for warps, chunks, stages in product(WARPS, CHUNKS, STAGES):
            knobs = Knobs(tokens, rows, warps, chunks, stages)
            if work.fits(knobs):
                yield with_makers(work.program, knobs, work.on)


def _ranked(work: Streaming, knobs: Knobs) -> Candidate:
    return Candidate(knobs, predicted_us(work, knobs))


def _order(candidate: Candidate) -> tuple[float, tuple[int, ...]]:
    """Order by predicted time; of equals the one with more stages, more warps, fewer rows."""
    k = candidate.knobs
    return round(candidate.predicted_us, 3), (-k.stages, -k.warps, -k.chunks, k.rows)


def _varied(ranked: list[Candidate]) -> Iterator[Candidate]:
    """Yield the first few of candidates that differ in their stages only."""

    def alike(candidate: Candidate) -> tuple[int, ...]:
        k = replace(candidate.knobs, stages=0)
        return (k.rows, k.warps, k.chunks)

    for _, group in groupby(sorted(ranked, key=lambda c: (alike(c), _order(c))), key=alike):
        yield from list(group)[:STAGES_OF_EACH]
