"""At which calls the candidates of kernels over a cache are compared: few, fixed, of every bucket.

Decode of one to many sequences, short and long, over pages; calls of more query rows as grouped
heads, as tokens where a recipe has them, and as the Mirage paper has them. What is measured of
dense calls of many query tokens says from how many on PyTorch's attention is faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from mirage_kernels.generator.bench.workloads.calls import (
    DECODE,
    LATENT,
    PAPER,
    PREFILL,
    CallWorkload,
)
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.tuning.keys import Key

# Sequences and keys of each.
_FEW_ROWS = ((1, 1024), (1, 4096), (1, 16384), (8, 1024), (8, 4096), (64, 1024))
_MORE_ROWS = ((1, 4096), (8, 1024), (8, 4096), (64, 1024))
_MANY_TOKENS = ((1, 32), (8, 32), (1, 128))  # sequences of 4096 keys, query tokens of each
_LATENTS = ((1, 4096), (8, 4096), (32, 4096))
_LATENT_SCALE = 192**-0.5
_PAPER_BATCHES, _PAPER_HEADS, _PAPER_KEYS = (1, 8, 16), (512, 2), 4096
_HEADS, _FEW_HEADS = (32, 8), (16, 2)  # of queries, of keys
_MANY_HEADS, _MUCH_TO_READ = 128, 8192  # of queries; keys of all sequences
TOKENS = ("sliding_window_attention", "gqa_full")  # recipes of several, causal, query tokens
_CAP = 50.0
DENSE_RECIPES = {"gqa": False, "sliding_window_attention": True}  # whether causal
# Query tokens of each of so many sequences: of 4096 keys; sequences, causal query tokens and keys,
# where those are not many more; causal tokens that are all there are.
_CHUNKS = {1: (16, 64, 128, 256, 512, 1024), 8: (16, 32, 64, 128, 256)}
_LONG_CHUNKS = {1: (2048, 4032), 8: (512,)}
_MOST = ((1, 96, 128), (1, 384, 512), (1, 768, 1024), (8, 96, 128), (8, 768, 1024))
_SQUARES = {1: (64, 128, 256, 512, 1024, 4096), 8: (64, 128, 256, 512, 1024)}
_DENSE_KEYS = 4096


@dataclass(frozen=True)
class Named:
    """A workload and a short name for it."""

    name: str
    call: CallWorkload

    @property
    def rows(self) -> int:
        """Query rows of a head of keys."""
        return self.call.tokens * self.call.group


def named_calls(key: Key) -> tuple[Named, ...]:
    """Return the workloads of a kernel, those of few rows first."""
    made = _latents(key) if key.recipe == LATENT else (*_rows(key), *_papers(key))
    return tuple(Named(_name(w), w) for w in made)


def bucket_of(rows: int, buckets: tuple[int, ...]) -> int:
    """Return the bucket of a number of rows: the least that holds it, 0 above all."""
    return min((b for b in buckets if rows <= b), default=0)


def is_causal(key: Key) -> bool:
    """Say whether a kernel's dense calls are causal."""
    return DENSE_RECIPES[key.recipe]


def dense_calls(key: Key) -> tuple[Named, ...]:
    """Return the dense calls at which a kernel is compared with PyTorch's attention, if any."""
    if key.recipe not in DENSE_RECIPES:
        return ()
    shapes = [(b, t, _DENSE_KEYS) for b, tokens in _CHUNKS.items() for t in tokens]
    if DENSE_RECIPES[key.recipe]:
        shapes += [(b, t, _DENSE_KEYS) for b, tokens in _LONG_CHUNKS.items() for t in tokens]
        shapes += [*_MOST, *((b, t, t) for b, tokens in _SQUARES.items() for t in tokens)]
    return tuple(
        Named(f"B={b} T={t} L={keys}", _call(key, (keys,) * b, _HEADS, t, PREFILL))
        for b, t, keys in shapes
    )


def _name(w: CallWorkload) -> str:
    place = f"pages of {w.page_size}" if w.page_size else "dense"
    heads = "/".join(map(str, w.heads))
    return f"B={w.sequences} L={w.longest} T={w.tokens} heads {heads} {place}"


def _rows(key: Key) -> Iterator[CallWorkload]:
    """Yield calls over pages with 4 and 8, 16 and 32 rows."""
    by_tokens = key.recipe in TOKENS
    for batch, keys in _FEW_ROWS:
        yield _call(key, (keys,) * batch, _HEADS, 2 if by_tokens else 1)
    yield _call(key, (4096,) * 8, _FEW_HEADS, 1)
    for rows, (batch, keys) in product((16, 32), _MORE_ROWS):
        if by_tokens:
            yield _call(key, (keys,) * batch, _HEADS, rows // 4)
            continue
        for heads in (_HEADS[0], _MANY_HEADS):
            if heads == _HEADS[0] or keys * batch >= _MUCH_TO_READ:
                yield _call(key, (keys,) * batch, (heads, heads // rows), 1)
    if by_tokens:
        for batch, tokens in _MANY_TOKENS:
            yield _call(key, (4096,) * batch, _HEADS, tokens)


def _papers(key: Key) -> Iterator[CallWorkload]:
    """Yield the Mirage paper's shape, where heads are short enough."""
    if key.shape["D"] > 128 or key.recipe in TOKENS:
        return
    for batch in _PAPER_BATCHES:
        yield _call(key, (_PAPER_KEYS,) * batch, _PAPER_HEADS, 1, PAPER)


def _latents(key: Key) -> Iterator[CallWorkload]:
    for heads in (16, 128):
        for batch, keys in _LATENTS:
            yield CallWorkload(
                LATENT,
                DECODE,
                (keys,) * batch,
                (heads, 1),
                depth=key.shape["C"],
                more=key.shape["P"],
                page_size=64,
                scale=_LATENT_SCALE,
                dtype=DType(key.dtype),
            )


def _call(
    key: Key, lengths: tuple[int, ...], heads: tuple[int, int], tokens: int, setting: str = DECODE
) -> CallWorkload:
    return CallWorkload(
        key.recipe,
        setting,
        lengths,
        heads,
        depth=key.shape["D"],
        page_size=16 if setting == DECODE else 0,
        tokens=tokens,
        scale=1.0 if setting == PAPER else None,
        logits_soft_cap=_CAP if key.recipe == "gqa_full" else 0.0,
        dtype=DType(key.dtype),
    )
