"""What a tuning's folder holds of attention kernels: their candidates by bucket of query rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.attention.variants import read_knobs
from mirage_kernels.generator.tuning.fields import entries, entry, integer, text
from mirage_kernels.generator.tuning.keys import Key


@dataclass(frozen=True)
class BuiltAttention:
    """A compiled candidate; `digest` names its files and stands for its whole source."""

    digest: str
    knobs: AttentionKnobs
    registers: int
    failed: str = ""  # why it is not to be measured

    @property
    def library(self) -> str:
        """Its library's file name."""
        return f"{self.digest}.so"

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON data."""
        made: dict[str, Json] = {"digest": self.digest, "registers": self.registers}
        reason: dict[str, Json] = {"failed": self.failed} if self.failed else {}
        return self.knobs.to_json() | made | reason

    @staticmethod
    def read(data: Mapping[str, Json]) -> BuiltAttention:
        """Read what `to_json` makes."""
        failed = text(data, "failed") if "failed" in data else ""
        return BuiltAttention(
            text(data, "digest"), read_knobs(data), integer(data, "registers"), failed
        )


@dataclass(frozen=True)
class BuiltRows:
    """Candidates of a bucket of query rows, the rule's first; see `RowBucket`."""

    rows: int
    rule: AttentionKnobs
    rule_of_few: AttentionKnobs | None
    built: tuple[BuiltAttention, ...]

    @property
    def splits(self) -> bool:
        """Say whether calls of few work tiles may have a variant of their own."""
        return bool(self.rows) or self.rule_of_few is not None

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON data."""
        rules: dict[str, Json] = {"rows": self.rows, "rule": self.rule.to_json()}
        if self.rule_of_few:
            rules["rule_of_few_tiles"] = self.rule_of_few.to_json()
        return rules | {"candidates": [b.to_json() for b in self.built]}

    @staticmethod
    def read(data: Mapping[str, Json]) -> BuiltRows:
        """Read what `to_json` makes."""
        few = data.get("rule_of_few_tiles")
        return BuiltRows(
            integer(data, "rows"),
            read_knobs(entry(data["rule"])),
            None if few is None else read_knobs(entry(few)),
            tuple(BuiltAttention.read(b) for b in entries(data, "candidates")),
        )


@dataclass(frozen=True)
class CompiledAttention:
    """An attention kernel's candidates by bucket of query rows; `form` names its muGraph.

    Of its other `forms`, muGraphs that the search found besides, there are the rule's variants.
    """

    key: Key
    form: str
    buckets: tuple[BuiltRows, ...]
    forms: tuple[CompiledAttention, ...] = ()

    @property
    def digests(self) -> set[str]:
        """Names of all libraries."""
        own = {b.digest for bucket in self.buckets for b in bucket.built}
        return own.union(*(f.digests for f in self.forms))

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON data."""
        made: dict[str, Json] = {"form": self.form}
        made["buckets"] = [b.to_json() for b in self.buckets]
        forms: dict[str, Json] = {"forms": [f.to_json() for f in self.forms]}
        return self.key.to_json() | made | (forms if self.forms else {})

    @staticmethod
    def read(data: Mapping[str, Json]) -> CompiledAttention:
        """Read what `to_json` makes."""
        forms = entries(data, "forms") if "forms" in data else []
        return CompiledAttention(
            Key.read(data),
            text(data, "form"),
            tuple(BuiltRows.read(b) for b in entries(data, "buckets")),
            tuple(CompiledAttention.read(f) for f in forms),
        )
