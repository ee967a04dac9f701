"""Attention as PyTorch's own programs: every option, for CPU tensors and calls without a kernel.

Keys are gathered through the block table, so that neither a page beyond a sequence's end nor one
before every token's window is looked at; scores and sums are fp32. Nothing here waits for the GPU
or depends on values. Each program writes into the tensors that come last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

# Scores are computed for as many sequences at once as need no more memory than this.
_SCORE_BYTES = 1 << 30


@dataclass(frozen=True)
class Norm:
    """A norm over D of each head, weights `[D]` or `[heads, D]`."""

    kind: str
    weight: Tensor
    bias: Tensor | None
    eps: float
    weight_offset: float

    # Not __call__: torch.compile of torch 2.11 fails on calls of frozen dataclasses.
    def of(self, lines: Tensor) -> Tensor:
        """Return the norm in fp32, of `[.., heads, D]`."""
        x = lines.float()
        normed = functional.rms_norm if self.kind == "rms" else functional.layer_norm
        y = normed(x, x.shape[-1:], eps=self.eps) * (self.weight.float() + self.weight_offset)
        return y if self.bias is None else y + self.bias.float()


@dataclass(frozen=True)
class Scoring:
    """What a query token sees, and how it is weighed; `lines` are keys and values of two caches."""

    scale: float
    causal: bool
    window_left: int
    cap: float
    sinks: Tensor | None
    lines: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Batch:
    """Sequences with their query tokens padded to one number T."""

    queries: Tensor  # [B, T, Hq, D], fp32
    counts: Tensor  # [B] query tokens
    lengths: Tensor  # [B] keys
    tables: Tensor  # [B, pages] page numbers
    keys: int  # most keys of a sequence

    def parts(self, size: int) -> Iterator[Batch]:
        """Yield it in parts of so many sequences."""
        for first in range(0, self.queries.shape[0], size):
            part = slice(first, first + size)
            lengths, tables = self.lengths[part], self.tables[part]
            yield Batch(self.queries[part], self.counts[part], lengths, tables, self.keys)


def _visible(batch: Batch, scoring: Scoring) -> Tensor:
    """Return which keys each query token sees, `[B, T, L]`."""
    device = batch.queries.device
    tokens = torch.arange(batch.queries.shape[1], device=device)[None, :, None]
    counts, lengths = (t[:, None, None] for t in (batch.counts, batch.lengths))
    keys = torch.arange(max(batch.keys, 1), device=device)
    visible = (keys < lengths) & (tokens < counts)
    places = lengths - counts + tokens
    if scoring.causal:
        visible = visible & (keys <= places)
    if scoring.window_left >= 0:
        visible = visible & (keys >= places - scoring.window_left)
    return visible


def _gathered(cache: Tensor, tables: Tensor, seen: Tensor) -> Tensor:
    """Return the lines of the cache that are seen, and zeros, `[B, L, Hkv, D]`."""
    pages, page_size, heads, depth = cache.shape
    if pages * page_size == 0 or tables.shape[1] == 0:
        return cache.new_zeros(*seen.shape, heads, depth)
    keys = torch.arange(seen.shape[1], device=cache.device)
    numbers = torch.where(seen, tables[:, keys // page_size], 0)
    return torch.where(seen[..., None, None], cache[numbers, keys % page_size], 0)


def _attention(batch: Batch, caches: tuple[Tensor, Tensor], scoring: Scoring) -> Iterator[Tensor]:
    """Yield the results `[B, T, Hq, D]` and their log-sum-exp `[B, T, Hq]`, both fp32."""
    sequences, tokens, _, depth = batch.queries.shape
    visible = _visible(batch, scoring)
    k, v = scoring.lines(*(_gathered(cache, batch.tables, visible.any(1)) for cache in caches))
    grouped = batch.queries.reshape(sequences, tokens, k.shape[2], -1, depth)
    scores = torch.einsum("bthgd,blhd->bhgtl", grouped, k) * scoring.scale
    if scoring.cap:
        scores = scoring.cap * torch.tanh(scores / scoring.cap)
    scores = scores.masked_fill(~visible[:, None, None], -torch.inf)
    peak = scores.amax(-1, keepdim=True)  # [B, Hkv, G, T, 1]
    sink = None
    if scoring.sinks is not None:
        sink = scoring.sinks.float().view(1, k.shape[2], -1, 1, 1)
        peak = torch.maximum(peak, sink)
    peak = peak.masked_fill(peak == -torch.inf, 0)
    weights = torch.exp(scores - peak)
    total = weights.sum(-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink - peak)
    divisor = torch.where(total > 0, total, 1).permute(0, 3, 1, 2, 4)  # [B, T, Hkv, G, 1]
    product = torch.einsum("bhgtl,blhd->bthgd", weights, v)
    yield (product / divisor).flatten(2, 3)
    yield (peak + torch.log(total))[..., 0].permute(0, 3, 1, 2).flatten(2, 3)


def _in_parts(batch: Batch, caches: tuple[Tensor, Tensor], scoring: Scoring) -> tuple[Tensor, ...]:
    sequences, tokens, heads, _ = batch.queries.shape
    at_once = max(1, _SCORE_BYTES // max(1, 4 * tokens * heads * batch.keys))
    parts = (tuple(_attention(part, caches, scoring)) for part in batch.parts(at_once))
    if sequences == 0:
        return batch.queries, batch.queries[..., 0]
    return tuple(map(torch.cat, zip(*parts, strict=True)))


@dataclass(frozen=True)
class Packing:
    """Where the query tokens of each sequence lie among all tokens."""

    starts: Tensor  # [B + 1]
    tokens: int  # of all sequences
    most: int  # of one sequence

    def padded(self, q: Tensor) -> Tensor:
        """Return `[B, most, ..]` of `[tokens, ..]`; what is no token's is any token's."""
        steps = torch.arange(self.most, device=q.device)
        return q[(self.starts[:-1, None] + steps).clamp(0, max(self.tokens - 1, 0))]

    def write(self, padded: Tensor, out: Tensor) -> None:
        """Write `[B, most, ..]` to `[tokens, ..]`; tokens of no sequence stay as they are."""
        place = torch.arange(self.tokens, device=out.device)
        sequence = torch.searchsorted(self.starts[1:], place, right=True)
        sequence = sequence.clamp(max=padded.shape[0] - 1)
        step = place - self.starts[sequence]
        owned = (step >= 0) & (place < self.starts[-1]) & (step < self.most)
        found = padded[sequence, step.clamp(0, max(self.most - 1, 0))].to(out.dtype)
        shape = (-1,) + (1,) * (out.dim() - 1)
        out.copy_(torch.where(owned.view(shape), found, out))


def _packing(q: Tensor, batch: int, cu_seqlens_q: Tensor | None, max_q_len: int) -> Packing:
    tokens = q.shape[0]
    if cu_seqlens_q is not None:
        return Packing(cu_seqlens_q.long(), tokens, tokens if max_q_len < 0 else max_q_len)
    each = tokens // max(batch, 1)
    return Packing(torch.arange(batch + 1, device=q.device) * each, tokens, each)


def _as_they_are(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return k.float(), v.float()


def gqa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_table: Tensor | None,
    seq_lens: Tensor | None,
    cu_seqlens_q: Tensor | None,
    sinks: Tensor | None,
    max_q_len: int,
    max_seq_len: int,
    scale: float,
    causal: bool,
    window_left: int,
    logits_soft_cap: float,
    *,
    out: Tensor,
    lse: Tensor | None = None,
    lines: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = _as_they_are,
) -> None:
    tables = torch.arange(k.shape[0], device=q.device)[:, None]
    if block_table is not None:
        tables = block_table
    keys = tables.shape[1] * k.shape[1]
    if seq_lens is not None and max_seq_len >= 0:
        keys = min(keys, max_seq_len)
    lengths = tables.new_full((tables.shape[0],), keys)
    if seq_lens is not None:
        lengths = seq_lens.clamp(max=keys)
    packing = _packing(q, tables.shape[0], cu_seqlens_q, max_q_len)
    if packing.most == 0 or tables.shape[0] == 0:
        return
    queries = packing.padded(q.float())
    batch = Batch(queries, packing.starts.diff(), lengths, tables, keys)
    scoring = Scoring(scale, causal, window_left, logits_soft_cap, sinks, lines)
    results, sums = _in_parts(batch, (k, v), scoring)
    packing.write(results, out)
    if lse is not None:
        packing.write(sums, lse)


def qk_norm_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_table: Tensor | None,
    seq_lens: Tensor | None,
    cu_seqlens_q: Tensor | None,
    sinks: Tensor | None,
    max_q_len: int,
    max_seq_len: int,
    scale: float,
    causal: bool,
    window_left: int,
    logits_soft_cap: float,
    q_weight: Tensor,
    k_weight: Tensor,
    q_bias: Tensor | None,
    k_bias: Tensor | None,
    eps: float,
    weight_offset: float,
    norm: str,
    *,
    out: Tensor,
    lse: Tensor | None = None,
) -> None:
    normed_q = Norm(norm, q_weight, q_bias, eps, weight_offset).of(q)
    normed = Norm(norm, k_weight, k_bias, eps, weight_offset)
    lengths = (block_table, seq_lens, cu_seqlens_q, sinks, max_q_len, max_seq_len)
    options = (scale, causal, window_left, logits_soft_cap)
    gqa(
        *(normed_q, k, v, *lengths, *options),
        out=out,
        lse=lse,
        lines=lambda keys, values: (normed.of(keys), values.float()),
    )


def mla_decode(
    q: Tensor,
    q_rope: Tensor,
    k: Tensor,
    k_rope: Tensor,
    block_table: Tensor | None,
    seq_lens: Tensor | None,
    cu_seqlens_q: Tensor | None,
    max_q_len: int,
    max_seq_len: int,
    scale: float,
    causal: bool,
    *,
    out: Tensor,
    lse: Tensor | None = None,
) -> None:
    lengths = (block_table, seq_lens, cu_seqlens_q, None, max_q_len, max_seq_len)
    whole = torch.cat([q.float(), q_rope.float()], -1)
    gqa(*(whole, k, k_rope, *lengths, scale, causal, -1, 0.0), out=out, lse=lse, lines=_latent)


def _latent(latent: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
    values = latent.float()
    return torch.cat([values, rope.float()], -1), values
