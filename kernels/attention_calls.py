"""How the ops of attention are called: their arguments in order, and where results go."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from mirage_kernels import registration as registration  # registers all that the ops need
from mirage_kernels.argument_checks import compiled, given_flag, given_tensor
from mirage_kernels.compiled import Pair as Pair
from mirage_kernels.errors import dims_sentence, result_layout_sentence


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
    assume: int  # what the call promises


class Call(NamedTuple):
    """The arguments that all ops share; k and v are `[.., .., Hkv, D]`."""

    op: str
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
    causal: bool
    window_left: int
    logits_soft_cap: float

    def arguments(self, q: Tensor) -> tuple[object, ...]:
        """Return them as the ops take them, for q as `[tokens, Hq, D]`."""
        lengths = (self.block_table, self.seq_lens, self.cu_seqlens_q, self.sinks)
        bounds = bounds_of(self.q, self.max_q_len, self.max_seq_len)
        scale = max(q.shape[-1], 1) ** -0.5 if self.scale is None else self.scale
        causal = given_flag(self.op, "causal", self.causal)
        options = (scale, causal, self.window_left, self.logits_soft_cap)
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
    returns_lse = given_flag(op.name, "return_lse", wanted.return_lse)
    needs_lse = returns_lse or wanted.lse is not None
    if wanted.out is None and wanted.lse is None:
        if not needs_lse:
            made = op.plain(*arguments, assume=wanted.assume)
            return made if is_flat else made.view(shape)
        made, sums = op.with_lse(*arguments, assume=wanted.assume)
        return made.view(shape), sums.view(shape[:-1])
    out = call.q.new_empty(shape) if wanted.out is None else wanted.out
    if not needs_lse:
        op.out(*arguments, out=_flat(op, "out", out, 3), assume=wanted.assume)
        return out
    lse = wanted.lse
    if lse is None:
        lse = call.q.new_empty(shape[:-1], dtype=torch.float32)
    results = {"out": _flat(op, "out", out, 3), "lse": _flat(op, "lse", lse, 2)}
    op.lse_out(*arguments, **results, assume=wanted.assume)
    return (out, lse) if returns_lse else out


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
