"""What decoding needs beside KernelBench's programs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from programs import Size, program

ROWS = (1, 16, 64)
K, N, HEADS, KV_HEADS, DIM = 4096, 14336, 32, 8, 128
KEYS = 1024  # in the cache of a decoder layer
POSITIONS, SLOTS = 8192, 65536  # rows of tables of a rotation, of a cache for all sequences


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


SEQUENCES, TOKENS = 4, 4  # of speculative decoding, with the heads of gpt-oss where it has sinks
OSS_HEADS, OSS_DIM = 64, 64


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * q.shape[-1] ** -0.5


def _weighted(weights: Tensor, v: Tensor) -> Tensor:
    return weights @ v.repeat_interleave(weights.shape[1] // v.shape[1], 1)


def _queries_and_cache(heads: int, tokens: int, dim: int) -> dict[str, tuple[Size, ...]]:
    cache: tuple[Size, ...] = (SEQUENCES, KV_HEADS, "M", dim)
    return {"q": (SEQUENCES, heads, tokens, dim), "k": cache, "v": cache}


def _weights_beside(scores: Tensor, sinks: Tensor) -> Tensor:
    rest = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[-2], -1)
    both = torch.cat([scores, rest], dim=-1).float()
    return torch.softmax(both, dim=-1).to(scores.dtype)[..., :-1]


@program(
    "serving/attention_with_mask",
    rows=(4096,),
    **_queries_and_cache(HEADS, TOKENS, DIM),
    mask=(SEQUENCES, 1, TOKENS, "M"),
)
def attention_with_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    weights = torch.softmax((_scores(q, k) + mask).float(), dim=-1).to(q.dtype)
    return _weighted(weights, v)


@program(
    "serving/attention_with_sinks",
    rows=(4096,),
    **_queries_and_cache(OSS_HEADS, 1, OSS_DIM),
    sinks=(OSS_HEADS,),
)
def attention_with_sinks(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    return _weighted(_weights_beside(_scores(q, k), sinks), v)


@program(
    "serving/attention_with_sinks_and_mask",
    rows=(4096,),
    **_queries_and_cache(OSS_HEADS, TOKENS, OSS_DIM),
    mask=(SEQUENCES, 1, TOKENS, "M"),
    sinks=(OSS_HEADS,),
)
def attention_with_sinks_and_mask(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor
) -> Tensor:
    return _weighted(_weights_beside(_scores(q, k) + mask, sinks), v)


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


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = DIM // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


@program(
    "serving/rope_append",
    rows=ROWS,
    at={"positions": KEYS, "slots": SLOTS // 2},
    by={"cos": "positions", "sin": "positions", "keys": "slots", "values": "slots"},
    q=("M", HEADS * DIM),
    k=("M", KV_HEADS * DIM),
    v=("M", KV_HEADS * DIM),
    cos=(POSITIONS, DIM),
    sin=(POSITIONS, DIM),
    positions=("M",),
    keys=(SLOTS, KV_HEADS, DIM),
    values=(SLOTS, KV_HEADS, DIM),
    slots=("M",),
)
def rope_append(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
) -> Tensor:
    at = [table[positions].unsqueeze(1) for table in (cos, sin)]
    keys[slots] = _rotated(k.view(-1, KV_HEADS, DIM), *at)
    values[slots] = v.view(-1, KV_HEADS, DIM)
    return _rotated(q.view(-1, HEADS, DIM), *at).view(-1, HEADS * DIM)


LAYER: dict[str, tuple[Size, ...]] = {
    "x": ("M", K),
    "wq": (K, K),
    "wk": (KV_HEADS * DIM, K),
    "wv": (KV_HEADS * DIM, K),
    "wo": (K, K),
    "before": (K,),
    "behind": (K,),
    "gate": (N, K),
    "up": (N, K),
    "down": (K, N),
    "keys": ("M", KV_HEADS, KEYS, DIM),
    "values": ("M", KV_HEADS, KEYS, DIM),
    "position": (1,),
    "mask": ("M", 1, 1, KEYS),
    "cos": ("M", 1, 1, DIM),
    "sin": ("M", 1, 1, DIM),
}


def _layer(t: dict[str, Tensor]) -> Tensor:
    """Return a decoder layer's output; norms of queries and keys where `t` has them."""

    def heads(x: Tensor, norm: str) -> Tensor:
        split = x.view(-1, 1, x.shape[-1] // DIM, DIM).transpose(1, 2)
        return _rms(split, t[norm]) if norm in t else split

    h = _rms(t["x"], t["before"])
    q = _rotated(heads(F.linear(h, t["wq"]), "nq"), t["cos"], t["sin"])
    k = _rotated(heads(F.linear(h, t["wk"]), "nk"), t["cos"], t["sin"])
    t["keys"].index_copy_(2, t["position"], k)
    t["values"].index_copy_(2, t["position"], heads(F.linear(h, t["wv"]), ""))
    seen = F.scaled_dot_product_attention(
        q, t["keys"], t["values"], attn_mask=t["mask"], enable_gqa=True
    )
    x = t["x"] + F.linear(seen.transpose(1, 2).reshape(-1, K), t["wo"])
    h = _rms(x, t["behind"])
    return x + F.linear(F.silu(F.linear(h, t["gate"])) * F.linear(h, t["up"]), t["down"])


@program("serving/llama_layer", rows=ROWS, at={"position": KEYS - 1}, **LAYER)
def llama_layer(
    x: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    wo: Tensor,
    before: Tensor,
    behind: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    mask: Tensor,
    cos: Tensor,
    sin: Tensor,
) -> Tensor:
    return _layer(dict(locals()))


@program(
    "serving/llama_layer_by_position",
    rows=ROWS,
    at={"position": KEYS - 1, "positions": KEYS},
    by={"cos": "positions", "sin": "positions"},
    **{**LAYER, "cos": (POSITIONS, DIM), "sin": (POSITIONS, DIM), "positions": ("M",)},
)
def llama_layer_by_position(
    x: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    wo: Tensor,
    before: Tensor,
    behind: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    mask: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
) -> Tensor:
    tables = {"cos": cos, "sin": sin}
    at = {name: table[positions].view(-1, 1, 1, DIM) for name, table in tables.items()}
    return _layer({**locals(), **at})


@program("serving/qwen3_layer", rows=ROWS, at={"position": KEYS - 1}, nq=(DIM,), nk=(DIM,), **LAYER)
def qwen3_layer(
    nq: Tensor,
    nk: Tensor,
    x: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    wo: Tensor,
    before: Tensor,
    behind: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    mask: Tensor,
    cos: Tensor,
    sin: Tensor,
) -> Tensor:
    return _layer(dict(locals()))
