"""From the catalog to a kernel's variants: measured knobs where there are some, else the rule's.

What was measured without what the rule takes says nothing against it, and is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.plan.program import TileProgram
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
from mirage_kernels.generator.schedules.loop import REGISTERS_LEFT
from mirage_kernels.generator.schedules.schedule import Knobs, Variant
from mirage_kernels.generator.target import Target
from mirage_kernels.generator.tuning.catalog import HINT, Bucket, Tuned
from mirage_kernels.generator.tuning.choice import has_producers

MAX_TOKENS = 64  # of kernels never measured: above it the library's program runs


def chosen_variants(
    programs: tuple[TileProgram, ...], on: Target, tuned: Tuned | None
) -> tuple[Variant, ...]:
    """Return one variant per bucket of tokens.

    A kernel never tuned has what `untuned` returns. Raises PlanError for measured knobs that no
    longer fit the kernel.
    """
    if tuned is None:
        return untuned(programs[0], on)
    rule = by_size(programs[0], on)
    found = {b.size: b for b in tuned.buckets}
    known = {
        m: found[m].chosen[0].knobs
        for m, variant in rule.items()
        if m in found and variant.knobs.label in {t.knobs.label for t in found[m].tried}
    }
    producers = next((has_producers(k) for k in known.values()), programs[0].producers is not None)
    program = member(programs, producers=producers)
    known = {m: k for m, k in known.items() if has_producers(k) is producers}
    _check_tokens_fit(program, on, known)
    return tuple(replace(v, knobs=known.get(m, v.knobs)) for m, v in by_size(program, on).items())


def _check_tokens_fit(program: TileProgram, on: Target, measured: Mapping[int, Knobs]) -> None:
    for tokens, knobs in measured.items():
        shared, needed = shared_bytes(program, knobs), registers(program, knobs)
        if shared > on.shared_bytes or needed > REGISTERS_LEFT:
            raise PlanError(
                f"{program.recipe}: the knobs that the catalog has for {tokens} tokens "
                f"do not fit the kernel of today: {shared} bytes, {needed} registers",
                HINT,
            )


def chosen_row_variants(
    program: AttentionProgram, on: Target, tuned: Tuned | None
) -> tuple[AttentionVariant, ...]:
    """Return the variants of each bucket of query rows.

    Where calls of few work tiles have the knobs of others, one variant serves both, and buckets
    with the same knobs are one. Raises PlanError for measured knobs that do not fit any more.
    """
    made, known = attention_variants(program, on), tuned.buckets if tuned else ()
    chosen: list[list[AttentionVariant]] = []
    for bucket in sorted({v.bucket for v in made} | {b.size for b in known}, key=_after):
        served = min((v.bucket for v in made if _after(v.bucket) >= _after(bucket)), key=_after)
        own = [replace(v, bucket=bucket) for v in made if v.bucket == served]
        measured = list(_measured(own, next((b for b in known if b.size == bucket), None)))
        if chosen and [v.knobs for v in chosen[-1]] == [v.knobs for v in measured]:
            chosen.pop()
        chosen.append(measured)
    variants = tuple(v for bucket in chosen for v in bucket)
    _check_rows_fit(program, on, variants)
    return variants


def _after(bucket: int) -> float:
    """Return the most rows that a bucket serves."""
    return bucket or inf


def _measured(own: list[AttentionVariant], found: Bucket | None) -> Iterator[AttentionVariant]:
    """Yield the variants of a bucket, that for few work tiles first, if it has knobs of its own."""
    tried = [t.knobs for t in found.tried] if found else []
    if found is None or any(v.knobs not in tried for v in own):
        yield from own
        return
    rule = next(v for v in own if not v.few_tiles)
    usual, few = (found.choice(few=few) for few in (False, True))
    of_few = next((v.knobs for v in own if v.few_tiles), None)
    knobs = usual.knobs if usual else rule.knobs
    few_knobs = few.knobs if few else of_few
    assert isinstance(knobs, AttentionKnobs)
    if few_knobs is not None and few_knobs != knobs:
        assert isinstance(few_knobs, AttentionKnobs)
        yield AttentionVariant(rule.bucket, few_knobs, few_tiles=True)
    yield replace(rule, knobs=knobs)


def _check_rows_fit(
    program: AttentionProgram, on: Target, variants: Iterable[AttentionVariant]
) -> None:
    for v in variants:
        bytes_ = v.knobs.shared_bytes(*program.sizes)
        if bytes_ > on.shared_bytes:
            raise PlanError(
                f"{program.recipe}: the knobs that the catalog has for {v.name(COUNTED)} need "
                f"{bytes_} bytes of shared memory, a block has {on.shared_bytes}",
                HINT,
            )
