"""Attention kernels in the flow: the record of a chosen muGraph, and what it is proved on."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Graph, parts_of, retile
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.records.record import About, AttentionRecord
from mirage_kernels.generator.schedules.attention.lower import attention_program
from mirage_kernels.generator.schedules.attention.program import form_name
from mirage_kernels.generator.schedules.attention.variants import AttentionVariant, with_dynamic
from mirage_kernels.generator.search.cases import Case
from mirage_kernels.generator.search.select import Ranked
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning.catalog import Key, tuned_kernel
from mirage_kernels.generator.tuning.variants import chosen_row_variants

EDGE = 5  # keys of an uneven pass


def planned_attention(about: About, graph: Graph) -> AttentionRecord:
    """Return the record of an attention kernel with its variants: measured ones where it was tuned.

    Raises PlanError for measured knobs that do not fit any more.
    """
    program = attention_program(about.recipe, graph)
    tuned = tuned_kernel(about.arch, Key(about.recipe, about.dtype, about.shape), of_any_type=True)
    chosen = with_dynamic(program, chosen_row_variants(program, target(about.arch), tuned))
    tiled = retile(graph, chosen[0].tiles(program.roles))
    return AttentionRecord(**vars(about), roles=program.roles, variants=chosen, graph=tiled)


def preferred(ranked: Sequence[Ranked], key: Key, arch: str) -> list[Ranked]:
    """Return muGraphs with the one first that was measured to be the fastest, if one was."""
    tuned = tuned_kernel(arch, key, of_any_type=True)
    if tuned is None or len(tuned.forms) < 2:
        return list(ranked)

    def is_other(one: Ranked) -> bool:
        try:
            program = attention_program(key.recipe, with_threads(one.graph))
        except PlanError:
            return True
        return form_name(program) != tuned.form

    return sorted(ranked, key=is_other)


def attention_cases(record: AttentionRecord) -> list[Case]:
    """Return what an attention kernel is proved on: the tiles of each of its variants."""
    return [case for variant in record.variants for case in _cases(record, variant)]


def _cases(record: AttentionRecord, variant: AttentionVariant) -> list[Case]:
    """Return the cases of a variant: two sequences and heads, then one of each.

    Keys of several parts, of which the last has an uneven number of passes and keys; of one part
    and some; and of less than a pass. Rows of one tile and some, and a single one.
    """
    roles, tiles = record.roles, record.tiles(variant)
    unit, part = tiles[roles.keys], tiles[parts_of(roles.keys)]
    alone = (roles.sequences, *([roles.heads] if roles.heads else []))
    several = dict.fromkeys(alone, 2) | {d: tiles[d] + 1 for d in roles.rows}
    single = dict.fromkeys(several, 1)
    return [
        Case(tiles, {**several, **record.shape, roles.keys: 2 * part + unit + EDGE}),
        Case(tiles, {**several, **record.shape, roles.keys: part + EDGE}, bounded=True),
        Case(tiles, {**single, **record.shape, roles.keys: unit - 1}),
    ]
