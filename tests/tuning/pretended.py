"""A tuning without a compiler and without a GPU: libraries by name, times by rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.flash_decode import FlashDecode
from mirage_kernels.generator.schedules.loop import Producers
from mirage_kernels.generator.schedules.register_operand import RegisterOperand
from mirage_kernels.generator.schedules.row_wise import RowWise
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.schedules.sliced_k import SlicedK
from mirage_kernels.generator.schedules.wgmma_attention import WgmmaAttention
from mirage_kernels.generator.tuning.catalog import Bucket, Dense, Key, Point, Tried, Tuned
from mirage_kernels.generator.tuning.session import Tuning

HERE: dict[str, Json] = {"gpu": "pretended", "driver": "1", "cuda": "13.0", "torch": "2.11"}
REPORT = """ptxas info    : Compiling entry function '_Z1k' for 'sm_90a'
    0 bytes stack frame, {spilled} bytes spill stores, {spilled} bytes spill loads
ptxas info    : Used 96 registers, used 1 barriers
"""
MakeTuning = Callable[..., Tuning]


@dataclass
class Pretended:
    """Answers as the worker does; what is not in `times` takes 20 us, dense calls 10.

    Times are by library and call: `a8@M=8`, `a8@M=8 by default`, and of calls over a cache by the
    beginning of their names, `large@B=1 `. Calls of one sequence have few work tiles.
    """

    times: dict[str, float] = field(default_factory=dict)
    fails: dict[str, str] = field(default_factory=dict)
    eager_us: float = 30.0
    library_us: float | None = None
    here: dict[str, Json] = field(default_factory=lambda: dict(HERE))
    stops_after: int = 10_000
    asked: list[dict[str, Json]] = field(default_factory=list)
    closed: bool = False

    def ask(self, question: dict[str, Json], *, seconds: float) -> dict[str, Json]:
        """Return a time from the table."""
        if "environment" in question:
            return {"environment": self.here}
        if len(self.asked) >= self.stops_after:
            raise KeyboardInterrupt
        self.asked.append(question)
        at = str(question["at"])
        by_tokens, is_dense = at.startswith("M="), at.startswith("B=") and "heads" not in at
        if "library" not in question:
            others: dict[str, Json] = {"eager_us": self.eager_us} if by_tokens else {}
            others |= {"library_us": 9.0, "peers": {"SDPA flash": 8.0}} if is_dense else {}
            others |= {} if self.library_us is None else {"library_us": self.library_us}
            return {"floor_us": 10.0, **others}
        library = str(question["library"]).removesuffix(".so")
        name = f"{library}@{at}{'' if question['assumed'] or not by_tokens else ' by default'}"
        failed = self.fails.get(library) or self.fails.get(name)
        if failed:
            return {"failed": failed}
        found = (
            us
            for key, us in self.times.items()
            if name == key or ("@B=" in key and name.startswith(key))
        )
        us = 10.0 if is_dense else next(found, 20.0)
        return {"us": us, "error": 1e-4, "few_tiles": at.startswith("B=1 ")}

    def close(self) -> None:
        """Note it."""
        self.closed = True


# -- a kernel with buckets of tokens ---------------------------------------------------------------

TOKENS_KEY = Key("rms_norm_linear", "fp16", {"K": 72, "N": 40})


def knobs(tokens: int, rows: int = 16) -> SlicedK:
    """Return some knobs of a bucket."""
    return SlicedK(tokens, rows, warps=4, chunks=1, stages=2)


def of_buckets(buckets: dict[int, tuple[Knobs, ...]], above: tuple[int, ...] = (128,)) -> Tuned:
    """Return a kernel with candidates named a8, b8, ... by their order and their bucket."""
    made = []
    for tokens, every in buckets.items():
        named = zip("abcd", every, strict=False)
        tried = (Tried(k, 10.0 + i, digest=f"{c}{tokens}") for i, (c, k) in enumerate(named))
        made.append(Bucket(tokens, tried=tuple(tried)))
    return Tuned(TOKENS_KEY, tuple(made), dim="M", above=above)


def of_tokens(*failed: str) -> Tuned:
    """Return a kernel with three candidates in each of two buckets; `failed` do not compile."""
    made = of_buckets({m: tuple(knobs(m, 16 * i) for i in (1, 2, 3)) for m in (8, 64)})
    buckets = []
    for bucket in made.buckets:
        tried = (
            replace(t, failed="spills 8 bytes" * (t.digest[0] in failed)) for t in bucket.tried
        )
        buckets.append(replace(bucket, tried=tuple(tried)))
    return replace(made, buckets=tuple(buckets))


def of_schedules(above: tuple[int, ...] = (128,)) -> Tuned:
    """Return a kernel with sliced-K a8, register operands b8, and both with producer blocks."""
    producers, buckets = Producers(rows=16, tokens=8, stages=4), {}
    for m in (8, 64):
        alone = (knobs(m), RegisterOperand(m, 16, 2))
        buckets[m] = (*alone, *(replace(k, producers=producers) for k in alone))
    return of_buckets(buckets, above)


def of_rows() -> Tuned:
    """Return a kernel whose blocks have a row each: a64, b64."""
    return of_buckets({64: (RowWise(4, 4), RowWise(8, 2))}, (8, 128, 4096))


# -- a kernel that is measured at several calls ----------------------------------------------------

KEY = Key("gqa", "fp16", {"D": 128})
RULE = FlashDecode(8, 16, 4, 3, 2)
OTHER = replace(RULE, warps=8, blocks=1)
THIRD = replace(RULE, stages=2)
WIDE = WgmmaAttention(64, 128, 12, 3, 2, producers=4, key_sums=1)
POINTS = (
    Point("short", 10.0),
    Point("long", 20.0, few_tiles=True),
    Point("longer", 40.0, few_tiles=True),
)


def tried(knobs: AttentionKnobs, *us: float, assumed: float = 1.0) -> Tried:
    """Return a candidate with its times; assumptions make them shorter by a factor."""
    return Tried(knobs, None, us, tuple(assumed * t for t in us))


def dense(tokens: int, us: float, sdpa_us: float, sequences: int = 1) -> Dense:
    """Return a dense call of ten heads."""
    return Dense(sequences, tokens, 10, 4096, True, us, sdpa_us, {})


def of_calls(failed: str = "") -> Tuned:
    """Return a kernel with two buckets: usual, large, short of 8 rows; wide, and usual, of any."""
    usual, wide = Tried(RULE, digest="usual"), Tried(WIDE, digest="wide")
    few = (usual, Tried(OTHER, digest="large"), Tried(THIRD, digest="short", failed=failed))
    any_ = Bucket(0, tried=(wide, usual))
    return Tuned(KEY, (Bucket(8, tried=few, rule_of_few=OTHER), any_), form="first")
