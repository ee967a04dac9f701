"""Promises that callers may give, for speed: weights stay as they are, and so do old tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from mirage_kernels.argument_checks import compiled
from mirage_kernels.loading import load_extension

load_extension()
_OPS = torch.ops.mirage_kernels
_set_constant_weights: Callable[[bool], None] = compiled(
    "constant_weights", _OPS._set_constant_weights.default
)
_set_constant_history: Callable[[bool], None] = compiled(
    "constant_history", _OPS._set_constant_history.default
)


def constant_weights(promised: bool = True) -> None:
    """Promise that no weight is written by the kernel just before an op in the same stream.

    Weights are the tensors without a dim of tokens: norm weights, `[N, K]` matrices, adapters. On
    GPUs of compute capability 9.0 and later an op then reads its first weights while the kernel
    before it still runs, which saves about a microsecond per call. Serving stacks that load weights
    once can promise it at start-up; `weight.copy_(new)` directly before an op, or an op on weights
    that were just computed (`1 + w`, a dequantised matrix), breaks it, and the op may read old
    values. CUDA graphs keep what held when they were captured. Holds for the process;
    `constant_weights(False)` takes it back.
    """
    _set_constant_weights(promised)


def constant_history(promised: bool = True) -> None:
    """Promise that what attention reads of earlier tokens is not written by the kernel just before.

    That is, of calls with a `block_table`: the tables, `seq_lens` and `cu_seqlens_q`, and the keys
    and values of all tokens but each sequence's newest `q_len` ones. The newest may be written by
    the kernel just before (`qk_norm_rope_append`, another way of writing the cache), and so may
    queries. On GPUs of compute capability 9.0 and later attention then begins to read the cache
    while the kernel before it still runs, which saves up to one microsecond per call. A serving
    step that sets up tables and lengths once, before its first layer, keeps the promise; calls
    without `block_table` assume nothing. Where it is broken, results are undefined, and if lengths
    change a kernel may never end, as its blocks then disagree about who does what. CUDA graphs keep
    what held when they were captured. Holds for the process; `constant_history(False)` takes it
    back.
    """
    _set_constant_history(promised)


@contextmanager
def fresh_weights() -> Iterator[None]:
    """Suspend the promise for calls of this thread with weights that were just computed."""
    _OPS._set_fresh_weights(True)
    try:
        yield
    finally:
        _OPS._set_fresh_weights(False)
