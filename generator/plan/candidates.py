"""Candidates of a kernel's knobs for one bucket of tokens, of every plan that can serve it.

Each plan has knobs of its own; the times that `times.py` predicts for them are comparable. What is
measured is the rule's choice, the best of every other plan, and then whatever is predicted to be
fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from math import ceil

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.plan.apart import (
    PAIR,
    RECEIVERS,
    ROW_TILE,
    TOKEN_TILE,
    WHERE_MEASURED,
    makers_of,
)
from mirage_kernels.generator.plan.families import member
from mirage_kernels.generator.plan.forms import WARP_LANES
from mirage_kernels.generator.plan.held import (
    BOXES,
    FEWEST_STAGES,
    MOST_ROWS,
    HeldBlock,
    can_hold,
    held_stages,
    paired_makers,
)
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.plan.split import BLOCKS, SplitBlock, split, split_stages
from mirage_kernels.generator.plan.split import FEWEST_STAGES as FEWEST_SPLIT_STAGES
from mirage_kernels.generator.plan.times import Streaming, predicted_us
from mirage_kernels.generator.plan.variants import (
    ALIGNED_ELEMENTS,
    FEW_IN_EVERY_BLOCK,
    LINE_WARPS,
    REGISTERS_LEFT,
    Knobs,
    Variant,
    buckets,
    variants,
    with_makers,
)
from mirage_kernels.generator.target import Target

WARPS, CHUNKS, STAGES = (4, 8), (1, 2), (2, 3, 4, 5, 6)
STAGES_OF_EACH = 2  # numbers of stages tried of knobs that are alike otherwise
AFTER = 1.02  # times slower: what another number of stages counts as, so that others come first
# Of 146 buckets measured the choice was so 1.4 % slower than the best (geometric mean), at most
# 15 %; the rule's was 1.5 %, and at most 28 %.
MUCH = 1.15  # times faster
TOO_SLOW = 3.0  # times slower than the fastest by prediction: not worth a measurement
MAKER_TILES = 2  # tiles of makers tried, those with the fewest lines
HELD_TOKENS, SPLIT_TOKENS = 16, 32  # what csrc/tile wants a block's tokens to be multiples of
MOST_LINE_CHUNKS = 8  # 16-byte pieces of a line that a thread holds
LINES_AT = 64  # tokens at which kernels of lines are compared: one variant serves any number


@dataclass(frozen=True)
class Candidate:
    """Knobs and their predicted time; `rule` marks what variants.py chooses without measurement."""

    knobs: Knobs
    predicted_us: float
    rule: bool = False


def measured_buckets(program: TileProgram, on: Target) -> tuple[int, ...]:
    """Return the numbers of tokens at which candidates are compared: the buckets that fit a block.

    Raises PlanError for a program that no block can hold.
    """
    fitting = [v.knobs.tokens for v in variants(program, on)]
    return tuple(fitting) if program.loop else (LINES_AT,)


@dataclass(frozen=True)
class Wanted:
    """How many candidates there are beside the rule's choice, and what was chosen before."""

    top: int
    known: Knobs | None = None


def candidates(
    programs: tuple[TileProgram, ...], tokens: int, on: Target, wanted: Wanted
) -> list[Candidate]:
    """Return what to measure for a bucket: the rule's choice, then others as predicted.

    Others are what was chosen before, and so many as wanted: the best of every other plan before
    more of one. All fit a block, and all slices arrange
    shared memory as the rule's do, so that any of them can stand in one emitted file. Raises
    PlanError for a bucket that nothing fits.
    """
    rule = _rule(programs[0], tokens, on)
    ranked: list[Candidate] = []
    for program in programs:
        work = Streaming.of(program, on)
        found = (k for k in _all(work, tokens) if k != rule)
        made = [Candidate(k, round(predicted_us(work, k, tokens), 3)) for k in found]
        ranked += _varied(made, wanted.known)
    least = min((c.predicted_us for c in ranked), default=0.0)
    ranked = sorted((c for c in ranked if c.predicted_us < TOO_SLOW * least), key=_order)
    own = Streaming.of(member(programs, apart=rule.apart), on)
    first = Candidate(rule, round(predicted_us(own, rule, tokens), 3), rule=True)
    return [first, *sorted(_mixed(ranked, rule, wanted), key=_order)]


def untuned(program: TileProgram, on: Target) -> tuple[Variant, ...]:
    """Return one variant per bucket of a kernel that was never tuned.

    The rule's choice; the model's where that is predicted to be much faster and its numbers were
    measured.
    """
    chosen = variants(program, on)
    if on.arch not in WHERE_MEASURED or not program.loop:
        return chosen
    work = Streaming.of(program, on)

    def better(variant: Variant) -> Variant:
        found = (Candidate(k, predicted_us(work, k)) for k in _all(work, variant.knobs.tokens))
        best = min(found, key=_order, default=None)
        if best is None or best.predicted_us * MUCH > predicted_us(work, variant.knobs):
            return variant
        return replace(variant, knobs=best.knobs)

    return tuple(map(better, chosen))


def _rule(program: TileProgram, tokens: int, on: Target) -> Knobs:
    """Return the rule's choice for a bucket."""
    named = buckets(program) if program.loop else (LINES_AT,)
    if tokens not in named:
        raise PlanError(f"there is no bucket of {tokens} tokens", f"buckets: {named}")
    for variant in variants(program, on):
        if not program.loop or variant.knobs.tokens == tokens:
            return variant.knobs
    raise PlanError(f"{program.recipe}: a block cannot hold {tokens} tokens of this kernel")


def _all(work: Streaming, tokens: int) -> Iterator[Knobs]:
    """Yield every choice of knobs of every plan that fits a block."""
    if not work.program.loop:
        yield from _lines(work)
        return
    for plan in _PLANS:
        for knobs in plan(work, tokens):
            yield from _made(work, knobs)


def _lines(work: Streaming) -> Iterator[Knobs]:
    """Yield blocks that hold a line each; a part of one as the rule has it."""
    if work.program.parted:
        yield from (v.knobs for v in variants(work.program, work.on))
        return
    for warps, chunks in _of_lines(work.depth):
        yield Knobs(1, 0, warps, chunks, 1)


def _of_lines(depth: int) -> Iterator[tuple[int, int]]:
    """Yield warps of a line's block, all of which have work, and the pieces of a thread."""
    octets = ceil(depth / ALIGNED_ELEMENTS)
    for warps in LINE_WARPS:
        chunks = ceil(octets / (warps * WARP_LANES))
        idle = warps > 1 and (warps - 1) * WARP_LANES * chunks >= octets
        if chunks <= MOST_LINE_CHUNKS and not idle:
            yield warps, chunks


def _slices(work: Streaming, tokens: int) -> Iterator[Knobs]:
    """Yield blocks whose warps take slices of steps, arranged as the rule's are."""
    first = next(v.knobs for v in variants(work.program, work.on))
    below = work.footprint.arrangement(first).below
    tile = work.footprint.row_tile
    for rows in range(tile, ceil(work.rows / tile) * tile + 1, tile):
        if work.footprint.registers(Knobs(tokens, rows, 4, 1, 2)) > REGISTERS_LEFT:
            return
        for warps, chunks, stages in product(WARPS, CHUNKS, STAGES):
            knobs = Knobs(tokens, rows, warps, chunks, stages)
            if work.fits(knobs) and work.footprint.arrangement(knobs).below == below:
                yield knobs


def _held(work: Streaming, tokens: int) -> Iterator[Knobs]:
    """Yield blocks that hold tokens in registers, alone or in pairs that split the depth."""
    least = TOKEN_TILE * RECEIVERS if work.users.received else 1  # each receives some
    if tokens % HELD_TOKENS or tokens % least or not can_hold(work.users):
        return
    for blocks, rows in product((1, PAIR), range(ROW_TILE, PAIR * MOST_ROWS + 1, ROW_TILE)):
        block = HeldBlock.of(work.program).sized(rows, tokens, blocks)
        uneven = block.inner or work.program.stacked or work.rows % rows
        if (blocks > 1 and uneven) or (blocks == 1 and work.program.apart):
            continue
        deepest, groups = held_stages(block, work.on), block.groups
        fewest = max(FEWEST_STAGES, groups * blocks)
        for stages in range(deepest, fewest - 1, -groups):
            if block.fits(stages, work.on.shared_bytes):
                knobs = Knobs(tokens, rows, 4 * groups, 2 * BOXES, stages, blocks, groups)
                if block.best_barriers > 1 and not work.program.stacked:
                    yield replace(knobs, barriers=block.best_barriers)
                yield knobs


def _split(work: Streaming, tokens: int) -> Iterator[Knobs]:
    """Yield clusters of two blocks that split the depth."""
    if tokens % SPLIT_TOKENS or split(work.program) is None:
        return
    for rows in range(ROW_TILE, work.rows + ROW_TILE, ROW_TILE):
        block = SplitBlock.of(work.program).sized(rows, tokens)
        deepest = split_stages(work.program, block, work.on)
        for stages in range(deepest, FEWEST_SPLIT_STAGES - 1, -block.turns):
            yield Knobs(tokens, rows, 4 * block.groups, 2, stages, BLOCKS)


def _in_front(work: Streaming, tokens: int) -> Iterator[Knobs]:
    """Yield blocks that hold tokens which a launch in front makes."""
    if work.program.front and tokens > FEW_IN_EVERY_BLOCK:
        for warps, _ in _of_lines(work.depth):
            yield from (replace(k, front=warps) for k in _held(work.behind, tokens))


_PLANS: tuple[Callable[[Streaming, int], Iterator[Knobs]], ...] = (
    _slices,
    _held,
    _split,
    _in_front,
)


def _made(work: Streaming, knobs: Knobs) -> Iterator[Knobs]:
    """Yield knobs with those of blocks that compute totals for all others, if any do."""
    if not work.program.apart:
        yield knobs
        return
    if knobs.held and knobs.blocks > 1:
        if paired_makers(work.program, knobs.tokens, work.on):
            yield with_makers(work.program, knobs, work.on)
        return
    made = makers_of(work.program)
    inner = work.program.extents[made.roles.rows]
    halves = [knobs.tokens >> i for i in range(knobs.tokens.bit_length())]
    tiles = [
        (rows, tokens)
        for rows in range(ROW_TILE, inner + ROW_TILE, ROW_TILE)
        for tokens in halves
        if tokens % TOKEN_TILE == 0
        and (makers := ceil(inner / rows) * (knobs.tokens // tokens)) <= work.program.apart
        and makers % knobs.blocks == 0
    ]
    for tile in sorted(tiles, key=lambda t: (sum(t), t))[:MAKER_TILES]:
        yield with_makers(work.program, knobs, work.on, tile)


def _order(candidate: Candidate) -> tuple[float, tuple[int, ...]]:
    """Order by predicted time; of equals the one with more warps, fewer rows, more stages."""
    k = candidate.knobs
    less = (k.blocks, k.held, k.maker_rows, k.maker_tokens)
    return candidate.predicted_us, (-k.warps, -k.chunks, k.rows, *less, -k.stages)


def _varied(made: list[Candidate], known: Knobs | None) -> Iterator[Candidate]:
    """Yield the first few of candidates that differ in their stages only, and what is known."""

    def alike(candidate: Candidate) -> tuple[int, ...]:
        return _alike(candidate.knobs)

    for _, group in groupby(sorted(made, key=lambda c: (alike(c), _order(c))), key=alike):
        for i, candidate in enumerate(group):
            if i < STAGES_OF_EACH or candidate.knobs == known:
                yield candidate


def _alike(knobs: Knobs) -> tuple[int, ...]:
    """Return the knobs without their stages and the barriers of a step."""
    return tuple(vars(replace(knobs, stages=0, maker_stages=0, barriers=1)).values())


def _mixed(ranked: Sequence[Candidate], rule: Knobs, wanted: Wanted) -> list[Candidate]:
    """Return so many of the ranked, in which the best of every other plan comes first.

    What differs in its stages only from one before it, or from the rule's, comes later.
    """
    best = {c.knobs.plan_name: c for c in reversed(ranked)}
    best.pop(rule.plan_name, None)
    known = [c for c in ranked if c.knobs == wanted.known]
    others = sorted((c for c in best.values() if c not in known), key=_order)
    seen, later = {_alike(rule)}, []
    for candidate in (c for c in ranked if c not in (*known, *others)):
        again = _alike(candidate.knobs) in seen
        later.append((candidate.predicted_us * (AFTER if again else 1.0), candidate))
        seen.add(_alike(candidate.knobs))
    later.sort(key=lambda pair: (pair[0], _order(pair[1])))
    return [*known, *[*others, *(c for _, c in later)][: wanted.top]]
