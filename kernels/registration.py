"""What PyTorch must know of an op beside its compiled code: shapes for tracing, CPU reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mirage_kernels.loading import load_extension

# Unlike an `if`, it also serves sizes that are not known while tracing.
_check: Callable[[bool, Callable[[], str]], None] = torch._check


def _rms_norm_linear_fake(x: Tensor, norm_weight: Tensor, weight: Tensor, eps: float) -> Tensor:
    _check_rms_norm_linear(x, norm_weight, weight)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _rms_norm_linear_out_fake(
    x: Tensor, norm_weight: Tensor, weight: Tensor, eps: float, *, out: Tensor
) -> None:
    _check_rms_norm_linear(x, norm_weight, weight)
    _check_shape("rms_norm_linear", "out", out, (*x.shape[:-1], weight.shape[0]))
    _check_dtypes("rms_norm_linear", x, out=out)


def _rms_norm_linear_reference(
    x: Tensor, norm_weight: Tensor, weight: Tensor, eps: float
) -> Tensor:
    # Here, not above: a GPU process never needs the recipe and what it imports.
    from mirage_kernels.recipes.rms_norm_linear import reference

    with torch.no_grad():
        return reference(x, norm_weight, weight, eps)


def _check_rms_norm_linear(x: Tensor, norm_weight: Tensor, weight: Tensor) -> None:
    op = "rms_norm_linear"
    _check(x.dim() >= 1, lambda: f"mirage_kernels::{op}: x has no dims; [..., K] works")
    _check(
        weight.dim() == 2,
        lambda: f"mirage_kernels::{op}: weight has {weight.dim()} dims; [N, K] works",
    )
    _check_shape(op, "norm_weight", norm_weight, (x.shape[-1],))
    _check_shape(op, "weight", weight, (weight.shape[0], x.shape[-1]))
    _check_dtypes(op, x, norm_weight=norm_weight, weight=weight)


def _check_shape(op: str, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    def sentence() -> str:
        given = list(tensor.shape)
        return f"mirage_kernels::{op}: {name} has shape {given}, but {list(shape)} is needed"

    _check(tensor.dim() == len(shape), sentence)
    for given, wanted in zip(tensor.shape, shape, strict=True):
        _check(given == wanted, sentence)


def _check_dtypes(op: str, x: Tensor, **others: Tensor) -> None:
    _check(
        x.dtype in (torch.float16, torch.bfloat16),
        lambda: f"mirage_kernels::{op}: x has dtype {x.dtype}; float16 and bfloat16 work",
    )
    for name, tensor in others.items():
        _check(tensor.dtype == x.dtype, partial(_dtypes_differ, op, name, tensor, x))


def _dtypes_differ(op: str, name: str, tensor: Tensor, x: Tensor) -> str:
    return (
        f"mirage_kernels::{op}: {name} has dtype {tensor.dtype}, but x has {x.dtype}; "
        "give both the same dtype"
    )


load_extension()
torch.library.register_fake("mirage_kernels::rms_norm_linear", _rms_norm_linear_fake)
torch.library.register_fake("mirage_kernels::rms_norm_linear.out", _rms_norm_linear_out_fake)
torch.library.impl("mirage_kernels::_rms_norm_linear_reference", "CPU", _rms_norm_linear_reference)
