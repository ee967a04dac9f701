"""What lengths, positions and ids say: masks, angles and means, which kernels make themselves."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from programs import program

ROWS, HEADS, KV_HEADS, DIM = (1, 16, 64), 32, 8, 128
KEYS = 1024  # of a cache
TOKENS, WIDTH = 256, 1024  # of a text, of which one vector is made
CACHE = {
    "q": ("M", HEADS, 1, DIM),
    "keys": ("M", KV_HEADS, KEYS, DIM),
    "values": ("M", KV_HEADS, KEYS, DIM),
}


@program(
    "others/attention_of_lengths", rows=ROWS, **CACHE, lengths=("M",), at={"lengths": KEYS - 63}
)
def attention(q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    seen = torch.arange(KEYS, device=q.device) < lengths[:, None]
    mask = seen[:, None, None]
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)


@program(
    "others/window_of_positions", rows=ROWS, **CACHE, positions=("M",), at={"positions": KEYS - 64}
)
def window(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    at = torch.arange(KEYS, device=q.device)
    seen = (at <= positions[:, None]) & (at > positions[:, None] - 512)
    mask = seen[:, None, None]
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)


@program(
    "others/alibi_of_positions",
    rows=ROWS,
    **CACHE,
    slopes=(HEADS,),
    lengths=("M",),
    at={"lengths": KEYS - 63},
)
def alibi(q: Tensor, keys: Tensor, values: Tensor, slopes: Tensor, lengths: Tensor) -> Tensor:
    away = torch.arange(KEYS, device=q.device) - (lengths[:, None, None, None] - 1)
    bias = (slopes[:, None, None] * away).masked_fill(away > 0, float("-inf"))
    mask = bias.to(q.dtype)
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)


@program(
    "others/rope_of_positions",
    rows=ROWS,
    q=("M", HEADS, DIM),
    k=("M", KV_HEADS, DIM),
    frequencies=(DIM // 2,),
    positions=("M",),
    types={"frequencies": torch.float32},
    at={"positions": KEYS},
)
def rope(q: Tensor, k: Tensor, frequencies: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    angles = positions[:, None].float() * frequencies
    both = torch.cat((angles, angles), dim=-1)[:, None]
    cos, sin = both.cos().to(q.dtype), both.sin().to(q.dtype)

    def turned(x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-b, a), dim=-1) * sin

    return turned(q), turned(k)


@program(
    "others/mean_of_lengths",
    rows=ROWS,
    x=("M", TOKENS, WIDTH),
    lengths=("M",),
    at={"lengths": TOKENS - 63},
)
def pooling(x: Tensor, lengths: Tensor) -> Tensor:
    seen = torch.arange(TOKENS, device=x.device) < lengths[:, None]
    mean = (x * seen[:, :, None]).sum(1) / lengths[:, None]
    return F.normalize(mean, dim=-1)
