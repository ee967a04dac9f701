"""What is measured of attention: calls as serving makes them, and those of the Mirage paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.ir.dtypes import DType

LAYER_NORM, LATENT = "qk_layer_norm_attention", "mla_decode"
ATTENTION = (
    *("gqa", "sliding_window_attention", "gqa_full"),
    *("qk_norm_attention", LAYER_NORM, LATENT),
)
DECODE, MIXED, PREFILL = "decode", "mixed lengths", "prefill"
PAPER = "the Mirage paper's"
APPEND = "norm, RoPE, append, decode"
ELEMENT_BYTES = 2
PAGE_SIZES = (16, 64)

# Query heads and heads of the cache; keys of each sequence by the number of sequences.
_DECODE = (
    ((32, 8), {1: (1024, 4096, 16384), 8: (1024, 4096), 16: (1024,), 64: (1024, 4096)}),
    ((16, 2), {1: (4096,), 8: (4096,), 16: (4096,)}),
)
_MIXED_SEQUENCES, _LONGEST = 64, 16384
_PAPER_BATCHES, _PAPER_HEADS, _PAPER_ROWS = (1, 8, 16), 2, 256
_USUAL_KEYS = 4096
_PREFILLS = (1024, 4096)


@dataclass(frozen=True)
class CallWorkload:
    """One call: `lengths` are keys of each sequence, `tokens` the query tokens of each.

    Without pages (`page_size` 0) the keys are dense, `[B, Hkv, L, D]`. Several tokens see the keys
    up to their own. Keys have `more` elements beside those that are values, if any: latents.
    """

    recipe: str
    setting: str
    lengths: tuple[int, ...]
    heads: tuple[int, int] = (32, 8)  # of queries, of keys
    depth: int = 128
    more: int = 0
    page_size: int = 16
    tokens: int = 1
    scale: float | None = None
    window_left: int = -1
    logits_soft_cap: float = 0.0
    dtype: DType = DType.FP16

    @property
    def sequences(self) -> int:
        """B, the number of sequences."""
        return len(self.lengths)

    @property
    def longest(self) -> int:
        """L, the keys of the longest sequence."""
        return max(self.lengths)

    @property
    def group(self) -> int:
        """G, the query heads that share a head of keys."""
        return self.heads[0] // self.heads[1]

    @property
    def is_even(self) -> bool:
        """Say whether all sequences are as long."""
        return min(self.lengths) == self.longest

    @property
    def appends(self) -> bool:
        """Say whether the new token's keys are normed, rotated and written in front."""
        return self.setting == APPEND

    @property
    def norms(self) -> bool:
        """Say whether queries and keys are normed in the attention kernel."""
        return self.recipe in ("qk_norm_attention", LAYER_NORM)

    @property
    def kernel_dims(self) -> dict[str, int]:
        """The static extents of the kernel that serves it."""
        return {"C": self.depth, "P": self.more} if self.more else {"D": self.depth}

    @property
    def needs_kernel(self) -> bool:
        """Say whether a kernel of ours is meant to serve it; prefill is PyTorch's."""
        return self.setting != PREFILL

    @property
    def dims(self) -> dict[str, int]:
        """Sizes by name."""
        query_heads, kv_heads = self.heads
        sizes = {"B": self.sequences, "Hq": query_heads, "Hkv": kv_heads, "D": self.depth}
        return sizes | {"T": self.tokens, "L": self.longest, "page": self.page_size}

    @property
    def name(self) -> str:
        """How filters and progress know it: `gqa decode 32/8 D=128 B=8 L=4096 page=16 fp16`."""
        heads = "/".join(map(str, self.heads))
        sizes = f"D={self.depth} B={self.sequences} L={self.longest}"
        place = f"page={self.page_size}" if self.page_size else "dense"
        return f"{self.recipe} {self.setting} {heads} {sizes} {place} {self.dtype.value}"

    @property
    def bytes_read(self) -> int:
        """Bytes of the keys and values that are seen; queries and results are few beside them."""
        reach = self.longest if self.window_left < 0 else self.window_left + self.tokens
        keys = sum(min(length, reach) for length in self.lengths)
        line = self.depth + (self.more or self.depth)  # latents are keys and values
        return keys * self.heads[1] * line * ELEMENT_BYTES

    @property
    def operations(self) -> int:
        """Floating-point operations of both products, over the keys that each token sees."""
        hidden = self.tokens * (self.tokens - 1) // 2
        pairs = sum(length * self.tokens - hidden for length in self.lengths)
        return 2 * pairs * self.heads[0] * (2 * self.depth + self.more)


def workloads(dtypes: Sequence[DType]) -> list[CallWorkload]:
    """Return every workload that is measured, in each type."""
    found = [*_decodes(), *_mixed(), *_papers(), *_normed(), *_appended(), *_prefills()]
    found += _latents()
    return [replace(workload, dtype=dtype) for dtype in dtypes for workload in found]


def usual(
    recipe: str, depth: int, sequences: Sequence[int], dtypes: Sequence[DType]
) -> list[CallWorkload]:
    """Return decode at usual sizes, for recipes and depths that no listed workload has."""
    window_left = 1023 if recipe == "sliding_window_attention" else -1
    cap = 50.0 if recipe == "gqa_full" else 0.0
    return [
        CallWorkload(
            recipe,
            DECODE,
            (_USUAL_KEYS,) * count,
            depth=depth,
            window_left=window_left,
            logits_soft_cap=cap,
            dtype=dtype,
        )
        for dtype in dtypes
        for count in sequences
    ]


def dense_twin(workload: CallWorkload) -> CallWorkload:
    """Return the same workload without pages: all page sizes have the same peers."""
    return replace(workload, page_size=0)


def mixed_lengths() -> tuple[int, ...]:
    """Return lengths from 1 to the longest with a long tail, in a fixed disorder."""
    count = _MIXED_SEQUENCES
    grown = [round(_LONGEST ** (i / count)) for i in range(1, count + 1)]
    step = 27  # coprime to the count: a fixed permutation
    return tuple(grown[i * step % count] for i in range(count))


def _decodes() -> Iterator[CallWorkload]:
    for page_size in PAGE_SIZES:
        for heads, by_batch in _DECODE:
            for sequences, every in by_batch.items():
                for keys in every:
                    lengths = (keys,) * sequences
                    yield CallWorkload("gqa", DECODE, lengths, heads, page_size=page_size)


def _mixed() -> Iterator[CallWorkload]:
    for page_size in PAGE_SIZES:
        yield CallWorkload("gqa", MIXED, mixed_lengths(), page_size=page_size)


def _papers() -> Iterator[CallWorkload]:
    """Yield 2 b heads of keys, each with 256 query rows: as a group, for one token of b."""
    for recipe in ("gqa", "qk_norm_attention"):
        for batch in _PAPER_BATCHES:
            yield CallWorkload(
                recipe,
                PAPER,
                (_USUAL_KEYS,) * batch,
                (_PAPER_HEADS * _PAPER_ROWS, _PAPER_HEADS),
                depth=64,
                page_size=0,
                scale=1.0,
            )


def _normed() -> Iterator[CallWorkload]:
    for sequences in (1, 8, 16):
        yield CallWorkload("qk_norm_attention", DECODE, (_USUAL_KEYS,) * sequences)
    for sequences in (1, 8):  # Chameleon-34B
        yield CallWorkload(LAYER_NORM, DECODE, (_USUAL_KEYS,) * sequences, (64, 8))


def _appended() -> Iterator[CallWorkload]:
    for sequences in (1, 8):
        yield CallWorkload("gqa", APPEND, (_USUAL_KEYS,) * sequences)


def _latents() -> Iterator[CallWorkload]:
    """Yield DeepSeek-V3's decode, TP 1 and 8."""
    for heads in (128, 16):
        for sequences in (1, 8, 32):
            yield CallWorkload(
                LATENT,
                DECODE,
                (_USUAL_KEYS,) * sequences,
                (heads, 1),
                depth=512,
                more=64,
                page_size=64,
                scale=192**-0.5,
            )


def _prefills() -> Iterator[CallWorkload]:
    for tokens in _PREFILLS:
        yield CallWorkload("gqa", PREFILL, (tokens,), page_size=0, tokens=tokens)
