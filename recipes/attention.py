"""Grouped-query attention: G query rows share each head of keys and values, lengths per sequence.

Multi-head attention is G = 1, multi-query attention Hkv = 1. Without a mask option a query row is a
head, or a head of one of several query tokens that see the same keys. With one, the T query tokens
are the last of their sequence (speculative decoding, chunked prefill and prefill) and each sees the
keys up to its own, or at most `window` of them; a window as long as the keys hides none.

The mathematics has no running maximum: keeping exp in range is the generator's task. Lengths are at
least 1 here, or T (0 gives 0 / 0). A cap far above the scores changes none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import (
    Tensor,
    contract,
    extent,
    positions,
    soft_cap,
    softmax,
)
from mirage_kernels.generator.recipe import form, options, recipe, shape

if TYPE_CHECKING:
    import torch


def seen_by_tokens(q: Tensor, k: Tensor, seq_lens: Tensor, window: Tensor | None) -> Tensor:
    """Return which keys each query token sees."""
    key = positions(k, "L")
    token = seq_lens - extent(q, "T") + positions(q, "T")
    return key <= token if window is None else (key <= token) & (token < key + window)


def torch_seen(
    q: torch.Tensor, k: torch.Tensor, seq_lens: torch.Tensor, window: int | None, mask: str
) -> torch.Tensor:
    """Return the same in PyTorch, `[B, T, 1, 1, L]`; `[B, 1, 1, L]` without a mask option."""
    import torch

    key = torch.arange(k.shape[1], device=k.device)
    if not mask:
        return (key < seq_lens[:, None])[:, None, None, :]
    token = torch.arange(q.shape[1], device=q.device) - q.shape[1] + seq_lens[:, None]
    distance = token[:, :, None] - key
    seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    return seen[:, :, None, None, :]


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window: int | None = None,
    cap: float | None = None,
    mask: str = "",
) -> torch.Tensor:
    """PyTorch's own unfused program: scores and probabilities rounded to the input's type."""
    import torch

    heads, row = ("bthgd", "bthgl") if mask else ("bhgd", "bhgl")
    scores = torch.einsum(f"{heads},blhd->{row}", q, k) * scale
    if cap is not None:
        scores = torch.tanh(scores / cap) * cap
    scores = scores.masked_fill(~torch_seen(q, k, seq_lens, window, mask), float("-inf"))
    return torch.einsum(f"{row},blhd->{heads}", scores.softmax(dim=-1), v)


@options(
    {
        "mask=causal": "T",
        "mask=window": "T window",
        "cap": "",
    },
    form(
        "gqa",
        summary="softmax(scale * q k^T) v over the first seq_lens keys of each sequence",
        shapes=(
            shape(
                "Llama-3-8B and Qwen3-8B; Llama-3-70B and Qwen3-32B; "
                "Llama-2-7B and Chameleon-7B (multi-head)",
                D=128,
            ),
            shape("the Mirage paper's GQA, MHA and MQA, L 4096, scale 1; Llama-3.2-1B", D=64),
            shape("Phi-3-mini (multi-head)", D=96),
            shape("Nemotron-4-340B", D=192),
            shape("Gemma-7B (multi-head); Gemma-2B (multi-query)", D=256),
        ),
    ),
    form(
        "causal_attention",
        "mask=causal",
        summary="softmax(scale * q k^T) v, each query token over the keys up to its own",
        shapes=(
            shape(
                "Llama-3-8B and Qwen3-8B; Llama-3-70B and Qwen3-32B; Llama-2-7B (multi-head)",
                D=128,
            ),
            shape("Llama-3.2-1B", D=64),
            shape("Phi-3-mini (multi-head)", D=96),
            shape("Nemotron-4-340B", D=192),
            shape("Gemma-7B (multi-head); Gemma-2B (multi-query)", D=256),
        ),
    ),
    form(
        "sliding_window_attention",
        "mask=window",
        summary="softmax(scale * q k^T) v, each query token over the last `window` keys up to "
        "its own",
        shapes=(
            shape("Mistral-7B-v0.1; Gemma-3-27B (window is 1024)", D=128),
            shape("gpt-oss-20b and 120b (window is 128)", D=64),
            shape("Phi-3-mini (window is 2047)", D=96),
            shape("Nemotron-4-340B (window is all keys)", D=192),
            shape("Gemma-3-12B (window is 1024)", D=256),
        ),
    ),
    form(
        "soft_cap_attention",
        "cap",
        summary="softmax(cap * tanh(scale * q k^T / cap)) v over the first seq_lens keys",
        scalars={"scale": 256**-0.5},
        shapes=(
            shape("Gemma-2-9B and Gemma-2-2B", D=256),
            shape("Gemma-2-27B (scale is 144^-0.5); Grok-1 (cap is 30)", D=128),
        ),
    ),
    form(
        "gqa_full",
        "mask=window",
        "cap",
        summary="softmax(cap * tanh(scale * q k^T / cap)) v over the last `window` keys up to "
        "each token's",
        scalars={"scale": 256**-0.5},
        shapes=(
            shape("Gemma-2-9B and Gemma-2-2B", D=256),
            shape("Gemma-2-27B (scale is 144^-0.5)", D=128),
        ),
    ),
)
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
    scalars={"window": 4096, "scale": 128**-0.5, "cap": 50.0},
    ranges={"seq_lens": "T..L", "window": "1..L"},
    reference=reference,
)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seq_lens: Tensor,
    window: Tensor | None = None,
    *,
    scale: Tensor,
    cap: Tensor | None = None,
    mask: str = "",
) -> Tensor:
    """softmax(cap * tanh(scale * q k^T / cap)) v over the keys that are seen."""
    seen = seen_by_tokens(q, k, seq_lens, window) if mask else None
    scores = contract(q, k, over="D") * scale
    if cap is not None:
        scores = soft_cap(scores, cap)
    if seen is None:
        seen = positions(k, "L") < seq_lens
    return contract(softmax(scores, over="L", mask=seen), v, over="L")
