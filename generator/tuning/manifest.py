"""manifest.json: the candidates of a tuning, as they were compiled; the name of each library."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from mirage_kernels.generator.ir.text import dumps
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.schedules.row_wise import RowWise
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.tuning.catalog import Key
from mirage_kernels.generator.tuning.files import read_file, written

FOLDER_HINT = "choose a folder that can be written"


@dataclass(frozen=True)
class Built:
    """A compiled candidate; `digest` names its files and stands for its whole source."""

    digest: str
    knobs: Knobs
    registers: int
    predicted_us: float | None = None
    failed: str = ""  # why it is not to be measured

    @property
    def library(self) -> str:
        """Its library's file name."""
        return f"{self.digest}.so"


@dataclass(frozen=True)
class BuiltBucket:
    """Candidates of a bucket of tokens or query rows, the rule's first or in predicted order.

    `rule_of_few` is the rule's choice for calls of few work tiles, where they have a variant.
    """

    size: int
    built: tuple[Built, ...]
    rule: Knobs
    rule_of_few: Knobs | None = None

    @property
    def splits(self) -> bool:
        """Say whether calls of few work tiles may have a variant of their own."""
        return bool(self.size) or self.rule_of_few is not None


@dataclass(frozen=True)
class Compiled:
    """A kernel's candidates by bucket.

    `dim` names its dynamic dim where every bucket is measured at its own number of tokens; there
    the last bucket's choice is also compared at other numbers, `beyond`. Kernels without it are
    measured at calls of several dynamic extents. `form` names the muGraph; of `forms`, others that
    the search found besides, there are the rule's variants.
    """

    key: Key
    buckets: tuple[BuiltBucket, ...]
    dim: str = ""
    beyond: tuple[int, ...] = ()
    form: str = ""
    forms: tuple[Compiled, ...] = ()

    @property
    def is_row_wise(self) -> bool:
        """Say whether blocks hold a token each: one variant serves any number of tokens."""
        return self.buckets[-1].built[0].knobs.schedule == RowWise.schedule

    @property
    def candidates(self) -> dict[str, Built]:
        """All candidates by the names of their libraries, those of other muGraphs too."""
        found = {b.digest: b for bucket in self.buckets for b in bucket.built}
        for form in self.forms:
            found |= form.candidates
        return found


@dataclass(frozen=True)
class Manifest:
    """What a folder holds: kernels of one architecture and the command that compiled them."""

    arch: str
    command: str
    kernels: tuple[Compiled, ...]

    @property
    def names(self) -> set[str]:
        """Names of all its kernels."""
        return {k.key.name for k in self.kernels}

    def without(self, names: set[str]) -> Manifest:
        """Return the manifest without some kernels."""
        return replace(self, kernels=tuple(k for k in self.kernels if k.key.name not in names))

    def write(self, folder: Path) -> None:
        """Write the manifest whole into its folder."""
        write_whole(path_in(folder), dumps(written(self)), hint=FOLDER_HINT)


def path_in(folder: Path) -> Path:
    """Return where a folder's manifest stands."""
    return folder / "manifest.json"


def load_manifest(folder: Path) -> Manifest:
    """Read a folder's manifest; raises FileError where there is none."""
    hint = f"`mirage-kernels tune --compile {folder}` writes it"
    return read_file(path_in(folder), Manifest, what="a tuning's manifest", hint=hint)
