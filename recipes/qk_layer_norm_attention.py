"""Attention whose queries and keys are layer-normalised first, each head with its own weights.

The cache holds raw keys. Their bias adds the same to all scores of a query, which the softmax
ignores; a sink, or the logarithm of its sum, does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, layer_norm
from mirage_kernels.generator.recipe import recipe, shape
from mirage_kernels.recipes.gqa import attention
from mirage_kernels.recipes.gqa import reference as unfused_attention

if TYPE_CHECKING:
    import torch


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor,
    q_bias: torch.Tensor | None,
    k_weight: torch.Tensor,
    k_bias: torch.Tensor | None,
    seq_lens: torch.Tensor,
    scale: float,
    eps: float,
) -> torch.Tensor:
    """PyTorch's own unfused program: norms rounded to the input's type, then attention."""
    from torch.nn.functional import layer_norm as torch_layer_norm

    normed_q = torch_layer_norm(q, (q.shape[-1],), eps=eps) * q_weight
    normed_k = torch_layer_norm(k, (k.shape[-1],), eps=eps) * k_weight
    if q_bias is not None:
        normed_q = normed_q + q_bias
    if k_bias is not None:
        normed_k = normed_k + k_bias
    return unfused_attention(normed_q, normed_k, v, seq_lens, scale)


@recipe(
    inputs={
        "q": "B Hkv G D",
        "k": "B L Hkv D",
        "v": "B L Hkv D",
        "q_weight": "Hkv G D",
        "q_bias": "Hkv G D",
        "k_weight": "Hkv D",
        "k_bias": "Hkv D",
        "seq_lens": "B:int32",
        "scale": "",
        "eps": "",
    },
    output="B Hkv G D",
    dynamic={"B": 256, "Hkv": 256, "G": 1024, "L": 131072},
    scalars={"scale": 128**-0.5, "eps": 1e-5},
    ranges={"seq_lens": "1..L"},
    optional=("q_bias", "k_bias"),
    reference=reference,
    shapes=(
        shape("Chameleon-7B (multi-head) and Chameleon-34B; Command-R+ (no biases)", D=128),
        shape("Persimmon-8B (multi-head, one weight and bias for all heads)", D=64),
    ),
)
def qk_layer_norm_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_weight: Tensor,
    q_bias: Tensor,
    k_weight: Tensor,
    k_bias: Tensor,
    seq_lens: Tensor,
    scale: Tensor,
    eps: Tensor,
) -> Tensor:
    """gqa of layer_norm(q) * q_weight + q_bias and layer_norm(k) * k_weight + k_bias, over D."""
    normed_q = layer_norm(q, eps, over="D") * q_weight + q_bias
    normed_k = layer_norm(k, eps, over="D") * k_weight + k_bias
    return attention(normed_q, normed_k, v, seq_lens, scale)
