"""Grouped-query attention of several query tokens per sequence: the last T of its seq_lens tokens.

Speculative decoding, chunked prefill and prefill. Each token sees the keys up to its own, so the
causal mask is aligned at the bottom right. Lengths are at least T here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, extent, positions, softmax
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch


def unfused_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, scale: float
) -> torch.Tensor:
    """PyTorch's own unfused program, with a mask `[B, T, L]` of the keys that each token sees."""
    import torch

    scores = torch.einsum("bthgd,blhd->bthgl", q, k) * scale
    scores = scores.masked_fill(~visible[:, :, None, None, :], float("-inf"))
    return torch.einsum("bthgl,blhd->bthgd", scores.softmax(dim=-1), v)


def distances(q: torch.Tensor, k: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
    """Return by how many tokens each key precedes each query token, `[B, T, L]`."""
    import torch

    tokens = torch.arange(q.shape[1], device=q.device) - q.shape[1] + seq_lens[:, None]
    return tokens[:, :, None] - torch.arange(k.shape[1], device=k.device)


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seq_lens: torch.Tensor, scale: float
) -> torch.Tensor:
    """PyTorch's own unfused program: scores and probabilities rounded to the input's type."""
    return unfused_attention(q, k, v, distances(q, k, seq_lens) >= 0, scale)


def token_positions(q: Tensor, seq_lens: Tensor) -> Tensor:
    """Return the position of each query token in its sequence, `[B, T]`."""
    return seq_lens - extent(q, "T") + positions(q, "T")


@recipe(
    inputs={
        "q": "B T Hkv G D",
        "k": "B L Hkv D",
        "v": "B L Hkv D",
        "seq_lens": "B:int32",
        "scale": "",
    },
    output="B T Hkv G D",
    dynamic={"B": 256, "T": 4096, "Hkv": 256, "G": 1024, "L": 131072},
    scalars={"scale": 128**-0.5},
    ranges={"seq_lens": "T..L"},
    reference=reference,
    shapes=(
        shape("Llama-3-8B and Qwen3-8B; Llama-3-70B and Qwen3-32B; Llama-2-7B (multi-head)", D=128),
        shape("Llama-3.2-1B", D=64),
        shape("Phi-3-mini (multi-head)", D=96),
        shape("Nemotron-4-340B", D=192),
        shape("Gemma-7B (multi-head); Gemma-2B (multi-query)", D=256),
    ),
)
def causal_attention(q: Tensor, k: Tensor, v: Tensor, seq_lens: Tensor, scale: Tensor) -> Tensor:
    """softmax(scale * q k^T) v, each query token over the keys up to its own."""
    visible = positions(k, "L") <= token_positions(q, seq_lens)
    weights = softmax(contract(q, k, over="D") * scale, over="L", mask=visible)
    return contract(weights, v, over="L")
