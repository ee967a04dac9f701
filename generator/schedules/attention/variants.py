"""Variants of an attention kernel: which schedule with which knobs serves how many query rows.

A call has as many rows per head of keys as query tokens times heads of the group; the last variant
takes any number, tile by tile. By rule, and as candidates to measure: neighbours of the rule's
choice, with other numbers of stages, other shapes of blocks, other tiles. No model predicts their
times: they are few, and all that are requested are measured. How many clusters a call is launched
with is no knob: the launch decides it by lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.schedules import flash_decode, wgmma_attention
from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.attention.program import AttentionProgram, require
from mirage_kernels.generator.schedules.flash_decode import FlashDecode
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.schedules.wgmma_attention import WgmmaAttention
from mirage_kernels.generator.target import Target

FEW_TILES_ROWS = 8  # up to which few work tiles have a variant: with more, registers do not suffice
SHARED_ROWS = 32  # up to which several tiles of few rows might be faster than one of many
COUNTED = "Rows"  # in names of variants: `UpTo8Rows`
AttentionVariant = Variant[AttentionKnobs]


def attention_variants(program: AttentionProgram, on: Target) -> tuple[AttentionVariant, ...]:
    """Return one or two variants per bucket of rows; the last takes any number.

    Where blocks share a multiprocessor, one with a single large block serves few long work tiles.
    Buckets of more rows than a block has room for are left away. Over latents, whose lines are
    longer than a warp's registers are many, tiles of many rows serve few rows, too. Raises
    PlanError for a depth whose lines are not 16-byte aligned, and where the shortest pipeline does
    not fit in any case.
    """
    roles, recipe = program.roles, program.recipe
    for dim, depth in ((roles.depth, program.depth), (roles.more, program.more_depth)):
        sentence = f"{recipe}: lines of {depth} elements are not 16-byte aligned"
        require(depth % 8 == 0, sentence, f"choose {dim} as a multiple of 8")
    for reason in flash_decode.fits(program, on):
        raise PlanError(f"{recipe}: {reason}")
    found = _few_rows(program, on)
    if many := wgmma_attention.rule(program, on):
        return (*(() if roles.more else found), AttentionVariant(0, many))
    widest = found[-1].bucket
    return tuple(replace(v, bucket=0) if v.bucket == widest else v for v in found)


def _few_rows(program: AttentionProgram, on: Target) -> list[AttentionVariant]:
    """Return the variants by flash decode."""
    found: list[AttentionVariant] = []
    for rows in flash_decode.ROW_BUCKETS:
        knobs = flash_decode.rule(rows, program, on, flash_decode.BLOCK_SHAPES)
        if knobs is None:
            break
        large = flash_decode.rule(rows, program, on, (flash_decode.FEW_TILES,))
        if large and knobs.blocks > large.blocks and rows <= FEW_TILES_ROWS:
            found.append(AttentionVariant(rows, large, few_tiles=True))
        found.append(AttentionVariant(rows, knobs))
    return found


def with_dynamic(
    program: AttentionProgram, variants: Sequence[AttentionVariant]
) -> tuple[AttentionVariant, ...]:
    """Return variants and, before those of small blocks, the same with a dynamic tile scheduler."""
    found: list[AttentionVariant] = []
    for variant in variants:
        dynamic = flash_decode.dynamic(program, variant.knobs)
        if dynamic is not None and not variant.few_tiles:
            found.append(replace(variant, knobs=dynamic))
        found.append(variant)
    return tuple(found)


# -- to be measured --------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowBucket:
    """What serves up to so many query rows (0: any number): the rule's knobs, then others."""

    rows: int
    rule: AttentionKnobs
    rule_of_few: AttentionKnobs | None  # of calls of few work tiles, where they have a variant
    knobs: tuple[AttentionKnobs, ...]


def row_buckets(
    program: AttentionProgram, on: Target, top: int, known: Sequence[AttentionKnobs] = ()
) -> tuple[RowBucket, ...]:
    """Return what to measure for each bucket of query rows.

    That is the rule's choice, what was chosen before (`known`) and the `top` first others. Raises
    PlanError for a program without variants.
    """
    made = attention_variants(program, on)
    few_rows = _few_rows(program, on)[::-1]
    found: list[RowBucket] = []
    for rows in dict.fromkeys(v.bucket for v in made):
        rules = {v.few_tiles: v.knobs for v in made if v.bucket == rows}
        rule, few, others = rules[False], rules.get(True), list[AttentionKnobs]()
        if isinstance(rule, WgmmaAttention):
            others += wgmma_attention.candidates(rule, program, on)
            others += (v.knobs for v in few_rows if not v.few_tiles)
        elif isinstance(rule, FlashDecode):
            smaller = [v.knobs for v in few_rows if v.knobs.rows < rule.rows]
            others += flash_decode.candidates(rule, smaller, program, on)
        first = [rule, *([few] if few else [])]
        new = [k for k in dict.fromkeys(others) if k not in first]
        tuned = [k for k in new if k in known]
        more = [k for k in new if k not in tuned][:top]
        found.append(RowBucket(rows, rule, few, (*first, *tuned, *more)))
    many = made[-1].knobs
    if len(made) > 1 and top and isinstance(many, WgmmaAttention):  # small tiles might serve, too
        least = min(v.knobs.rows for v in made)
        small = [v.knobs for v in few_rows if v.knobs.rows == least]
        found.append(RowBucket(SHARED_ROWS, many, None, (many, *small)))
    return tuple(sorted(found, key=lambda b: b.rows or inf))
