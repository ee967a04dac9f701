"""A tuning without a compiler and without a GPU: libraries by name, times by rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.plan.variants import Knobs
from mirage_kernels.generator.tuning.catalog import Key
from mirage_kernels.generator.tuning.manifest import Built, Compiled
from mirage_kernels.generator.tuning.session import Tuning

KEY = Key("rms_norm_linear", "fp16", {"K": 72, "N": 40})
HERE: dict[str, Json] = {"gpu": "pretended", "driver": "1", "cuda": "13.0", "torch": "2.11"}


@dataclass
class Pretended:
    """Answers as the worker does; `times` by library and tokens, what is not there takes 20 us."""

    times: dict[str, float] = field(default_factory=dict)
    fails: dict[str, str] = field(default_factory=dict)
    eager_us: float = 30.0
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
            return {"floor_us": 10.0, "eager_us": self.eager_us}
        name = f"{question['library']}@{question['tokens']}"
        name += "" if question["promised"] else " by default"
        if name in self.fails:
            return {"failed": self.fails[name]}
        return {"us": self.times.get(name, 20.0), "error": 1e-4}

    def close(self) -> None:
        """Note it."""
        self.closed = True


def knobs(tokens: int, rows: int = 16) -> Knobs:
    """Return some knobs of a bucket."""
    return Knobs(tokens, rows, warps=4, chunks=1, stages=2)


def bucket(tokens: int, *failed: str) -> tuple[Built, ...]:
    """Return three candidates of a bucket, named a8, b8, c8; `failed` ones do not compile."""
    return tuple(
        Built(
            f"{letter}{tokens}",
            knobs(tokens, 16 * (i + 1)),
            predicted_us=10.0 + i,
            registers=100,
            failed="spills 8 bytes" if letter in failed else "",
        )
        for i, letter in enumerate("abc")
    )


def compiled(*failed: str) -> Compiled:
    """Return a kernel with three candidates in each of two buckets."""
    return Compiled(KEY, "M", {8: bucket(8, *failed), 64: bucket(64, *failed)})


MakeTuning = Callable[..., Tuning]
