"""Multi-head latent attention over a cache of latents: DeepSeek's models, with absorbed weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict, overload

from torch import Tensor

from mirage_kernels.argument_checks import (
    given_flag,
    given_integer,
    given_tensor,
    refuse_grad,
    watches_grad,
)
from mirage_kernels.assumptions import assumed
from mirage_kernels.attention_calls import Pair, Wanted, attend, bounds_of, forms
from mirage_kernels.errors import dims_sentence, latent_sizes_sentence

if TYPE_CHECKING:
    from typing_extensions import Unpack

_MLA = forms("mla_decode")
_LATENT = 512


class LatentCall(NamedTuple):
    """One call: `q` and `latent` go with each other, and so do `q_rope` and `rope`."""

    q: Tensor
    q_rope: Tensor
    latent: Tensor  # [.., .., C]
    rope: Tensor
    block_table: Tensor | None
    seq_lens: Tensor | None
    cu_seqlens_q: Tensor | None
    max_q_len: int | None
    max_seq_len: int | None
    scale: float
    causal: bool

    def arguments(self, q: Tensor) -> tuple[object, ...]:
        """Return them as the op takes them, for q as `[tokens, Hq, C]`."""
        rope = self.q_rope
        if rope.dim() > 3:
            rope = rope.reshape(-1, *rope.shape[-2:])
        bounds = bounds_of(self.q, self.max_q_len, self.max_seq_len)
        lengths = (self.block_table, self.seq_lens, self.cu_seqlens_q)
        causal = given_flag("mla_decode", "causal", self.causal)
        caches = (_with_head(self.latent), _with_head(self.rope))
        return (q, rope, *caches, *lengths, *bounds, self.scale, causal)


def _with_head(cache: Tensor) -> Tensor:
    """View a cache as `[pages, page size, 1, ..]`; FlashMLA's has that dim already."""
    return cache.unsqueeze(2) if cache.dim() == 3 else cache


def _parts(name: str, given: object, latent_dim: int) -> Pair:
    """Return the latent part and the rest of what is given whole, or as two tensors."""
    if isinstance(given, tuple | list) and len(given) == 2:
        latent, rest = given
        return given_tensor("mla_decode", name, latent), given_tensor("mla_decode", name, rest)
    given = given_tensor("mla_decode", name, given)
    given_integer("mla_decode", "latent_dim", latent_dim)
    if given.dim() == 0:
        raise RuntimeError(dims_sentence("mla_decode", name, 0, "[..., latent_dim + rope]"))
    if not 0 < latent_dim < given.shape[-1]:
        raise RuntimeError(latent_sizes_sentence(name, given.shape[-1], latent_dim))
    return given[..., :latent_dim], given[..., latent_dim:]


class MlaOptions(TypedDict, total=False):
    """What the op takes by name beside the scale, for type checkers."""

    latent_dim: int
    cu_seqlens_q: Tensor | None
    max_q_len: int | None
    causal: bool
    max_seq_len: int | None
    constant_weights: bool | None
    constant_history: bool | None
    out: Tensor | None
    lse: Tensor | None


@overload
def mla_decode(
    q: Tensor | Pair,
    kv_cache: Tensor | Pair,
    block_table: Tensor | None = None,
    seq_lens: Tensor | None = None,
    *,
    scale: float,
    return_lse: Literal[False] = False,
    **options: Unpack[MlaOptions],
) -> Tensor: ...
@overload
def mla_decode(
    q: Tensor | Pair,
    kv_cache: Tensor | Pair,
    block_table: Tensor | None = None,
    seq_lens: Tensor | None = None,
    *,
    scale: float,
    return_lse: Literal[True],
    **options: Unpack[MlaOptions],
) -> Pair: ...
@overload
def mla_decode(
    q: Tensor | Pair,
    kv_cache: Tensor | Pair,
    block_table: Tensor | None = None,
    seq_lens: Tensor | None = None,
    *,
    scale: float,
    return_lse: bool,
    **options: Unpack[MlaOptions],
) -> Tensor | Pair: ...
def mla_decode(
    q: Tensor | Pair,
    kv_cache: Tensor | Pair,
    block_table: Tensor | None = None,
    seq_lens: Tensor | None = None,
    *,
    scale: float,
    latent_dim: int = _LATENT,
    cu_seqlens_q: Tensor | None = None,
    max_q_len: int | None = None,
    causal: bool = True,
    max_seq_len: int | None = None,
    constant_weights: bool | None = None,
    constant_history: bool | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | Pair:
    """Compute attention of all heads over one latent per key, in one kernel.

        out[t, h] = sum_l softmax_l(scale * (dot(q_latent[t, h], latent[l])
                                             + dot(q_rope[t, h], rope[l]))) * latent[l]

    The up-projections of keys and values are absorbed into q and into what follows. A line of
    `kv_cache` is a key's latent, `latent_dim` long, and then its rotated part: `[pages, page size,
    576]`, also with a dim of one head before the last (vLLM, FlashMLA), or the pair of caches
    `(latent, rope)` (FlashInfer). q is `[B, Hq, 576]`, `[B, T, Hq, 576]`, or `[tokens, Hq, 576]`
    with `cu_seqlens_q`, or the pair `(q_latent, q_rope)`. The result has `latent_dim` in place of
    576. `scale` is that of the model, 1 / sqrt(128 + 64) times what its RoPE adds.

    All else is as in `gqa`: strides, dense caches `[B, L, 576]`, lengths, results and errors stand
    at the head of `mirage_kernels.attention`. Kernels serve one query token per sequence, or
    several that see all keys (`causal=False`).

    Source: DeepSeek-AI, "DeepSeek-V2", 2024.
    """
    q_latent, q_rope = _parts("q", q, latent_dim)
    latent, rope = _parts("kv_cache", kv_cache, latent_dim)
    lengths = (block_table, seq_lens, cu_seqlens_q, max_q_len, max_seq_len)
    call = LatentCall(q_latent, q_rope, latent, rope, *lengths, scale, causal)
    if watches_grad():
        refuse_grad("mla_decode", q=q_latent, kv_cache=latent, out=out, lse=lse)
        refuse_grad("mla_decode", q=q_rope, kv_cache=rope)
    assume = assumed("mla_decode", constant_weights, constant_history)
    return attend(_MLA, call, Wanted(out, lse, return_lse, assume))
