"""Variants of an attention kernel: which schedule with which knobs serves how many query rows.

A call has as many rows per head of keys as query tokens times heads of the group; the last variant
takes any number, tile by tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.attention.program import AttentionProgram
from mirage_kernels.generator.schedules.flash_decode import knobs as flash_decode
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.schedules.wgmma_attention import knobs as wgmma_attention
from mirage_kernels.generator.target import Target

FEW_TILES_ROWS = 8  # up to which few work tiles have a variant: with more, registers do not suffice
AttentionVariant = Variant[AttentionKnobs]


def name_of(variant: AttentionVariant) -> str:
    """Return the name of a variant's knobs: `UpTo8Rows`, `AnyRows`, `AnyRowsFewTiles`."""
    rows = f"UpTo{variant.bucket}Rows" if variant.bucket else "AnyRows"
    few_or_many = variant.work_tiles.capitalize()
    return f"{rows}{few_or_many}Tiles" if few_or_many else rows


def attention_variants(program: AttentionProgram, on: Target) -> tuple[AttentionVariant, ...]:
    """Return one or two variants per bucket of rows; the last takes any number.

    Where blocks share a multiprocessor, one with a single large block serves few long work tiles.
    Buckets of more rows than a block can hold are left away. Raises PlanError for a depth whose
    lines are not 16-byte aligned, and where the shortest pipeline does not fit in any case.
    """
    _require_aligned(program)
    for reason in flash_decode.fits(program, on):
        raise PlanError(f"{program.recipe}: {reason}")
    found = list(_of_few_rows(program, on))
    many = wgmma_attention.rule(program, on)
    if many:
        return (*found, AttentionVariant(0, many))
    widest = max(v.bucket for v in found)
    return tuple(replace(v, bucket=0) if v.bucket == widest else v for v in found)


def _of_few_rows(program: AttentionProgram, on: Target) -> Iterator[AttentionVariant]:
    for rows in flash_decode.ROW_BUCKETS:
        knobs = flash_decode.rule(rows, program, on, flash_decode.BLOCK_SHAPES)
        if knobs is None:
            return
        large = flash_decode.rule(rows, program, on, (flash_decode.FEW_TILES,))
        if large and knobs.blocks > large.blocks and rows <= FEW_TILES_ROWS:
            yield AttentionVariant(rows, large, few_tiles=True)
        yield AttentionVariant(rows, knobs)


def _require_aligned(program: AttentionProgram) -> None:
    roles = program.roles
    for dim, depth in ((roles.depth, program.depth), (roles.more, program.more_depth)):
        if depth % 8:
            raise PlanError(
                f"{program.recipe}: lines of {depth} elements are not 16-byte aligned",
                f"choose {dim} as a multiple of 8",
            )


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
