"""Programs that were written after the generator, to see what it makes of functions it never saw.

Steps of recurrent models, [K, N] weights, an expert, sampling, losses, gradients and an optimizer,
at sizes of today's models. Where they fell short it was mended.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from programs import Size, counted, layers, program, quantized  # noqa: F401  (they register)

FEW, MANY, SMALL = (1, 64), (4096,), (64,)
K, HEADS, DIM, STATE, VOCABULARY = 4096, 32, 128, 16, 128256
STATE_AND_TOKENS: dict[str, tuple[Size, ...]] = {
    "s": ("M", HEADS, DIM, DIM),
    **dict.fromkeys("qkv", ("M", HEADS, DIM)),
}


# -- steps of recurrent models ---------------------------------------------------------------------


@program("others/gated_norm", rows=FEW, x=("M", K), z=("M", K), w=(K,))
def gated_norm(x: Tensor, z: Tensor, w: Tensor) -> Tensor:
    y = (x * F.silu(z)).float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * w


@program(
    "others/selective_scan_step",
    rows=FEW,
    h=("M", K, STATE),
    x=("M", K),
    dt=("M", K),
    a=(K, STATE),
    b=("M", STATE),
    c=("M", STATE),
    d=(K,),
    z=("M", K),
)
def selective_scan_step(
    h: Tensor, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, z: Tensor
) -> tuple[Tensor, Tensor]:
    dt = F.softplus(dt)
    h = torch.exp(dt[..., None] * -torch.exp(a)) * h + (dt * x)[..., None] * b[:, None, :]
    return ((h * c[:, None, :]).sum(-1) + d * x) * F.silu(z), h


@program(
    "others/delta_rule_step",
    rows=(1, 16),
    **STATE_AND_TOKENS,
    g=("M", HEADS),
    beta=("M", HEADS),
)
def delta_rule_step(
    s: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    s = s * torch.sigmoid(g)[..., None, None]
    delta = (v - (s * k[..., None]).sum(-2)) * beta[..., None]
    s = s + k[..., None] * delta[..., None, :]
    return (s * q[..., None]).sum(-2), s


@program("others/rwkv_step", rows=(1, 16), **STATE_AND_TOKENS, w=("M", HEADS, DIM), u=(HEADS, DIM))
def rwkv_step(
    s: Tensor, q: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor
) -> tuple[Tensor, Tensor]:
    more = k[..., None] * v[..., None, :]
    out = (q[..., None] * (s + u[..., None] * more)).sum(-2)
    return out, s * torch.exp(-torch.exp(w))[..., None] + more


@program(
    "others/gated_linear_attention_step",
    rows=(1, 16),
    **STATE_AND_TOKENS,
    g=("M", HEADS, DIM),
)
def gated_linear_attention_step(
    s: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor
) -> tuple[Tensor, Tensor]:
    s = s * torch.sigmoid(g)[..., None] + k[..., None] * v[..., None, :]
    return torch.einsum("bhk,bhkv->bhv", q, s), s


@program(
    "others/linear_attention", rows=FEW, q=("M", HEADS, DIM), kv=(HEADS, DIM, DIM), n=(HEADS, DIM)
)
def linear_attention(q: Tensor, kv: Tensor, n: Tensor) -> Tensor:
    q = F.elu(q) + 1
    return torch.einsum("bhd,hde->bhe", q, kv) / ((q * n.abs()).sum(-1, keepdim=True) + 1e-6)


@program(
    "others/slstm_step",
    rows=FEW,
    **dict.fromkeys(("i", "f", "z", "o", "c", "n", "m"), ("M", K)),
)
def slstm_step(
    i: Tensor, f: Tensor, z: Tensor, o: Tensor, c: Tensor, n: Tensor, m: Tensor
) -> tuple[Tensor, ...]:
    most = torch.maximum(f + m, i)
    keep, take = torch.exp(f + m - most), torch.exp(i - most)
    c, n = keep * c + take * torch.tanh(z), keep * n.abs() + take
    return torch.sigmoid(o) * c / n, c, n, most


@program(
    "others/gru_cell", rows=FEW, x=("M", K), h=("M", K), wi=(3 * K, K), wh=(3 * K, K), b=(3 * K,)
)
def gru_cell(x: Tensor, h: Tensor, wi: Tensor, wh: Tensor, b: Tensor) -> Tensor:
    ir, iz, inew = F.linear(x, wi, b).chunk(3, -1)
    hr, hz, hnew = F.linear(h, wh).chunk(3, -1)
    r, z = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
    new = torch.tanh(inew + r * hnew)
    return (1 - z) * new + z * h


@program("others/highway", rows=FEW, x=("M", K), t=(K, K), u=(K, K), c=(K, K))
def highway(x: Tensor, t: Tensor, u: Tensor, c: Tensor) -> Tensor:
    gate = torch.sigmoid(F.linear(x, t))
    return gate * F.relu(F.linear(x, u)) + (1 - gate) * F.linear(x, c)


# -- parts of models -------------------------------------------------------------------------------


@program("others/clamped_glu", rows=FEW, x=("M", 2880), y=("M", 2880))
def clamped_glu(x: Tensor, y: Tensor) -> Tensor:
    x, y = x.clamp(max=7.0), y.clamp(-7.0, 7.0)
    return x * torch.sigmoid(1.702 * x) * (y + 1)


@program(
    "others/weighted_expert",
    rows=FEW,
    x=("M", K),
    w=(2048, K),
    v=(2048, K),
    d=(K, 2048),
    weight=("M",),
)
def weighted_expert(x: Tensor, w: Tensor, v: Tensor, d: Tensor, weight: Tensor) -> Tensor:
    gated = F.silu(F.linear(x, w)) * F.linear(x, v)
    return F.linear(gated, d) * weight[:, None]


@program("others/sigmoid_router", rows=FEW, x=("M", K), w=(256, K), b=(256,))
def sigmoid_router(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    scores = torch.sigmoid(F.linear(x, w))
    return scores / (scores.sum(-1, keepdim=True) + 1e-20), scores + b


@program("others/modulated_norm", rows=FEW, x=("M", K), scale=("M", K), shift=("M", K))
def modulated_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.layer_norm(x, (K,)) * (1 + scale) + shift


@program(
    "others/modulated_tokens",
    rows=FEW,
    x=("M", 16, 1024),
    c=("M", 1024),
    modulation=(2048, 1024),
    w=(1024, 1024),
)
def modulated_tokens(x: Tensor, c: Tensor, modulation: Tensor, w: Tensor) -> Tensor:
    shift, scale = F.linear(F.silu(c), modulation).chunk(2, -1)
    return F.linear(x * (1 + scale[:, None]) + shift[:, None], w)


@program("others/two_norms_residual", rows=FEW, x=("M", K), r=("M", K), w=(K,), v=(K,))
def two_norms_residual(x: Tensor, r: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    h = r + F.rms_norm(x, (K,), 1 + w, 1e-6)
    return h, F.rms_norm(h, (K,), 1 + v, 1e-6)


@program("others/quantised_rows", rows=FEW, x=("M", K))
def quantised_rows(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
    return torch.round(x / scale).clamp(-128, 127) * scale


@program("others/attention_pool", rows=FEW, x=("M", 16, K), w=(K,))
def attention_pool(x: Tensor, w: Tensor) -> Tensor:
    shares = torch.softmax((x * w).sum(-1) / K**0.5, -1)
    return (shares[..., None] * x).sum(1)


@program(
    "others/cosine_attention",
    rows=MANY,
    q=(HEADS, 1, DIM),
    k=(HEADS, "M", DIM),
    v=(HEADS, "M", DIM),
    t=(HEADS,),
)
def cosine_attention(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Tensor:
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    return torch.softmax((q @ k.transpose(-1, -2)) * t.exp()[:, None, None], -1) @ v


@program("others/squeeze_excite", rows=SMALL, x=("M", 256, 14, 14), w=(16, 256), u=(256, 16))
def squeeze_excite(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    share = torch.sigmoid(F.linear(F.relu(F.linear(x.mean((2, 3)), w)), u))
    return x * share[:, :, None, None]


@program("others/instance_style", rows=SMALL, x=("M", 64, 32, 32), g=("M", 64), b=("M", 64))
def instance_style(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
    mean = x.mean((2, 3), keepdim=True)
    deviation = torch.sqrt(x.var((2, 3), keepdim=True, correction=0) + 1e-5)
    return (x - mean) / deviation * g[:, :, None, None] + b[:, :, None, None]


# -- weights as [K, N], and tensors that are taken twice -------------------------------------------


@program("others/conv1d_mlp", rows=FEW, x=("M", 2048), u=(2048, 8192), b=(8192,), d=(8192, 2048))
def conv1d_mlp(x: Tensor, u: Tensor, b: Tensor, d: Tensor) -> Tensor:
    return x + F.gelu(torch.addmm(b, x, u), approximate="tanh") @ d


@program("others/gated_columns", rows=FEW, x=("M", K), g=(K, 11008), u=(K, 11008), d=(11008, K))
def gated_columns(x: Tensor, g: Tensor, u: Tensor, d: Tensor) -> Tensor:
    return (F.silu(x @ g) * (x @ u)) @ d


@program("others/norm_columns", rows=FEW, x=("M", K), n=(K,), w=(K, 6144))
def norm_columns(x: Tensor, n: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, (K,), n, 1e-5) @ w


@program("others/router_columns", rows=FEW, x=("M", K), w=(K, 128))
def router_columns(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(x @ w, -1)


@program("others/square_residual", rows=FEW, x=("M", K), w=(K, K))
def square_residual(x: Tensor, w: Tensor) -> Tensor:
    return x + F.silu(F.linear(x, w))


@program("others/attention_to_itself", rows=(16,), x=("M", 16, 64, 64))
def attention_to_itself(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x)


@program("others/gram_matrices", rows=SMALL, x=("M", 64, 1024))
def gram_matrices(x: Tensor) -> Tensor:
    return x @ x.transpose(1, 2) / 65536


# -- sampling --------------------------------------------------------------------------------------


@program("others/repetition_penalty", rows=FEW, x=("M", VOCABULARY), p=("M", 1))
def repetition_penalty(x: Tensor, p: Tensor) -> Tensor:
    return torch.where(x > 0, x / (1 + p.abs()), x * (1 + p.abs()))


@program("others/min_p", rows=FEW, x=("M", VOCABULARY))
def min_p(x: Tensor) -> Tensor:
    p = torch.softmax(x, -1)
    kept = torch.where(p < p.amax(-1, keepdim=True) * 0.05, 0.0, p)
    return kept / kept.sum(-1, keepdim=True)


@program("others/entropy", rows=FEW, x=("M", VOCABULARY))
def entropy(x: Tensor) -> Tensor:
    p = torch.softmax(x, -1)
    return -(p * torch.log(p)).sum(-1)


@program("others/token_logprobs", rows=FEW, at={"t": 1000}, x=("M", VOCABULARY), t=("M",))
def token_logprobs(x: Tensor, t: Tensor) -> Tensor:
    return torch.log_softmax(x.float() / 0.7, -1).gather(-1, t[:, None])


# -- losses and gradients --------------------------------------------------------------------------


@program("others/focal_loss", rows=MANY, x=("M", K), y=("M", K))
def focal_loss(x: Tensor, y: Tensor) -> Tensor:
    p, t = torch.sigmoid(x), torch.sigmoid(y)
    right = p * t + (1 - p) * (1 - t)
    loss = F.binary_cross_entropy_with_logits(x, t, reduction="none")
    return (loss * (1 - right) ** 2).mean()


@program("others/dice_loss", rows=MANY, x=("M", K), y=("M", K))
def dice_loss(x: Tensor, y: Tensor) -> Tensor:
    p, t = torch.sigmoid(x), torch.sigmoid(y)
    both = (p * t).sum(-1)
    return (1 - (2 * both + 1) / (p.sum(-1) + t.sum(-1) + 1)).mean()


@program("others/contrastive_loss", rows=(1024,), a=("M", 512), b=(1024, 512), same=("M",))
def contrastive_loss(a: Tensor, b: Tensor, same: Tensor) -> Tensor:
    scores = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T / 0.07
    return (torch.logsumexp(scores, -1) - same).mean()


@program("others/softmax_backward", rows=MANY, y=("M", K), dy=("M", K))
def softmax_backward(y: Tensor, dy: Tensor) -> Tensor:
    return y * (dy - (y * dy).sum(-1, keepdim=True))


@program("others/rms_norm_backward", rows=MANY, x=("M", K), dy=("M", K), w=(K,))
def rms_norm_backward(x: Tensor, dy: Tensor, w: Tensor) -> Tensor:
    inverse = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
    normed, d = x * inverse, dy * w
    return inverse * (d - normed * (d * normed).mean(-1, keepdim=True))


@program("others/gelu_backward", rows=MANY, x=("M", K), dy=("M", K))
def gelu_backward(x: Tensor, dy: Tensor) -> Tensor:
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return dy * (0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density)


@program("others/adamw", rows=MANY, **dict.fromkeys(("w", "g", "m", "v"), ("M", K)))
def adamw(w: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m, v = m * 0.9 + g * 0.1, v.abs() * 0.999 + g * g * 0.001
    return w * (1 - 1e-5) - 1e-3 * m / (v.sqrt() + 1e-8), m, v


# -- rows of two dims ------------------------------------------------------------------------------

WIDTH, WIDE = 1024, 4096


def _conv1ds(wide: int, inner: int) -> dict[str, tuple[Size, ...]]:
    """Return the shapes of a norm and two products by [K, N] weights behind it."""
    norm: dict[str, tuple[Size, ...]] = {"x": ("M", "T", WIDTH), "n": (WIDTH,), "nb": (WIDTH,)}
    return norm | {"w1": (WIDTH, wide), "b1": (wide,), "w2": (inner, WIDTH), "b2": (WIDTH,)}


def _conv1d(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    made = torch.addmm(b, x.view(-1, x.size(-1)), w)
    return made.view(*x.shape[:-1], -1)


def _new_gelu(x: Tensor) -> Tensor:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


@program("others/gpt2_mlp", rows=(4, 64, 512), tokens=4, **_conv1ds(WIDE, WIDE))
def gpt2_mlp(
    x: Tensor, n: Tensor, nb: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor
) -> Tensor:
    y = F.layer_norm(x, x.shape[-1:], n, nb)
    return x + _conv1d(_new_gelu(_conv1d(y, w1, b1)), w2, b2)


@program("others/gpt2_attention", rows=(4, 64), tokens=4, **_conv1ds(3 * WIDTH, WIDTH))
def gpt2_attention(
    x: Tensor, n: Tensor, nb: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor
) -> Tensor:
    y = F.layer_norm(x, x.shape[-1:], n, nb)
    q, k, v = _conv1d(y, w1, b1).split(WIDTH, dim=2)
    q, k, v = (t.view(*t.shape[:-1], -1, 64).transpose(1, 2) for t in (q, k, v))
    made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return x + _conv1d(made.transpose(1, 2).reshape(x.shape), w2, b2)


@program(
    "others/t5_mlp",
    rows=(4, 64, 512),
    tokens=4,
    x=("M", "T", WIDTH),
    n=(WIDTH,),
    g=(2816, WIDTH),
    u=(2816, WIDTH),
    d=(WIDTH, 2816),
)
def t5_mlp(x: Tensor, n: Tensor, g: Tensor, u: Tensor, d: Tensor) -> Tensor:
    y = F.rms_norm(x, x.shape[-1:], n, 1e-6)
    return x + F.linear(_new_gelu(F.linear(y, g)) * F.linear(y, u), d)


@program(
    "others/drafted_mlp", rows=(2, 16), x=("M", 4, K), g=(14336, K), u=(14336, K), d=(K, 14336)
)
def drafted_mlp(x: Tensor, g: Tensor, u: Tensor, d: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, g)) * F.linear(x, u), d)
