"""General kernels: from a muGraph to their sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mirage_kernels.early_weights import AFTER_WAIT, LETS_NEXT_START
from mirage_kernels.generator.emit.cuda import Entry, Header
from mirage_kernels.generator.emit.statements import dims_text
from mirage_kernels.generator.ir import Graph, of_results, retile
from mirage_kernels.generator.records.headers import header_of
from mirage_kernels.generator.records.record import About, KernelRecord, Plan
from mirage_kernels.generator.schedules.general import (
    SCHEDULE,
    GeneralKnobs,
    GeneralRoles,
    general_by_size,
    general_variants,
    programs,
    roles_of,
    variants_of,
)
from mirage_kernels.generator.schedules.general.candidates import fits
from mirage_kernels.generator.schedules.general.products import with_products
from mirage_kernels.generator.schedules.schedule import Subject, Variant
from mirage_kernels.generator.search.cases import Case, full_cases
from mirage_kernels.generator.target import Target, target
from mirage_kernels.generator.tiles.check import require_same
from mirage_kernels.generator.tiles.launch import Bucket, Launcher
from mirage_kernels.generator.tuning.catalog import Key, Tuned, tuned_program

MOST_ELEMENTS = 2**25  # of all inputs, in a draw at full extents


def require(subject: Subject) -> None:
    """Raise PlanError for a muGraph that no block has room for."""
    general_variants(with_products(subject.graph), subject.on)


def planned(about: About, graph: Graph, catalogs: Sequence[Path] = ()) -> KernelRecord:
    """Return the record of a general kernel with its variants, whose tile programs were run.

    Buckets that were measured have what was fastest there, if it is of this muGraph's axes.

    Raises PlanError or TileError where one does not do what the muGraph does.
    """
    graph, on = with_products(graph), target(about.arch)
    key = Key(about.recipe, about.dtype, about.shape)
    tuned = tuned_program(about.arch, key, catalogs)
    chosen = variants_of(_measured(graph, on, tuned))
    for knobs in (v.knobs for v in chosen):
        tiled = retile(graph, dict(knobs.cuts))
        require_same(tiled, knobs.threads, knobs.stages, about.indexed)
    tiled = retile(graph, dict(chosen[-1].knobs.cuts))
    return KernelRecord(**vars(about), roles=roles_of(graph), variants=chosen, graph=tiled)


def _measured(graph: Graph, on: Target, tuned: Tuned | None) -> dict[int, GeneralKnobs]:
    """Return the knobs of every bucket: measured ones where there are some, else by the model."""
    chosen = dict(general_by_size(graph, on))
    for bucket in tuned.buckets if tuned else ():
        knobs = bucket.chosen[0].knobs
        if not isinstance(knobs, GeneralKnobs) or bucket.size not in chosen:
            continue
        if fits(graph, knobs, bucket.size, on):
            chosen[bucket.size] = knobs
    return chosen


def cases(record: KernelRecord, variant: Variant) -> list[Case]:
    """Return what a variant is proved on: full static extents, uneven ones, a single tile."""
    return full_cases(retile(record.graph, record.tiles(variant)), most=MOST_ELEMENTS)


def launcher(record: KernelRecord) -> Launcher:
    """Return what writes the file of a record."""
    chosen = [(v.bucket, v.knobs) for v in record.variants]
    indexed = of_results(record.indexed, record.graph.outputs)
    buckets = [
        Bucket(
            n,
            tuple(replace(p, strided=record.strided) for p in programs(record.graph, k, indexed)),
        )
        for n, k in chosen
        if isinstance(k, GeneralKnobs)
    ]
    symbol = f"{record.recipe}_{record.stem}"
    about = {"name": record.recipe, "arch": record.arch, LETS_NEXT_START: AFTER_WAIT}
    return Launcher(
        record.graph,
        buckets,
        record.roles.counted,
        symbol,
        record.storage,
        about,
        record.strided,
        record.indexed,
    )


def header(record: KernelRecord) -> Header:
    """Return the header of a general kernel's file."""
    types = {n.name: n.out.type for n in record.graph.inputs if n.out.type.dims}
    given = ", ".join(f"{name} {dims_text(type_.names)}" for name, type_ in types.items())
    made = header_of(record, f"{given}: any strides, fastest where rows are 16-byte aligned.")
    more = []
    if record.indexed:
        said = "; ".join(
            f"{x.tensor} at the {x.rows.name} that {x.by} {dims_text(x.dims)} says, {x.dtype}"
            + (f", in pages of {x.page.name}" if x.page else "")
            for x in record.indexed
        )
        zeros = "NaN" if any(x.unknown_is_nan for x in record.indexed) else "zeros"
        more = [("Indexed", f"{said}. One out of range: {zeros}, nothing written.")]
    return replace(made, paragraphs=[("Schedule", "general."), *made.paragraphs, *more])


def sources(records: Sequence[KernelRecord]) -> dict[str, str]:
    """Return the CUDA file of each record by path below the kernels folder."""
    return {
        f"{r.arch}/{r.recipe}/{r.stem}.cu": launcher(r).text([*header(r).lines("//"), ""])
        for r in records
    }


def entries(record: KernelRecord) -> list[Entry]:
    """Return no row of the dispatch table: programs are called by name."""
    return []


PLAN = Plan(
    GeneralRoles,
    lambda subject: SCHEDULE.name,
    require,
    planned,
    cases,
    sources,
    entries,
    proves_small=True,
)
