"""One call of an attention op from Python: arguments as the compiled op takes them, or prefill."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from mirage_kernels.errors import (
    cache_layout_sentence,
    dims_sentence,
    result_layout_sentence,
)
from mirage_kernels.argument_checks import compiled, given_tensor
from mirage_kernels.prefill import is_long
from mirage_kernels.registration import own_types  # registers all that the ops need, too

_OPS = torch.ops.mirage_kernels

Pair = tuple[Tensor, Tensor]


class Forms(NamedTuple):
    """The overloads of one op: with and without lse, those that write given tensors, its checks."""

    name: str
    plain: Callable[..., Tensor]
    with_lse: Callable[..., Pair]
    out: Callable[..., None]
    lse_out: Callable[..., None]
    check: Callable[..., None]


def forms(name: str) -> Forms:
    """Return the overloads of the op `name`."""
    op = getattr(_OPS, name)
    check = getattr(_OPS, f"_{name}_check").default
    overloads = (op.default, op.lse, op.out, op.lse_out, check)
    return Forms(name, *(compiled(name, overload) for overload in overloads))


class Wanted(NamedTuple):
    """Where the results go, and which of them the caller wants back."""

    out: Tensor | None
    lse: Tensor | None
    return_lse: bool


class Call(NamedTuple):
    """The arguments that all ops share; k and v are `[.., .., Hkv, D]`."""

    q: Tensor
    k: Tensor
    v: Tensor
    block_table: Tensor | None
    seq_lens: Tensor | None
    cu_seqlens_q: Tensor | None
    sinks: Tensor | None
    max_q_len: int | None
    max_seq_len: int | None
    scale: float | None
    causal: bool | None
    window_left: int
    logits_soft_cap: float

    @property
    def is_causal(self) -> bool:
        """Say whether tokens see no later keys; by default those of paged calls do not."""
        return self.block_table is not None if self.causal is None else self.causal

    def arguments(self, q: Tensor) -> tuple[object, ...]:
        """Return them as the ops take them, for q as `[tokens, Hq, D]`."""
        lengths = (self.block_table, self.seq_lens, self.cu_seqlens_q, self.sinks)
        most, tokens = self.max_seq_len, self.max_q_len
        if tokens is None and self.q.dim() == 4:
            tokens = self.q.shape[1]
        bounds = (-1 if tokens is None else tokens, -1 if most is None else most)
        scale = max(q.shape[-1], 1) ** -0.5 if self.scale is None else self.scale
        options = (scale, self.is_causal, self.window_left, self.logits_soft_cap)
        return (q, self.k, self.v, *lengths, *bounds, *options)


def is_prefill(call: Call, wanted: Wanted, *, kernels: bool = False) -> bool:
    """Say whether PyTorch's own attention computes the call, and is made for it.

    `kernels`: whether ours serve dense calls of many query tokens, too, causal ones or not.
    """
    if call.block_table is not None or call.q.dim() != 4:  # at once for most calls
        return False
    options = (call.seq_lens, call.cu_seqlens_q, call.sinks, wanted.lse)
    if any(option is not None for option in options) or wanted.return_lse:
        return False
    if call.window_left != -1 or call.logits_soft_cap:
        return False
    tokens, keys = call.q.shape[1], call.k.shape[1]
    causal = call.is_causal
    if causal and tokens != keys and (tokens > keys or torch.compiler.is_compiling()):
        # A token that sees no key is NaN there, and torch.compile does not trace the bias.
        return False
    return keys > 0 and is_long(call.q, keys, causal=causal, kernels=kernels)


def check(op: Forms, call: Call, out: Tensor | None, norms: tuple[object, ...] = ()) -> None:
    """Refuse what the op refuses, before PyTorch's attention computes the call."""
    q, flat_out = call.q, None if out is None else _flat(op, "out", out, 3)
    tokens = q.shape[0] * q.shape[1]
    # Never a copy: where its dims don't collapse, the first token stands for all.
    flat = q.flatten(0, 1) if _collapses(q) else q[0, :1].expand(tokens, -1, -1)
    op.check(*call.arguments(flat), *norms, out=flat_out)


def prefill(call: Call, out: Tensor | None) -> Tensor:
    """Compute it with PyTorch's attention, which prefers cuDNN's kernels on GPUs 9.0 and later."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (call.q, call.k, call.v))
    square = q.shape[2] == k.shape[2]
    bias = _lower_right(q, k) if call.is_causal and not square else None
    with own_types(q):
        y = scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=bias,
            is_causal=call.is_causal and square,
            scale=call.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        ).transpose(1, 2)
    return y if out is None else out.copy_(y)


def _lower_right(q: Tensor, k: Tensor) -> Tensor:
    """Return the mask that lets the last query see the last key."""
    # Imported here: it loads torch._dynamo, which takes as long as all of torch.
    from torch.nn.attention.bias import causal_lower_right

    return causal_lower_right(q.shape[2], k.shape[2])


class AnyCall(Protocol):
    """The arguments of one op."""

    @property
    def q(self) -> Tensor:
        """`[.., Hq, D]`: D is that of the result."""

    def arguments(self, q: Tensor) -> tuple[object, ...]:
        """Return them as the op takes them, for q as `[tokens, Hq, D]`."""


def attend(
    op: Forms, call: AnyCall, wanted: Wanted, norms: tuple[object, ...] = ()
) -> Tensor | Pair:
    """Call the op; `norms` are its arguments beyond those of the call."""
    shape = call.q.shape
    is_flat = call.q.dim() <= 3
    arguments = call.arguments(_tokens(op, call.q)) + norms
    needs_lse = wanted.return_lse or wanted.lse is not None
    if wanted.out is None and wanted.lse is None:
        if not needs_lse:
            made = op.plain(*arguments)
            return made if is_flat else made.view(shape)
        made, sums = op.with_lse(*arguments)
        return made.view(shape), sums.view(shape[:-1])
    out = call.q.new_empty(shape) if wanted.out is None else wanted.out
    if not needs_lse:
        op.out(*arguments, out=_flat(op, "out", out, 3))
        return out
    lse = wanted.lse
    if lse is None:
        lse = call.q.new_empty(shape[:-1], dtype=torch.float32)
    op.lse_out(*arguments, out=_flat(op, "out", out, 3), lse=_flat(op, "lse", lse, 2))
    return (out, lse) if wanted.return_lse else out


def _tokens(op: Forms, q: Tensor) -> Tensor:
    """Return q as `[tokens, Hq, D]`."""
    if 0 < q.dim() <= 3:
        return q
    if q.dim() != 4:
        raise RuntimeError(dims_sentence(op.name, "q", q.dim(), "[B, T, Hq, D]"))
    return q.reshape(-1, *q.shape[-2:])


def _flat(op: Forms, name: str, result: object, dims: int) -> Tensor:
    """View `[B, T, ..]` as `[tokens, ..]`."""
    result = given_tensor(op.name, name, result)
    if result.dim() == dims:
        return result
    if result.dim() != dims + 1 or not _collapses(result):
        raise RuntimeError(result_layout_sentence(op.name, name))
    return result.flatten(0, 1)


def _collapses(tensor: Tensor) -> bool:
    """Say whether `[B, T, ..]` can be viewed as `[tokens, ..]`."""
    if tensor.shape[0] <= 1 or tensor.numel() == 0:
        return True
    return tensor.stride(0) == tensor.shape[1] * tensor.stride(1)


_LAYOUTS = {"NHD": "[pages, page size, Hkv, D]", "HND": "[pages, Hkv, page size, D]"}


def nhd(op: str, name: str, cache: object, kv_layout: str) -> Tensor:
    """View a cache of either layout as `[pages, page size, Hkv, D]`."""
    cache = given_tensor(op, name, cache)
    if not isinstance(kv_layout, str) or kv_layout not in _LAYOUTS:
        raise RuntimeError(cache_layout_sentence(op, kv_layout))
    if cache.dim() != 4:
        raise RuntimeError(dims_sentence(op, name, cache.dim(), _LAYOUTS[kv_layout]))
    return cache if kv_layout == "NHD" else cache.transpose(1, 2)
