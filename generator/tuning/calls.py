"""At which calls a kernel's candidates are compared, by name and by bucket."""

from __future__ import annotations

from typing import Any

from mirage_kernels.generator.bench.workload import Workload
from mirage_kernels.generator.bench.workloads.lists import dense_calls, kernel_calls
from mirage_kernels.generator.bench.workloads.tensors import TensorWorkload
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.tuning.manifest import Compiled

Calls = dict[str, Workload[Any]]


def calls_of(kernel: Compiled) -> Calls:
    """Return all calls at which anything of a kernel is measured."""
    of_buckets = [call for calls in bucketed_calls(kernel).values() for call in calls.items()]
    return dict(of_buckets) | calls_above(kernel)


def bucketed_calls(kernel: Compiled) -> dict[int, Calls]:
    """Return the calls that each bucket serves: one with its number of tokens, or several."""
    sizes = [bucket.size for bucket in kernel.buckets]
    if kernel.dim:
        return {size: _at_tokens(kernel, (size,)) for size in sizes}
    calls = kernel_calls(kernel.key.recipe, DType(kernel.key.dtype), kernel.key.shape)
    found: dict[int, Calls] = {size: {} for size in sizes}
    for name, workload in calls.items():
        found[bucket_of(workload.rows, sizes)][name] = workload
    return found


def bucket_of(rows: int, sizes: list[int]) -> int:
    """Return the bucket of a number of rows: the least that holds it, 0 above all."""
    return min((size for size in sizes if rows <= size), default=0)


def calls_above(kernel: Compiled) -> Calls:
    """Return the calls at which the last bucket's choice is compared with what else may serve.

    These have other numbers of tokens than the buckets, or are dense ones of many query tokens.
    """
    if kernel.dim:
        return _at_tokens(kernel, kernel.beyond)
    return {**dense_calls(kernel.key.recipe, DType(kernel.key.dtype), kernel.key.shape)}


def _at_tokens(kernel: Compiled, numbers: tuple[int, ...]) -> Calls:
    key, dim = kernel.key, kernel.dim
    return {
        f"{dim}={m}": TensorWorkload(key.recipe, {**key.shape, dim: m}, dtype=DType(key.dtype))
        for m in numbers
    }
