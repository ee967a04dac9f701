"""Kernels as programs, whatever their schedule: the text of a shared object called by name."""

from __future__ import annotations

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.plan.program import Roles
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.schedules.general import GeneralRoles
from mirage_kernels.generator.tiles.launch import Launcher, quoted


def program_source(record: KernelRecord) -> str:
    """Return the text beside a kernel's source that makes a program of it; it includes that.

    Raises PlanError as `program_entry` does.
    """
    return f'#include "{record.stem}.cu"\n{program_entry(record)}'


def program_entry(record: KernelRecord) -> str:
    """Return what calls a kernel as a program, behind its source; general kernels have it there.

    Raises PlanError for attention over a cache and for slices of stacks, which are called through
    the library's ops alone.
    """
    if isinstance(record.roles, GeneralRoles):
        return ""
    if not isinstance(record.roles, Roles) or record.stacked:
        raise PlanError(f"{record.recipe} {record.stem} is called through an op of the library")
    about = {"name": record.recipe, "arch": record.arch, "layout": "rows"}
    symbol = f"{record.recipe}_{record.stem}"
    launcher = Launcher(record.graph, (), "", symbol, record.storage, about)
    results = len(record.graph.outputs)
    ranks = [len(v.type.dims) for v in launcher.tensors[:-results]]
    shape = f"{len(ranks)}, {results}, {len(launcher.dynamic)}, {len(launcher.scalars)}"
    text = "\n    ".join(quoted(launcher.signature()))
    each = ", ".join(map(str, ranks))
    entry = f"MIRAGE_PROGRAM({symbol},\n    {text},\n    {shape}, {{{each}}})"
    return "\n".join(['#include "program.h"', "", entry, ""])
