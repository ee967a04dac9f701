"""SGLang: a plugin with attention of decoding batches over its token pool, and its RMSNorm.

Installing this package registers both (entry point `sglang.srt.plugins`, which SGLANG_PLUGINS
may restrict). The norm is used wherever a kernel serves its size; attention is chosen by

    python -m sglang.launch_server --model-path M --attention-backend mirage_kernels --page-size 16

The backend is SGLang's Triton one; decoding batches whose pool is the plain one of keys and values,
with pages of 16 tokens or more, are attended by `gqa`, which reads it in place. All else stays
SGLang's: pools split between kinds of layers, fp8 caches, speculation, deterministic mode.

Written against the interfaces of SGLang 0.5.3 to 0.5.6, whose batches know the pool, and of 0.5.23,
whose backend does (`plugins.hook_registry.HookRegistry`, `layers.attention.attention_registry`,
`triton_backend.TritonAttnBackend`); tested with the classes of 0.5.23 on a CPU, and against the
recorded signatures of the others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Protocol

import torch
from torch import Tensor

from mirage_kernels.attention import gqa
from mirage_kernels.element_types import HALVES
from mirage_kernels.integrations import NAME, asks_for
from mirage_kernels.norm_ops import rms_norm
from mirage_kernels.support import supports

LEAST_PAGE = 16  # tokens; smaller pages are read one by one
POOL = "MHATokenToKVPool"  # of which all layers have the same slots
# What our kernels compute, of what these may ask for; versions lack some.
_OF_BACKEND = {"use_mla": False, "dcp_size": 1, "enable_deterministic": False}
_OF_LAYER = {
    "is_cross_attention": False,
    "k_scale": None,
    "logit_capping_method": "tanh",
    "xai_temperature_len": -1,
}
_OF_BATCH = {"spec_info": None}
_OF_NORM = {
    "variance_size_override": None,
    "cast_x_before_out_mul": False,
    "fp32_residual": False,
    "_quant_linear": None,
}
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
    dtype: torch.dtype

    def set_kv_buffer(self, layer: Attention, loc: Tensor, k: Tensor, v: Tensor) -> None:
        """Write tokens."""

    def get_kv_buffer(self, layer_id: int) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values."""


class Batch(Protocol):
    """What SGLang knows of a batch."""

    seq_lens: Tensor
    req_pool_indices: Tensor
    out_cache_loc: Tensor


class Backend(Protocol):
    """What SGLang's Triton backend knows; `req_to_token`: slots of tokens, `[requests, tokens]`."""

    req_to_token: Tensor


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
    arguments = import_module("sglang.srt.server_args")
    if NAME not in arguments.ATTENTION_BACKEND_CHOICES:
        arguments.add_attention_backend_choices([NAME])


def norm(
    own: Callable[..., object],
    self: Norm,
    x: Tensor,
    residual: Tensor | None = None,
    *more: object,
    **named: object,
) -> object:
    """Stand around SGLang's RMSNorm: ours where a kernel serves its size."""
    if more or any(value is not None for value in named.values()) or not _norm_is_served(self, x):
        return own(self, x, residual, *more, **named)
    weight = self.weight.detach()
    if residual is None:
        return rms_norm(x, weight, self.variance_epsilon)
    return rms_norm(x, weight, self.variance_epsilon, residual=residual)


def _norm_is_served(self: Norm, x: Tensor) -> bool:
    """Say whether `rms_norm` computes what a norm asks for."""
    module = sys.modules.get(f"{_LAYERS}.layernorm")
    is_invariant = getattr(module, "is_batch_invariant_mode_enabled", None)
    if not asks_for(self, _OF_NORM) or (is_invariant is not None and is_invariant()):
        return False
    is_type = x.dtype == self.weight.dtype and x.dtype in HALVES and x.numel() > 0
    return is_type and supports("rms_norm", K=x.shape[-1], dtype=x.dtype, device=x.device)


@cache
def backend_class() -> type:
    """Return the attention backend, a class derived from SGLang's Triton backend."""
    base = import_module(f"{_LAYERS}.attention.triton_backend").TritonAttnBackend

    def forward_decode(
        self: Backend,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: Attention,
        forward_batch: Batch,
        save_kv_cache: bool = True,
        **named: object,
    ) -> Tensor:
        pool = pool_of(self, forward_batch, q.dtype)
        asked = (self, _OF_BACKEND), (layer, _OF_LAYER), (forward_batch, _OF_BATCH)
        plain = all(asks_for(what, wanted) for what, wanted in asked)
        if pool is None or not plain or not is_served(q, layer, forward_batch, named):
            made: Tensor = base.forward_decode(
                self, q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **named
            )
            return made
        if save_kv_cache:
            pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v)
        pages = page_table(self, forward_batch, pool.page_size)
        return attend(q, layer, pool, pages, named.get("sinks"))

    return type("MirageAttnBackend", (base,), {"forward_decode": forward_decode})


def pool_of(self: Backend, batch: Batch, dtype: torch.dtype) -> Pool | None:
    """Return the pool of keys and values if it is a plain one that `gqa` reads well."""
    pool = getattr(self, "token_to_kv_pool", None) or getattr(batch, "token_to_kv_pool", None)
    if type(pool).__name__ != POOL or getattr(pool, "requires_physical_write_loc", False):
        return None
    found: Pool = pool  # type: ignore[assignment]
    return found if found.page_size >= LEAST_PAGE and found.dtype == dtype else None


def is_served(q: Tensor, layer: Attention, batch: Batch, named: Mapping[str, object]) -> bool:
    """Say whether `gqa` attends a decoding batch: one query of each request."""
    if layer.qk_head_dim != layer.v_head_dim or q.dtype not in HALVES:
        return False
    kind = getattr(layer, "attn_type", "decoder")
    plain = all(value is None for name, value in named.items() if name != "sinks")
    return plain and getattr(kind, "value", kind) == "decoder" and len(q) == len(batch.seq_lens)


def attend(
    q: Tensor, layer: Attention, pool: Pool, pages: tuple[Tensor, Tensor], sinks: object = None
) -> Tensor:
    """Attend over the pool in place; `pages`: those of each request, and its length."""
    k_cache, v_cache = (
        buffer.view(-1, pool.page_size, *buffer.shape[1:])
        for buffer in pool.get_kv_buffer(layer.layer_id)
    )
    window = layer.sliding_window_size
    out = gqa(
        q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim),
        k_cache,
        v_cache,
        *pages,
        scale=layer.scaling,
        window_left=-1 if window is None else window,
        logits_soft_cap=layer.logit_cap or 0.0,
        sinks=sinks if isinstance(sinks, Tensor) else None,
    )
    return out.view(len(q), -1)


def page_table(self: Backend, batch: Batch, page_size: int) -> tuple[Tensor, Tensor]:
    """Return the pages and the length of each request, made once for all layers of a pass."""
    known = getattr(batch, "_mirage_page_table", None)
    if isinstance(known, tuple):
        return known
    slots = self.req_to_token[:, ::page_size]
    pages = (slots[batch.req_pool_indices] // page_size).to(torch.int32)
    made = pages, batch.seq_lens.to(torch.int32)
    batch._mirage_page_table = made  # type: ignore[attr-defined]
    return made
