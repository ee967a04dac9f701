"""The tensors of a call over a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

EPS = 1e-6


@dataclass(frozen=True)
class Append:
    """The new token of each sequence, its place, and where its keys and values go."""

    qkv: Tensor  # [B, (Hq + 2 Hkv) * D]
    cos_sin: Tensor  # [L, D]
    positions: Tensor  # [B]
    slots: Tensor  # [B]


@dataclass(frozen=True)
class CacheInputs:
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

    @property
    def vectors(self) -> Sequence[Tensor]:
        """Norm weights in recipe order; with LayerNorm each is followed by its bias."""
        if self.norms is None or self.biases is None:
            return self.norms or ()
        return (self.norms[0], self.biases[0], self.norms[1], self.biases[1])
