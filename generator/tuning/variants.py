"""From the catalog to a kernel's variants: measured knobs where there are some, else the rule's.

What was measured without what the rule takes says nothing against it, and is left.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules import RANKED
from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.attention.program import AttentionProgram
from mirage_kernels.generator.schedules.attention.variants import (
    COUNTED,
    AttentionVariant,
    attention_variants,
)
from mirage_kernels.generator.schedules.choose import (
    by_size,
    member,
    registers,
    shared_bytes,
    untuned,
)
from mirage_kernels.generator.schedules.loop import (
    BUCKETS,
    MANY_TOKENS,
    REGISTERS_LEFT,
    producers_of,
)
from mirage_kernels.generator.schedules.schedule import Knobs, Variant
from mirage_kernels.generator.target import Target
from mirage_kernels.generator.tuning.catalog import HINT, Bucket, Tuned

MAX_TOKENS = 64  # of kernels never measured: above it the library's program runs


def chosen_variants(
    programs: tuple[TileProgram, ...], on: Target, tuned: Tuned | None
) -> tuple[Variant, ...]:
    """Return one variant per bucket of tokens.

    A kernel never tuned has what `untuned` returns, and so has a bucket never measured, or whose
    choice was measured in the other element type, where another muGraph is first, and does not run
    this one. The bucket of many tokens is there where it was measured to be as fast as the library.
    Raises PlanError for measured knobs that no longer fit the kernel.
    """
    if tuned is None:
        return untuned(programs[0], on)
    measured = {b.size for b in tuned.buckets}
    many = MANY_TOKENS in measured and tuned.max_tokens > BUCKETS[-1]
    rule, known = by_size(programs[0], on, many=many), {}
    for bucket in tuned.buckets:
        labels = {t.knobs.label for t in bucket.tried}
        if bucket.size in rule and rule[bucket.size].knobs.label in labels:
            known[bucket.size] = bucket.chosen[0].knobs
    first = next((known[m] for m in rule if m in known), None)
    has_producers = (producers_of(first) if first else programs[0].producers) is not None
    program = member(programs, producers=has_producers)
    variants, taken = by_size(program, on, many=many), dict[int, Knobs]()
    for tokens, knobs in known.items():
        runs = not RANKED[knobs.schedule].fits(program, on)
        if not runs or (producers_of(knobs) is not None) is not has_producers:
            continue
        shared, needed = shared_bytes(program, knobs), registers(program, knobs)
        if shared > on.shared_bytes or needed > REGISTERS_LEFT:
            raise PlanError(
                f"{program.recipe}: the knobs that the catalog has for {tokens} tokens "
                f"do not fit the kernel of today: {shared} bytes, {needed} registers",
                HINT,
            )
        taken[tokens] = knobs
    if not {*variants} <= {*taken}:
        others = zip(by_size(program, on), untuned(program, on), strict=False)
        taken = {m: v.knobs for m, v in others} | taken
    return tuple(replace(v, knobs=taken.get(m, v.knobs)) for m, v in variants.items())


def chosen_row_variants(
    program: AttentionProgram, on: Target, tuned: Tuned | None
) -> tuple[AttentionVariant, ...]:
    """Return the variants of each bucket of query rows.

    Where calls of few work tiles have the knobs of others, one variant serves both, and buckets
    with the same knobs are one. Raises PlanError for measured knobs that do not fit any more.
    """
    made = attention_variants(program, on)
    known = {b.size: b for b in tuned.buckets} if tuned else {}
    chosen: list[list[AttentionVariant]] = []
    for bucket in sorted({v.bucket for v in made} | set(known), key=_most_rows):
        served = min(
            (v.bucket for v in made if _most_rows(v.bucket) >= _most_rows(bucket)), key=_most_rows
        )
        own = [replace(v, bucket=bucket) for v in made if v.bucket == served]
        measured = _measured(own, known[bucket]) if bucket in known else own
        if chosen and [v.knobs for v in chosen[-1]] == [v.knobs for v in measured]:
            chosen.pop()
        chosen.append(measured)
    variants = tuple(v for bucket_variants in chosen for v in bucket_variants)
    for v in variants:
        needed = v.knobs.shared_bytes(*program.sizes)
        if needed > on.shared_bytes:
            raise PlanError(
                f"{program.recipe}: the knobs that the catalog has for {v.name(COUNTED)} need "
                f"{needed} bytes of shared memory, a block has {on.shared_bytes}",
                HINT,
            )
    return variants


def _most_rows(bucket: int) -> float:
    return bucket or inf


def _measured(own: list[AttentionVariant], found: Bucket) -> list[AttentionVariant]:
    """Return the variants of a bucket, that for few work tiles first, if it has its own knobs."""
    tried = [t.knobs for t in found.tried]
    if any(v.knobs not in tried for v in own):
        return own
    rule = {v.few_tiles: v.knobs for v in own}
    chosen = {few: choice.knobs for few in (False, True) if (choice := found.choice(few=few))}
    knobs, few_knobs = (chosen.get(few, rule.get(few)) for few in (False, True))
    assert isinstance(knobs, AttentionKnobs)
    made = [AttentionVariant(found.size, knobs)]
    if few_knobs is not None and few_knobs != knobs:
        assert isinstance(few_knobs, AttentionKnobs)
        made.insert(0, AttentionVariant(found.size, few_knobs, few_tiles=True))
    return made
