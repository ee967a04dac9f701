"""Kernels as shared objects: what is compiled so that programs and ops of the library find them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_kernels.early_weights import AFTER_WAIT, LETS_NEXT_START
from mirage_kernels.generator.emit.cuda import Entry, emit_table
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.plan.program import Roles
from mirage_kernels.generator.recipe import catalog
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.records.sources import plan_of
from mirage_kernels.generator.schedules.general import GeneralRoles
from mirage_kernels.generator.schedules.streaming import broadcast_inputs
from mirage_kernels.generator.tiles.launch import Launcher, quoted

WAITS_FIRST = "MIRAGE_NEXT_STARTS_AFTER_WAIT"


@dataclass(frozen=True)
class ObjectText:
    """A text beside a kernel's source, which it includes, and sources to compile with it."""

    text: str
    beside: tuple[str, ...] = ()  # relative to the text
    serves_op: bool = False  # the ops of the library dispatch to it
    uses_cute: bool = False


def object_text(record: KernelRecord, *, waits_first: bool = False) -> ObjectText:
    """Return what makes a shared object of a kernel.

    A kernel of the catalog exports its rows of the dispatch table, for the library's ops; one that
    takes plain tensors is a program, called by name. With `waits_first` such a one lets the next
    kernel start after its wait only. Raises PlanError for one that is neither.
    """
    include = f'#include "{record.stem}.cu"\n'
    if isinstance(record.roles, GeneralRoles):
        return ObjectText(include, uses_cute=True)
    entries = plan_of(record).entries(record) if is_of_the_catalog(record) else []
    waits_first = waits_first and not entries  # ops launch it, too
    texts = [program_entry(record, waits_first=waits_first)] if _is_program(record) else []
    texts += [_rows(record, entries)] if entries else []
    include = f"#define {WAITS_FIRST}\n{include}" if waits_first else include
    if not texts:
        raise PlanError(
            f"{record.recipe} {record.stem} reads a cache, and no op of the library dispatches to "
            "this recipe"
        )
    others = (e.recipe for e in entries if e.recipe != record.recipe)
    beside = tuple(f"../{recipe}/{record.stem}.cu" for recipe in others)
    return ObjectText(include + "".join(texts), beside, serves_op=bool(entries))


def is_of_the_catalog(record: KernelRecord) -> bool:
    """Say whether a record is of the catalog's recipe, not of another one with the same name."""
    recipe = catalog().get(record.recipe)
    inputs = {node.name for node in record.graph.of("input")}
    return recipe is not None and recipe.summary == record.summary and inputs == {*recipe.inputs}


def _is_program(record: KernelRecord) -> bool:
    return isinstance(record.roles, Roles) and not record.stacked


def _rows(record: KernelRecord, entries: Sequence[Entry]) -> str:
    return f'{emit_table(record.arch, entries)}#include "rows.h"\n\nMIRAGE_EXPORT_ROWS\n'


def program_entry(record: KernelRecord, *, waits_first: bool = False) -> str:
    """Return what calls a kernel as a program, behind its source; general kernels have it there.

    `waits_first` says that the source is compiled so (csrc/tile/sync/dependent_launch.cuh). Raises
    PlanError for attention over a cache and for slices of stacks, which are called through the
    library's ops alone.
    """
    if isinstance(record.roles, GeneralRoles):
        return ""
    if not _is_program(record):
        raise PlanError(f"{record.recipe} {record.stem} is called through an op of the library")
    about = {"name": record.recipe, "arch": record.arch, "layout": "rows"}
    about |= {LETS_NEXT_START: AFTER_WAIT} if waits_first else {}
    symbol = f"{record.recipe}_{record.stem}"
    strided = broadcast_inputs(record)
    parted = (record.roles.rows, record.row_parts)
    launcher = Launcher(
        record.graph, (), "", symbol, record.storage, about, broadcast=strided, parted=parted
    )
    count = len(record.graph.outputs)
    results = len(launcher.given(launcher.tensors[-count:]))
    ranks = [len(v.type.dims) for v in launcher.given(launcher.tensors[:-count])]
    shape = f"{len(ranks)}, {results}, {len(launcher.dynamic)}, {len(launcher.scalars)}"
    text = "\n    ".join(quoted(launcher.signature()))
    each = ", ".join(map(str, ranks))
    entry = f"MIRAGE_PROGRAM({symbol},\n    {text},\n    {shape}, {{{each}}})"
    return "\n".join(['#include "program.h"', "", entry, ""])
