"""SGLang: a plugin with attention of decoding batches over its token pool, and its RMSNorm.

Installing this package registers both (entry point `sglang.srt.plugins`, which SGLANG_PLUGINS
may restrict). The norm is used wherever a kernel serves its size; attention is chosen by

    python -m sglang.launch_server --model MODEL --attention-backend mirage_kernels --page-size 16

The backend is SGLang's Triton one; decoding batches whose pool has pages of 16 tokens or more are
attended by `gqa`, which reads the pool in place. All else stays SGLang's.

Written against the interfaces of SGLang 0.5.3 to 0.5.6 (`plugins.hook_registry.HookRegistry`,
`layers.attention.attention_registry`, `triton_backend.TritonAttnBackend`, a pool with
`set_kv_buffer` and `get_kv_buffer`); tested against recorded signatures, as SGLang does not install
without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Protocol

import torch
from torch import Tensor

from mirage_kernels.attention import gqa
from mirage_kernels.norm_ops import rms_norm
from mirage_kernels.support import supports

NAME = "mirage_kernels"
LEAST_PAGE = 16  # tokens; smaller pages are read one by one
_HALVES = (torch.float16, torch.bfloat16)
_LAYERS = "sglang.srt.layers"


class Attention(Protocol):
    """What SGLang's layer says of its heads."""

    layer_id: int
    tp_q_head_num: int
    tp_k_head_num: int
    tp_v_head_num: int
    qk_head_dim: int
    v_head_dim: int
    scaling: float
    logit_cap: float
    sliding_window_size: int | None


class Pool(Protocol):
    """Keys and values of all tokens, `[slots, Hkv, D]` per layer."""

    page_size: int

    def set_kv_buffer(self, layer: Attention, loc: Tensor, k: Tensor, v: Tensor) -> None:
        """Write tokens."""

    def get_kv_buffer(self, layer_id: int) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values."""


class Requests(Protocol):
    """Which slots each request's tokens are in, `[requests, tokens]`."""

    req_to_token: Tensor


class Batch(Protocol):
    """What SGLang knows of a batch."""

    seq_lens: Tensor
    req_pool_indices: Tensor
    out_cache_loc: Tensor
    token_to_kv_pool: Pool
    req_to_token_pool: Requests


class Norm(Protocol):
    """SGLang's RMSNorm."""

    weight: Tensor
    variance_epsilon: float


def register() -> None:
    """Register the attention backend and hook the norm; SGLang calls this in every process."""
    hooks = import_module("sglang.srt.plugins.hook_registry")
    target = f"{_LAYERS}.layernorm.RMSNorm.forward_cuda"
    hooks.HookRegistry.register(target, norm, hooks.HookType.AROUND)
    registry = import_module(f"{_LAYERS}.attention.attention_registry")
    registry.register_attention_backend(NAME)(lambda runner: backend_class()(runner))


def norm(
    own: Callable[..., object],
    self: Norm,
    x: Tensor,
    residual: Tensor | None = None,
    *more: object,
    **named: object,
) -> object:
    """Stand around SGLang's RMSNorm: ours where a kernel serves its size."""
    weight = self.weight.detach()
    plain = not more and all(value is None for value in named.values())
    plain = plain and getattr(self, "variance_size_override", None) is None
    is_type = x.dtype == weight.dtype and x.dtype in _HALVES
    if (
        not plain
        or not is_type
        or not supports("rms_norm", K=x.shape[-1], dtype=x.dtype, device=x.device)
    ):
        return own(self, x, residual, *more, **named)
    if residual is None:
        return rms_norm(x, weight, self.variance_epsilon)
    return rms_norm(x, weight, self.variance_epsilon, residual=residual)


@cache
def backend_class() -> type:
    """Return the attention backend, a class derived from SGLang's Triton backend."""
    base = import_module(f"{_LAYERS}.attention.triton_backend").TritonAttnBackend

    def forward_decode(
        self: object,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: Attention,
        forward_batch: Batch,
        save_kv_cache: bool = True,
        **named: object,
    ) -> Tensor:
        if not is_served(q, layer, forward_batch, named):
            made: Tensor = base.forward_decode(
                self, q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **named
            )
            return made
        if save_kv_cache:
            pool = forward_batch.token_to_kv_pool
            pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v)
        return attend(q, layer, forward_batch, named)

    return type("MirageAttnBackend", (base,), {"forward_decode": forward_decode})


def is_served(q: Tensor, layer: Attention, batch: Batch, named: dict[str, object]) -> bool:
    """Say whether `gqa` attends a decoding batch."""
    if layer.qk_head_dim != layer.v_head_dim or q.dtype not in _HALVES:
        return False
    if batch.token_to_kv_pool.page_size < LEAST_PAGE:
        return False
    known = ("sinks",)
    return all(value is None for name, value in named.items() if name not in known)


def attend(q: Tensor, layer: Attention, batch: Batch, named: dict[str, object]) -> Tensor:
    """Attend over the pool in place."""
    pool = batch.token_to_kv_pool
    k_cache, v_cache = (
        buffer.view(-1, pool.page_size, *buffer.shape[1:])
        for buffer in pool.get_kv_buffer(layer.layer_id)
    )
    window, sinks = layer.sliding_window_size, named.get("sinks")
    heads = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
    out = gqa(
        heads,
        k_cache,
        v_cache,
        page_table(batch, pool.page_size),
        batch.seq_lens.to(torch.int32),
        scale=layer.scaling,
        window_left=-1 if window is None else window,
        logits_soft_cap=layer.logit_cap or 0.0,
        sinks=sinks if isinstance(sinks, Tensor) else None,
    )
    return out.view(q.shape[0], -1)


def page_table(batch: Batch, page_size: int) -> Tensor:
    """Return the pages of each request, made once for all layers of a forward pass."""
    known = getattr(batch, "_mirage_page_table", None)
    if isinstance(known, Tensor):
        return known
    slots = batch.req_to_token_pool.req_to_token[:, ::page_size]
    made = (slots[batch.req_pool_indices] // page_size).to(torch.int32)
    batch._mirage_page_table = made  # type: ignore[attr-defined]
    return made
