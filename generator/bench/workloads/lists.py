"""Which calls are measured: by `bench`, and by `tune` to compare candidates of a kernel.

Tensor calls differ in their tokens only. Calls over a cache are those of serving, and the Mirage
paper's. `tune` has few, fixed ones for every bucket of query rows: decode of one to many sequences,
short and long, over pages; more rows as grouped heads, as tokens where a recipe has them, and as
the paper has them. Dense calls of many query tokens say from how many on PyTorch's is faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from mirage_kernels.generator.bench.workloads.cache import (
    APPEND,
    DECODE,
    LATENT,
    LAYER_NORM,
    PREFILL,
    CacheWorkload,
)
from mirage_kernels.generator.bench.workloads.tensors import TensorWorkload
from mirage_kernels.generator.ir.dtypes import DType

Workload = TensorWorkload | CacheWorkload
MIXED, PAPER = "mixed lengths", "the Mirage paper's"
PAGE_SIZES = (16, 64)
# Query heads and heads of the cache; keys of each sequence by the number of sequences.
_DECODE = (
    ((32, 8), {1: (1024, 4096, 16384), 8: (1024, 4096), 16: (1024,), 64: (1024, 4096)}),
    ((16, 2), {1: (4096,), 8: (4096,), 16: (4096,)}),
)
_USUAL_KEYS, _HEADS = 4096, (32, 8)  # heads of queries, of keys
_PAPER_BATCHES, _PAPER_HEADS = (1, 8, 16), (512, 2)  # 256 query rows to a head of keys
_MIXED_SEQUENCES, _LONGEST = 64, 16384
_PREFILLS = (1024, 4096)
_LATENT_SCALE = 192**-0.5
_CAP, _WINDOW = 50.0, 1023
SEVERAL_TOKENS = ("sliding_window_attention", "gqa_full")  # recipes with causal query tokens

# -- bench -----------------------------------------------------------------------------------------


def cache_workloads(dtypes: Sequence[DType]) -> list[CacheWorkload]:
    """Return every call over a cache that `bench` measures, in each type."""
    found = [*_decodes(), *_of_settings()]
    return [replace(workload, dtype=dtype) for dtype in dtypes for workload in found]


def usual(
    recipe: str, depth: int, sequences: Sequence[int], dtypes: Sequence[DType]
) -> list[CacheWorkload]:
    """Return decode at usual sizes, for recipes and depths that no listed workload has."""
    window = _WINDOW if recipe == "sliding_window_attention" else -1
    own = replace(_decode(recipe), depth=depth, window_left=window)
    lengths = [(_USUAL_KEYS,) * count for count in sequences]
    return [replace(own, lengths=each, dtype=dtype) for dtype in dtypes for each in lengths]


def mixed_lengths() -> tuple[int, ...]:
    """Return lengths from 1 to the longest with a long tail, in a fixed disorder."""
    count = _MIXED_SEQUENCES
    grown = [round(_LONGEST ** (i / count)) for i in range(1, count + 1)]
    step = 27  # coprime to the count: a fixed permutation
    return tuple(grown[i * step % count] for i in range(count))


def _decode(recipe: str, sequences: int = 1, keys: int = _USUAL_KEYS) -> CacheWorkload:
    cap = _CAP if recipe == "gqa_full" else 0.0
    lengths = (keys,) * sequences
    return CacheWorkload(recipe, lengths, _HEADS, logits_soft_cap=cap, setting=DECODE)


def _latents(sequences: int, heads: int, dims: Mapping[str, int]) -> CacheWorkload:
    own = replace(_decode(LATENT, sequences), heads=(heads, 1), depth=dims["C"], more=dims["P"])
    return replace(own, page_size=64, scale=_LATENT_SCALE)


def _paper(recipe: str, sequences: int, depth: int = 64) -> CacheWorkload:
    own = replace(_decode(recipe, sequences), heads=_PAPER_HEADS, depth=depth, setting=PAPER)
    return replace(own, page_size=0, scale=1.0)


def _decodes() -> Iterator[CacheWorkload]:
    for page_size in PAGE_SIZES:
        for heads, by_batch in _DECODE:
            for sequences, every in by_batch.items():
                for keys in every:
                    yield replace(_decode("gqa", sequences, keys), heads=heads, page_size=page_size)


def _of_settings() -> Iterator[CacheWorkload]:
    for page_size in PAGE_SIZES:
        yield CacheWorkload("gqa", mixed_lengths(), page_size=page_size, setting=MIXED)
    for recipe, sequences in product(("gqa", "qk_norm_attention"), _PAPER_BATCHES):
        yield _paper(recipe, sequences)
    for sequences in (1, 8, 16):
        yield _decode("qk_norm_attention", sequences)
    for sequences in (1, 8):  # Chameleon-34B
        yield replace(_decode(LAYER_NORM, sequences), heads=(64, 8))
    for sequences in (1, 8):
        yield replace(_decode("gqa", sequences), setting=APPEND)
    for tokens in _PREFILLS:
        yield CacheWorkload("gqa", (tokens,), page_size=0, tokens=tokens, setting=PREFILL)
    for heads, sequences in product((128, 16), (1, 8, 32)):  # DeepSeek-V3, TP 1 and 8
        yield _latents(sequences, heads, {"C": 512, "P": 64})


# -- tune ------------------------------------------------------------------------------------------

# Sequences and keys of each.
_FEW_ROWS = ((1, 1024), (1, 4096), (1, 16384), (8, 1024), (8, 4096), (64, 1024))
_MORE_ROWS = ((1, 4096), (8, 1024), (8, 4096), (64, 1024))
_MANY_TOKENS = ((1, 32), (8, 32), (1, 128))  # sequences of usual length, query tokens of each
_FEW_HEADS, _MANY_HEADS = (16, 2), 128
_MUCH_TO_READ = 8192  # keys of all sequences
DENSE_RECIPES = {"gqa": False, "sliding_window_attention": True}  # whether causal
# Query tokens of each of so many sequences: of usual length; sequences, causal query tokens and
# keys, where those are not many more; causal tokens that are all there are.
_CHUNKS = {1: (16, 64, 128, 256, 512, 1024), 8: (16, 32, 64, 128, 256)}
_LONG_CHUNKS = {1: (2048, 4032), 8: (512,)}
_MOST = ((1, 96, 128), (1, 384, 512), (1, 768, 1024), (8, 96, 128), (8, 768, 1024))
_SQUARES = {1: (64, 128, 256, 512, 1024, 4096), 8: (64, 128, 256, 512, 1024)}


def kernel_calls(recipe: str, dtype: DType, dims: Mapping[str, int]) -> dict[str, CacheWorkload]:
    """Return the calls at which candidates of a kernel are compared, by a short name.

    Those of few rows come first.
    """
    if recipe == LATENT:
        sizes = product((16, 128), (1, 8, 32))
        made = [_latents(sequences, heads, dims) for heads, sequences in sizes]
    else:
        made = [*_rows(replace(_decode(recipe), depth=dims["D"]))]
        if dims["D"] <= 128 and recipe not in SEVERAL_TOKENS:
            made += [_paper(recipe, sequences, dims["D"]) for sequences in _PAPER_BATCHES]
    found = {}
    for w in made:
        place = f"pages of {w.page_size}" if w.page_size else "dense"
        heads = "/".join(map(str, w.heads))
        name = f"B={w.sequences} L={w.longest} T={w.tokens} heads {heads} {place}"
        found[name] = replace(w, dtype=dtype)
    return found


def dense_calls(recipe: str, dtype: DType, dims: Mapping[str, int]) -> dict[str, CacheWorkload]:
    """Return the dense calls at which a kernel is compared with PyTorch's attention, if any."""
    if recipe not in DENSE_RECIPES:
        return {}
    causal = DENSE_RECIPES[recipe]
    shapes = [(b, t, _USUAL_KEYS) for b, tokens in _CHUNKS.items() for t in tokens]
    if causal:
        shapes += [(b, t, _USUAL_KEYS) for b, tokens in _LONG_CHUNKS.items() for t in tokens]
        shapes += [*_MOST, *((b, t, t) for b, tokens in _SQUARES.items() for t in tokens)]
    usual = replace(_decode(recipe), depth=dims["D"], setting=PREFILL, dtype=dtype)
    usual = replace(usual, page_size=0, is_causal=causal)
    return {
        f"B={b} T={t} L={keys}": replace(usual, lengths=(keys,) * b, tokens=t)
        for b, t, keys in shapes
    }


def _rows(usual: CacheWorkload) -> Iterator[CacheWorkload]:
    """Yield calls over pages with 4 and 8, 16 and 32 rows."""
    by_tokens = usual.recipe in SEVERAL_TOKENS
    for batch, keys in _FEW_ROWS:
        yield replace(usual, lengths=(keys,) * batch, tokens=2 if by_tokens else 1)
    yield replace(usual, lengths=(_USUAL_KEYS,) * 8, heads=_FEW_HEADS)
    for rows, (batch, keys) in product((16, 32), _MORE_ROWS):
        long = replace(usual, lengths=(keys,) * batch)
        if by_tokens:
            yield replace(long, tokens=rows // 4)
            continue
        yield replace(long, heads=(_HEADS[0], _HEADS[0] // rows))
        if keys * batch >= _MUCH_TO_READ:
            yield replace(long, heads=(_MANY_HEADS, _MANY_HEADS // rows))
    for batch, tokens in _MANY_TOKENS if by_tokens else ():
        yield replace(usual, lengths=(_USUAL_KEYS,) * batch, tokens=tokens)
