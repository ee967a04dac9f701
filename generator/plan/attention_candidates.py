"""Candidates of an attention kernel's knobs, by bucket of query rows.

The rule's choice comes first, then neighbours of it: other lengths of the ring, other shapes of
blocks, other tiles. No model predicts their times: they are few, and all that are asked for are
measured. How many crews a call is launched with is no knob: the launch decides it by lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from mirage_kernels.generator.plan.attention import AttentionProgram
from mirage_kernels.generator.plan.attention_variants import (
    CROWDS,
    FEW_TILES,
    KEYS,
    AttentionKnobs,
    AttentionVariant,
    attention_variants,
    shared_bytes,
)
from mirage_kernels.generator.plan.attention_wide import SHAPES, Wide, groups
from mirage_kernels.generator.plan.variants import RESERVED_BYTES
from mirage_kernels.generator.target import Target

STAGES = (3, 8, 2)  # of a ring, tried beside the rule's; fewer where there is no room for so many
# Blocks of a multiprocessor and warps of each; fewer warps have the longest ring only.
EIGHT_WARPS = (CROWDS[0], FEW_TILES)
FEWER_WARPS = CROWDS[2:]
WIDE_SHAPES = (*SHAPES.values(), Wide(64, 64), Wide(128, 128))
WIDE_STAGES = (6, 5, 4, 3)
SHARED_ROWS = 32  # up to which several tiles of few rows might be faster than one of many
STAGES_OF_A_GROUP = 2  # that warpgroups with keys of their own hold at once


@dataclass(frozen=True)
class RowBucket:
    """What serves up to so many query rows (0: any number): the rule's knobs, then others."""

    rows: int
    rule: AttentionKnobs
    rule_of_few: AttentionKnobs | None  # of calls of few work tiles, where they have a variant
    knobs: tuple[AttentionKnobs, ...]

    def rules(self, *, few: bool) -> AttentionKnobs:
        """Return the rule's choice for calls of few work tiles, or for the others."""
        return self.rule_of_few if few and self.rule_of_few else self.rule


def row_buckets(
    program: AttentionProgram, on: Target, top: int, known: Sequence[AttentionKnobs] = ()
) -> tuple[RowBucket, ...]:
    """Return what to measure for each bucket of query rows.

    That is the rule's choice, what was chosen before (`known`) and the `top` first others. Raises
    PlanError for a program without variants.
    """
    made = attention_variants(program, on)
    found: list[RowBucket] = []
    for rows in dict.fromkeys(v.bucket for v in made):
        own = [v for v in made if v.bucket == rows]
        rule = next(v.knobs for v in own if not v.few_tiles)
        few = next((v.knobs for v in own if v.few_tiles), None)
        first = [rule, *([few] if few else [])]
        others = dict.fromkeys(k for k in _others(made, rule, program, on) if k not in first)
        kept = [k for k in others if k in known]
        more = [k for k in others if k not in kept][:top]
        found.append(RowBucket(rows, rule, few, (*first, *kept, *more)))
    shared = tuple(_shared(made)) if top else ()
    return tuple(sorted((*found, *shared), key=lambda b: b.rows or inf))


def _shared(made: Sequence[AttentionVariant]) -> Iterator[RowBucket]:
    """Yield a bucket that tiles of many rows serve by the rule, and that small ones might."""
    many = made[-1].knobs
    if many.producers:
        least = min(v.knobs.rows for v in made)
        small = [v.knobs for v in reversed(made) if v.knobs.rows == least]
        yield RowBucket(SHARED_ROWS, many, None, (many, *small))


def _others(
    made: Sequence[AttentionVariant],
    rule: AttentionKnobs,
    program: AttentionProgram,
    on: Target,
) -> Iterator[AttentionKnobs]:
    """Yield other knobs that fit, those that differ less from the rule's first."""
    if rule.producers:
        yield from _wide(rule, program, on)
        yield from (v.knobs for v in reversed(made) if not v.knobs.producers and not v.few_tiles)
        return
    smaller = [v.knobs for v in reversed(made) if v.knobs.rows < rule.rows]
    shapes = dict.fromkeys(((rule.blocks, rule.warps), *EIGHT_WARPS))
    for stages in (rule.stages, *STAGES):
        for blocks, warps in shapes:
            knobs = AttentionKnobs(rule.rows, KEYS, warps, stages, blocks)
            yield from _fitting(knobs, program, on)
        yield from smaller
    for blocks, warps in FEWER_WARPS:
        knobs = AttentionKnobs(rule.rows, KEYS, warps, max(STAGES), blocks)
        yield from _fitting(knobs, program, on)


def _fitting(
    knobs: AttentionKnobs, program: AttentionProgram, on: Target
) -> Iterator[AttentionKnobs]:
    """Yield knobs, with a shorter ring if there is no room; none if two stages do not fit."""
    share = (on.shared_bytes + RESERVED_BYTES) // knobs.blocks - RESERVED_BYTES
    for stages in range(knobs.stages, 1, -1):
        shorter = replace(knobs, stages=stages)
        if shared_bytes(shorter, *program.sizes) <= share:
            yield shorter
            return


def _wide(rule: AttentionKnobs, program: AttentionProgram, on: Target) -> Iterator[AttentionKnobs]:
    """Yield other tiles of many rows: their rows, keys and stages.

    `key_sums` is no choice: without it the keys' stage is released before its lines are summed.
    """
    shapes = [Wide(rule.rows, rule.keys), *WIDE_SHAPES]
    for shape in dict.fromkeys(shapes):
        for stages in WIDE_STAGES:
            knobs = replace(rule, rows=shape.rows, keys=shape.keys, stages=stages)
            fits = shared_bytes(knobs, program.depth) <= on.shared_bytes
            if fits and stages > STAGES_OF_A_GROUP * groups(vars(knobs)):
                yield knobs
                if knobs != rule:
                    break
