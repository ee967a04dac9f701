"""Calls of mla_decode at random, and what they compute in float64: a loop per query token."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mirage_kernels import mla_decode

Parts = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """One call. `lengths` are keys of each sequence, `tokens` its query tokens."""

    lengths: tuple[int, ...] = (5, 33, 16)
    tokens: tuple[int, ...] = (1,)  # one for all, or one per sequence
    heads: int = 4
    sizes: tuple[int, int] = (32, 16)  # of the latent and of what is rotated
    dtype: torch.dtype = torch.float16
    device: str = "cpu"
    page_size: int = 16  # 0: dense
    apart: bool = False  # q and the cache are given in two tensors each
    with_head: bool = False  # the cache has a dim of one head
    spread: float = 1.0  # standard deviation of the inputs
    options: dict[str, object] = field(default_factory=dict)
    seed: int = 0

    @property
    def counts(self) -> tuple[int, ...]:
        """Query tokens of each sequence."""
        return self.tokens if len(self.tokens) > 1 else self.tokens * len(self.lengths)

    @property
    def tolerance(self) -> float:
        """How far a result may be off, relative to the largest of the tensor."""
        return 1e-3 if self.dtype == torch.float16 else 8e-3


@dataclass
class Call:
    """The tensors of a case."""

    case: Case
    q: Tensor
    cache: Tensor
    keys: list[Tensor]  # [length, C + P] of each sequence
    given: dict[str, object]

    def run(self, **more: object) -> object:
        """Call the op."""
        case, latent = self.case, self.case.sizes[0]
        q: Tensor | Parts = self.q
        cache: Tensor | Parts = self.cache.unsqueeze(2) if case.with_head else self.cache
        if case.apart:
            q, cache = _halves(self.q, latent), _halves(cache, latent)
        options = {"scale": scale_of(case), "latent_dim": latent, **self.given, **case.options}
        return mla_decode(q, cache, **options | more)  # type: ignore[call-overload]

    def exact(self) -> tuple[Tensor, Tensor]:
        """Return the result and its log-sum-exp, in float64, as [tokens, Hq, ..]."""
        case = self.case
        queries = self.q.double().reshape(-1, case.heads, sum(case.sizes))
        out = torch.zeros_like(queries[..., : case.sizes[0]])
        lse = torch.full_like(queries[..., 0], -torch.inf)
        token = 0
        for keys, count in zip(self.keys, case.counts, strict=True):
            for t in range(count):
                seen = keys.double()[: self.visible(len(keys), (t, count))]
                if len(seen):
                    scores = queries[token] @ seen.t() * scale_of(case)
                    lse[token] = scores.logsumexp(1)
                    out[token] = scores.softmax(1) @ seen[:, : case.sizes[0]]
                token += 1
        return out, lse

    def visible(self, length: int, place: tuple[int, int]) -> int:
        """Return how many keys a token sees; `place` is its number and of how many."""
        causal = self.case.options.get("causal")
        causal = bool(self.case.page_size) if causal is None else causal
        return max(0, length - place[1] + place[0] + 1) if causal else length


def scale_of(case: Case) -> float:
    """Return the scale that a case is called with."""
    return 1.1 * sum(case.sizes) ** -0.5 / case.spread


def _halves(tensor: Tensor, latent: int) -> Parts:
    """Return the parts of lines, in memory of their own."""
    return tensor[..., :latent].clone(), tensor[..., latent:].clone()


def made(case: Case) -> Call:
    """Draw the tensors of a case; pages and places that no sequence uses hold NaN."""
    draw = torch.Generator(case.device).manual_seed(case.seed)
    width = sum(case.sizes)

    def normal(*shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=draw, device=case.device) * case.spread
        return drawn.to(case.dtype)

    keys = [normal(length, width) for length in case.lengths]
    q = normal(sum(case.counts), case.heads, width)
    given: dict[str, object] = {}
    if len(case.tokens) > 1:
        given["cu_seqlens_q"] = torch.tensor([0, *case.counts]).cumsum(0).int().to(case.device)
    elif case.tokens[0] != 1:
        q = q.view(len(case.lengths), case.tokens[0], case.heads, width)
    if not case.page_size:
        cache = q.new_full((len(keys), max(case.lengths), width), torch.nan)
        for line, own in zip(cache, keys, strict=True):
            line[: len(own)] = own
        if len({*case.lengths}) > 1:
            given["seq_lens"] = torch.tensor(case.lengths).int().to(case.device)
        return Call(case, q, cache, keys, given)
    counts = [-(-length // case.page_size) for length in case.lengths]
    order = torch.randperm(sum(counts) + 3, generator=draw, device=case.device).int()
    cache = q.new_full((len(order), case.page_size, width), torch.nan)
    table = torch.full((len(keys), max(counts) + 1), 2**30, dtype=torch.int32, device=case.device)
    used = 0
    for row, own, count in zip(table, keys, counts, strict=True):
        row[:count] = order[used : used + count]
        used += count
        whole = own.new_full((count * case.page_size, width), torch.nan)
        whole[: len(own)] = own
        cache[row[:count]] = whole.view(count, case.page_size, width)
    given |= {"block_table": table}
    given["seq_lens"] = torch.tensor(case.lengths, dtype=torch.int32, device=case.device)
    return Call(case, q, cache, keys, given)
