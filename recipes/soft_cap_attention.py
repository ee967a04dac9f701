"""Grouped-query attention whose scores are capped softly before the softmax (Gemma-2, Grok-1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, positions, soft_cap, softmax
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    cap: float,
) -> torch.Tensor:
    """PyTorch's own unfused program: scores and probabilities rounded to the input's type."""
    import torch

    visible = torch.arange(k.shape[1], device=k.device) < seq_lens[:, None]
    scores = torch.tanh(torch.einsum("bhgd,blhd->bhgl", q, k) * scale / cap) * cap
    scores = scores.masked_fill(~visible[:, None, None, :], float("-inf"))
    return torch.einsum("bhgl,blhd->bhgd", scores.softmax(dim=-1), v)


@recipe(
    inputs={
        "q": "B Hkv G D",
        "k": "B L Hkv D",
        "v": "B L Hkv D",
        "seq_lens": "B:int32",
        "scale": "",
        "cap": "",
    },
    output="B Hkv G D",
    dynamic={"B": 256, "Hkv": 256, "G": 1024, "L": 131072},
    scalars={"scale": 256**-0.5, "cap": 50.0},
    ranges={"seq_lens": "1..L"},
    reference=reference,
    shapes=(
        shape("Gemma-2-9B and Gemma-2-2B", D=256),
        shape("Gemma-2-27B (scale is 144^-0.5); Grok-1 (cap is 30)", D=128),
    ),
)
def soft_cap_attention(
    q: Tensor, k: Tensor, v: Tensor, seq_lens: Tensor, scale: Tensor, cap: Tensor
) -> Tensor:
    """softmax(cap * tanh(scale * q k^T / cap)) v over the first seq_lens keys."""
    scores = soft_cap(contract(q, k, over="D") * scale, cap)
    weights = softmax(scores, over="L", mask=positions(k, "L") < seq_lens)
    return contract(weights, v, over="L")
