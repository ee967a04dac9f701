"""Promises that callers may give, for speed: weights stay as they are, and so do old tokens.

A promise is kept by thread, like torch.set_grad_enabled, and read when an op is called. Every op
takes it by name for one call, too; its argument `assume` tells the compiled code.
"""

from __future__ import annotations

import threading
from types import TracebackType

from mirage_kernels.errors import type_sentence

# Bits of `assume`; csrc/torch/assumptions.h has them, too.
WEIGHTS, HISTORY = 1, 2
NOTHING = 0


class _Promised(threading.local):
    """What a thread has promised."""

    weights = False
    history = False


_promised = _Promised()


class Promise:
    """A promise that was just given: left as a context, it restores what held before."""

    def __init__(self, name: str, before: bool) -> None:
        self.name, self.before = name, before

    def __enter__(self) -> None:
        """Do nothing: the promise holds since it was given."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore what held before."""
        setattr(_promised, self.name, self.before)


def constant_weights(promised: bool = True) -> Promise:
    """Promise that no weight is written by the kernel just before an op in the same stream.

    `with constant_weights():` promises it for the calls of this thread inside; as a statement it
    holds for this thread until `constant_weights(False)`; `op(..., constant_weights=True)` promises
    it for one call. CUDA graphs and torch.compile keep what held when they were made (a compiled
    function is compiled again where it is called under another promise).

    Weights are the tensors without a dim of tokens: norm weights, `[N, K]` matrices, adapters. On
    GPUs of compute capability 9.0 and later an op then reads its first weights while the kernel
    before it still runs, which saves about a microsecond per call. Serving stacks that load weights
    once can promise it at start-up; `weight.copy_(new)` directly before an op, or an op on weights
    that were just computed (`1 + w`, a dequantised matrix), breaks it, and the op may read old
    values. Ops of this library may still run when the one behind them has begun, so where the
    kernel just before is one of them, the promise is about those before it, too, back to the last
    that is none, or to attention, which lets the next one begin when all before it has ended. A
    loaded program needs the promise for its first kernel alone (docs/from_torch.md).
    """
    before = _promised.weights
    _promised.weights = checked("constant_weights", "promised", promised)
    return Promise("weights", before)


def constant_history(promised: bool = True) -> Promise:
    """Promise that what attention reads of earlier tokens is not written by the kernel just before.

    It is given as `constant_weights` is, in a `with`, as a statement, or to one call by name, and
    it is about the same kernels.

    It concerns calls with a `block_table`: the tables, `seq_lens` and `cu_seqlens_q`, and the keys
    and values of all tokens but each sequence's newest `q_len` ones. The newest may be written by
    the kernel just before (`qk_norm_rope_append`, another way of writing the cache), and so may
    queries. On GPUs of compute capability 9.0 and later attention then begins to read the cache
    while the kernel before it still runs. To `rope_append` and `qk_norm_rope_append` it promises
    the same of the kernel before them, and of positions, slots and angles, too: they read these
    early, and let attention begin while that kernel runs. A layer takes one to two microseconds
    less. A serving step that sets up tables, lengths and slots once, before its first layer, keeps
    the promise; calls of attention without `block_table` assume nothing, and neither do those with
    int64 tables or lengths, which a kernel converts just before. Where the promise is broken,
    results are undefined; where lengths changed, blocks may wait for others in vain, which ends the
    launch after 10 s (CUDA then reports "unspecified launch failure", and the next op says why).
    """
    before = _promised.history
    _promised.history = checked("constant_history", "promised", promised)
    return Promise("history", before)


def assumed(op: str, weights: bool | None, history: bool | None = False) -> int:
    """Return the `assume` of a call: what it promises by name, and else what its thread does."""
    held = _promised.weights if weights is None else checked(op, "constant_weights", weights)
    older = _promised.history if history is None else checked(op, "constant_history", history)
    return WEIGHTS * held + HISTORY * older


def checked(op: str, name: str, promised: object) -> bool:
    """Return a promise that is True or False; raise RuntimeError for anything else."""
    if isinstance(promised, bool):
        return promised
    raise RuntimeError(type_sentence(op, name, promised, "True or False"))
