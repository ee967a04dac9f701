"""vLLM: a plugin with attention over its paged cache, and its RMSNorm.

Installing this package registers both (entry point `vllm.general_plugins`); they are chosen by

    vllm serve MODEL --attention-backend CUSTOM --ir-op-priority.rms_norm=mirage_kernels,native

The backend is vLLM's Triton one, with its metadata, its cache and its way of writing it. Batches of
up to 16 query tokens per sequence are attended by `gqa`; prompts, and what `gqa` lacks (fp8 caches,
ALiBi, encoders, bidirectional prefixes, quantised results), by vLLM's kernel.

Written against the interfaces of vLLM 0.18 to 0.22 (caches `[blocks, 2, block, Hkv, D]`) and 0.33
(`[blocks, Hkv, block, 2 D]`), with `vllm.v1.attention.backends.registry` and `vllm.ir`; tested with
the classes of vLLM 0.33 on a CPU, and against the recorded signatures of the others.
"""

# No postponed annotations: vLLM reads the types of an implementation from the function.

import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Protocol

import torch
from torch import Tensor

from mirage_kernels.attention import gqa
from mirage_kernels.element_types import HALVES
from mirage_kernels.errors import old_package_sentence
from mirage_kernels.integrations import NAME, asks_for
from mirage_kernels.norm_ops import rms_norm
from mirage_kernels.support import supports

CLASS = "MirageAttentionBackend"
MOST_QUERIES = 16  # of a sequence; more are a prompt
_TRITON = "vllm.v1.attention.backends.triton_attn"
# What `gqa` computes, of what an implementation and a batch may ask for; older versions lack some.
_OF_LAYER = {
    "attn_type": "decoder",
    "alibi_slopes": None,
    "chunk_lookback": -1,
    "total_cp_world_size": 1,  # GPUs that each have a part of the cache
    "need_to_return_lse_for_decode": False,
}
_OF_BATCH = {
    "causal": True,
    "mm_prefix_range": None,
    "mm_prefix_range_tensor": None,
    "rswa_prefix_lens": None,
    "rswa_window": None,
}


class Metadata(Protocol):
    """What vLLM's Triton backend knows of a batch."""

    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor


class Layer(Protocol):
    """What vLLM's attention implementation knows of itself."""

    head_size: int
    scale: float
    sliding_window: tuple[int, int]
    kv_cache_dtype: str
    logits_soft_cap: float
    sinks: Tensor | None


def register() -> None:
    """Register the attention backend and the norms; vLLM calls this once in every process.

    A vLLM that lacks the registry of backends starts without ours, with a warning; one without an
    IR, which 0.34 is to remove, keeps its own norms.
    """
    try:
        registry = import_module("vllm.v1.attention.backends.registry")
    except ImportError as missing:
        warnings.warn(old_package_sentence("vllm", "0.18", str(missing)), stacklevel=2)
    else:
        path = f"{__name__}.{CLASS}"
        registry.register_backend(registry.AttentionBackendEnum.CUSTOM, path)
    with suppress(ImportError):
        register_norms(import_module("vllm.ir").ops)


def register_norms(ops: object) -> None:
    """Register the norms with vLLM's IR, as far as this version of it has them."""
    is_here = torch.cuda.is_available()
    for name, program, serves in (
        ("rms_norm", _rms_norm, _norm_is_served),
        ("fused_add_rms_norm", _fused_add_rms_norm, _fused_norm_is_served),
    ):
        op = getattr(ops, name, None)
        if op is not None and NAME not in op.impls:
            op.register_impl(NAME, supported=is_here, supports_args=serves)(program)


def __getattr__(name: str) -> object:
    """Make the class when vLLM asks for it by its path: importing this module needs no vLLM."""
    if name == CLASS:
        return backend_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def backend_class() -> type:
    """Return the attention backend, a class derived from vLLM's Triton backend."""
    triton = import_module(_TRITON)
    base, implementation = triton.TritonAttentionBackend, triton.TritonAttentionImpl
    if getattr(base, "forward_includes_kv_cache_update", True):
        raise RuntimeError(old_package_sentence("vllm", "0.18", "attention writes its cache"))

    def forward(self: Layer, *args: object, **named: object) -> Tensor:
        return _forward(self, implementation.forward, args, named)

    own = type("MirageAttentionImpl", (implementation,), {"forward": forward})
    members = {
        "get_name": staticmethod(lambda: "CUSTOM"),
        "get_impl_cls": staticmethod(lambda: own),
        "supports_head_size": classmethod(lambda _, size: supports("gqa", D=size)),
        "supports_batch_invariance": classmethod(lambda _: False),  # splits go by all lengths
        "supported_dtypes": list(HALVES),
    }
    return type(CLASS, (base,), members)


_ORDER = (
    *("layer", "query", "key", "value", "kv_cache", "attn_metadata"),
    *("output", "output_scale", "output_block_scale"),
)


def _forward(
    self: Layer,
    own: Callable[..., Tensor],
    args: tuple[object, ...],
    named: dict[str, object],
) -> Tensor:
    """Attend by `gqa` where it serves, else as vLLM does."""
    given = dict(zip(_ORDER, args, strict=False)) | named
    query, cache, output = (given.get(name) for name in ("query", "kv_cache", "output"))
    metadata: Metadata | None = given.get("attn_metadata")  # type: ignore[assignment]
    if not (isinstance(query, Tensor) and isinstance(cache, Tensor) and isinstance(output, Tensor)):
        return own(self, *args, **named)
    if metadata is None or not is_served(self, query, metadata, given):
        return own(self, *args, **named)
    attend(self, query, cache, metadata, output)
    return output


def is_served(self: Layer, query: Tensor, metadata: Metadata, given: dict[str, object]) -> bool:
    """Say whether `gqa` computes a batch."""
    if metadata.max_query_len > MOST_QUERIES or query.dtype not in HALVES:
        return False
    if self.kv_cache_dtype not in ("auto", "float16", "bfloat16"):
        return False
    lacks = ("output_scale", "output_block_scale")
    plain = all(given.get(name) is None for name in lacks)
    return plain and asks_for(self, _OF_LAYER) and asks_for(metadata, _OF_BATCH)


def attend(self: Layer, query: Tensor, cache: Tensor, metadata: Metadata, output: Tensor) -> None:
    """Attend over vLLM's cache in place, and write the tokens of the batch."""
    tokens = metadata.num_actual_tokens
    size = self.head_size
    if cache.dim() == 5:  # [blocks, 2, block, Hkv, D]
        k_cache, v_cache, layout = cache[:, 0], cache[:, 1], "NHD"
    else:  # [blocks, Hkv, block, 2 D]
        k_cache, v_cache, layout = cache[..., :size], cache[..., size:], "HND"
    heads = query.view(query.shape[0], -1, size)
    gqa(
        heads[:tokens],
        k_cache,
        v_cache,
        metadata.block_table,
        metadata.seq_lens,
        cu_seqlens_q=metadata.query_start_loc,
        max_q_len=metadata.max_query_len,
        max_seq_len=metadata.max_seq_len,
        scale=self.scale,
        window_left=self.sliding_window[0],
        logits_soft_cap=self.logits_soft_cap or 0.0,
        sinks=self.sinks,
        kv_layout=layout,
        out=output.view(heads.shape)[:tokens],
    )


# -- norms, with vLLM's signatures -----------------------------------------------------------------


def _norm_is_served(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    if weight is None or variance_size is not None:
        return False
    if x.dtype not in HALVES or weight.dtype != x.dtype:
        return False
    return supports("rms_norm", dtype=x.dtype, device=x.device, K=x.shape[-1])


def _fused_norm_is_served(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool:
    is_plain = _norm_is_served(x, weight, epsilon, variance_size)
    return is_plain and x_residual.dtype == x.dtype


def _rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    assert weight is not None  # what has none is not served
    return rms_norm(x, weight, epsilon)


def _fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    assert weight is not None
    return rms_norm(x, weight, epsilon, residual=x_residual)
