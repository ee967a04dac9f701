"""Small calls of an attention kernel that together run each of its variants and ways of work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import cycle

import torch
from sanitize_watch import Around
from torch import Tensor

from mirage_kernels import KernelEntry
from mirage_kernels.generator.bench.attention_calls import Tensors, drawn, ours
from mirage_kernels.generator.bench.attention_workloads import AttentionWorkload
from mirage_kernels.generator.ir.dtypes import DType

# Query tokens and heads of a group: their product fills every bucket of rows unevenly.
ROWS = ((1, 7), (3, 4), (5, 5), (9, 5), (20, 5))
SHORT = (0, 1, 37, 130)  # less than a step, sequences cut over blocks
LONG = (0, 6000, 1, 2100)  # stretches of several sequences
ALONE = (9000,)  # a sequence that the blocks of a cluster share, rings that go round
MANY, MANY_HEADS = (1024,) * 60, 8  # segments that blocks claim
CLAIM = ("gqa/D128", "qk_norm_attention/D128")  # kernels with a variant for them
PAGE_SIZES = (16, 1, 0, 16)  # each kind of lengths gets all of them in turn
WINDOWS = (5, -1, 12, 0, 100)
STARTS = (0, 1, 1, 5, 7)  # of the query tokens of four sequences


def workloads(kernel: KernelEntry) -> Iterator[AttentionWorkload]:
    """Yield calls that the kernel serves: short and long, paged and dense, with each window."""
    places = cycle(PAGE_SIZES)
    by_place = kernel.recipe in ("sliding_window_attention", "gqa_full")
    for (tokens, group), window in zip(ROWS, WINDOWS, strict=True):
        claims = (tokens, group) == ROWS[0] and kernel.name.startswith(CLAIM)
        many = [(MANY, MANY_HEADS)] if claims else []
        for lengths, kv_heads in [(SHORT, 2), (LONG, 4), (ALONE, 2), *many]:
            rows = group if by_place else tokens * group
            more = kernel.dims.get("P", 0)
            yield AttentionWorkload(
                kernel.recipe,
                "sanitizer",
                lengths,
                (rows, 1) if more else (rows * kv_heads, kv_heads),
                kernel.dims["C"] if more else kernel.dims["D"],
                more,
                scale=0.1 if more else None,
                page_size=next(places),
                tokens=tokens if by_place else 1,
                window_left=window if by_place else -1,
                logits_soft_cap=20.0 if kernel.recipe == "gqa_full" else 0.0,
                dtype=DType(kernel.dtype),
            )


def results(
    kernel: KernelEntry, around: Around = nullcontext, device: str = "cuda"
) -> Iterator[Tensor]:
    """Call the kernel and yield what it computes: alone, with lse and sinks, with uneven tokens."""
    for place, workload in enumerate(workloads(kernel)):
        given = drawn(workload, place, device)
        shape = given.q.shape if workload.tokens > 1 else given.q[:, 0].shape
        out = given.q.new_empty(*shape[:-1], workload.depth)
        extra = {"out": out}
        if place % 2 == 0:
            extra["lse"] = out.new_empty(shape[:-1], dtype=torch.float32)
            if not workload.more:
                extra["sinks"] = given.q[0, 0, :, 0].contiguous()
        with around():
            ours(workload, given, **extra)
        yield out
        if "lse" in extra:
            yield extra["lse"].exp()  # that of no keys is minus infinity
    yield _uneven(workload, around, device)


def _uneven(workload: AttentionWorkload, around: Around, device: str) -> Tensor:
    """Call it with as many query tokens per sequence as STARTS says."""
    paged = replace(workload, lengths=SHORT, page_size=16)
    given = drawn(paged, 0, device)
    q = given.q.new_empty(STARTS[-1], *given.q.shape[2:]).normal_()
    flat: Tensors = replace(given, q=q[None] if workload.tokens > 1 else q[:, None])
    starts = torch.tensor(STARTS, dtype=torch.int32, device=device)
    out = flat.q.new_empty(*q.shape[:-1], workload.depth)
    with around():
        ours(paged, flat, cu_seqlens_q=starts, out=out)
    return out
