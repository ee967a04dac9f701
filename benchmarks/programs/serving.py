"""What decoding needs beside KernelBench's programs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from programs import program

ROWS = (1, 16, 64)
K, N, HEADS, DIM = 4096, 14336, 32, 128


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-5)


@program("serving/moe_router", rows=ROWS, x=("M", K), w=(128, K))
def moe_router(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(F.linear(x, w), dim=-1)


@program("serving/down_projection", rows=ROWS, gate=("M", N), up=("M", N), w=(K, N))
def down_projection(gate: Tensor, up: Tensor, w: Tensor) -> Tensor:
    return F.linear(F.silu(gate) * up, w)


@program("serving/output_projection", rows=ROWS, x=("M", K), w=(K, K), residual=("M", K), nw=(K,))
def output_projection(x: Tensor, w: Tensor, residual: Tensor, nw: Tensor) -> tuple[Tensor, Tensor]:
    total = F.linear(x, w) + residual
    return total, _rms(total, nw)


@program(
    "serving/alibi",
    rows=(4096,),
    q=(HEADS, DIM),
    k=(HEADS, "M", DIM),
    v=(HEADS, "M", DIM),
    slopes=(HEADS, 1),
    distance=("M",),
)
def alibi(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, distance: Tensor) -> Tensor:
    scores = torch.einsum("hd,hld->hl", q, k) * DIM**-0.5 - slopes * distance
    return torch.einsum("hl,hld->hd", torch.softmax(scores, dim=-1), v)


@program(
    "serving/attention_with_bias",
    rows=(4096,),
    q=(HEADS, DIM),
    k=(HEADS, "M", DIM),
    v=(HEADS, "M", DIM),
    bias=(HEADS, "M"),
)
def attention_with_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = torch.einsum("hd,hld->hl", q, k) * DIM**-0.5 + bias
    return torch.einsum("hl,hld->hd", torch.softmax(scores, dim=-1), v)


@program(
    "serving/gated_attention",
    rows=(4096,),
    q=(HEADS, DIM),
    k=(HEADS, "M", DIM),
    v=(HEADS, "M", DIM),
    gate=(HEADS, DIM),
)
def gated_attention(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
    scores = torch.einsum("hd,hld->hl", q, k) * DIM**-0.5
    return torch.einsum("hl,hld->hd", torch.softmax(scores, dim=-1), v) * torch.sigmoid(gate)


@program(
    "serving/retention",
    rows=ROWS,
    q=("M", HEADS, DIM),
    k=("M", HEADS, DIM),
    v=("M", HEADS, DIM),
    state=("M", HEADS, DIM, DIM),
    decay=(HEADS, 1, 1),
)
def retention(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor]:
    new = state * decay + k.unsqueeze(-1) * v.unsqueeze(-2)
    return torch.einsum("mhd,mhde->mhe", q, new), new


@program("serving/logsumexp_of_logits", rows=ROWS, x=("M", K), w=(128256, K))
def logsumexp_of_logits(x: Tensor, w: Tensor) -> Tensor:
    return torch.logsumexp(F.linear(x, w), dim=-1)


@program(
    "serving/layer_norm_gated_mlp", rows=ROWS, x=("M", K), nw=(K,), nb=(K,), gate=(N, K), up=(N, K)
)
def layer_norm_gated_mlp(x: Tensor, nw: Tensor, nb: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    y = F.layer_norm(x, (K,), nw, nb)
    return F.silu(F.linear(y, gate)) * F.linear(y, up)


@program(
    "serving/two_norms_two_layers", rows=ROWS, x=("M", K), na=(K,), nb=(K,), wa=(K, K), wb=(K, K)
)
def two_norms_two_layers(
    x: Tensor, na: Tensor, nb: Tensor, wa: Tensor, wb: Tensor
) -> tuple[Tensor, Tensor]:
    return F.linear(_rms(x, na), wa), F.linear(_rms(x, nb), wb)


@program("serving/rms_norm_lora", rows=ROWS, x=("M", K), nw=(K,), w=(K, K), a=(16, K), b=(K, 16))
def rms_norm_lora(x: Tensor, nw: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    y = _rms(x, nw)
    return F.linear(y, w) + F.linear(F.linear(y, a), b)


@program("serving/softmax", rows=(64, 4096), x=("M", 4096))
def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)
