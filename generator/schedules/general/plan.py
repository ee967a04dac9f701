"""General kernels: from a muGraph to their sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mirage_kernels.early_weights import AFTER_WAIT, LETS_NEXT_START
from mirage_kernels.generator.emit.cuda import Entry, Header
from mirage_kernels.generator.emit.statements import dims_text
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Graph, of_results
from mirage_kernels.generator.records.headers import header_of
from mirage_kernels.generator.records.record import About, KernelRecord, Plan
from mirage_kernels.generator.schedules.general import (
    SCHEDULE,
    GeneralKnobs,
    GeneralRoles,
    best_knobs,
    form_of,
    planned_sizes,
    programs,
    roles_of,
    tiled,
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


def require(subject: Subject) -> None:
    """Raise PlanError for a muGraph that no block has room for."""
    graph, on = with_products(subject.graph), subject.on
    for node in (n for n in graph.inputs if n.grouped):
        raise PlanError(f"{subject.recipe}: {node.name} has an element for several neighbours")
    for sizes in planned_sizes(graph).values():
        try:
            best_knobs(graph, sizes, on, starts=1)
        except PlanError:
            best_knobs(graph, sizes, on)


def planned(about: About, graph: Graph, catalogs: Sequence[Path] = ()) -> KernelRecord:
    """Return the record of a general kernel with its variants, whose tile programs were run.

    Buckets that were measured have what was fastest there, if it is of this muGraph's axes.

    Raises PlanError or TileError where one does not do what the muGraph does.
    """
    graph, on = with_products(graph), target(about.arch)
    key = Key(about.recipe, about.dtype, about.shape)
    tuned = tuned_program(about.arch, key, catalogs)
    chosen = variants_of(knobs_by_size(graph, on, tuned))
    for knobs in (v.knobs for v in chosen):
        require_same(tiled(graph, knobs), knobs.threads, knobs.stages, about.indexed)
    as_found = [v.knobs for v in chosen if not v.knobs.reduction_kernel]
    whole = tiled(graph, as_found[-1]) if as_found else graph
    return KernelRecord(**vars(about), roles=roles_of(graph), variants=chosen, graph=whole)


def knobs_by_size(graph: Graph, on: Target, tuned: Tuned | None = None) -> dict[int, GeneralKnobs]:
    """Return the knobs of every bucket: measured ones where there are some, else by the model.

    A library's products are blocks already (products.py). Raises PlanError where there are none.
    """
    buckets = {b.size: b.chosen[0].knobs for b in (tuned.buckets if tuned else ())}

    def of(size: int, sizes: Mapping[str, int]) -> GeneralKnobs:
        knobs = buckets.get(size)
        if isinstance(knobs, GeneralKnobs) and fits(graph, knobs, size, on):
            return knobs
        return best_knobs(graph, sizes, on)

    return {size: of(size, sizes) for size, sizes in planned_sizes(graph).items()}


def cases(record: KernelRecord, variant: Variant) -> list[Case]:
    """Return what a variant is proved on: full static extents, uneven ones, a single tile."""
    assert isinstance(variant.knobs, GeneralKnobs)
    return full_cases(tiled(record.graph, variant.knobs))


def mugraph(record: KernelRecord, variant: Variant) -> Graph:
    """Return the form of a record's muGraph that a variant computes."""
    assert isinstance(variant.knobs, GeneralKnobs)
    return form_of(record.graph, variant.knobs)


def launcher(record: KernelRecord) -> Launcher:
    """Return what writes the file of a record."""
    chosen = [(v.bucket, v.knobs) for v in record.variants]
    indexed = of_results(record.indexed, record.graph.outputs)
    buckets = [
        Bucket(
            n,
            tuple(
                p.given(strided=record.strided, broadcast=record.broadcast)
                for p in programs(record.graph, k, indexed)
            ),
            form_of(record.graph, k),
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
        record.broadcast,
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
    mugraph,
    proves_small=True,
)
