"""What making one kernel took, for people and for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.ir import Json
from mirage_kernels.generator.search.select import Candidates, Refusal
from mirage_kernels.generator.terminal import listed

ALTERNATIVES_SHOWN = 5


@dataclass(frozen=True)
class Report:
    """What making one kernel took: counts of the search, refusals, seconds by stage."""

    states: int
    pruned: dict[str, int]
    candidates: int
    proved: int
    rejected: int
    gated: int
    seconds: dict[str, float]
    alternatives: tuple[str, ...]
    refused: tuple[Refusal, ...]

    def to_json(self) -> dict[str, Json]:
        """Return the report as JSON data."""
        return {
            **vars(self),
            "seconds": {stage: round(seconds, 2) for stage, seconds in self.seconds.items()},
            "alternatives": list(self.alternatives),
            "refused": [f"{r.line}: {r.reason}" for r in self.refused],
        }


def report_of(
    candidates: Candidates, refused: Sequence[Refusal], seconds: Mapping[str, float]
) -> Report:
    """Return the report on a choice: what was found, and what was refused before it."""
    counts, passed = candidates.counts, {r.line for r in refused}
    left = [r.line() for r in candidates.ranked if r.line() not in passed]
    return Report(
        states=counts.states,
        pruned=dict(sorted(counts.pruned.items())),
        candidates=counts.candidates,
        proved=candidates.proved,
        rejected=counts.rejected,
        gated=sum("error" in r.reason for r in refused),
        seconds=dict(seconds),
        alternatives=tuple(left[1 : ALTERNATIVES_SHOWN + 1]),
        refused=tuple(refused),
    )


def pruned_by(counts: Mapping[str, int]) -> str:
    """Say why prefixes were cut away, and how many: `type 1,700 and time 2`."""
    cut = sorted(counts.items(), key=lambda item: -item[1])
    return listed([f"{reason} {count:,}" for reason, count in cut if count]) or "nothing"
