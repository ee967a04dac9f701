"""Calls of attention at random, and what they compute in float64, sequence by sequence.

Nothing here is shared with the library: keys lie in tensors of their own before they are paged, and
the range of keys that a token sees is worked out token by token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import mirage_kernels


@dataclass(frozen=True)
class Case:
    """One call. `lengths` are keys of each sequence, `tokens` its query tokens."""

    lengths: tuple[int, ...] = (5, 33, 16)
    tokens: tuple[int, ...] = (1,)  # one for all, or one per sequence
    heads: tuple[int, int] = (4, 2)  # Hq, Hkv
    depth: int = 64
    dtype: torch.dtype = torch.float16
    device: str = "cpu"
    page_size: int = 16  # 0: dense
    layout: str = "NHD"
    packed: bool = False  # K and V are halves of one tensor
    options: dict[str, object] = field(default_factory=dict)
    sinks: bool = False
    spread: float = 1.0  # standard deviation of the inputs
    norm: str = ""  # of qk_norm_attention: "rms" or "layer"
    per_head: bool = False  # whether heads have norm weights of their own
    seed: int = 0
    latent: int = 0  # of mla_decode: elements of a line that are the value; the rest is rotated
    apart: bool = False  # its q and its cache are two tensors each
    with_head: bool = False  # its cache has a dim of one head

    @property
    def all_options(self) -> dict[str, Any]:
        """The options of the call; mla_decode takes a scale always."""
        scale = {"scale": 1.1 * self.depth**-0.5 / self.spread} if self.latent else {}
        return scale | self.options

    @property
    def counts(self) -> tuple[int, ...]:
        """Query tokens of each sequence."""
        return self.tokens if self.varlen else self.tokens * len(self.lengths)

    @property
    def varlen(self) -> bool:
        """Say whether the call has cu_seqlens_q."""
        return len(self.tokens) > 1

    @property
    def tolerance(self) -> float:
        """How far a result may be off, relative to the largest of the tensor.

        Normed queries and keys are rounded; weights of 1 + w make their scores four times as large.
        """
        closest = 1e-3 if self.dtype == torch.float16 else 8e-3
        return 2 * closest if self.options.get("weight_offset") else closest

    @property
    def lse_tolerance(self) -> float:
        """The same of the log-sum-exp: exponentials are summed before they are rounded.

        Where queries and keys are normed, what comes out of the norms is rounded.
        """
        return self.tolerance if self.norm else 1e-5


@dataclass
class Call:
    """The tensors of a case."""

    case: Case
    q: Tensor
    k: Tensor  # as the op takes it
    v: Tensor
    keys: list[Tensor]  # [length, Hkv, D] of each sequence
    values: list[Tensor]
    norms: dict[str, Tensor]
    given: dict[str, object]

    def run(self, **more: object) -> object:
        """Call the op."""
        case = self.case
        options = self.norms | self.given | case.all_options | more
        if not case.latent:
            op = mirage_kernels.qk_norm_attention if case.norm else mirage_kernels.gqa
            return op(self.q, self.k, self.v, **options)
        q, cache = self.q, self.k if case.with_head else self.k.squeeze(2)
        if case.apart:
            q, cache = (
                (t[..., : case.latent].clone(), t[..., case.latent :].clone()) for t in (q, cache)
            )
        return mirage_kernels.mla_decode(q, cache, latent_dim=case.latent, **options)

    def poisoned(self) -> tuple[Tensor, Tensor]:
        """Return tensors for both results, full of NaN."""
        out = self.q.new_full((*self.q.shape[:-1], self.case.latent or self.case.depth), torch.nan)
        return out, torch.full(self.q.shape[:-1], torch.nan, device=self.q.device)

    def exact(self) -> tuple[Tensor, Tensor]:
        """Return the result and its log-sum-exp, in float64, as [tokens, Hq, ..]."""
        return _exact(self)


def latent_case(sizes: tuple[int, int] = (32, 16), heads: int = 4, **more: Any) -> Case:
    """Return a call of mla_decode: sizes are of the latent, and of what is rotated."""
    return Case(heads=(heads, 1), depth=sum(sizes), latent=sizes[0], **more)


def check(case: Case) -> Call:
    """Compare a call with float64, and its bits from run to run; return it."""
    call = made(case)
    out, lse = call.poisoned()
    call.run(out=out, lse=lse)
    exact, exact_lse = call.exact()
    assert error(out, exact) < case.tolerance
    assert same_lse(lse, exact_lse, case.lse_tolerance)
    again, lse_again = call.poisoned()
    for _ in range(2):
        call.run(out=again, lse=lse_again)
        assert torch.equal(again, out)
        assert torch.equal(lse_again, lse)
    assert torch.equal(call.run(), out)
    return call


def made(case: Case) -> Call:
    """Draw the tensors of a case; pages and places that no sequence uses hold NaN."""
    draw = torch.Generator(case.device).manual_seed(case.seed)
    query_heads, kv_heads = case.heads

    def normal(*shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=draw, device=case.device) * case.spread
        return drawn.to(case.dtype)

    keys = [normal(n, kv_heads, case.depth) for n in case.lengths]
    values = [normal(n, kv_heads, case.depth) for n in case.lengths]
    q = normal(sum(case.counts), query_heads, case.depth)
    given: dict[str, object] = {}
    if case.page_size:
        k, v, given = _paged(case, (keys, values), draw)
    else:
        k, v, given = _dense(case, (keys, values))
    if case.varlen:
        starts = torch.tensor([0, *case.counts]).cumsum(0)
        given["cu_seqlens_q"] = starts.int().to(case.device)
    elif case.tokens[0] != 1:
        q = q.view(len(case.lengths), case.tokens[0], query_heads, case.depth)
    if case.sinks:
        sinks = torch.randn(query_heads, generator=draw, device=case.device)
        given["sinks"] = sinks.to(case.dtype)
    if case.latent:
        values = [own[..., : case.latent] for own in keys]
    else:
        given["kv_layout"] = case.layout
    return Call(case, q, k, v, keys, values, _norms(case, draw), given)


def _norms(case: Case, draw: torch.Generator) -> dict[str, Tensor]:
    names = {"": (), "rms": ("q_weight", "k_weight")}.get(
        case.norm, ("q_weight", "k_weight", "q_bias", "k_bias")
    )
    drawn: dict[str, object] = {}
    for name in names:
        heads = (case.heads[name.startswith("k")],) if case.per_head else ()
        noise = torch.randn(*heads, case.depth, generator=draw, device=case.device)
        drawn[name] = (1.0 * name.endswith("weight") + 0.1 * noise).to(case.dtype)
    return drawn | ({"norm": case.norm} if case.norm else {})  # type: ignore[return-value]


def _paged(
    case: Case, lines: tuple[list[Tensor], list[Tensor]], draw: torch.Generator
) -> tuple[Tensor, Tensor, dict[str, object]]:
    counts = [-(-n // case.page_size) for n in case.lengths]
    pages = sum(counts) + 3
    order = torch.randperm(pages, generator=draw, device=case.device).int()
    width = max(counts, default=0) + 1
    table = torch.full((len(counts), width), 2**30, dtype=torch.int32, device=case.device)
    k, v = _empty_caches(case, pages)
    used = 0
    for b, count in enumerate(counts):
        table[b, :count] = order[used : used + count]
        used += count
        for cache, own in zip((k, v), lines, strict=True):
            whole = own[b].new_full((count * case.page_size, *own[b].shape[1:]), torch.nan)
            whole[: len(own[b])] = own[b]
            cache[table[b, :count]] = whole.view(count, case.page_size, *own[b].shape[1:])
    if case.layout == "HND":
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    seq_lens = torch.tensor(case.lengths, dtype=torch.int32, device=case.device)
    return k, v, {"block_table": table, "seq_lens": seq_lens}


def _empty_caches(case: Case, pages: int) -> tuple[Tensor, Tensor]:
    """Return views [pages, page size, Hkv, D] of tensors in the case's layout, full of NaN."""
    width = case.depth * (2 if case.packed else 1)
    tokens_first = (pages, case.page_size, case.heads[1], width)
    heads_first = (pages, case.heads[1], case.page_size, width)
    hnd = case.layout == "HND"

    def empty() -> Tensor:
        shape = heads_first if hnd else tokens_first
        cache = torch.full(shape, torch.nan, dtype=case.dtype, device=case.device)
        return cache.transpose(1, 2) if hnd else cache

    if not case.packed:
        return empty(), empty()
    k, v = empty().chunk(2, dim=-1)
    return k, v


def _dense(
    case: Case, lines: tuple[list[Tensor], list[Tensor]]
) -> tuple[Tensor, Tensor, dict[str, object]]:
    longest = max(case.lengths)
    shape = (len(case.lengths), longest, case.heads[1], case.depth)
    stacked = []
    for own in lines:
        tensor = torch.full(shape, torch.nan, dtype=case.dtype, device=case.device)
        for b, part in enumerate(own):
            tensor[b, : len(part)] = part
        stacked.append(tensor.transpose(1, 2).contiguous() if case.layout == "HND" else tensor)
    given: dict[str, object] = {}
    if set(case.lengths) != {longest}:
        given["seq_lens"] = torch.tensor(case.lengths, dtype=torch.int32, device=case.device)
    return stacked[0], stacked[1], given


def _normed(call: Call, name: str, x: Tensor) -> Tensor:
    """Return the norm of heads `[.., D]`."""
    if not call.case.norm:
        return x
    offset = float(call.case.options.get("weight_offset", 0.0))  # type: ignore[arg-type]
    eps = float(call.case.options.get("eps", 1e-6))  # type: ignore[arg-type]
    if call.case.norm == "layer":
        x = x - x.mean(-1, keepdim=True)
    y = x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)
    y = y * (call.norms[f"{name}_weight"].double() + offset)
    bias = call.norms.get(f"{name}_bias")
    return y if bias is None else y + bias.double()


def _exact(call: Call) -> tuple[Tensor, Tensor]:
    """Return result and log-sum-exp, all tokens and heads of a sequence together."""
    case, options = call.case, call.case.all_options
    kv_heads = case.heads[1]
    queries = _normed(call, "q", call.q.double().reshape(-1, *call.q.shape[-2:]))
    outs, sums, token = [], [], 0
    for b, count in enumerate(case.counts):
        keys, values = _normed(call, "k", call.keys[b].double()), call.values[b].double()
        q = queries[token : token + count].unflatten(1, (kv_heads, -1))
        token += count
        scores = torch.einsum("thgd,lhd->hgtl", q, keys)
        scores = scores * (options.get("scale") or case.depth**-0.5)
        cap = options.get("logits_soft_cap", 0.0)
        if cap:
            scores = cap * torch.tanh(scores / cap)
        steps = torch.arange(case.lengths[b], device=q.device)
        ranges = [_seen(case, case.lengths[b], (t, count)) for t in range(count)]
        first, last = torch.tensor(ranges, device=q.device).view(-1, 2, 1).unbind(1)
        scores = scores.masked_fill((steps < first) | (steps >= last), -torch.inf)
        sinks = call.given.get("sinks")
        column = scores.new_full((*scores.shape[:3], 1), -torch.inf)
        if sinks is not None:
            column[:] = sinks.double().view(kv_heads, -1, 1, 1)  # type: ignore[attr-defined]
        scores = torch.cat([scores, column], -1)
        weights = scores.softmax(-1).nan_to_num()[..., :-1]
        outs.append(torch.einsum("hgtl,lhd->thgd", weights, values).flatten(1, 2))
        sums.append(scores.logsumexp(-1).permute(2, 0, 1).flatten(1))
    return torch.cat(outs), torch.cat(sums)


def _seen(case: Case, length: int, place: tuple[int, int]) -> tuple[int, int]:
    """Return the range of keys that a token sees; `place` is its number and of how many."""
    t, count = place
    position = length - count + t
    causal = case.options.get("causal", True)
    window = case.options.get("window_left", -1)
    last = min(length, position + 1) if causal else length
    first = max(0, position - window) if window >= 0 else 0  # type: ignore[operator]
    return min(first, max(last, 0)), max(last, 0)


def error(result: Tensor, exact: Tensor) -> float:
    """Return the largest error relative to the largest exact value."""
    flat = result.double().reshape(exact.shape)
    if exact.numel() == 0:
        return 0.0
    return float((flat - exact).abs().max() / exact.abs().max().clamp(min=1e-30))


def same_lse(result: Tensor, exact: Tensor, tolerance: float) -> bool:
    """Say whether two log-sum-exps agree, minus infinity included."""
    flat = result.double().reshape(exact.shape)
    finite = torch.isfinite(exact)
    if not torch.equal(torch.isneginf(flat), torch.isneginf(exact)):
        return False
    if not finite.any():
        return True
    largest = max(1.0, float(exact[finite].abs().max()))
    return float((flat - exact)[finite].abs().max()) <= tolerance * largest
