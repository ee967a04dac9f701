"""What ops dispatch to: kernels of this build and loaded ones, and questions asked of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mirage_kernels.kernel_files import cached_until_load
from mirage_kernels.loading import load_extension

load_extension()

DTYPE_NAMES: Mapping[object, str] = {
    **dict.fromkeys((torch.float16, "torch.float16", "float16", "half", "fp16"), "fp16"),
    **dict.fromkeys((torch.bfloat16, "torch.bfloat16", "bfloat16", "bf16"), "bf16"),
}


@dataclass(frozen=True)
class KernelEntry:
    """One row of the dispatch table: what a compiled kernel computes, and for which static dims.

    Above `max_tokens` (0: never) the op's matrix product is PyTorch's, behind a norm our
    `gated_mlp` where it serves; above that of `rms_norm_linear_residual` it runs what it would run
    without this kernel. `options` names the optional inputs that the kernel takes; others the op
    adds before or after it. `file` is where `mirage_kernels.load` found it; empty for a kernel of
    this build.
    """

    name: str
    arch: str
    recipe: str
    dtype: str
    dims: Mapping[str, int]
    max_tokens: int
    options: str
    file: str = ""


@cached_until_load
def kernel_table() -> tuple[KernelEntry, ...]:
    """Return every kernel that ops dispatch to: of this build, and of files that were loaded.

    A loaded kernel stands in place of the build's own for the same recipe, type and dims.
    """
    rows = json.loads(torch.ops.mirage_kernels._kernel_table())
    return tuple(KernelEntry(**row) for row in rows)


@cached_until_load
def most_tokens(recipe: str, dtype: torch.dtype, **dims: int) -> int | None:
    """Return a recipe's `max_tokens` (0: any number), None where no kernel has these dims."""
    name = DTYPE_NAMES.get(dtype)
    rows = (k for k in kernel_table() if (k.recipe, k.dtype, k.dims) == (recipe, name, dims))
    return next((row.max_tokens for row in rows), None)


def serves(recipe: str, x: torch.Tensor, **dims: int) -> bool:
    """Say whether a kernel serves as many tokens as x has."""
    if not x.is_cuda:
        return False
    most = most_tokens(recipe, x.dtype, **dims)
    return most is not None and (most == 0 or x.numel() <= most * x.shape[-1])
