"""Attention whose queries and keys are normalised first; the cache holds raw keys.

By RMSNorm over each head, with one weight for all (Gemma's weights are stored less 1:
`weight_offset` is 1 there), or by LayerNorm, each head with its own weights. A bias of the keys
adds the same to all scores of a query, which the softmax ignores; a sink, or the logarithm of its
sum, does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import (
    Tensor,
    contract,
    layer_norm,
    positions,
    rms_norm,
    softmax,
)
from mirage_kernels.generator.recipe import recipe, shape
from mirage_kernels.recipes.attention import reference as unfused_attention

if TYPE_CHECKING:
    import torch


def attention(q: Tensor, k: Tensor, v: Tensor, seq_lens: Tensor, scale: Tensor) -> Tensor:
    """softmax(scale * q k^T) v over the first seq_lens keys of each sequence."""
    scores = contract(q, k, over="D") * scale
    weights = softmax(scores, over="L", mask=positions(k, "L") < seq_lens)
    return contract(weights, v, over="L")


def rms_norm_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    eps: float,
    weight_offset: float,
) -> torch.Tensor:
    """PyTorch's own unfused program: both norms rounded to the input's type, then attention."""
    from torch.nn.functional import rms_norm as torch_rms_norm

    q_scale, k_scale = q_weight + weight_offset, k_weight + weight_offset
    normed_q = torch_rms_norm(q, (q.shape[-1],), q_scale, eps)
    normed_k = torch_rms_norm(k, (k.shape[-1],), k_scale, eps)
    return unfused_attention(normed_q, normed_k, v, seq_lens, scale)


@recipe(
    inputs={
        "q": "B Hkv G D",
        "k": "B L Hkv D",
        "v": "B L Hkv D",
        "q_weight": "D",
        "k_weight": "D",
        "seq_lens": "B:int32",
        "scale": "",
        "eps": "",
        "weight_offset": "",
    },
    output="B Hkv G D",
    dynamic={"B": 256, "Hkv": 256, "G": 1024, "L": 131072},
    scalars={"scale": 128**-0.5, "eps": 1e-6, "weight_offset": 1.0},
    ranges={"seq_lens": "1..L"},
    reference=rms_norm_reference,
    shapes=(
        shape("Qwen3-8B and Qwen3-32B; Gemma-3-27B (weight_offset is 1)", D=128),
        shape("the Mirage paper's QK-norm, L 4096, scale 1", D=64),
        shape("Gemma-3-4B and Gemma-3-12B (weight_offset is 1)", D=256),
    ),
)
def qk_norm_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    seq_lens: Tensor,
    scale: Tensor,
    eps: Tensor,
    weight_offset: Tensor,
) -> Tensor:
    """gqa of q and k after rms_norm over D, by their weights plus weight_offset."""
    normed_q = rms_norm(q, q_weight + weight_offset, eps, over="D")
    normed_k = rms_norm(k, k_weight + weight_offset, eps, over="D")
    return attention(normed_q, normed_k, v, seq_lens, scale)


def layer_norm_reference(
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
    reference=layer_norm_reference,
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
