"""The Triton programs of records: one file for all shapes of a muGraph."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_kernels.generator.emit.cuda import FORMS, suffixes
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.records.headers import header_of
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.schedules.general import GeneralKnobs, form_of
from mirage_kernels.generator.schedules.general.products import with_products
from mirage_kernels.generator.tiles.triton import emit_triton

SCHEDULE = "tiles chosen for the extents of a call, any extents, any strides."


def triton_of(record: KernelRecord) -> str:
    """Return the Triton program of a record, a Python module with a function of its recipe's name.

    Raises PlanError for a muGraph that no block can compute.
    """
    head = header_of(record, "").of_form(SCHEDULE, ("Formula",)).lines("#")
    return emit_triton(with_products(_form(record)), record.recipe, head, record.indexed)


def _form(record: KernelRecord) -> Graph:
    """Return the form of a muGraph that Triton has: kernels that join parts, where calls have."""
    knobs = [v.knobs for v in record.variants if isinstance(v.knobs, GeneralKnobs)]
    joining = [own for own in knobs if own.reduction_kernel]
    return form_of(record.graph, joining[-1]) if joining else record.graph


def triton_files(records: Sequence[KernelRecord]) -> dict[str, str]:
    """Return the Triton programs of a recipe's records by path below the kernels folder."""
    records = sorted(records, key=lambda r: marks_of(r)[-1])
    texts = {i: triton_of(record) for i, record in enumerate(records)}
    named = suffixes([marks_of(r) for r in records], texts)
    return {f"{FORMS}/{records[i].recipe}/triton{s}.py": texts[i] for i, s in named.items()}


def marks_of(record: KernelRecord) -> tuple[str, ...]:
    """Return what may tell a record from others of its recipe, its own name last."""
    extents = (f"{name}{size}" for name, size in record.shape.items())
    return (record.dtype, record.arch, *extents, f"{record.stem}_{record.arch}")
