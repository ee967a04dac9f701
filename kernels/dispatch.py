"""What ops dispatch to: kernels of this build and loaded ones, and questions asked of them."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mirage_kernels.kernel_files import cached_until_load
from mirage_kernels.signatures import TOKENS, Signature, signatures

# Ops whose kernels are compiled for sizes of heads alone serve any of these.
_OPEN_DIMS = frozenset({"B", "T", "L", "Hkv", "G", "Hq", TOKENS})
_HEAD_SIZE_STEP = 8  # the compiled ops refuse other sizes of heads
# Kernels that no recipe makes, and the sizes that they are for.
_HAND_WRITTEN = {"qk_norm_rope_append": {"D": (64, 96, 128, 192, 256)}}

_DTYPE_NAMES: Mapping[object, str] = {
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
    name = _DTYPE_NAMES.get(dtype)
    rows = (k for k in kernel_table() if (k.recipe, k.dtype, k.dims) == (recipe, name, dims))
    return next((row.max_tokens for row in rows), None)


def serves(recipe: str, x: torch.Tensor, **dims: int) -> bool:
    """Say whether a kernel serves as many tokens as x has."""
    if not x.is_cuda:
        return False
    most = most_tokens(recipe, x.dtype, **dims)
    return most is not None and (most == 0 or x.numel() <= most * x.shape[-1])


def supports(
    op: str,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | int | None = None,
    activation: str = "silu",
    norm: str = "rms",
    **dims: int,
) -> bool:
    """Say whether a call is served, without raising.

    `supports("rms_norm_linear", K=4096, N=6144, dtype=torch.float16, device="cuda")`. What is left
    out is not asked. Any number of tokens M is served: above a kernel's `max_tokens` by PyTorch's
    own program. So is any size on the CPU. `activation` and `norm` count for the ops that take one.
    Without `device` the question is whether this build contains the kernel, or a folder that was
    loaded, whatever GPU is here.

    `supports("gqa", D=128, dtype=torch.bfloat16)`: of attention the question is whether a kernel
    serves it without options; where none does, a PyTorch program computes the call. So it is of
    `qk_norm_rope_append` and of `rms_norm`, `layer_norm` and `act_and_mul`, which take any size.

    Inside of torch.compile the answer is a constant, on which the graph depends.
    """
    sizes = {name: _asked(name, size) for name, size in dims.items()}
    return _is_served(op, dtype, device, activation, norm, **sizes)


def _asked(name: str, size: int) -> int:
    """Return a size as a plain number; one that kernels leave open is not looked at."""
    if name in _OPEN_DIMS:
        return 0
    return operator.index(size) if isinstance(size, int | torch.SymInt) else size


def _is_served(
    op: str,
    dtype: torch.dtype | str | None,
    device: torch.device | str | int | None,
    activation: str,
    norm: str,
    **dims: int,
) -> bool:
    signature = _signature("gqa" if op == "gqa_csr" else op)
    if signature is None:
        return False
    known = signature.static_dims
    open_dims = {TOKENS} if signature.has_named_dims else _OPEN_DIMS
    recipe = _recipe(signature, activation, norm)
    is_type = dtype is None or (isinstance(dtype, torch.dtype | str) and dtype in _DTYPE_NAMES)
    place = _place(device)
    if not (known | open_dims >= dims.keys() and recipe and is_type):
        return False
    wanted = {name: size for name, size in dims.items() if name in known}
    if not signature.has_named_dims and not all(map(_is_head_size, wanted.values())):
        return False
    if place is None:
        return device is None and _has_kernel(recipe, _DTYPE_NAMES.get(dtype), wanted)
    if place.type == "cpu":
        return True
    return _has_kernel(recipe, _DTYPE_NAMES.get(dtype), wanted) and _runs_on(place)


# What torch.compiler.assume_constant_result does, which loads torch._dynamo: two seconds at import.
vars(_is_served)["_dynamo_marked_constant"] = True


def _place(device: torch.device | str | int | None) -> torch.device | None:
    """Return a device; None where none is meant, and for what PyTorch knows no device by."""
    try:
        given = ("cuda", device) if isinstance(device, int) else (device,)
        return None if device is None else torch.device(*given)
    except (RuntimeError, TypeError):
        return None


def _recipe(signature: Signature, activation: str, norm: str) -> str:
    """Return the recipe whose kernels serve an op; empty where there is none."""
    takes_norm = any(parameter.name == "norm" for parameter in signature.parameters)
    if not isinstance(activation, str) or (takes_norm and not isinstance(norm, str)):
        return ""
    word = norm if takes_norm else activation
    found: str = torch.ops.mirage_kernels._recipe_of(signature.op, word)
    return found


def _is_head_size(size: object) -> bool:
    return isinstance(size, int) and size > 0 and size % _HEAD_SIZE_STEP == 0


def _has_kernel(recipe: str, dtype: str | None, dims: Mapping[str, int]) -> bool:
    if recipe in _HAND_WRITTEN:
        return all(size in _HAND_WRITTEN[recipe][name] for name, size in dims.items())
    return any(
        entry.recipe in (recipe, f"{recipe}_full")  # the sibling has the options as inputs
        and dtype in (None, entry.dtype)
        and dims.items() <= entry.dims.items()
        for entry in kernel_table()
    )


def _signature(op: str) -> Signature | None:
    return next((s for s in signatures() if s.op == op and not s.overload), None)


def _runs_on(device: torch.device) -> bool:
    if device.type != "cuda" or (device.index or 0) >= torch.cuda.device_count():
        return False
    major, minor = torch.cuda.get_device_capability(device)
    complaint: str = torch.ops.mirage_kernels._architecture_complaint(major, minor, "")
    return not complaint
