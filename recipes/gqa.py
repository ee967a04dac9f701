"""Grouped-query attention: G query rows share each head of keys and values, lengths per sequence.

Multi-head attention is G = 1, multi-query attention Hkv = 1; a query row is a head, or a head of
one of several query tokens that see the same keys. The mathematics has no running maximum:
keeping exp in range is the generator's task. Lengths are at least 1 here (0 gives 0 / 0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, positions, softmax
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seq_lens: torch.Tensor, scale: float
) -> torch.Tensor:
    """PyTorch's own unfused program: scores and probabilities rounded to the input's type."""
    import torch

    visible = torch.arange(k.shape[1], device=k.device) < seq_lens[:, None]
    scores = torch.einsum("bhgd,blhd->bhgl", q, k) * scale
    scores = scores.masked_fill(~visible[:, None, None, :], float("-inf"))
    return torch.einsum("bhgl,blhd->bhgd", scores.softmax(dim=-1), v)


def attention(q: Tensor, k: Tensor, v: Tensor, seq_lens: Tensor, scale: Tensor) -> Tensor:
    """softmax(scale * q k^T) v over the first seq_lens keys of each sequence."""
    scores = contract(q, k, over="D") * scale
    weights = softmax(scores, over="L", mask=positions(k, "L") < seq_lens)
    return contract(weights, v, over="L")


@recipe(
    inputs={
        "q": "B Hkv G D",
        "k": "B L Hkv D",
        "v": "B L Hkv D",
        "seq_lens": "B:int32",
        "scale": "",
    },
    output="B Hkv G D",
    dynamic={"B": 256, "Hkv": 256, "G": 1024, "L": 131072},
    scalars={"scale": 128**-0.5},
    ranges={"seq_lens": "1..L"},
    reference=reference,
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
)
def gqa(q: Tensor, k: Tensor, v: Tensor, seq_lens: Tensor, scale: Tensor) -> Tensor:
    """softmax(scale * q k^T) v over the first seq_lens keys of each sequence."""
    return attention(q, k, v, seq_lens, scale)
