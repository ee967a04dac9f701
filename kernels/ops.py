"""The public ops: typed functions that go straight to the compiled ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mirage_kernels import registration as registration  # registers all that the ops need
from mirage_kernels.errors import InferenceOnlyError, requires_grad_sentence

_rms_norm_linear: Callable[[Tensor, Tensor, Tensor, float], Tensor]
_rms_norm_linear = torch.ops.mirage_kernels.rms_norm_linear.default
_rms_norm_linear_out: Callable[..., None] = torch.ops.mirage_kernels.rms_norm_linear.out


def rms_norm_linear(
    x: Tensor, norm_weight: Tensor, weight: Tensor, eps: float = 1e-6, *, out: Tensor | None = None
) -> Tensor:
    """Compute linear(rms_norm(x) * norm_weight, weight) in one kernel that reads the weights once.

        y[m, n] = sum_k weight[n, k] * norm_weight[k] * x[m, k] / sqrt(mean_k(x[m, k]^2) + eps)

    Shapes: x `[..., K]` with any leading dims (none and empty ones too), norm_weight `[K]`, weight
    `[N, K]` as in torch.nn.Linear; returns `[..., N]`. fp16 or bf16, all tensors alike;
    accumulation is fp32. Rows of x may be strided if they start at multiples of 16 bytes; any
    other x is copied first. The weights must be contiguous.

    On a GPU the call launches one kernel on the current stream: no synchronisation, no memory but
    the result, so it can be captured in a CUDA graph and traced by torch.compile. CPU tensors run
    the recipe's PyTorch reference, at any size.

    With `out` (shape of the result, contiguous, sharing no memory with the inputs) the result is
    written there and `out` is returned.

    Raises RuntimeError, in one sentence, for a wrong argument, for static dims (K, N) that no
    compiled kernel covers (ask `mirage_kernels.supports` first), and for a GPU of another
    architecture than this build's; InferenceOnlyError for inputs that require grad.

    Source: the fused RMSNorm muGraph that the Mirage superoptimizer paper reports.
    """
    if torch.is_grad_enabled():
        _refuse_grad("rms_norm_linear", x=x, norm_weight=norm_weight, weight=weight)
    if out is None:
        return _rms_norm_linear(x, norm_weight, weight, eps)
    _rms_norm_linear_out(x, norm_weight, weight, eps, out=out)
    return out


def _refuse_grad(op: str, **inputs: Tensor) -> None:
    for name, tensor in inputs.items():
        if isinstance(tensor, Tensor) and tensor.requires_grad:
            raise InferenceOnlyError(requires_grad_sentence(op, name))
