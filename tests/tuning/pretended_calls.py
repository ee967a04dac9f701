"""A tuning of a kernel that is measured at several calls, without compiler and GPU."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.flash_decode import FlashDecode
from mirage_kernels.generator.schedules.wgmma_attention import WgmmaAttention
from mirage_kernels.generator.tuning.catalog import Bucket, Dense, Key, Point, Tried, Tuned

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


def built(name: str, knobs: AttentionKnobs, failed: str = "") -> Tried:
    """Return a candidate with its library."""
    return Tried(knobs, failed=failed, digest=name)


def compiled(failed: str = "") -> Tuned:
    """Return a kernel with two buckets: usual, large, short of 8 rows; wide, and usual, of any."""
    usual = built("usual", RULE)
    few = (usual, built("large", OTHER), built("short", THIRD, failed))
    any_ = Bucket(0, tried=(built("wide", WIDE), usual))
    return Tuned(KEY, (Bucket(8, tried=few, rule_of_few=OTHER), any_), form="first")


@dataclass
class PretendedCalls:
    """Answers as the worker does; what is not in `times`, by library and part of the workload's
    name, takes 20 us. Calls of one sequence have few work tiles.
    """

    times: dict[tuple[str, str], float] = field(default_factory=dict)
    fails: dict[str, str] = field(default_factory=dict)
    stops_after: int = 10_000
    asked: list[dict[str, Json]] = field(default_factory=list)

    def ask(self, question: dict[str, Json], *, seconds: float) -> dict[str, Json]:
        """Return a time from the table."""
        if "environment" in question:
            return {"environment": {"gpu": "pretended"}}
        if len(self.asked) >= self.stops_after:
            raise KeyboardInterrupt
        self.asked.append(question)
        if "library" not in question:
            dense = "heads" not in str(question["at"])
            others: dict[str, Json] = {"library_us": 9.0, "peers": {"SDPA flash": 8.0}}
            return {"floor_us": 10.0} | (others if dense else {})
        library = str(question["library"]).removesuffix(".so")
        if library in self.fails:
            return {"failed": self.fails[library]}
        at = str(question["at"])
        if "heads" not in at:  # a dense call
            return {"us": 10.0, "error": 1e-4}
        found = (t for (name, part), t in self.times.items() if name == library and part in at)
        us = next(found, 20.0)
        few = at.startswith("B=1 ")
        return {"us": us, "error": 1e-4, "few_tiles": few}

    def close(self) -> None:
        """Do nothing."""
