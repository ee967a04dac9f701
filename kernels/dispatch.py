"""What this build contains: the compiled dispatch table, and questions asked of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch

from mirage_kernels.loading import load_extension

load_extension()

_DTYPE_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16"}

# Dims of each op whose size is a run-time value: kernels serve any.
_DYNAMIC_DIMS: Mapping[str, frozenset[str]] = {"rms_norm_linear": frozenset({"M"})}


@dataclass(frozen=True)
class KernelEntry:
    """One row of the dispatch table: what a compiled kernel computes, and for which static dims."""

    name: str
    arch: str
    recipe: str
    dtype: str
    dims: Mapping[str, int]


@cache
def kernel_table() -> tuple[KernelEntry, ...]:
    """Return every kernel compiled into this build."""
    rows = json.loads(torch.ops.mirage_kernels._kernel_table())
    return tuple(KernelEntry(**row) for row in rows)


def supports(
    op: str,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | int | None = None,
    **dims: int,
) -> bool:
    """Say whether a kernel serves a call, without raising.

    `supports("rms_norm_linear", K=4096, N=6144, dtype=torch.float16, device="cuda")`. What is left
    out is not asked. CPU tensors run the recipe's reference, which serves every size. Without
    `device` the question is whether this build contains the kernel, whatever GPU is here.
    """
    dynamic = _DYNAMIC_DIMS.get(op)
    dtype_name = _DTYPE_NAMES.get(dtype) if isinstance(dtype, torch.dtype) else dtype
    if dynamic is None or (dtype is not None and dtype_name not in _DTYPE_NAMES.values()):
        return False
    if device is not None and torch.device(device).type == "cpu":
        return True
    wanted = {name: size for name, size in dims.items() if name not in dynamic}
    covered = any(
        entry.recipe == op
        and dtype_name in (None, entry.dtype)
        and wanted.items() <= entry.dims.items()
        for entry in kernel_table()
    )
    return covered and (device is None or _runs_on(torch.device(device)))


def _runs_on(device: torch.device) -> bool:
    if device.type != "cuda" or not torch.cuda.is_available():
        return False
    major, minor = torch.cuda.get_device_capability(device)
    complaint: str = torch.ops.mirage_kernels._architecture_complaint(major, minor, "")
    return not complaint
