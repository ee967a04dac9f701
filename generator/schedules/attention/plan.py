"""Attention kernels: from a muGraph to their sources."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mirage_kernels.generator.emit.cuda import Entry, recipe_files
from mirage_kernels.generator.ir import Graph, parts_of, retile
from mirage_kernels.generator.records.headers import attention_header
from mirage_kernels.generator.records.record import About, KernelRecord, Plan, require_room
from mirage_kernels.generator.schedules.attention.check import require_same, split_of
from mirage_kernels.generator.schedules.attention.lower import attention_program
from mirage_kernels.generator.schedules.attention.program import AttentionRoles, form_name
from mirage_kernels.generator.schedules.attention.variants import attention_variants, with_dynamic
from mirage_kernels.generator.schedules.attention.writer import AttentionKernel
from mirage_kernels.generator.schedules.schedule import Subject, Variant
from mirage_kernels.generator.search.cases import Case
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning.catalog import Key, tuned_kernel, tuned_program
from mirage_kernels.generator.tuning.variants import chosen_row_variants

# What a launch has room for: the arrays of AttentionArgs in csrc/launch.h.
ROOM = {"scalars": 8, "int32 scalars": 2, "inputs along the depth": 4}
EDGE = 5  # keys of an uneven pass


def require(subject: Subject) -> None:
    """Raise PlanError for a muGraph that neither schedule runs."""
    program = attention_program(subject.recipe, subject.graph)
    attention_variants(program, subject.on)
    names = {"scalars": program.scalars, "int32 scalars": program.integers}
    require_room(subject.recipe, {**names, "inputs along the depth": program.vectors}, ROOM)


def planned(about: About, graph: Graph, catalogs: Sequence[Path] = ()) -> KernelRecord:
    """Return the record of an attention kernel with its variants: measured ones where it was tuned.

    Raises PlanError for measured knobs that do not fit any more, PlanError or TileError for a
    program that does not do what the muGraph does.
    """
    program = attention_program(about.recipe, graph)
    key = Key(about.recipe, about.dtype, about.shape)
    tuned = tuned_program(about.arch, key, catalogs)
    tuned = tuned or tuned_kernel(about.arch, key, of_any_type=True)
    chosen = with_dynamic(program, chosen_row_variants(program, target(about.arch), tuned))
    for split in dict.fromkeys(split_of(v.knobs, program) for v in chosen):
        require_same(graph, program, split)
    tiled = retile(graph, chosen[0].knobs.tiles(program.roles))
    return KernelRecord(**vars(about), roles=program.roles, variants=chosen, graph=tiled)


def cases(record: KernelRecord, variant: Variant) -> list[Case]:
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


def kernel_of(record: KernelRecord) -> AttentionKernel:
    """Return the attention kernel of a record, planned."""
    program = attention_program(record.recipe, record.graph)
    header = attention_header(record, program)
    return AttentionKernel(program, record.variants, record.storage, header)


PLAN = Plan(
    AttentionRoles,
    lambda subject: form_name(attention_program(subject.recipe, subject.graph)),
    require,
    planned,
    cases,
    lambda records: recipe_files([kernel_of(record) for record in records]),
    lambda r: [Entry(r.recipe, r.dtype, r.shape, r.stem, options=r.options, reads_cache=True)],
    proves_small=True,
)
