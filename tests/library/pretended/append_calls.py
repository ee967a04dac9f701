"""Calls of qk_norm_rope_append, each with what tells its tensors apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import mirage_kernels as mk

TOKENS, HQ, HKV, D, PAGES, PAGE, POSITIONS = 3, 4, 2, 64, 5, 16, 10
WIDTH = (HQ + 2 * HKV) * D


def filled(value: int, *shape: int) -> Tensor:
    return torch.full(shape, float(value)).half()


qkv, q_weight, k_weight = filled(1, TOKENS, WIDTH), filled(2, D), filled(3, D)
q_bias, k_bias = filled(4, D), filled(5, HKV, D)
angles = torch.ones(POSITIONS, D)
positions, slots = torch.tensor([7, 7, 7]), torch.tensor([9, 9, 9])
k, v = filled(6, PAGES, PAGE, HKV, D), filled(7, PAGES, PAGE, HKV, D)
k_first, v_first = (cache.transpose(1, 2).contiguous() for cache in (k, v))
halves = torch.cat([k, v], -1).chunk(2, -1)


def call(
    qkv: Tensor = qkv,
    weights: tuple[Tensor, Tensor] = (q_weight, k_weight),
    angles: Tensor = angles,
    indices: tuple[Tensor, Tensor] = (positions, slots),
    caches: tuple[Tensor, ...] = (k, v),
    **options: object,
) -> Tensor:
    heads = {"num_heads": HQ, "num_kv_heads": HKV}
    given = (qkv, *weights, angles, indices[0], *caches, indices[1])
    return mk.qk_norm_rope_append(*given, **(heads | options))  # type: ignore[arg-type]


def promised() -> None:
    mk.constant_weights()
    call()
    mk.constant_weights(False)


APPEND: dict[str, Callable[[], object]] = {
    "append plain": call,
    "append strided qkv": partial(call, filled(1, TOKENS, WIDTH + 8)[:, :WIDTH]),
    "append misaligned qkv": partial(call, filled(1, TOKENS, WIDTH + 1)[:, :WIDTH]),
    "append short indices": partial(call, indices=(positions.int(), slots.int())),
    "append strided indices": partial(
        call, indices=(positions.repeat(2)[::2], slots.repeat(2)[::2])
    ),
    "append heads first": partial(call, caches=(k_first, v_first), kv_layout="HND"),
    "append halves": partial(call, caches=halves),
    "append weights by head": partial(call, weights=(q_weight.repeat(HQ, 1), k_weight)),
    "append offset": partial(call, weight_offset=1.0, eps=1e-3),
    "append layer": partial(call, norm="layer", q_bias=q_bias, k_bias=k_bias),
    "append no bias": partial(call, norm="layer"),
    "append half angles": partial(call, angles=angles.half()),
    "append part of the angles": partial(call, angles=angles[:, :32]),
    "append an octet and a half": partial(call, angles=angles[:, :24]),
    "append interleaved octets": partial(call, angles=angles[:, :24], rope="interleaved"),
    "append interleaved": partial(call, rope="interleaved"),
    "append half an octet": partial(call, angles=angles[:, :4], rope="interleaved"),
    "append angles by column": partial(call, angles=torch.ones(D, POSITIONS).T),
    "append no tokens": partial(call, qkv[:0], indices=(positions[:0], slots[:0])),
    "append other heads": partial(
        call,
        filled(1, TOKENS, WIDTH // 2),
        (q_weight[:32], k_weight[:32]),
        angles[:, :32],
        caches=(k[..., :32], v[..., :32]),
    ),
    "append promised": promised,
    "append history promised": partial(call, constant_history=True),
}
