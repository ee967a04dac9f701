"""Causal attention in which each query token sees at most `window` keys, its own among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, positions, softmax
from mirage_kernels.generator.recipe import recipe, shape
from mirage_kernels.recipes.causal_attention import distances, token_positions, unfused_attention

if TYPE_CHECKING:
    import torch


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seq_lens: torch.Tensor,
    window: int,
    scale: float,
) -> torch.Tensor:
    """PyTorch's own unfused program: scores and probabilities rounded to the input's type."""
    distance = distances(q, k, seq_lens)
    return unfused_attention(q, k, v, (distance >= 0) & (distance < window), scale)


@recipe(
    inputs={
        "q": "B T Hkv G D",
        "k": "B L Hkv D",
        "v": "B L Hkv D",
        "seq_lens": "B:int32",
        "window": ":int32",
        "scale": "",
    },
    output="B T Hkv G D",
    dynamic={"B": 256, "T": 4096, "Hkv": 256, "G": 1024, "L": 131072},
    scalars={"window": 4096, "scale": 128**-0.5},
    ranges={"seq_lens": "T..L", "window": "1..L"},
    reference=reference,
    shapes=(
        shape("Mistral-7B-v0.1; Gemma-3-27B (window is 1024)", D=128),
        shape("gpt-oss-20b and 120b (window is 128)", D=64),
        shape("Phi-3-mini (window is 2047)", D=96),
        shape("Nemotron-4-340B (window is all keys)", D=192),
        shape("Gemma-3-12B (window is 1024)", D=256),
    ),
)
def sliding_window_attention(
    q: Tensor, k: Tensor, v: Tensor, seq_lens: Tensor, window: Tensor, scale: Tensor
) -> Tensor:
    """softmax(scale * q k^T) v, each query token over the last `window` keys up to its own."""
    key, token = positions(k, "L"), token_positions(q, seq_lens)
    visible = (key <= token) & (token < key + window)
    weights = softmax(contract(q, k, over="D") * scale, over="L", mask=visible)
    return contract(weights, v, over="L")
