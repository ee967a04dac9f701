"""manifest.json: the candidates of a tuning, as they were compiled; the name of each library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mirage_kernels.generator.ir.text import Json, dumps
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.schedules import read_knobs
from mirage_kernels.generator.schedules.row_wise.knobs import RowWise
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.tuning.attention_manifest import CompiledAttention
from mirage_kernels.generator.tuning.fields import (
    entries,
    entry,
    integer,
    loaded,
    number,
    numbers,
    text,
)
from mirage_kernels.generator.tuning.keys import Key

FOLDER_HINT = "choose a folder that can be written"


@dataclass(frozen=True)
class Built:
    """A compiled candidate; `digest` names its files and stands for its whole source."""

    digest: str
    knobs: Knobs
    predicted_us: float
    registers: int
    failed: str = ""  # why it is not to be measured

    @property
    def library(self) -> str:
        """Its library's file name."""
        return f"{self.digest}.so"

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON data."""
        reason: dict[str, Json] = {"failed": self.failed} if self.failed else {}
        made: dict[str, Json] = {
            "digest": self.digest,
            "predicted_us": self.predicted_us,
            "registers": self.registers,
        }
        return self.knobs.to_json() | made | reason

    @staticmethod
    def read(data: Mapping[str, Json]) -> Built:
        """Read what `to_json` makes."""
        return Built(
            text(data, "digest"),
            read_knobs(data),
            number(data, "predicted_us"),
            integer(data, "registers"),
            text(data, "failed") if "failed" in data else "",
        )


@dataclass(frozen=True)
class Compiled:
    """A kernel's candidates by bucket, in predicted order; `tokens` names its dynamic dim.

    `beyond`: other numbers of tokens, at which the last bucket's choice is compared with PyTorch.
    """

    key: Key
    tokens: str
    buckets: Mapping[int, tuple[Built, ...]]
    beyond: tuple[int, ...] = ()

    @property
    def of_lines(self) -> bool:
        """Say whether blocks hold a token each: one variant serves any number of tokens."""
        return next(iter(self.buckets.values()))[0].knobs.schedule == RowWise.schedule

    @property
    def most_tokens(self) -> int:
        """The most tokens that anything of it is measured with."""
        return max((*self.buckets, *self.beyond))

    @property
    def fewest_tokens(self) -> int:
        """The fewest."""
        return min((*self.buckets, *self.beyond))

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON data."""
        buckets: list[Json] = [
            {"tokens": m, "candidates": [b.to_json() for b in built]}
            for m, built in self.buckets.items()
        ]
        about: dict[str, Json] = {"dim": self.tokens, "beyond": list(self.beyond)}
        return self.key.to_json() | about | {"buckets": buckets}

    @staticmethod
    def read(data: Mapping[str, Json]) -> Compiled:
        """Read what `to_json` makes."""
        buckets = {
            integer(b, "tokens"): tuple(Built.read(c) for c in entries(b, "candidates"))
            for b in entries(data, "buckets")
        }
        beyond = numbers(data, "beyond")
        return Compiled(Key.read(data), text(data, "dim"), buckets, beyond)


@dataclass(frozen=True)
class Manifest:
    """What a folder holds: kernels of one architecture and the command that compiled them."""

    arch: str
    command: str
    kernels: tuple[Compiled, ...]
    attention: tuple[CompiledAttention, ...] = ()

    @property
    def names(self) -> set[str]:
        """Names of all its kernels."""
        return {k.key.name for k in self.kernels} | {k.key.name for k in self.attention}

    def without(self, names: set[str]) -> Manifest:
        """Return the manifest without some kernels."""
        kernels = tuple(k for k in self.kernels if k.key.name not in names)
        attention = tuple(k for k in self.attention if k.key.name not in names)
        return replace(self, kernels=kernels, attention=attention)

    def text(self) -> str:
        """Return the file's text."""
        kernels: list[Json] = [k.to_json() for k in self.kernels]
        attention: list[Json] = [k.to_json() for k in self.attention]
        made: dict[str, Json] = {"arch": self.arch, "command": self.command, "kernels": kernels}
        return dumps(made | ({"attention": attention} if attention else {}))

    def write(self, folder: Path) -> None:
        """Write the manifest whole into its folder."""
        write_whole(path_in(folder), self.text(), hint=FOLDER_HINT)


def path_in(folder: Path) -> Path:
    """Return where a folder's manifest stands."""
    return folder / "manifest.json"


def load_manifest(folder: Path) -> Manifest:
    """Read a folder's manifest; raises FileError where there is none."""

    def read(data: Json) -> Manifest:
        whole = entry(data)
        kernels = tuple(Compiled.read(k) for k in entries(whole, "kernels"))
        attention = entries(whole, "attention") if "attention" in whole else []
        named = (text(whole, "arch"), text(whole, "command"))
        return Manifest(*named, kernels, tuple(CompiledAttention.read(k) for k in attention))

    hint = f"`mirage-kernels tune --compile {folder}` writes it"
    return loaded(path_in(folder), read, what="a tuning's manifest", hint=hint)
