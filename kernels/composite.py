"""Options that a kernel does not take: the op without them, and before and after what they add.

The compiled op calls these programs, and they call it. Each writes into the tensors that come last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from mirage_kernels.assumptions import fresh_weights
from mirage_kernels.dispatch import serves

OPS = torch.ops.mirage_kernels
# Tokens whose sum a norm makes sooner than PyTorch: of 32 18.0 us in all, not 18.7 (4096 -> 6144);
# of 64 20.5, not 19.8.
_FEW = 32


def around(op: str, names: Sequence[str], overload: str = "") -> Callable[..., None]:
    """Return the program of an op whose kernel takes neither offset nor bias, nor lacks a shift.

    `names` are those of the op's parameters, in order.
    """
    call = getattr(getattr(OPS, op), f"{overload}_out" if overload else "out")

    def run(*args: object, out: Tensor, **named: object) -> None:
        given = dict(zip(names, args, strict=False)) | named
        bias, offset = given.pop("bias", None), given.pop("weight_offset", 0.0)
        assert isinstance(offset, int | float)
        norm_weight = given.get("norm_weight")
        if isinstance(norm_weight, Tensor):
            given["norm_weight"] = norm_weight + offset if offset else norm_weight
            if "norm_bias" in given and given["norm_bias"] is None:
                given["norm_bias"] = torch.zeros_like(norm_weight)
        with fresh_weights() if norm_weight is not None else nullcontext():
            call(**given, out=out)
        if isinstance(bias, Tensor):
            out.add_(bias)

    return run


def rms_norm_linear_residual(
    x: Tensor,
    norm_weight: Tensor,
    weight: Tensor,
    eps: float,
    bias: Tensor | None,
    residual: Tensor,
    weight_offset: float = 0.0,
    *,
    out: Tensor,
    total: Tensor,
) -> None:
    few = x.numel() <= _FEW * x.shape[-1]
    if few and serves("rms_norm_residual", x, K=x.shape[-1]):
        # Its norm is not used, but what follows starts while it runs, unlike after PyTorch's sum.
        given = (x, norm_weight, eps, residual, weight_offset)
        OPS.rms_norm.residual_out(*given, out=torch.empty_like(total), total=total)
    else:
        torch.add(x, residual, out=total)
    # Through the op: its kernel may take the other options.
    OPS.rms_norm_linear.out(total, norm_weight, weight, eps, bias, weight_offset, out=out)
