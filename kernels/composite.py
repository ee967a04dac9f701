"""Options that a kernel does not take: the op without them, and before and after what they add.

The compiled op calls these programs, and they call it. Each writes into the tensors that come last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mirage_kernels.assumptions import NOTHING
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
            given["assume"] = NOTHING  # a weight was just computed
        call(**given, out=out)
        if isinstance(bias, Tensor):
            out.add_(bias)

    return run


def behind_a_sum(op: str, names: Sequence[str], overload: str) -> Callable[..., None]:
    """Return the program of an overload "residual" whose kernel takes no residual.

    `names` are those of its parameters, in order. The op on the sum runs through its front door, as
    its kernel may take the other options.
    """
    plain = overload.removesuffix("residual").rstrip("_")
    call = getattr(getattr(OPS, op), f"{plain}_out" if plain else "out")

    def run(x: Tensor, *args: object, out: Tensor, total: Tensor, **named: object) -> None:
        given = dict(zip(names[1:], args, strict=False)) | named
        residual = given.pop("residual")
        assert isinstance(residual, Tensor)
        few = x.numel() <= _FEW * x.shape[-1]
        if few and serves("rms_norm_residual", x, K=x.shape[-1]):
            # Its norm is not used, but what follows starts while it runs, unlike after PyTorch's.
            norm = (x, given["norm_weight"], given["eps"], residual)
            OPS.rms_norm.residual_out(*norm, out=torch.empty_like(total), total=total)
        else:
            torch.add(x, residual, out=total)
        call(total, **given, out=out)

    return run
