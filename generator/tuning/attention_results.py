"""What measured.json holds of attention: outcomes by library and workload, floors by workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.tuning.fields import entry, number, text

DIGITS = 3


@dataclass(frozen=True)
class AttentionOutcome:
    """A candidate's times at a workload, or why there are none."""

    us: float = 0.0
    promised_us: float = 0.0
    error: float = 0.0
    few_tiles: bool = False
    failed: str = ""

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON data."""
        if self.failed:
            return {"failed": self.failed}
        return {name: value for name, value in vars(self).items() if name != "failed"}

    @staticmethod
    def read(data: Mapping[str, Json]) -> AttentionOutcome:
        """Read what `to_json` makes, and what the worker answers."""
        if "failed" in data:
            return AttentionOutcome(failed=text(data, "failed"))
        us, promised_us = (round(number(data, name), DIGITS) for name in ("us", "promised_us"))
        few = bool(data["few_tiles"])
        return AttentionOutcome(us, promised_us, number(data, "error"), few)


@dataclass(frozen=True)
class DenseOutcome:
    """Our time at a dense call, PyTorch's, and those of its kernels; or why there are none."""

    us: float = 0.0
    sdpa_us: float = 0.0
    peers: Mapping[str, float] = field(default_factory=dict)
    failed: str = ""

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON data."""
        if self.failed:
            return {"failed": self.failed}
        return {"us": self.us, "sdpa_us": self.sdpa_us, "peers": dict(self.peers)}

    @staticmethod
    def read(data: Mapping[str, Json]) -> DenseOutcome:
        """Read what `to_json` makes, and what the worker answers."""
        if "failed" in data:
            return DenseOutcome(failed=text(data, "failed"))
        peers = entry(data["peers"])
        us, sdpa_us = (round(number(data, name), DIGITS) for name in ("us", "sdpa_us"))
        found = {name: round(number(peers, name), DIGITS) for name in peers}
        return DenseOutcome(us, sdpa_us, found)


@dataclass
class AttentionResults:
    """The part of a file of measurements that is attention's."""

    floors: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, AttentionOutcome] = field(default_factory=dict)
    dense: dict[str, DenseOutcome] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON data."""
        return {
            "floors": dict(self.floors),
            "outcomes": {name: o.to_json() for name, o in self.outcomes.items()},
            "dense": {name: o.to_json() for name, o in self.dense.items()},
        }

    @staticmethod
    def read(data: Mapping[str, Json]) -> AttentionResults:
        """Read what `to_json` makes."""
        floors = entry(data["floors"])
        outcomes, dense = entry(data["outcomes"]), entry(data["dense"])
        return AttentionResults(
            {name: number(floors, name) for name in floors},
            {name: AttentionOutcome.read(entry(o)) for name, o in outcomes.items()},
            {name: DenseOutcome.read(entry(o)) for name, o in dense.items()},
        )
