"""A tuning without a compiler and without a GPU: libraries by name, times by rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.schedules.loop import Producers
from mirage_kernels.generator.schedules.register_operand import RegisterOperand
from mirage_kernels.generator.schedules.row_wise import RowWise
from mirage_kernels.generator.schedules.sliced_k import SlicedK
from mirage_kernels.generator.tuning.catalog import Bucket, Key, Tried, Tuned
from mirage_kernels.generator.tuning.session import Tuning

KEY = Key("rms_norm_linear", "fp16", {"K": 72, "N": 40})
HERE: dict[str, Json] = {"gpu": "pretended", "driver": "1", "cuda": "13.0", "torch": "2.11"}


@dataclass
class Pretended:
    """Answers as the worker does; `times` by library and tokens, what is not there takes 20 us."""

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
        if "library" not in question:
            known = {} if self.library_us is None else {"library_us": self.library_us}
            return {"floor_us": 10.0, "eager_us": self.eager_us, **known}
        name = f"{question['library']}@{str(question['at']).removeprefix('M=')}"
        name += "" if question["assumed"] else " by default"
        if name in self.fails:
            return {"failed": self.fails[name]}
        return {"us": self.times.get(name, 20.0), "error": 1e-4}

    def close(self) -> None:
        """Note it."""
        self.closed = True


def knobs(tokens: int, rows: int = 16) -> SlicedK:
    """Return some knobs of a bucket."""
    return SlicedK(tokens, rows, warps=4, chunks=1, stages=2)


def bucket(tokens: int, *failed: str) -> tuple[Tried, ...]:
    """Return three candidates of a bucket, named a8, b8, c8; `failed` ones do not compile."""
    return tuple(
        Tried(
            knobs(tokens, 16 * (i + 1)),
            predicted_us=10.0 + i,
            failed="spills 8 bytes" if letter in failed else "",
            digest=f"{letter}{tokens}",
        )
        for i, letter in enumerate("abc")
    )


def of_buckets(*buckets: tuple[int, tuple[Tried, ...]], beyond: tuple[int, ...]) -> Tuned:
    """Return a kernel with buckets of tokens."""
    made = tuple(Bucket(m, tried=built) for m, built in buckets)
    return Tuned(KEY, made, dim="M", above=beyond)


def compiled(*failed: str) -> Tuned:
    """Return a kernel with three candidates in each of two buckets."""
    return of_buckets((8, bucket(8, *failed)), (64, bucket(64, *failed)), beyond=(128,))


def of_plans(beyond: tuple[int, ...] = (128,)) -> Tuned:
    """Return a kernel with slices, a8 and a64, held tokens, b8 and b64, and both made apart."""

    def built(tokens: int) -> tuple[Tried, ...]:
        slices = knobs(tokens)
        held = RegisterOperand(tokens, 16, 2)
        producers = Producers(rows=16, tokens=8, stages=4)
        with_producers = (replace(k, producers=producers) for k in (slices, held))
        made = (slices, held, *with_producers)
        return tuple(
            Tried(k, 10.0, digest=f"{c}{tokens}") for c, k in zip("abcd", made, strict=True)
        )

    return of_buckets((8, built(8)), (64, built(64)), beyond=beyond)


def of_lines() -> Tuned:
    """Return a kernel whose blocks hold a line each: a64, b64."""
    made = tuple(RowWise(warps, 16 // warps) for warps in (4, 8))
    built = tuple(Tried(k, 2.0, digest=f"{c}64") for c, k in zip("ab", made, strict=True))
    return of_buckets((64, built), beyond=(8, 128, 4096))


MakeTuning = Callable[..., Tuning]
