"""Candidates of an attention kernel's knobs, by bucket of query rows.

The rule's choice comes first, then neighbours of it: other numbers of stages, other shapes of
blocks, other tiles. No model predicts their times: they are few, and all that are requested are
measured. How many clusters a call is launched with is no knob: the launch decides it by lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.attention.program import AttentionProgram
from mirage_kernels.generator.schedules.attention.variants import (
    AttentionVariant,
    attention_variants,
)
from mirage_kernels.generator.schedules.flash_decode import knobs as flash_decode
from mirage_kernels.generator.schedules.flash_decode.knobs import FlashDecode
from mirage_kernels.generator.schedules.wgmma_attention import knobs as wgmma_attention
from mirage_kernels.generator.schedules.wgmma_attention.knobs import WgmmaAttention
from mirage_kernels.generator.target import Target

SHARED_ROWS = 32  # up to which several tiles of few rows might be faster than one of many


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
        tuned = [k for k in others if k in known]
        more = [k for k in others if k not in tuned][:top]
        found.append(RowBucket(rows, rule, few, (*first, *tuned, *more)))
    shared = tuple(_shared(made)) if top else ()
    return tuple(sorted((*found, *shared), key=lambda b: b.rows or inf))


def _shared(made: Sequence[AttentionVariant]) -> Iterator[RowBucket]:
    """Yield a bucket that tiles of many rows serve by the rule, and that small ones might."""
    many = made[-1].knobs
    if isinstance(many, WgmmaAttention):
        least = min(v.knobs.rows for v in made)
        small = [v.knobs for v in reversed(made) if v.knobs.rows == least]
        yield RowBucket(SHARED_ROWS, many, None, (many, *small))


def _others(
    made: Sequence[AttentionVariant], rule: AttentionKnobs, program: AttentionProgram, on: Target
) -> Iterator[AttentionKnobs]:
    """Yield other knobs that fit, those that differ less from the rule's first."""
    few = [v for v in reversed(made) if isinstance(v.knobs, FlashDecode)]
    if isinstance(rule, WgmmaAttention):
        yield from wgmma_attention.candidates(rule, program, on)
        yield from (v.knobs for v in few if not v.few_tiles)
    elif isinstance(rule, FlashDecode):
        smaller = [v.knobs for v in few if v.knobs.rows < rule.rows]
        yield from flash_decode.candidates(rule, smaller, program, on)
