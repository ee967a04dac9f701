"""What lengths and positions say, which kernels work out themselves, and results of 8 bits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from programs import program

ROWS, HEADS, KV_HEADS, DIM = (1, 16, 64), 32, 8, 128
KEYS, WINDOW = 1024, 512  # of a cache, and what one token sees of it
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
    "others/window_of_positions",
    rows=ROWS,
    **CACHE,
    positions=("M",),
    at={"positions": KEYS - 64},
    parts={"keys": WINDOW / KEYS, "values": WINDOW / KEYS},
)
def window(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    at = torch.arange(KEYS, device=q.device)
    seen = (at <= positions[:, None]) & (at > positions[:, None] - WINDOW)
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


# -- results of 8 bits -----------------------------------------------------------------------------


@program("others/norm_to_int8", rows=ROWS, x=("M", 4096), residual=("M", 4096), w=(4096,))
def norm_to_int8(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    total = x + residual
    y = F.rms_norm(total, (total.shape[-1],), w, 1e-6).float()
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127
    return torch.round(y / scale).clamp(-127, 127).to(torch.int8), scale, total


@program("others/swiglu_to_fp8", rows=ROWS, x=("M", 2 * 14336))
def swiglu_to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    gate, up = x.chunk(2, dim=-1)
    y = (F.silu(gate) * up).float().unflatten(-1, (-1, 128))
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
    q = (y / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return q.flatten(-2), scale.squeeze(-1)
