"""What tensors a program's kernel takes, and on which device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mirage_kernels.element_types import INDICES, TYPES

ANY_INDICES = "int"  # of an index tensor that may be of either type


def types_of(wanted: dict[str, Any]) -> tuple[torch.dtype, ...]:
    """Return the types that a tensor of a signature may be of."""
    kind = wanted["dtype"]
    return INDICES if kind in (ANY_INDICES, "int32") else (TYPES[kind],)


def tensor_misfit(
    wanted: dict[str, Any], tensor: Tensor, device: torch.device | None, sizes: dict[str, int]
) -> str:
    """Return what is wrong with a tensor; notes the extents of its dims in `sizes`."""
    dtypes, dims = types_of(wanted), wanted["dims"]
    if tensor.dtype not in dtypes:
        return f"is of {tensor.dtype}; {' or '.join(map(str, dtypes))} works"
    if tensor.device != device:
        return f"is on {tensor.device}; {device}, as the other tensors, works"
    if tensor.dim() != len(dims):
        return f"has {tensor.dim()} dims; [{', '.join(dims)}] works"
    for dim, size in zip(dims, tensor.shape, strict=True):
        if sizes.setdefault(dim, size) != size:
            return f"has {dim} = {size}; {sizes[dim]} works"
    return ""


def arch_number(arch: str) -> int:
    """Return the number of an architecture: 90 of sm_90a."""
    return int(arch.removeprefix("sm_").removesuffix("a"))


def runs_on(arch: str, device: torch.device) -> bool:
    """Say whether kernels of an architecture run on a device."""
    if device.type != "cuda":
        return True  # without data, as under "meta"; the op refuses the others
    gpu = torch.cuda.get_device_properties(device)
    number = 10 * gpu.major + gpu.minor
    # "a": with the features of that one architecture. Other builds hold PTX for later ones.
    return number == arch_number(arch) if arch.endswith("a") else number >= arch_number(arch)
