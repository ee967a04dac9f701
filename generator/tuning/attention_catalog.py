"""What the catalog says of attention: the knobs of every bucket of query rows, and dense calls.

A bucket is measured at several workloads, which the launch may give to two variants: one for few
work tiles with much to read for each, one for all others. Each is chosen by its own workloads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log

from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.attention.variants import read_knobs
from mirage_kernels.generator.tuning.fields import (
    entries,
    entry,
    floats,
    integer,
    maybe,
    number,
    text,
)
from mirage_kernels.generator.tuning.keys import Key


@dataclass(frozen=True)
class At:
    """A workload that candidates were compared at, and whether the launch finds few work tiles."""

    name: str
    few_tiles: bool
    floor_us: float

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON data."""
        return dict(vars(self))

    @staticmethod
    def read(data: Mapping[str, Json]) -> At:
        """Read what `to_json` makes."""
        return At(text(data, "name"), bool(data["few_tiles"]), number(data, "floor_us"))


@dataclass(frozen=True)
class TriedAttention:
    """One candidate: its times at the bucket's workloads, or why it has none.

    `promised_us` are those of calls that promise a constant history and constant weights.
    """

    knobs: AttentionKnobs
    us: tuple[float, ...] = ()
    promised_us: tuple[float, ...] = ()
    failed: str = ""

    def means(self) -> tuple[float, ...]:
        """Return the mean of both times at each workload."""
        return tuple((a + b) / 2 for a, b in zip(self.us, self.promised_us, strict=True))

    def to_json(self) -> dict[str, Json]:
        """Return the candidate as JSON data."""
        outcome: dict[str, Json] = {"failed": self.failed}
        if not self.failed:
            outcome = {"us": list(self.us), "promised_us": list(self.promised_us)}
        return self.knobs.to_json() | outcome

    @staticmethod
    def read(data: Mapping[str, Json]) -> TriedAttention:
        """Read what `to_json` makes."""
        if "failed" in data:
            return TriedAttention(read_knobs(data), failed=text(data, "failed"))
        times = (floats(data, "us"), floats(data, "promised_us"))
        return TriedAttention(read_knobs(data), *times)


@dataclass(frozen=True)
class Chosen:
    """The knobs of a bucket's calls, of few work tiles or of others, and their time.

    `ratio` is the geometric mean of their times over the floors; `rule_ratio` that of the rule's.
    """

    knobs: AttentionKnobs
    few_tiles: bool
    ratio: float
    rule_ratio: float | None

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON data."""
        ratios: dict[str, Json] = {"ratio": self.ratio, "rule_ratio": self.rule_ratio}
        return {"few_tiles": self.few_tiles, "knobs": self.knobs.to_json(), **ratios}

    @staticmethod
    def read(data: Mapping[str, Json]) -> Chosen:
        """Read what `to_json` makes."""
        knobs, few = read_knobs(entry(data["knobs"])), bool(data["few_tiles"])
        return Chosen(knobs, few, number(data, "ratio"), maybe(data, "rule_ratio"))


@dataclass(frozen=True)
class TunedRows:
    """A bucket of query rows (0: any number): what was chosen, where, and all candidates."""

    rows: int
    chosen: tuple[Chosen, ...]
    workloads: tuple[At, ...]
    tried: tuple[TriedAttention, ...]

    def choice(self, *, few: bool) -> Chosen | None:
        """Return what was chosen for calls of few work tiles, or for others."""
        return next((c for c in self.chosen if c.few_tiles is few), None)

    def to_json(self) -> dict[str, Json]:
        """Return the bucket as JSON data."""
        return {
            "rows": self.rows,
            "chosen": [c.to_json() for c in self.chosen],
            "workloads": [w.to_json() for w in self.workloads],
            "candidates": [t.to_json() for t in self.tried],
        }

    @staticmethod
    def read(data: Mapping[str, Json]) -> TunedRows:
        """Read what `to_json` makes."""
        return TunedRows(
            integer(data, "rows"),
            tuple(Chosen.read(c) for c in entries(data, "chosen")),
            tuple(At.read(w) for w in entries(data, "workloads")),
            tuple(TriedAttention.read(t) for t in entries(data, "candidates")),
        )


def kind_of(tokens: int, keys: int, *, causal: bool) -> str:
    """Return what query tokens see: "all" keys, or those up to their own.

    Causal tokens are as many as the keys ("square"), "most" of them, or a "part", up to half.
    """
    if not causal:
        return "all"
    if tokens == keys:
        return "square"
    return "most" if 2 * tokens > keys else "part"


@dataclass(frozen=True)
class Dense:
    """A dense call of many query tokens: our time and that of PyTorch's attention.

    `peers` are PyTorch's kernels one by one, those that take the call.
    """

    sequences: int
    tokens: int  # of each
    heads: int  # of queries
    keys: int
    causal: bool
    us: float
    sdpa_us: float
    peers: Mapping[str, float]

    @property
    def kind(self) -> str:
        """What tokens see, in the words of kernels/prefill.py."""
        return kind_of(self.tokens, self.keys, causal=self.causal)

    @property
    def lines(self) -> int:
        """Query lines: tokens of all sequences times heads."""
        return self.sequences * self.tokens * self.heads

    @property
    def served_by(self) -> str:
        """The faster of what the library can run."""
        return "ours" if self.us <= self.sdpa_us else "SDPA"

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON data."""
        return {**vars(self), "peers": dict(self.peers), "served_by": self.served_by}

    @staticmethod
    def read(data: Mapping[str, Json]) -> Dense:
        """Read what `to_json` makes."""
        peers = entry(data["peers"])
        return Dense(
            integer(data, "sequences"),
            integer(data, "tokens"),
            integer(data, "heads"),
            integer(data, "keys"),
            bool(data["causal"]),
            number(data, "us"),
            number(data, "sdpa_us"),
            {name: number(peers, name) for name in peers},
        )


@dataclass(frozen=True)
class TriedForm:
    """A muGraph that the search found: how its rule's variants do at all workloads, as `Chosen`."""

    form: str
    ratio: float | None  # None: it failed somewhere

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON data."""
        return dict(vars(self))

    @staticmethod
    def read(data: Mapping[str, Json]) -> TriedForm:
        """Read what `to_json` makes."""
        return TriedForm(text(data, "form"), maybe(data, "ratio"))


@dataclass(frozen=True)
class TunedAttention:
    """One attention kernel: its muGraph, its buckets of query rows, dense calls of many tokens.

    `form` names the fastest of the muGraphs that were compared (`forms`, as predicted).
    """

    key: Key
    form: str
    buckets: tuple[TunedRows, ...]
    dense: tuple[Dense, ...] = ()
    forms: tuple[TriedForm, ...] = ()

    @property
    def knobs(self) -> tuple[AttentionKnobs, ...]:
        """All knobs that were chosen."""
        return tuple(c.knobs for b in self.buckets for c in b.chosen)

    def to_json(self) -> dict[str, Json]:
        """Return the kernel as JSON data."""
        return self.key.to_json() | {
            "form": self.form,
            "forms": [f.to_json() for f in self.forms],
            "buckets": [b.to_json() for b in self.buckets],
            "dense": [d.to_json() for d in self.dense],
        }

    @staticmethod
    def read(data: Mapping[str, Json]) -> TunedAttention:
        """Read what `to_json` makes."""
        return TunedAttention(
            Key.read(data),
            text(data, "form"),
            tuple(TunedRows.read(b) for b in entries(data, "buckets")),
            tuple(Dense.read(d) for d in entries(data, "dense")),
            tuple(TriedForm.read(f) for f in entries(data, "forms")),
        )


def geometric_mean(values: tuple[float, ...]) -> float:
    """Return the geometric mean of positive numbers."""
    return exp(sum(map(log, values)) / len(values))
