"""Calls of attention, each with what tells its tensors apart: the value that fills them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import mirage_kernels as mk

B, HQ, HKV, D, PAGES, PAGE = 3, 8, 2, 64, 9, 16


def filled(value: int, *shape: int) -> Tensor:
    return torch.full(shape, float(value)).half()


def written(*shape: int) -> Tensor:
    return torch.empty(*shape).half()


def uncovered() -> None:
    """Print what a call without a kernel still computes."""
    y = mk.gqa(
        q.new_ones(3, 8, 72), k.new_ones(9, 16, 2, 72), v.new_ones(9, 16, 2, 72), table, lens
    )
    print(f"computed {y.mean().item():g}")


def out_of_memory() -> None:
    """Let PyTorch's program fail, where there is no kernel."""
    from mirage_kernels import attention_library

    usual = attention_library._visible

    def fails(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    attention_library._visible = fails
    try:
        uncovered()
    finally:
        attention_library._visible = usual


q, k, v = filled(1, B, HQ, D), filled(2, PAGES, PAGE, HKV, D), filled(3, PAGES, PAGE, HKV, D)
table = (torch.arange(B * 4).int().view(B, 4) + 5) % PAGES
lens = torch.tensor([7, 8, 9]).int()
starts = torch.tensor([0, 1, 2, 3]).int()
sinks = filled(4, HQ)
q_weight, k_weight = filled(5, D), filled(6, D)
heads_first = k.transpose(1, 2).contiguous()
halves = torch.cat([k, v], -1).chunk(2, -1)
dense_k, dense_v, dense_q = (
    filled(2, B, 50, HKV, D),
    filled(3, B, 50, HKV, D),
    filled(1, B, 5, HQ, D),
)
unaligned = filled(1, B * HQ * D + 1)[1:].view(B, HQ, D)

paged = partial(mk.gqa, q, k, v, table, lens)
several = partial(mk.gqa, filled(1, B, 2, HQ, D), k, v, table, lens)
normed = partial(mk.qk_norm_attention, q, k, v, q_weight, k_weight, table, lens)
latent_q = torch.cat([filled(1, B, HQ, D), filled(9, B, HQ, 16)], -1)
latent_cache = torch.cat([filled(2, PAGES, PAGE, D), filled(3, PAGES, PAGE, 16)], -1)
LATENT_PARTS = (filled(1, B, HQ, D), filled(9, B, HQ, 16))
CACHE_PARTS = (filled(2, PAGES, PAGE, 1, D), filled(3, PAGES, PAGE, 1, 16))
latent = partial(mk.mla_decode, latent_q, latent_cache, table, lens, scale=2.0, latent_dim=64)


def promised(call: Callable[[], object]) -> None:
    mk.constant_history()
    call()
    mk.constant_history(False)


ATTENTION = {
    "attention": paged,
    "attention promised": partial(promised, paged),
    "attention dense promised": partial(promised, partial(mk.gqa, dense_q, dense_k, dense_v)),
    "attention bound": partial(paged, max_seq_len=20),
    "attention bound beyond the table": partial(paged, max_seq_len=1000),
    "attention lse": partial(paged, return_lse=True),
    "attention out": partial(paged, out=written(B, HQ, 2 * D)[..., :D]),
    "attention scale and sinks": partial(paged, scale=0.5, sinks=sinks),
    "attention varlen of one": partial(paged, cu_seqlens_q=starts, max_q_len=1),
    "attention varlen": partial(paged, cu_seqlens_q=starts),
    "attention part of a table": partial(
        mk.gqa, q, k, v, torch.cat([table, table], 1)[:, :4], lens
    ),
    "attention heads first": partial(
        mk.gqa, q, heads_first, heads_first, table, lens, kv_layout="HND"
    ),
    "attention halves": partial(mk.gqa, q, *halves, table, lens),
    "attention unaligned q": partial(mk.gqa, unaligned, k, v, table, lens),
    "attention window": partial(paged, window_left=5),
    "attention int64 table and lengths": partial(mk.gqa, q, k, v, table.long(), lens.long()),
    "attention int64 and constant history": partial(
        *(mk.gqa, q, k, v, table.long(), lens), constant_history=True
    ),
    "attention constant history of one call": partial(paged, constant_history=True),
    "attention window of all": partial(paged, window_left=1 << 30),
    "attention cap": partial(paged, logits_soft_cap=30.0),
    "attention cap and window": partial(several, logits_soft_cap=30.0, window_left=0),
    "attention several": several,
    "attention several see all": partial(several, causal=False),
    "attention several see all in a window": partial(several, causal=False, window_left=3),
    "attention several see all capped": partial(several, causal=False, logits_soft_cap=2.0),
    "attention dense": partial(mk.gqa, dense_q, dense_k, dense_v, causal=False),
    "attention dense causal": partial(mk.gqa, dense_q, dense_k, dense_v),
    "attention dense lens": partial(mk.gqa, dense_q, dense_k, dense_v, seq_lens=lens),
    "attention no tokens": partial(mk.gqa, q[:0], k, v, table[:0], lens[:0]),
    "attention no heads": partial(mk.gqa, q[:, :0], k, v, table, lens),
    "attention no sequences": partial(
        mk.gqa, q, k, v, table[:0], lens[:0], cu_seqlens_q=torch.zeros(1, dtype=torch.int32)
    ),
    "attention no keys": partial(mk.gqa, q, k, v, table[:, :0], lens * 0),
    "attention normed": normed,
    "attention normed offset": partial(normed, weight_offset=1.0, eps=1e-3, return_lse=True),
    "attention normed by layer": partial(normed, norm="layer"),
    "attention normed by layer, offset": partial(normed, norm="layer", weight_offset=1.0),
    "attention normed by layer and head": partial(
        *(mk.qk_norm_attention, q, k, v, filled(5, HQ, D), filled(6, HKV, D), table, lens),
        norm="layer",
        q_bias=filled(7, D),
        k_bias=filled(8, HKV, D),
    ),
    "attention normed window": partial(normed, window_left=3),
    "attention normed by head": partial(
        mk.qk_norm_attention, q, k, v, q_weight.expand(HQ, D).contiguous(), k_weight, table, lens
    ),
    "attention wide": partial(
        mk.gqa,
        torch.ones(B, 4, 128).bfloat16(),
        torch.ones(PAGES, PAGE, 1, 128).bfloat16(),
        torch.ones(PAGES, PAGE, 1, 128).bfloat16(),
        table,
        lens,
    ),
    "attention latent": latent,
    "attention latent apart": partial(
        mk.mla_decode, LATENT_PARTS, CACHE_PARTS, table, lens, scale=2.0, latent_dim=64
    ),
    "attention latent, heads of one": partial(latent, causal=False, return_lse=True),
    "attention latent several see all": partial(
        mk.mla_decode,
        latent_q.unsqueeze(1).expand(B, 2, HQ, 80),
        latent_cache,
        *(table, lens),
        scale=2.0,
        latent_dim=64,
        causal=False,
    ),
    "attention latent several": partial(
        mk.mla_decode,
        latent_q.unsqueeze(1).expand(B, 2, HQ, 80),
        latent_cache,
        *(table, lens),
        scale=2.0,
        latent_dim=64,
    ),
    "attention uncovered": uncovered,
    "attention out of memory": out_of_memory,
}
