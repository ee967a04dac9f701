"""Attention over a cache or dense tensors: typed functions that go straight to the compiled ops.

What holds for all of them. q, k and v are fp16 or bf16, all alike; scores, sums and the log-sum-exp
are fp32. Hq query heads share Hkv heads of the cache in order: head h of q goes with head
h // (Hq // Hkv). A softmax never overflows, whatever the scores are.

*Paged*, with `block_table` (int32 `[B, most pages]`) and `seq_lens` (int32 `[B]`, keys of each
sequence, 0 allowed): the caches are `[pages, page size, Hkv, D]` ("NHD") or `[pages, Hkv, page
size, D]` ("HND"), any strided views with D contiguous and steps of 16 bytes, so also the halves of
one tensor. q is `[B, Hq, D]`, `[B, T, Hq, D]`, or `[tokens, Hq, D]` with `cu_seqlens_q` (int32
`[B + 1]`, the first token of each sequence and the end). The tokens are the last ones of their
sequence: `causal`, by default on here, lets each see the keys up to its own (bottom-right aligned).

*Dense*, without `block_table`: k and v `[B, L, Hkv, D]` or, HND, `[B, Hkv, L, D]`, q
`[B, T, Hq, D]` or `[B, Hq, D]`, `seq_lens` optional, `causal` off by default.

`scale` is 1 / sqrt(D) by default. `window_left` is how many keys before its own a token sees (-1:
all); `logits_soft_cap` c makes scores c * tanh(score / c) (0: off); `sinks` `[Hq]`, in the type of
q, join each head's sum as one more score without a value. `max_seq_len` and `max_q_len` bound the
lengths, for which the shapes give weaker bounds; they must hold. Nothing else depends on lengths
but their values on the device, so CUDA graphs may be replayed with others.

Results have the shape of q. A token that sees no key gets 0, and -inf (or its sink) for its
log-sum-exp; tokens outside `cu_seqlens_q` are no sequence's, and nothing is written for them. `out`
(shape of q, D contiguous) and `lse` (fp32, the shape of q without D, contiguous) are written where
given. With `return_lse` the result is the pair `(out, lse)`; lse is the natural logarithm of the
sum (FlashInfer's is base 2: multiply by log2(e)).

On a GPU a call launches one kernel on the current stream, and takes its workspace from PyTorch's
allocator. Dense calls with many query tokens and no option that it lacks run PyTorch's
scaled_dot_product_attention, from where on it was measured to be faster. Where no kernel serves a
call (ask `mirage_kernels.supports(op, D=, dtype=)`), and on the CPU, a PyTorch program computes the
same, slowly and with memory for scores.

All raise RuntimeError, in one sentence, for a wrong argument, and for a GPU of another architecture
than this build's; InferenceOnlyError for inputs that require grad.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypedDict, overload

import torch
from torch import Tensor

from mirage_kernels.argument_checks import compiled, given_tensor, nhd, refuse_grad
from mirage_kernels.attention_library import Norm
from mirage_kernels.errors import dims_sentence, result_layout_sentence
from mirage_kernels.prefill import is_prefill, prefill

if TYPE_CHECKING:
    from typing_extensions import Unpack

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
    op = getattr(torch.ops.mirage_kernels, name)
    check = getattr(torch.ops.mirage_kernels, f"_{name}_check").default
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
        bounds = bounds_of(self.q, self.max_q_len, self.max_seq_len)
        scale = max(q.shape[-1], 1) ** -0.5 if self.scale is None else self.scale
        options = (scale, self.is_causal, self.window_left, self.logits_soft_cap)
        return (q, self.k, self.v, *lengths, *bounds, *options)


def bounds_of(q: Tensor, max_q_len: int | None, max_seq_len: int | None) -> tuple[int, int]:
    """Return both bounds as the ops take them; -1: what the shapes allow."""
    if max_q_len is None and q.dim() == 4:
        max_q_len = q.shape[1]
    return -1 if max_q_len is None else max_q_len, -1 if max_seq_len is None else max_seq_len


def check(op: Forms, call: Call, out: Tensor | None, norms: tuple[object, ...] = ()) -> None:
    """Refuse what the op refuses, before PyTorch's attention computes the call."""
    q, flat_out = call.q, None if out is None else _flat(op, "out", out, 3)
    tokens = q.shape[0] * q.shape[1]
    # Never a copy: where its dims don't collapse, the first token stands for all.
    flat = q.flatten(0, 1) if _collapses(q) else q[0, :1].expand(tokens, -1, -1)
    op.check(*call.arguments(flat), *norms, out=flat_out)


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


_GQA = forms("gqa")
_QK_NORM = forms("qk_norm_attention")


class Options(TypedDict, total=False):
    """What the ops take by name, for type checkers."""

    cu_seqlens_q: Tensor | None
    max_q_len: int | None
    scale: float | None
    causal: bool | None
    window_left: int
    logits_soft_cap: float
    sinks: Tensor | None
    kv_layout: str
    max_seq_len: int | None
    out: Tensor | None
    lse: Tensor | None


class NormedOptions(Options, total=False):
    """The same with those of the norms."""

    eps: float
    weight_offset: float
    norm: str
    q_bias: Tensor | None
    k_bias: Tensor | None


@overload
def gqa(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor | None = None,
    seq_lens: Tensor | None = None,
    *,
    return_lse: Literal[False] = False,
    **options: Unpack[Options],
) -> Tensor: ...
@overload
def gqa(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor | None = None,
    seq_lens: Tensor | None = None,
    *,
    return_lse: Literal[True],
    **options: Unpack[Options],
) -> Pair: ...
@overload
def gqa(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor | None = None,
    seq_lens: Tensor | None = None,
    *,
    return_lse: bool,
    **options: Unpack[Options],
) -> Tensor | Pair: ...
def gqa(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor | None = None,
    seq_lens: Tensor | None = None,
    *,
    cu_seqlens_q: Tensor | None = None,
    max_q_len: int | None = None,
    scale: float | None = None,
    causal: bool | None = None,
    window_left: int = -1,
    logits_soft_cap: float = 0.0,
    sinks: Tensor | None = None,
    kv_layout: str = "NHD",
    max_seq_len: int | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | Pair:
    """Compute softmax(scale * q k^T) v for grouped query heads, in one kernel.

        out[t, h] = sum_l softmax_l(scale * dot(q[t, h], k[l, h // G])) * v[l, h // G]

    Multi-head attention is G = Hq / Hkv = 1, multi-query attention Hkv = 1. Paged: `gqa(q, k_cache,
    v_cache, block_table, seq_lens)`; dense: `gqa(q, k, v)`. Shapes, options and errors stand at
    the head of `mirage_kernels.attention`.

    Give `max_q_len` with `cu_seqlens_q`: 1 where each sequence has one token.

    Source: Ainslie et al., "GQA", 2023; the split of the keys over blocks is the muGraph that the
    Mirage superoptimizer paper reports.
    """
    q = given_tensor("gqa", "q", q)
    k, v = nhd("gqa", "k_cache", k_cache, kv_layout), nhd("gqa", "v_cache", v_cache, kv_layout)
    lengths = (block_table, seq_lens, cu_seqlens_q, sinks, max_q_len, max_seq_len)
    call = Call(q, k, v, *lengths, scale, causal, window_left, logits_soft_cap)
    wanted = Wanted(out, lse, return_lse)
    if torch.is_grad_enabled():
        refuse_grad("gqa", q=q, k_cache=k_cache, v_cache=v_cache, sinks=sinks, out=out, lse=lse)
    if is_prefill(call, wanted, kernels=True):
        check(_GQA, call, out)
        return prefill(call, out)
    return attend(_GQA, call, wanted)


@overload
def qk_norm_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    block_table: Tensor | None = None,
    seq_lens: Tensor | None = None,
    *,
    return_lse: Literal[False] = False,
    **options: Unpack[NormedOptions],
) -> Tensor: ...
@overload
def qk_norm_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    block_table: Tensor | None = None,
    seq_lens: Tensor | None = None,
    *,
    return_lse: Literal[True],
    **options: Unpack[NormedOptions],
) -> Pair: ...
@overload
def qk_norm_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    block_table: Tensor | None = None,
    seq_lens: Tensor | None = None,
    *,
    return_lse: bool,
    **options: Unpack[NormedOptions],
) -> Tensor | Pair: ...
def qk_norm_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    block_table: Tensor | None = None,
    seq_lens: Tensor | None = None,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    norm: str = "rms",
    q_bias: Tensor | None = None,
    k_bias: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    max_q_len: int | None = None,
    scale: float | None = None,
    causal: bool | None = None,
    window_left: int = -1,
    logits_soft_cap: float = 0.0,
    sinks: Tensor | None = None,
    kv_layout: str = "NHD",
    max_seq_len: int | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | Pair:
    """Compute gqa of norm(q) and norm(k), both over D of each head; the cache holds raw keys.

    `norm` is "rms": x / sqrt(mean(x^2) + eps) * (weight + weight_offset), with weight_offset 1 for
    Gemma; or "layer": (x - mean(x)) / sqrt(var(x) + eps) * (weight + weight_offset) + bias
    (Chameleon). Weights and biases are `[D]`, or `[Hq, D]` and `[Hkv, D]`, contiguous. All else is
    as in `gqa`. Where keys are rotated too, norm them once: `qk_norm_rope_append`, then `gqa`.

    Kernels serve "rms" with weights `[D]`, and "layer" without weight_offset, both with neither
    window nor soft cap, for one query token or several that see all keys.

    Source: Henry et al., "Query-Key Normalization for Transformers", 2020.
    """
    op = "qk_norm_attention"
    q = given_tensor(op, "q", q)
    k, v = nhd(op, "k_cache", k_cache, kv_layout), nhd(op, "v_cache", v_cache, kv_layout)
    lengths = (block_table, seq_lens, cu_seqlens_q, sinks, max_q_len, max_seq_len)
    call = Call(q, k, v, *lengths, scale, causal, window_left, logits_soft_cap)
    norms = (q_weight, k_weight, q_bias, k_bias, eps, weight_offset, norm)
    if torch.is_grad_enabled():
        refuse_grad(op, q=q, k_cache=k_cache, v_cache=v_cache, sinks=sinks, out=out, lse=lse)
        refuse_grad(op, q_weight=q_weight, k_weight=k_weight, q_bias=q_bias, k_bias=k_bias)
    wanted = Wanted(out, lse, return_lse)
    if is_prefill(call, wanted):
        check(_QK_NORM, call, out, norms)
        normed_q = Norm(norm, q_weight, q_bias, eps, weight_offset).of(q).to(q.dtype)
        normed_k = Norm(norm, k_weight, k_bias, eps, weight_offset).of(k).to(k.dtype)
        return prefill(call._replace(q=normed_q, k=normed_k), out)
    return attend(_QK_NORM, call, wanted, norms)
