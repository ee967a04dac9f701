"""Attention over a cache or dense tensors: typed functions that go straight to the compiled ops.

What holds for all of them. q, k and v are fp16 or bf16, all alike; scores, sums and the log-sum-exp
are fp32. Hq query heads share Hkv heads of the cache in order: head h of q goes with head
h // (Hq // Hkv). A softmax never overflows, whatever the scores are.

*Paged*, with `block_table` (`[B, most pages]`) and `seq_lens` (`[B]`, keys of each sequence, 0
allowed): the caches are `[pages, page size, Hkv, D]` ("NHD") or `[pages, Hkv, page
size, D]` ("HND"), any strided views with D contiguous and steps of 16 bytes, so also the halves of
one tensor. q is `[B, Hq, D]`, `[B, T, Hq, D]`, or `[tokens, Hq, D]` with `cu_seqlens_q`
(`[B + 1]`, the first token of each sequence and the end). Kernels read int32 tables and lengths
where they lie; int64 ones are converted on the device, in a small kernel before each call.

*Dense*, without `block_table`: k and v `[B, L, Hkv, D]` or, HND, `[B, Hkv, L, D]`, q
`[B, T, Hq, D]` or `[B, Hq, D]`, `seq_lens` optional.

The tokens are the last ones of their sequence: `causal`, on by default, lets each see the keys up
to its own (bottom-right aligned); an encoder or cross attention passes `causal=False`.

`scale` is 1 / sqrt(D) by default. `window_left` is how many keys before its own a token sees (-1:
all); `logits_soft_cap` c makes scores c * tanh(score / c) (0: off); `sinks` `[Hq]`, in the type of
q, join each head's sum as one more score without a value. `max_seq_len` and `max_q_len` bound the
lengths, for which the shapes give weaker bounds; they must hold. Nothing else depends on lengths
but their values on the device, so CUDA graphs may be replayed with others. Lengths, pages and
bounds that do not fit each other are errors where checking mode is on (`mirage_kernels.checking`);
elsewhere results are undefined then.

`constant_weights=True` and `constant_history=True` promise for one call what the functions of these
names (`mirage_kernels.assumptions`) promise for more of them.

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
than this build's; InferenceOnlyError for inputs that require grad or carry a tangent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict, overload

from torch import Tensor

from mirage_kernels.argument_checks import given_tensor, nhd, refuse_grad, watches_grad
from mirage_kernels.assumptions import assumed
from mirage_kernels.attention_calls import Call, Pair, Wanted, attend, check, forms
from mirage_kernels.attention_library import Norm
from mirage_kernels.prefill import is_prefill, prefill

if TYPE_CHECKING:
    from typing_extensions import Unpack

_GQA = forms("gqa")
_QK_NORM = forms("qk_norm_attention")


class Options(TypedDict, total=False):
    """What the ops take by name, for type checkers."""

    cu_seqlens_q: Tensor | None
    max_q_len: int | None
    scale: float | None
    causal: bool
    window_left: int
    logits_soft_cap: float
    sinks: Tensor | None
    kv_layout: str
    max_seq_len: int | None
    constant_weights: bool | None
    constant_history: bool | None
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
    causal: bool = True,
    window_left: int = -1,
    logits_soft_cap: float = 0.0,
    sinks: Tensor | None = None,
    kv_layout: str = "NHD",
    max_seq_len: int | None = None,
    constant_weights: bool | None = None,
    constant_history: bool | None = None,
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
    call = Call("gqa", q, k, v, *lengths, scale, causal, window_left, logits_soft_cap)
    assume = assumed("gqa", constant_weights, constant_history)
    wanted = Wanted(out, lse, return_lse, assume)
    if watches_grad():
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
    causal: bool = True,
    window_left: int = -1,
    logits_soft_cap: float = 0.0,
    sinks: Tensor | None = None,
    kv_layout: str = "NHD",
    max_seq_len: int | None = None,
    constant_weights: bool | None = None,
    constant_history: bool | None = None,
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
    call = Call(op, q, k, v, *lengths, scale, causal, window_left, logits_soft_cap)
    norms = (q_weight, k_weight, q_bias, k_bias, eps, weight_offset, norm)
    if watches_grad():
        refuse_grad(op, q=q, k_cache=k_cache, v_cache=v_cache, sinks=sinks, out=out, lse=lse)
        refuse_grad(op, q_weight=q_weight, k_weight=k_weight, q_bias=q_bias, k_bias=k_bias)
    assume = assumed(op, constant_weights, constant_history)
    wanted = Wanted(out, lse, return_lse, assume)
    if is_prefill(call, wanted):
        check(_QK_NORM, call, out, norms)
        normed_q = Norm(norm, q_weight, q_bias, eps, weight_offset).of(q).to(q.dtype)
        normed_k = Norm(norm, k_weight, k_bias, eps, weight_offset).of(k).to(k.dtype)
        return prefill(call._replace(q=normed_q, k=normed_k), out)
    return attend(_QK_NORM, call, wanted, norms)
