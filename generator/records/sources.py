"""Emission: every file of a kernel as a pure function of its record; the plans that there are."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_kernels.generator.emit.cuda import emit_table
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.records.record import KernelRecord, Plan
from mirage_kernels.generator.records.triton import triton_files
from mirage_kernels.generator.schedules import streaming
from mirage_kernels.generator.schedules.attention import plan as attention
from mirage_kernels.generator.schedules.general import plan as general
from mirage_kernels.generator.schedules.schedule import Subject

FAST = (streaming.PLAN, attention.PLAN)  # in the order in which they are asked
GENERAL = (general.PLAN,)
PLANS = (*FAST, *GENERAL)


def plan_for(subject: Subject, plans: Sequence[Plan] = PLANS) -> Plan:
    """Return the first plan that carries a muGraph; raises the last's PlanError if none does."""
    *others, last = plans
    for plan in others:
        try:
            plan.require(subject)
            return plan
        except PlanError:
            continue
    last.require(subject)
    return last


def plan_of(record: KernelRecord) -> Plan:
    """Return the plan that a record was made by."""
    return next(plan for plan in PLANS if isinstance(record.roles, plan.roles))


def form_of(subject: Subject) -> str | None:
    """Return the name of a muGraph's form, None for one that no plan reads."""
    for plan in PLANS:
        try:
            return plan.form(subject)
        except PlanError:
            continue
    return None


def files_of(record: KernelRecord) -> dict[str, str]:
    """Return every file of a record, with a plan or without, by path below the kernels folder."""
    return recipe_sources([record])


def recipe_sources(records: Sequence[KernelRecord]) -> dict[str, str]:
    """Return the files of all records of a recipe by path below the kernels folder.

    Each record's JSON, then CUDA and Triton; a file comes after those that it includes. A muGraph
    without a plan has its JSON alone.
    """
    files = {record.path: record.text() for record in records}
    for plan in PLANS:
        files |= plan.sources([r for r in records if isinstance(r.roles, plan.roles)])
    return files | triton_files([record for record in records if not record.no_plan])


def table_of(arch: str, records: Sequence[KernelRecord]) -> str:
    """Return the dispatch table of an architecture."""
    return emit_table(arch, [e for record in records for e in plan_of(record).entries(record)])
