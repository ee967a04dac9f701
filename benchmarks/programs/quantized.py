"""Linears whose weights have 8 bits: a scale for all, for each row, for 128 elements or a block.

PyTorch stores 16-bit copies of such weights in every call; kernels convert them where they
multiply.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from programs import program
from programs.layers import HEAD, KV, ROTATED, WEIGHTS, WIDTH, spelled_out_layer
from programs.layers import ROWS as ROWS_OF_LAYERS
from programs.layers import TOKENS as TOKENS_OF_LAYERS

ROWS, K, N, WIDE, GROUP, LENGTH = (1, 16, 64), 4096, 4096, 14336, 128, 1024
MLP = 12288  # of Qwen3-8B, whose fp8 checkpoint has such blocks


def _converted(q: Tensor, scale: Tensor, x: Tensor) -> Tensor:
    """Return a weight [N, K] as [N, K / GROUP] scales say, in the type of the tokens."""
    parts = q.to(x.dtype).unflatten(-1, (-1, GROUP)) * scale[..., None]
    return parts.flatten(-2)


def _from_blocks(q: Tensor, scale: Tensor, x: Tensor) -> Tensor:
    """Return the same with a scale for each block of GROUP rows and GROUP columns."""
    rows, columns = scale.shape
    blocks = q.float().view(rows, GROUP, columns, GROUP) * scale[:, None, :, None]
    return blocks.view(q.shape).to(x.dtype)


@program(
    "others/int8_linear",
    rows=ROWS,
    types={"q": torch.int8},
    scales=("scale",),
    x=("M", K),
    q=(N, K),
    scale=(N,),
)
def int8_linear(x: Tensor, q: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, q.to(x.dtype) * scale[:, None])


@program(
    "others/int8_groups",
    rows=ROWS,
    types={"q": torch.int8},
    scales=("scale",),
    x=("M", K),
    q=(N, K),
    scale=(N, K // GROUP),
)
def int8_groups(x: Tensor, q: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, _converted(q, scale, x))


@program(
    "others/fp8_blocks",
    rows=ROWS,
    types={"q": torch.float8_e4m3fn, "scale": torch.float32},
    scales=("scale",),
    x=("M", K),
    q=(N, K),
    scale=(N // GROUP, K // GROUP),
)
def fp8_blocks(x: Tensor, q: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, _from_blocks(q, scale, x))


@program(
    "others/fp8_blocks_mlp",
    rows=ROWS,
    types={
        **dict.fromkeys(("gate", "up"), torch.float8_e4m3fn),
        **dict.fromkeys(("gate_scale", "up_scale"), torch.float32),
    },
    scales=("gate_scale", "up_scale"),
    x=("M", K),
    gate=(MLP, K),
    up=(MLP, K),
    gate_scale=(MLP // GROUP, K // GROUP),
    up_scale=(MLP // GROUP, K // GROUP),
)
def fp8_blocks_mlp(
    x: Tensor, gate: Tensor, up: Tensor, gate_scale: Tensor, up_scale: Tensor
) -> Tensor:
    gated = F.silu(F.linear(x, _from_blocks(gate, gate_scale, x)))
    return gated * F.linear(x, _from_blocks(up, up_scale, x))


@program(
    "others/fp8_norm_linear",
    rows=ROWS,
    types={"q": torch.float8_e4m3fn},
    scales=("scale",),
    x=("M", K),
    norm=(K,),
    q=(N, K),
    scale=(N,),
)
def fp8_norm_linear(x: Tensor, norm: Tensor, q: Tensor, scale: Tensor) -> Tensor:
    return F.linear(F.rms_norm(x, (K,), norm, 1e-6), q.to(x.dtype)) * scale


@program(
    "others/fp8_one_scale",
    rows=ROWS,
    types={"q": torch.float8_e4m3fn, "scale": torch.float32},
    scales=("scale",),
    x=("M", K),
    q=(N, K),
    scale=(1,),
    bias=(N,),
)
def fp8_one_scale(x: Tensor, q: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, (q.float() * scale).to(x.dtype), bias)


@program(
    "others/fp8_gated_mlp",
    rows=ROWS,
    types={"gate": torch.float8_e4m3fn, "up": torch.float8_e4m3fn},
    scales=("gate_scale", "up_scale"),
    x=("M", K),
    gate=(WIDE, K),
    up=(WIDE, K),
    gate_scale=(WIDE,),
    up_scale=(WIDE,),
)
def fp8_gated_mlp(
    x: Tensor, gate: Tensor, up: Tensor, gate_scale: Tensor, up_scale: Tensor
) -> Tensor:
    gated = F.silu(F.linear(x, gate.to(x.dtype)) * gate_scale)
    return gated * (F.linear(x, up.to(x.dtype)) * up_scale)


@program(
    "others/int8_layer",
    rows=ROWS_OF_LAYERS,
    tokens=TOKENS_OF_LAYERS,
    types=dict.fromkeys(WEIGHTS, torch.int8),
    scales=[f"scale_{name}" for name in WEIGHTS],
    **ROTATED,
    before=(WIDTH,),
    behind=(WIDTH,),
    **WEIGHTS,
    **{f"scale_{name}": shape[:1] for name, shape in WEIGHTS.items()},
)
def int8_layer(
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
    scale_wq: Tensor,
    scale_wk: Tensor,
    scale_wv: Tensor,
    scale_wo: Tensor,
    scale_gate: Tensor,
    scale_up: Tensor,
    scale_down: Tensor,
) -> Tensor:
    weights = (wq, wk, wv, wo, gate, up, down)
    scales = (scale_wq, scale_wk, scale_wv, scale_wo, scale_gate, scale_up, scale_down)
    pairs = zip(weights, scales, strict=True)
    wide = (weight.to(x.dtype) * scale[:, None] for weight, scale in pairs)
    return spelled_out_layer(x, cos, sin, before, behind, *wide)


@program(
    "others/fp8_cache",
    rows=(1, 16, 64),
    types={"keys": torch.float8_e4m3fn, "values": torch.float8_e4m3fn},
    q=("M", 32, 1, HEAD),
    keys=("M", KV, LENGTH, HEAD),
    values=("M", KV, LENGTH, HEAD),
    key_scale=(1,),
    value_scale=(1,),
)
def fp8_cache(
    q: Tensor, keys: Tensor, values: Tensor, key_scale: Tensor, value_scale: Tensor
) -> Tensor:
    k, v = keys.to(q.dtype) * key_scale, values.to(q.dtype) * value_scale
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
