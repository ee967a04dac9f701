"""Multi-head latent attention, decoding with absorbed weights: the cache holds a latent per token.

All heads share it: `latent` [C] serves as keys and as values, `k_rope` [P] carries positions. The
up-projections of keys and values are absorbed into `q_latent` and into what follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, positions, softmax
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch


def reference(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    latent: torch.Tensor,
    k_rope: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """PyTorch's own unfused program: scores and probabilities rounded to the input's type."""
    import torch

    visible = torch.arange(latent.shape[1], device=latent.device) < seq_lens[:, None]
    scores = torch.einsum("bhc,blc->bhl", q_latent, latent)
    scores = (scores + torch.einsum("bhp,blp->bhl", q_rope, k_rope)) * scale
    scores = scores.masked_fill(~visible[:, None, :], float("-inf"))
    return torch.einsum("bhl,blc->bhc", scores.softmax(dim=-1), latent)


@recipe(
    inputs={
        "q_latent": "B Hq C",
        "q_rope": "B Hq P",
        "latent": "B L C",
        "k_rope": "B L P",
        "seq_lens": "B:int32",
        "scale": "",
    },
    output="B Hq C",
    dynamic={"B": 256, "Hq": 1024, "L": 131072},
    scalars={"scale": 192**-0.5},
    ranges={"seq_lens": "1..L"},
    reference=reference,
    shapes=(shape("DeepSeek-V3 and R1, DeepSeek-V2-Lite, Kimi-K2", C=512, P=64),),
)
def mla_decode(
    q_latent: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    k_rope: Tensor,
    seq_lens: Tensor,
    scale: Tensor,
) -> Tensor:
    """softmax(scale * (q_latent latent^T + q_rope k_rope^T)) latent over the first seq_lens."""
    scores = contract(q_latent, latent, over="C") + contract(q_rope, k_rope, over="P")
    weights = softmax(scores * scale, over="L", mask=positions(latent, "L") < seq_lens)
    return contract(weights, latent, over="L")
