"""The gated half of a transformer's MLP: two projections of x, one activated, multiplied.

Alone, or behind the RMSNorm that a pre-norm block puts in front of it. With a residual the norm is
that of x + residual, which is also returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, rms_norm
from mirage_kernels.generator.recipe import form, options, recipe, shape
from mirage_kernels.recipes.activations import ACTIVATIONS, torch_activation

if TYPE_CHECKING:
    import torch


def reference(
    x: torch.Tensor,
    gate_weight: torch.Tensor,
    up_weight: torch.Tensor,
    norm_weight: torch.Tensor | None = None,
    eps: float = 0.0,
    residual: torch.Tensor | None = None,
    activation: str = "silu",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """PyTorch's own unfused program: a kernel per step, each result rounded to the input's type."""
    from torch.nn.functional import linear
    from torch.nn.functional import rms_norm as torch_rms_norm

    total = x if residual is None else x + residual
    normed = total
    if norm_weight is not None:
        normed = torch_rms_norm(total, (x.shape[-1],), norm_weight, eps)
    gate, up = linear(normed, gate_weight), linear(normed, up_weight)
    product = torch_activation(activation)(gate) * up
    return product if residual is None else (product, total)


@options(
    {
        "norm_weight": "eps",
        "residual": "total",
        **{f"activation={name}": "" for name in ACTIVATIONS},
    },
    form(
        "gated_mlp",
        "activation=silu",
        summary="silu(linear(x, gate_weight)) * linear(x, up_weight)",
        shapes=(
            shape("the Mirage paper's gated MLP", K=4096, N=4096),
            shape("Llama-3-8B, TP 1", K=4096, N=14336),
            shape("Llama-3-8B, TP 4", K=4096, N=3584),
            shape("Llama-3-8B, TP 8", K=4096, N=1792),
            shape("Llama-3-70B, TP 1", K=8192, N=28672),
            shape("Llama-3-70B, TP 4", K=8192, N=7168),
            shape("Llama-3-70B, TP 8", K=8192, N=3584),
            shape("Qwen3-8B, TP 1", K=4096, N=12288),
            shape("Qwen3-32B, TP 1", K=5120, N=25600),
            shape("Chameleon-7B, TP 1", K=4096, N=11008),
            shape("Llama-3.2-1B, TP 1", K=2048, N=8192),
            shape("Llama-3.2-3B, TP 1", K=3072, N=8192),
            shape("Qwen2.5-7B, TP 1", K=3584, N=18944),
        ),
    ),
    form(
        "geglu_mlp",
        "activation=gelu_tanh",
        summary="gelu_tanh(linear(x, gate_weight)) * linear(x, up_weight)",
        shapes=(
            shape("Gemma-7B, TP 1", K=3072, N=24576),
            shape("Gemma-2B, TP 1", K=2048, N=16384),
            shape("Gemma-2-9B, TP 1", K=3584, N=14336),
            shape("Gemma-2-27B, TP 1", K=4608, N=36864),
            shape("Gemma-3-12B, TP 1", K=3840, N=15360),
        ),
    ),
    form(
        "gated_mlp_gelu",
        "activation=gelu",
        summary="gelu(linear(x, gate_weight)) * linear(x, up_weight)",
        shapes=(
            shape("ModernBERT-large, TP 1", K=1024, N=2624),
            shape("the Mirage paper's gated MLP with this gate", K=4096, N=4096),
            shape("Llama-3-8B's shape with this gate, TP 1", K=4096, N=14336),
        ),
    ),
    form(
        "gated_mlp_relu",
        "activation=relu",
        summary="relu(linear(x, gate_weight)) * linear(x, up_weight)",
        shapes=(
            shape("the Mirage paper's gated MLP with this gate", K=4096, N=4096),
            shape("ReluLLaMA-7B, TP 1", K=4096, N=11008),
            shape("Llama-3-8B's shape with this gate, TP 1", K=4096, N=14336),
        ),
    ),
    form(
        "rms_norm_gated_mlp",
        "norm_weight",
        "activation=silu",
        summary="silu(linear(rms_norm(x), gate_weight)) * linear(rms_norm(x), up_weight)",
        shapes=(
            shape("Llama-3-8B, TP 1", K=4096, N=14336),
            shape("Llama-3-8B, TP 4", K=4096, N=3584),
            shape("Llama-3-70B, TP 4", K=8192, N=7168),
            shape("Llama-3-70B, TP 8", K=8192, N=3584),
            shape("Qwen3-8B, TP 1", K=4096, N=12288),
            shape("Qwen3-32B, TP 1", K=5120, N=25600),
            shape("Llama-3.2-1B, TP 1", K=2048, N=8192),
            shape("Llama-3.2-3B, TP 1", K=3072, N=8192),
            shape("Llama-3.1-8B, TP 8", K=4096, N=1792),
            shape("Llama-3.1-70B, TP 1", K=8192, N=28672),
            shape("Qwen2.5-7B, TP 1", K=3584, N=18944),
        ),
    ),
    form(
        "rms_norm_gated_mlp_residual",
        "norm_weight",
        "residual",
        "activation=silu",
        summary="silu(linear(rms_norm(total), gate_weight)) * linear(rms_norm(total), up_weight); "
        "total = x + residual",
        shapes=(shape("Llama-3-8B, TP 1", K=4096, N=14336),),
    ),
    form(
        "rms_norm_geglu_mlp",  # Gemma's norm weight is given as 1 + w
        "norm_weight",
        "activation=gelu_tanh",
        summary="gelu_tanh(linear(rms_norm(x), gate_weight)) * linear(rms_norm(x), up_weight)",
        shapes=(
            shape("Gemma-7B, TP 1", K=3072, N=24576),
            shape("Gemma-2B, TP 1", K=2048, N=16384),
            shape("Gemma-2-9B, TP 1", K=3584, N=14336),
            shape("Gemma-3-12B, TP 1", K=3840, N=15360),
        ),
    ),
    form(
        "rms_norm_gated_mlp_gelu",
        "norm_weight",
        "activation=gelu",
        summary="gelu(linear(rms_norm(x), gate_weight)) * linear(rms_norm(x), up_weight)",
        shapes=(shape("Llama-3-8B's shape with this gate, TP 1", K=4096, N=14336),),
    ),
    form(
        "rms_norm_gated_mlp_relu",
        "norm_weight",
        "activation=relu",
        summary="relu(linear(rms_norm(x), gate_weight)) * linear(rms_norm(x), up_weight)",
        shapes=(
            shape("ReluLLaMA-7B, TP 1", K=4096, N=11008),
            shape("Llama-3-8B's shape with this gate, TP 1", K=4096, N=14336),
        ),
    ),
)
@recipe(
    inputs={
        "x": "M K",
        "norm_weight": "K",
        "gate_weight": "N K",
        "up_weight": "N K",
        "eps": "",
        "residual": "M K",
    },
    output="M N",
    also={"total": "M K"},
    dynamic={"M": 4096},
    scalars={"eps": 1e-5},
    reference=reference,
)
def gated_mlp(
    x: Tensor,
    norm_weight: Tensor | None = None,
    *,
    gate_weight: Tensor,
    up_weight: Tensor,
    eps: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str,
) -> Tensor | tuple[Tensor, Tensor]:
    """activation(linear(x, gate_weight)) * linear(x, up_weight), x + residual normed or not."""
    total = normed = x if residual is None else x + residual
    if norm_weight is not None and eps is not None:
        normed = rms_norm(total, norm_weight, eps, over="K")
    gate = ACTIVATIONS[activation](contract(normed, gate_weight, over="K"))
    product = gate * contract(normed, up_weight, over="K")
    return product if residual is None else (product, total)
