"""The part of `bench` that measures calls over a cache: which workloads, and their table."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mirage_kernels.generator.bench.workloads.calls import (
    ATTENTION,
    CallWorkload,
    usual,
    workloads,
)
from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.recipe import Recipe, Shape
from mirage_kernels.generator.terminal import PROGRAM, Table

if TYPE_CHECKING:
    from mirage_kernels.generator.bench.measure import Row

DEPTH, LATENT_DEPTH = "D", "C"


def is_attention(arguments: argparse.Namespace, chosen: Recipe | None) -> bool:
    """Say whether attention is to be measured: it is asked for, or the recipe is one of it."""
    named = chosen is not None and chosen.name in ATTENTION
    if chosen is not None and arguments.attention and not named:
        raise MirageError(
            f"{chosen.name} is no attention that the library has an op for",
            f"leave --attention away; it takes {', '.join(ATTENTION)}",
        )
    wanted = bool(arguments.attention or named)
    if wanted and arguments.compile:
        raise MirageError(
            "--compile is not for attention, whose peers are fused kernels",
            f"`{PROGRAM} bench --attention`",
        )
    if arguments.only and not wanted:
        raise MirageError(
            "--only chooses among workloads of attention", f"`{PROGRAM} bench --attention`"
        )
    return wanted


def chosen_workloads(
    arguments: argparse.Namespace, chosen: Recipe | None, shapes: Sequence[Shape]
) -> list[CallWorkload]:
    """Return what is compiled among what was asked for; asking for what isn't is an error."""
    asked = _asked(arguments, chosen, shapes)
    found = [w for w in asked if not w.needs_kernel or _is_compiled(w)]
    if shapes and not found:
        raise MirageError(
            f"no compiled kernel for {asked[0].recipe} {shapes[0].stem} {asked[0].dtype.value}",
            f"`{PROGRAM} list` shows what there is; `make extension KERNELS=all`",
        )
    kept = [w for w in found if all(text in w.name for text in arguments.only or ())]
    if any(w.needs_kernel for w in found) and kept:
        return kept
    named = f" for {chosen.name}" if chosen else ""
    where = f" named {' and '.join(arguments.only)}" if arguments.only else ""
    raise MirageError(
        f"nothing compiled to measure{named}{where}", f"`{PROGRAM} list` shows what there is"
    )


def _asked(
    arguments: argparse.Namespace, chosen: Recipe | None, shapes: Sequence[Shape]
) -> list[CallWorkload]:
    """Return the listed workloads of the recipe and shapes; usual ones where none is listed."""
    dtypes: list[DType] = arguments.dtype or [DType.FP16]
    listed = [w for w in workloads(dtypes) if w.sequences in arguments.m]
    if chosen is None:
        return listed
    own = [w for w in listed if w.recipe == chosen.name]
    depths = [_depth(s) for s in shapes] or sorted({w.depth for w in own})
    found = [w for w in own if w.depth in depths]
    missing = [d for d in depths if d not in {w.depth for w in own}]
    if not depths:
        missing = [_depth(shape) for shape in chosen.shapes]
    for depth in missing:
        found += usual(chosen.name, depth, arguments.m, dtypes)
    return found


def _depth(shape: Shape) -> int:
    """Return the elements of a head that are values."""
    return shape.dims[DEPTH] if DEPTH in shape.dims else shape.dims[LATENT_DEPTH]


def _is_compiled(workload: CallWorkload) -> bool:
    from mirage_kernels import kernel_table

    wanted = (workload.recipe, workload.dtype.value, workload.kernel_dims)
    return any((k.recipe, k.dtype, dict(k.dims)) == wanted for k in kernel_table())


def rows(work: Sequence[CallWorkload]) -> Iterator[Row]:
    """Measure the workloads one after the other."""
    from mirage_kernels.generator.bench import call_rows, measure

    yield from call_rows.rows(work, call_rows.gpu_clock(measure.library_floor()))


def table(found: Sequence[Row]) -> Table:
    """Lay the rows out."""
    words = ("recipe", "setting", "dtype", "heads", "best peer")
    sizes = ("D", "B", "L", "page")
    times = ("floor us", "compute us", "ours us", "ratio", "promised us", "warm us", "peer us")
    columns = (*words, *sizes, *times, "PyTorch us", "error", "PyTorch's error")
    return Table(columns, tuple(_cells(row) for row in found), left=len(words))


def _cells(row: Row) -> tuple[str, ...]:
    dims = row.dims
    heads = f"{dims['Hq']}/{dims['Hkv']}"
    words = (row.workload, row.setting, row.dtype, heads, row.best_peer or "-")
    sizes = tuple(str(dims[name]) for name in ("D", "B", "L", "page"))
    times = (row.floor_us, row.compute_us, row.ours_us, row.ratio, row.promised_us, row.warm_us)
    peer = "-" if row.best_peer_us is None else f"{row.best_peer_us:.2f}"
    errors = (f"{row.error_ours:.2e}", f"{row.error_eager:.2e}")
    return (*words, *sizes, *(f"{t:.2f}" for t in times), peer, f"{row.eager_us:.2f}", *errors)
