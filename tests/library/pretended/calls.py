"""Calls every op with kernels that print what they get; each call's name comes before it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial

import torch
from append_calls import APPEND
from attention_calls import ATTENTION
from torch import Tensor

import mirage_kernels as mk

K, N, R = 64, 96, 8


def filled(value: int, *shape: int) -> Tensor:
    return torch.full(shape, float(value)).half()


x, residual, wide = filled(1, 3, K), filled(5, 3, K), filled(1, 3, K + 16)
norm_weight, norm_bias, bias = filled(2, K), filled(6, K), filled(4, N)
weight, gate, up = filled(3, N, K), filled(7, N, K), filled(8, N, K)
lora_a, lora_b = filled(9, R, K), filled(10, N, R)
packed = torch.cat([gate, up])
ids = torch.tensor([0, -1, 0])
bf16 = {name: value.bfloat16() for name, value in globals().copy().items() if type(value) is Tensor}

rms = partial(mk.rms_norm_linear, x, norm_weight, weight)
rms_all = partial(mk.rms_norm_linear, bf16["x"], bf16["norm_weight"], bf16["weight"])
layer = partial(mk.layer_norm_linear, x, norm_weight)
lora = partial(mk.lora_linear, x, weight, lora_a, lora_b, 0.5)
stacked = partial(mk.lora_linear, x, weight, lora_a[None], lora_b[None], 0.5)
geglu = partial(mk.rms_norm_gated_mlp, x, norm_weight, activation="gelu_tanh")

CALLS = {
    "plain": rms,
    "strided": partial(mk.rms_norm_linear, wide[:, :K], norm_weight, weight),
    "bias": partial(rms, bias=bias),
    "offset": partial(rms, weight_offset=1.0),
    "residual": partial(rms, residual=residual),
    "residual of few tokens": partial(
        mk.rms_norm_linear, x[:2], norm_weight, weight, residual=residual[:2]
    ),
    "few tokens and options": partial(
        *(mk.rms_norm_linear, wide[:2, :K], norm_weight, weight),
        residual=residual[::2],
        bias=bias,
        weight_offset=1.0,
    ),
    "residual and bias": partial(rms, residual=residual, bias=bias),
    "all options": partial(
        rms_all, bias=bf16["bias"], residual=bf16["residual"], weight_offset=1.0
    ),
    "options left out": rms_all,
    "many tokens": partial(mk.rms_norm_linear, filled(1, 5, K), norm_weight, weight),
    "no tokens": partial(mk.rms_norm_linear, x[:0], norm_weight, weight),
    "norm_bias": partial(layer, norm_bias, weight),
    "no norm_bias": partial(layer, None, weight),
    "zeros for norm_bias": partial(
        mk.layer_norm_linear, bf16["x"], bf16["norm_weight"], None, bf16["weight"]
    ),
    "lora": lora,
    "lora and bias": partial(lora, bias=bias),
    "batched": partial(stacked, adapter_ids=ids),
    "batched and bias": partial(stacked, adapter_ids=ids.int(), bias=bias),
    "batched with ids apart": partial(stacked, adapter_ids=ids.repeat(2, 1).t()[:, 0]),
    "batched, many tokens": partial(
        *(mk.lora_linear, filled(1, 5, K), weight, lora_a[None], lora_b[None], 0.5),
        adapter_ids=torch.zeros(5, dtype=torch.int32),
    ),
    "batched of another rank": partial(
        *(mk.lora_linear, x, weight, lora_a[None, :4], lora_b[None, :, :4].contiguous(), 0.5),
        adapter_ids=ids,
    ),
    "gate and up": partial(mk.gated_mlp, x, gate, up),
    "packed": partial(mk.gated_mlp, x, packed),
    "packed and offset": partial(geglu, packed, weight_offset=1.0),
    "gate and up and residual": partial(
        mk.rms_norm_gated_mlp, x, norm_weight, gate, up, activation="gelu_tanh", residual=residual
    ),
    "packed, offset and residual": partial(geglu, packed, weight_offset=1.0, residual=residual),
    "ntrans": partial(mk.ntrans, residual, wide[:, :K], norm_weight),
    "ntrans of many tokens": partial(mk.ntrans, filled(5, 99, K), filled(1, 99, K), norm_weight),
    "norm": partial(mk.rms_norm, x, norm_weight),
    "norm of another size": partial(mk.rms_norm, x[:, :32], norm_weight[:32]),
    "norm and residual": partial(
        *(mk.rms_norm, wide[:, :K], norm_weight), residual=residual, weight_offset=1.0
    ),
    "layer norm": partial(mk.layer_norm, x, norm_weight, norm_bias),
    "layer norm without bias": partial(mk.layer_norm, x, norm_weight),
    "two halves": partial(mk.act_and_mul, filled(7, 3, N), filled(8, 3, N)),
    "packed halves": partial(mk.act_and_mul, filled(7, 2, 3, 2 * N)),
    "halves of another activation": partial(mk.act_and_mul, filled(7, 3, 2 * N), activation="relu"),
    "no such activation": partial(mk.gated_mlp, x, packed, activation="relu"),
    "uncovered": partial(mk.rms_norm_linear, x, norm_weight, weight[:88]),
}

CALLS |= ATTENTION | APPEND

# After `mirage_kernels.load`.
LOADED = {
    "a size that was loaded": partial(mk.rms_norm, filled(1, 3, 40), filled(2, 40)),
    "loaded in place of the build's own": partial(mk.rms_norm, x, norm_weight),
    "attention that was loaded": partial(
        mk.gqa, *(filled(1, 2, 8, 1, 72) for _ in range(3)), causal=False
    ),
    "not loaded": partial(mk.ntrans, residual, wide[:, :K], norm_weight),
}


def tell(calls: Mapping[str, Callable[[], object]]) -> None:
    for name, call in calls.items():
        print(f"# {name}", flush=True)
        try:
            call()
        except RuntimeError as error:
            print(error, flush=True)


tell(CALLS)
mk.load(sys.argv[1])
tell(LOADED)
