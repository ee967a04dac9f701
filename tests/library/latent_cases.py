"""Calls of mla_decode at random, and in float64 attention over whole lines."""

from __future__ import annotations

from dataclasses import dataclass, field

import attention_cases
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
    def tolerance(self) -> float:
        """How far a result may be off, relative to the largest of the tensor."""
        return self.as_attention().tolerance

    def as_attention(self) -> attention_cases.Case:
        """Return the same call with whole lines for keys, whose first part are the values."""
        return attention_cases.Case(
            *(self.lengths, self.tokens, (self.heads, 1), sum(self.sizes), self.dtype, self.device),
            page_size=self.page_size,
            options={"scale": scale_of(self), **self.options},
            spread=self.spread,
            seed=self.seed,
        )


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
        keys = [own.unsqueeze(1) for own in self.keys]
        values = [own[..., : self.case.sizes[0]] for own in keys]
        whole = (self.q, self.cache, self.cache, keys, values, {}, self.given)
        return attention_cases.Call(self.case.as_attention(), *whole).exact()


def scale_of(case: Case) -> float:
    """Return the scale that a case is called with."""
    return 1.1 * sum(case.sizes) ** -0.5 / case.spread


def _halves(tensor: Tensor, latent: int) -> Parts:
    """Return the parts of lines, in memory of their own."""
    return tensor[..., :latent].clone(), tensor[..., latent:].clone()


def made(case: Case) -> Call:
    """Draw the tensors of a case; pages and places that no sequence uses hold NaN."""
    whole = attention_cases.made(case.as_attention())
    given = {name: value for name, value in whole.given.items() if name != "kv_layout"}
    return Call(case, whole.q, whole.k.squeeze(2), [own.squeeze(1) for own in whole.keys], given)
