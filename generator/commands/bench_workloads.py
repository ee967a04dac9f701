"""The part of `bench` that chooses: which compiled workloads of those that were asked for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from mirage_kernels.generator.bench.workload import Workload
from mirage_kernels.generator.bench.workloads.cache import RECIPES, CacheWorkload
from mirage_kernels.generator.bench.workloads.lists import cache_workloads, usual
from mirage_kernels.generator.bench.workloads.tensors import TOKENS, TensorWorkload
from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.recipe import Recipe, Shape, catalog
from mirage_kernels.generator.terminal import PROGRAM


def is_over_cache(arguments: argparse.Namespace, chosen: Recipe | None) -> bool:
    """Say whether attention is to be measured: it is asked for, or the recipe is one of it."""
    named = chosen is not None and chosen.name in RECIPES
    if chosen is not None and arguments.attention and not named:
        raise MirageError(
            f"{chosen.name} is no attention that the library has an op for",
            f"leave --attention away; it takes {', '.join(RECIPES)}",
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
) -> list[Workload[Any]]:
    """Return what is compiled among what was asked for; asking for what isn't is an error."""
    listed = _over_cache if is_over_cache(arguments, chosen) else _of_tensors
    asked: list[Workload[Any]] = [*listed(arguments, chosen, shapes)]
    missing = [w for w in asked if w.needs_kernel and not _is_compiled(w)]
    if shapes and missing:
        stem = "_".join(f"{name}{size}" for name, size in missing[0].kernel_dims.items())
        raise MirageError(
            f"no compiled kernel for {missing[0].recipe} {stem} {missing[0].dtype.value}",
            f"`{PROGRAM} list` shows what there is; `make extension KERNELS=all`",
        )
    found = [w for w in asked if w not in missing]
    kept = [w for w in found if all(text in w.name for text in arguments.only or ())]
    if any(w.needs_kernel for w in found) and kept:
        return kept
    named = f" for {chosen.name}" if chosen else ""
    where = f" named {' and '.join(arguments.only)}" if arguments.only else ""
    raise MirageError(
        f"nothing compiled to measure{named}{where}", f"`{PROGRAM} list` shows what there is"
    )


def _of_tensors(
    arguments: argparse.Namespace, chosen: Recipe | None, shapes: Sequence[Shape]
) -> Iterator[TensorWorkload]:
    every = [r for r in catalog().values() if TOKENS in r.dynamic]
    for source in every if chosen is None else [chosen]:
        for shape in shapes or source.shapes:
            for dtype in _dtypes(arguments):
                for tokens in arguments.m:
                    sizes = {**shape.dims, TOKENS: tokens}
                    yield TensorWorkload(source.name, sizes, dtype=dtype)


def _over_cache(
    arguments: argparse.Namespace, chosen: Recipe | None, shapes: Sequence[Shape]
) -> Iterator[CacheWorkload]:
    """Yield the listed workloads of the recipe and shapes; usual ones where none is listed."""
    dtypes = _dtypes(arguments)
    listed = [w for w in cache_workloads(dtypes) if w.sequences in arguments.m]
    if chosen is None:
        yield from listed
        return
    own = [w for w in listed if w.recipe == chosen.name]
    known = {w.depth for w in own}
    depths = [_depth(shape) for shape in shapes or (() if own else chosen.shapes)]
    yield from (w for w in own if w.depth in depths or not depths)
    for depth in depths:
        if depth not in known:
            yield from usual(chosen.name, depth, arguments.m, dtypes)


def _dtypes(arguments: argparse.Namespace) -> list[DType]:
    return arguments.dtype or [DType.FP16]


def _depth(shape: Shape) -> int:
    """Return the elements of a head that are values."""
    return shape.dims["D"] if "D" in shape.dims else shape.dims["C"]


def _is_compiled(workload: Workload[Any]) -> bool:
    from mirage_kernels import kernel_table

    wanted = (workload.recipe, workload.dtype.value, dict(workload.kernel_dims))
    return any((k.recipe, k.dtype, dict(k.dims)) == wanted for k in kernel_table())
