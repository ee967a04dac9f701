"""Attention whose queries and keys are RMS-normalised per head first; the cache holds raw keys.

Gemma's weights are stored less 1: `weight_offset` is 1 there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, rms_norm
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
    reference=reference,
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
