"""The op in front of gqa: norms or not, rotates, and writes the cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mirage_kernels import registration as registration  # registers the op
from mirage_kernels.argument_checks import compiled, nhd, refuse_grad, watches_grad
from mirage_kernels.assumptions import assumed

_OPS = torch.ops.mirage_kernels
_append: Callable[..., Tensor] = compiled("qk_norm_rope_append", _OPS.qk_norm_rope_append.default)


def qk_norm_rope_append(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos_sin_cache: Tensor,
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    norm: str = "rms",
    q_bias: Tensor | None = None,
    k_bias: Tensor | None = None,
    rope: str = "neox",
    kv_layout: str = "NHD",
    constant_weights: bool | None = None,
    constant_history: bool | None = None,
) -> Tensor:
    """Norm and rotate queries and keys, write keys and values to the caches, return the queries.

    Shapes: qkv `[tokens, (num_heads + 2 num_kv_heads) * D]`, heads of q, then k, then v;
    cos_sin_cache `[positions, R]`, fp32 or in the type of qkv, R <= D elements rotated, R/2 cosines
    and then R/2 sines; positions and slot_mapping `[tokens]`, int32 or int64; caches as in `gqa`,
    written in place. The result is `[tokens, num_heads, D]`.

    A slot is page * page size + offset; -1: the token is padding, is not written, and its queries
    are returned all the same. No two tokens may share a slot. `rope` pairs element i with
    R/2 + i ("neox": Llama, Qwen, Gemma) or 2 i with 2 i + 1 ("interleaved": GPT-J, Command-R).
    Checking mode (`mirage_kernels.checking`) names slots past the last page, slots of two tokens
    and positions outside the table; without it such a token is not written, and rotates to NaN.

    Norm, weights and biases are as in `qk_norm_attention`; between norm and rotation nothing is
    rounded.

    On a GPU it is one kernel for D 64, 96, 128, 192 and 256 and R a multiple of 16 ("interleaved":
    of 8), with rows of qkv and cos_sin_cache at multiples of 16 bytes. Otherwise a PyTorch program
    computes it. `mirage_kernels.constant_history` says what `constant_history` promises.

    Raises RuntimeError, in one sentence, for a wrong argument, and InferenceOnlyError for one that
    requires grad or carries a tangent.

    Source: Su et al., "RoFormer", 2021; the order of norm, rotation and write is Qwen3's.
    """
    op = "qk_norm_rope_append"
    if watches_grad():
        refuse_grad(op, qkv=qkv, cos_sin_cache=cos_sin_cache, k_cache=k_cache, v_cache=v_cache)
        refuse_grad(op, q_weight=q_weight, k_weight=k_weight, q_bias=q_bias, k_bias=k_bias)
    weights = (q_weight, k_weight, q_bias, k_bias)
    caches = (
        nhd(op, "k_cache", k_cache, kv_layout),
        nhd(op, "v_cache", v_cache, kv_layout),
    )
    sizes = (num_heads, num_kv_heads, eps, weight_offset, norm, rope)
    assume = assumed(op, constant_weights, constant_history)
    tokens = (cos_sin_cache, positions, *caches, slot_mapping)
    return _append(qkv, *weights, *tokens, *sizes, assume=assume)


def rope_append(
    qkv: Tensor,
    cos_sin_cache: Tensor,
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int,
    rope: str = "neox",
    kv_layout: str = "NHD",
    constant_weights: bool | None = None,
    constant_history: bool | None = None,
) -> Tensor:
    """Rotate queries and keys, write keys and values to the caches, return the queries.

    Shapes: qkv `[tokens, (num_heads + 2 num_kv_heads) * D]`, heads of q, then k, then v;
    cos_sin_cache `[positions, R]`, R <= D elements rotated; positions and slot_mapping `[tokens]`;
    caches as in `gqa`, written in place. The result is `[tokens, num_heads, D]`.

    The op is `qk_norm_rope_append` without its norms, what Llama, Mistral and Qwen2 do: types,
    slots, `rope`, checking mode and GPU kernels are as there.

    Raises RuntimeError, in one sentence that names `qk_norm_rope_append`, for a wrong argument, and
    InferenceOnlyError for one that requires grad or carries a tangent.
    """
    op = "qk_norm_rope_append"
    if watches_grad():
        refuse_grad(op, qkv=qkv, cos_sin_cache=cos_sin_cache, k_cache=k_cache, v_cache=v_cache)
    caches = (
        nhd(op, "k_cache", k_cache, kv_layout),
        nhd(op, "v_cache", v_cache, kv_layout),
    )
    sizes = (num_heads, num_kv_heads, 0.0, 0.0, "none", rope)
    given = (cos_sin_cache, positions, *caches, slot_mapping)
    assume = assumed(op, constant_weights, constant_history)
    return _append(qkv, None, None, None, None, *given, *sizes, assume=assume)
