"""Attention of several query tokens with every option of its masks and scores (Gemma-2).

A window as long as the keys hides none of them; a cap far above the scores changes none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, positions, soft_cap, softmax
from mirage_kernels.generator.recipe import recipe, shape
from mirage_kernels.recipes.causal_attention import distances, token_positions

if TYPE_CHECKING:
    import torch


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seq_lens: torch.Tensor,
    window: int,
    scale: float,
    cap: float,
) -> torch.Tensor:
    """PyTorch's own unfused program: scores and probabilities rounded to the input's type."""
    import torch

    distance = distances(q, k, seq_lens)
    visible = (distance >= 0) & (distance < window)
    scores = torch.tanh(torch.einsum("bthgd,blhd->bthgl", q, k) * scale / cap) * cap
    scores = scores.masked_fill(~visible[:, :, None, None, :], float("-inf"))
    return torch.einsum("bthgl,blhd->bthgd", scores.softmax(dim=-1), v)


@recipe(
    inputs={
        "q": "B T Hkv G D",
        "k": "B L Hkv D",
        "v": "B L Hkv D",
        "seq_lens": "B:int32",
        "window": ":int32",
        "scale": "",
        "cap": "",
    },
    output="B T Hkv G D",
    dynamic={"B": 256, "T": 4096, "Hkv": 256, "G": 1024, "L": 131072},
    scalars={"window": 4096, "scale": 256**-0.5, "cap": 50.0},
    ranges={"seq_lens": "T..L", "window": "1..L"},
    reference=reference,
    shapes=(
        shape("Gemma-2-9B and Gemma-2-2B", D=256),
        shape("Gemma-2-27B (scale is 144^-0.5)", D=128),
    ),
)
def gqa_full(
    q: Tensor, k: Tensor, v: Tensor, seq_lens: Tensor, window: Tensor, scale: Tensor, cap: Tensor
) -> Tensor:
    """softmax(cap * tanh(scale * q k^T / cap)) v over the last `window` keys up to each token's."""
    key, token = positions(k, "L"), token_positions(q, seq_lens)
    visible = (key <= token) & (token < key + window)
    scores = soft_cap(contract(q, k, over="D") * scale, cap)
    weights = softmax(scores, over="L", mask=visible)
    return contract(weights, v, over="L")
