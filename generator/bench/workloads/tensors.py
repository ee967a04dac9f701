"""Tensors of an attention workload, our call, PyTorch's unfused program, and float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from mirage_kernels.generator.bench.workloads.calls import LATENT, LAYER_NORM, CallWorkload
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.recipe import load_recipe

TORCH_DTYPES = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}
EPS = 1e-6
Call = Callable[..., Tensor]


@dataclass(frozen=True)
class Append:
    """The new token of each sequence, its place, and where its keys and values go."""

    qkv: Tensor  # [B, (Hq + 2 Hkv) * D]
    cos_sin: Tensor  # [L, D]
    positions: Tensor  # [B]
    slots: Tensor  # [B]


@dataclass(frozen=True)
class Tensors:
    """One set of inputs; `seen` and `seq_lens` are None where dense sequences are as long."""

    q: Tensor  # [B, T, Hq, D]
    k: Tensor  # [pages, page size, Hkv, D], dense [B, Hkv, L, D]
    v: Tensor
    table: Tensor | None  # [B, most pages]
    seq_lens: Tensor | None  # [B]
    norms: tuple[Tensor, Tensor] | None  # weights of queries and keys, [D] or by head
    append: Append | None
    biases: tuple[Tensor, Tensor] | None = None  # of LayerNorms
    seen: Tensor | None = None  # [B, 1, 1, L], of dense sequences


@dataclass(frozen=True)
class _Draw:
    """Random tensors in the type of a workload."""

    dtype: torch.dtype
    source: torch.Generator

    def __call__(self, *shape: int) -> Tensor:
        device = self.source.device
        return torch.randn(shape, generator=self.source, dtype=self.dtype, device=device)


def drawn(workload: CallWorkload, seed: int, device: str) -> Tensors:
    """Draw the tensors of a call: normal, norm weights near 1.

    Pages are as many as the sequences need, in random order; the same one for every seed.
    """
    draw = _Draw(TORCH_DTYPES[workload.dtype], torch.Generator(device).manual_seed(seed))
    query_heads, kv_heads = workload.heads
    width = workload.depth + workload.more
    table = seq_lens = None
    if workload.page_size:
        pages, rows = _pages(workload)
        table = rows.to(device)
        shape = (pages, workload.page_size, kv_heads, width)
    else:
        shape = (workload.sequences, kv_heads, workload.longest, width)
    if table is not None or not workload.is_even:
        seq_lens = torch.tensor(workload.lengths, dtype=torch.int32, device=device)
    q = draw(workload.sequences, workload.tokens, query_heads, width)
    norms = append = biases = None
    if workload.recipe == LAYER_NORM:
        lines = [(heads, workload.depth) for heads in workload.heads]
        norms = (1 + 0.1 * draw(*lines[0]), 1 + 0.1 * draw(*lines[1]))
        biases = (0.1 * draw(*lines[0]), 0.1 * draw(*lines[1]))
    elif workload.norms or workload.appends:
        norms = (1 + 0.1 * draw(workload.depth), 1 + 0.1 * draw(workload.depth))
    if workload.appends:
        assert table is not None
        append = _append(workload, draw, table)
    k = draw(*shape)
    v = k[..., : workload.depth] if workload.more else draw(*shape)
    return Tensors(q, k, v, table, seq_lens, norms, append, biases)


def _pages(workload: CallWorkload) -> tuple[int, Tensor]:
    """Return how many pages there are and which belong to each sequence, `[B, most pages]`."""
    counts = [-(-length // workload.page_size) for length in workload.lengths]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0))
    table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    first = 0
    for row, count in zip(table, counts, strict=True):
        row[:count] = order[first : first + count]
        first += count
    return sum(counts), table


def _append(workload: CallWorkload, draw: _Draw, table: Tensor) -> Append:
    query_heads, kv_heads = workload.heads
    device = table.device
    places = torch.tensor(workload.lengths, device=device) - 1  # the last token is the new one
    own = torch.arange(workload.sequences, device=device)
    pages = table[own, places // workload.page_size].long()
    steps = torch.arange(workload.longest, device=device, dtype=torch.float32)
    half = workload.depth // 2
    pace = 1e6 ** -(torch.arange(half, device=device, dtype=torch.float32) / half)
    angles = steps[:, None] * pace
    return Append(
        draw(workload.sequences, (query_heads + 2 * kv_heads) * workload.depth),
        torch.cat([angles.cos(), angles.sin()], dim=-1),
        places,
        pages * workload.page_size + places % workload.page_size,
    )


def dense(workload: CallWorkload, given: Tensors) -> Tensors:
    """Return the same inputs with keys and values copied out of their pages."""
    if given.table is None:
        return given
    table = given.table.long()

    def lines(cache: Tensor) -> Tensor:
        whole = cache[table].flatten(1, 2)[:, : workload.longest]
        return whole.transpose(1, 2).contiguous()

    append, seen = given.append, None
    if append is not None:  # a sequence counts as one page
        own = torch.arange(workload.sequences, device=table.device)
        append = replace(append, slots=own * workload.longest + append.positions)
    if not workload.is_even:
        assert given.seq_lens is not None
        keys = torch.arange(workload.longest, device=table.device)
        seen = (keys < given.seq_lens[:, None])[:, None, None]
    seq_lens = None if workload.is_even else given.seq_lens
    k = lines(given.k)
    v = k[..., : workload.depth] if workload.more else lines(given.v)
    return replace(given, k=k, v=v, table=None, seq_lens=seq_lens, append=append, seen=seen)


def ours(workload: CallWorkload, given: Tensors, **more: Tensor) -> Tensor:
    """Call the library; `more` may be out, of the shape of the result."""
    from mirage_kernels import gqa, mla_decode, qk_norm_attention, qk_norm_rope_append

    q = given.q if workload.tokens > 1 else given.q[:, 0]
    kv_layout = "HND" if given.table is None else "NHD"
    options: dict[str, object] = {
        "scale": workload.scale,
        "causal": workload.tokens > 1,
        "window_left": workload.window_left,
        "logits_soft_cap": workload.logits_soft_cap,
        "kv_layout": kv_layout,
        "max_seq_len": workload.longest,
    }
    places = (given.table, given.seq_lens)
    if workload.more:
        assert workload.scale is not None
        cache = given.k if given.table is not None else given.k[:, 0]
        sizes = {"latent_dim": workload.depth, "max_seq_len": workload.longest}
        return cast(Call, mla_decode)(q, cache, *places, scale=workload.scale, **sizes, **more)
    if workload.norms:
        call = cast(Call, qk_norm_attention)
        assert given.norms is not None
        if given.biases is not None:
            options |= {"norm": "layer", "q_bias": given.biases[0], "k_bias": given.biases[1]}
        return call(q, given.k, given.v, *given.norms, *places, eps=EPS, **options, **more)
    if workload.appends:
        assert given.norms is not None
        assert given.append is not None
        new, heads = given.append, workload.heads
        q = qk_norm_rope_append(
            new.qkv,
            *given.norms,
            new.cos_sin,
            new.positions,
            given.k,
            given.v,
            new.slots,
            num_heads=heads[0],
            num_kv_heads=heads[1],
            eps=EPS,
            kv_layout=kv_layout,
        )
    return cast(Call, gqa)(q, given.k, given.v, *places, **options, **more)


def promised(timed: Callable[[], float]) -> float:
    """Run with constant weights and a constant history promised."""
    from mirage_kernels import constant_history, constant_weights

    promises = (constant_weights, constant_history)
    try:
        for promise in promises:
            promise()
        return timed()
    finally:
        for promise in promises:
            promise(False)


def poisoned_run(workload: CallWorkload, given: Tensors) -> Tensor:
    """Call the library on an output full of NaN, so that elements which nobody wrote show."""
    shape = given.q.shape if workload.tokens > 1 else given.q[:, 0].shape
    whole = (*shape[:-1], workload.depth)
    return ours(workload, given, out=given.q.new_full(whole, torch.nan))


def prepared(workload: CallWorkload, given: Tensors) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v of dense inputs as attention takes them: normed, or with the new token."""
    if given.norms is None:
        return given.q, given.k, given.v
    if given.biases is not None:
        return *_layer_normed(given, given.norms, given.biases), given.v
    if given.append is None:
        q, k = (
            functional.rms_norm(x, x.shape[-1:], weight, EPS)
            for x, weight in zip((given.q, given.k), given.norms, strict=True)
        )
        return q, k, given.v
    from mirage_kernels import append_library

    new, q = given.append, torch.empty_like(given.q)
    append_library.qk_norm_rope_append(
        *(new.qkv, *given.norms, None, None, new.cos_sin, new.positions),
        *(given.k.transpose(1, 2), given.v.transpose(1, 2), new.slots),
        *workload.heads,
        EPS,
        0.0,
        "rms",
        "neox",
        q=q[:, 0],
    )
    return q, given.k, given.v


def _layer_normed(
    given: Tensors, weights: tuple[Tensor, Tensor], biases: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return dense q and k after their LayerNorms, by weights and biases of each head."""
    q, k = (functional.layer_norm(x, x.shape[-1:], eps=EPS) for x in (given.q, given.k))
    by_head = [x[:, None] for x in (weights[1], biases[1])]  # k is [B, Hkv, L, D]
    return q * weights[0] + biases[0], k * by_head[0] + by_head[1]


def eager(workload: CallWorkload, given: Tensors) -> Tensor:
    """Compute it as PyTorch's own unfused program on dense inputs."""
    lengths = given.seq_lens
    if lengths is None:
        lengths = given.q.new_full((workload.sequences,), workload.longest, dtype=torch.int32)
    return unfused(workload, prepared(workload, given), lengths)


def unfused(workload: CallWorkload, qkv: tuple[Tensor, Tensor, Tensor], seq_lens: Tensor) -> Tensor:
    """Run the reference of the recipe that has the workload's mask and cap, `[B, T, Hq, D]`."""
    q, k, v = qkv
    recipe = _reference(_scoring(workload))
    if workload.more:
        latent, rope = slice(workload.depth), slice(workload.depth, None)
        queries, keys = q[:, 0], k[:, 0]
        parts = (queries[..., latent], queries[..., rope], keys[..., latent], keys[..., rope])
        return recipe.reference_results(*parts, seq_lens, workload.scale)[0][:, None]
    grouped = q.reshape(*q.shape[:2], k.shape[1], -1, q.shape[3])  # [B, T, Hkv, G, D]
    has_tokens = "T" in recipe.inputs["q"].split()
    named = {
        "q": grouped if has_tokens else grouped[:, 0],
        "k": k.transpose(1, 2),
        "v": v.transpose(1, 2),
        "seq_lens": seq_lens,
        "scale": workload.depth**-0.5 if workload.scale is None else workload.scale,
        "window": workload.longest if workload.window_left < 0 else workload.window_left + 1,
        "cap": workload.logits_soft_cap,
    }
    (result,) = recipe.reference_results(*(named[name] for name in recipe.inputs))
    return result.reshape(q.shape)


_reference = cache(load_recipe)


def _scoring(workload: CallWorkload) -> str:
    """Return the name of the plain recipe with the workload's mask and cap."""
    if workload.more:
        return LATENT
    if workload.logits_soft_cap:
        return "gqa_full"
    if workload.window_left >= 0:
        return "sliding_window_attention"
    return "causal_attention" if workload.tokens > 1 else "gqa"


def exact(workload: CallWorkload, given: Tensors) -> Tensor:
    """Compute it in float64 from dense inputs, a sequence at a time; with tokens also by head."""
    if given.norms is not None:
        given = _in_float64(given)
    q, k, v = prepared(workload, given)
    heads = k.shape[1]
    at_once = heads if workload.tokens == 1 else 1
    out = q.new_zeros(*q.shape[:-1], v.shape[-1], dtype=torch.float64)
    for b, length in enumerate(workload.lengths):
        lengths = torch.tensor([length], device=q.device)
        for head in range(0, heads, at_once) if length else ():
            rows = slice(head * workload.group, (head + at_once) * workload.group)
            keys = (slice(b, b + 1), slice(head, head + at_once), slice(length))
            part = (q[b : b + 1, :, rows].double(), k[keys].double(), v[keys].double())
            out[b : b + 1, :, rows] = unfused(workload, part, lengths)
    return out


def _in_float64(given: Tensors) -> Tensors:
    """Return copies; rotation angles stay as they are."""
    norms, append, biases = given.norms, given.append, given.biases
    if biases is not None:
        biases = (biases[0].double(), biases[1].double())
    if norms is not None:
        norms = (norms[0].double(), norms[1].double())
    if append is not None:
        append = replace(append, qkv=append.qkv.double())
    q, k, v = given.q.double(), given.k.double(), given.v.double()
    return replace(given, q=q, k=k, v=v, norms=norms, append=append, biases=biases)
