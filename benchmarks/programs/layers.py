"""Layers of published models, as their code computes them: a few tokens of several sequences.

Each has what the generator learnt from such code: norms that are spelled out, heads that turn in
part, pairs that turn in fp32, queries, keys and values with biases behind a LayerNorm, all heads
over one of keys.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from programs import Size, program

ROWS, TOKENS, HEAD = (4, 64), 4, 128


def _linears(**widths: tuple[int, int]) -> dict[str, tuple[Size, ...]]:
    """Return the shapes of weights [N, K] and biases [N] by name."""
    biases = {f"b{name}": (n,) for name, (n, _) in widths.items()}
    return {f"w{name}": shape for name, shape in widths.items()} | biases


def _heads(x: Tensor, dim: int) -> Tensor:
    return x.view(*x.shape[:2], -1, dim).transpose(1, 2)


def _side_by_side(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def _rotated_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


def _attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def _gated(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


# -- GPT-NeoX and Pythia: a quarter of each head turns, attention and MLP take the same x ----------

NEOX, TURNING = 2048, 32


@program(
    "others/neox_layer",
    rows=ROWS,
    tokens=TOKENS,
    x=("M", "T", NEOX),
    cos=("T", TURNING),
    sin=("T", TURNING),
    **dict.fromkeys(("n1", "n2", "nb1", "nb2"), (NEOX,)),
    **_linears(qkv=(3 * NEOX, NEOX), o=(NEOX, NEOX), up=(4 * NEOX, NEOX), down=(NEOX, 4 * NEOX)),
)
def neox_layer(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    n1: Tensor,
    n2: Tensor,
    nb1: Tensor,
    nb2: Tensor,
    wqkv: Tensor,
    bqkv: Tensor,
    wo: Tensor,
    bo: Tensor,
    wup: Tensor,
    bup: Tensor,
    wdown: Tensor,
    bdown: Tensor,
) -> Tensor:
    def turned(heads: Tensor) -> Tensor:
        turns, stays = heads[..., :TURNING], heads[..., TURNING:]
        return torch.cat((_rotated_halves(turns, cos, sin), stays), dim=-1)

    qkv = _heads(F.linear(F.layer_norm(x, (NEOX,), n1, nb1), wqkv, bqkv), 3 * HEAD)
    q, k, v = qkv.chunk(3, dim=-1)
    seen = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
    inner = F.gelu(F.linear(F.layer_norm(x, (NEOX,), n2, nb2), wup, bup))
    return F.linear(inner, wdown, bdown) + F.linear(_side_by_side(seen), wo, bo) + x


# -- Command R: pairs turn in fp32, norms without biases, attention and MLP take the same norm -----

WIDTH, KV, INNER = 4096, 8, 14336  # of Llama-3.1-8B too
ROTATED: dict[str, tuple[Size, ...]] = {"x": ("M", "T", WIDTH)}
ROTATED |= {"cos": ("T", HEAD), "sin": ("T", HEAD)}
WEIGHTS: dict[str, tuple[Size, ...]] = {
    "wq": (WIDTH, WIDTH),
    "wk": (KV * HEAD, WIDTH),
    "wv": (KV * HEAD, WIDTH),
    "wo": (WIDTH, WIDTH),
    "gate": (INNER, WIDTH),
    "up": (INNER, WIDTH),
    "down": (WIDTH, INNER),
}


@program("others/cohere_layer", rows=ROWS, tokens=TOKENS, **ROTATED, n=(WIDTH,), **WEIGHTS)
def cohere_layer(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    n: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    wo: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
) -> Tensor:
    def turned(heads: Tensor) -> Tensor:
        wide = heads.float()
        pairs = torch.stack((-wide[..., 1::2], wide[..., ::2]), dim=-1).flatten(-2)
        return (wide * cos + pairs * sin).to(heads.dtype)

    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)
    y = (n.float() * normed).to(x.dtype)
    q, k, v = (_heads(F.linear(y, w), HEAD) for w in (wq, wk, wv))
    seen = _attended(turned(q), turned(k), v)
    mlp = _gated(y, gate, up, down)
    return x + F.linear(_side_by_side(seen), wo) + mlp


# -- ViT, CLIP and DINO: biases everywhere, no mask ------------------------------------------------

VISION, VISION_HEAD = 1024, 64


@program(
    "others/vision_layer",
    rows=ROWS,
    tokens=TOKENS,
    x=("M", "T", VISION),
    **dict.fromkeys(("n1", "n2", "nb1", "nb2"), (VISION,)),
    **_linears(
        **dict.fromkeys("qkvo", (VISION, VISION)),
        up=(4 * VISION, VISION),
        down=(VISION, 4 * VISION),
    ),
)
def vision_layer(
    x: Tensor,
    n1: Tensor,
    n2: Tensor,
    nb1: Tensor,
    nb2: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    wo: Tensor,
    wup: Tensor,
    wdown: Tensor,
    bq: Tensor,
    bk: Tensor,
    bv: Tensor,
    bo: Tensor,
    bup: Tensor,
    bdown: Tensor,
) -> Tensor:
    y = F.layer_norm(x, (VISION,), n1, nb1)
    linears = ((wq, bq), (wk, bk), (wv, bv))
    q, k, v = (_heads(F.linear(y, w, b), VISION_HEAD) for w, b in linears)
    x = x + F.linear(_side_by_side(F.scaled_dot_product_attention(q, k, v)), wo, bo)
    y = F.layer_norm(x, (VISION,), n2, nb2)
    return x + F.linear(F.gelu(F.linear(y, wup, bup)), wdown, bdown)


# -- Falcon: all heads over one of keys, attention and MLP take the same norm ----------------------

FALCON, FALCON_HEAD = 4544, 64


@program(
    "others/falcon_layer",
    rows=ROWS,
    tokens=TOKENS,
    x=("M", "T", FALCON),
    cos=("T", FALCON_HEAD),
    sin=("T", FALCON_HEAD),
    n=(FALCON,),
    nb=(FALCON,),
    wqkv=(FALCON + 2 * FALCON_HEAD, FALCON),
    wo=(FALCON, FALCON),
    wup=(4 * FALCON, FALCON),
    wdown=(FALCON, 4 * FALCON),
)
def falcon_layer(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    n: Tensor,
    nb: Tensor,
    wqkv: Tensor,
    wo: Tensor,
    wup: Tensor,
    wdown: Tensor,
) -> Tensor:
    y = F.layer_norm(x, (FALCON,), n, nb)
    heads = F.linear(y, wqkv).view(*x.shape[:2], -1, FALCON_HEAD)
    parts = heads[:, :, :-2], heads[:, :, -2:-1], heads[:, :, -1:]
    q, k, v = (part.transpose(1, 2) for part in parts)
    q, k = (_rotated_halves(t, cos, sin) for t in (q, k))
    seen = _attended(q, k, v)
    mlp = F.linear(F.gelu(F.linear(y, wup)), wdown)
    return mlp + F.linear(_side_by_side(seen), wo) + x


# -- Llama as transformers has it: norms are spelled out in fp32 -----------------------------------


@program(
    "others/spelled_out_layer",
    rows=ROWS,
    tokens=TOKENS,
    **ROTATED,
    before=(WIDTH,),
    behind=(WIDTH,),
    **WEIGHTS,
)
def spelled_out_layer(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    before: Tensor,
    behind: Tensor,
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    wo: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
) -> Tensor:
    def normed(x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)

    y = normed(x, before)
    q, k, v = (_heads(F.linear(y, w), HEAD) for w in (wq, wk, wv))
    q, k = (_rotated_halves(heads, cos, sin) for heads in (q, k))
    x = x + F.linear(_side_by_side(_attended(q, k, v)), wo)
    return x + _gated(normed(x, behind), gate, up, down)


# -- GLM: pairs of the first half of each head turn ------------------------------------------------


@program(
    "others/glm_rotation",
    rows=(1, 64),
    q=("M", 32, 128),
    k=("M", 2, 128),
    cos=("M", 1, 32),
    sin=("M", 1, 32),
)
def glm_rotation(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = (angles.repeat_interleave(2, dim=-1) for angles in (cos, sin))

    def turned(heads: Tensor) -> Tensor:
        x, stays = heads.chunk(2, dim=-1)
        pairs = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
        return torch.cat((x * cos + pairs * sin, stays), dim=-1)

    return turned(q), turned(k)


@program(
    "others/equal_projections",
    rows=(1, 16, 64),
    x=("M", WIDTH),
    norm=(WIDTH,),
    q=(WIDTH, WIDTH),
    k=(WIDTH, WIDTH),
    v=(WIDTH, WIDTH),
)
def equal_projections(
    x: Tensor, norm: Tensor, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    y = F.rms_norm(x, (WIDTH,), norm, 1e-5)
    return F.linear(y, q), F.linear(y, k), F.linear(y, v)
