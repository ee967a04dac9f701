"""manifest.json: the candidates of a tuning, as they were compiled; the name of each library."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from mirage_kernels.generator.ir.codec import to_data
from mirage_kernels.generator.ir.text import dumps
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.schedules.row_wise.knobs import RowWise
from mirage_kernels.generator.tuning.files import loaded
from mirage_kernels.generator.tuning.keys import Key
from mirage_kernels.generator.tuning.knobs import Values

FOLDER_HINT = "choose a folder that can be written"


@dataclass(frozen=True)
class Built:
    """A compiled candidate; `digest` names its files and stands for its whole source."""

    digest: str
    knobs: Values
    registers: int
    schedule: str = ""
    predicted_us: float | None = None
    failed: str = ""  # why it is not to be measured

    @property
    def library(self) -> str:
        """Its library's file name."""
        return f"{self.digest}.so"


@dataclass(frozen=True)
class Candidates:
    """Candidates of a bucket of tokens or query rows (0: any), in predicted order.

    `rule_of_few`: the rule's knobs for calls of few work tiles, if it has others for them.
    """

    size: int
    built: tuple[Built, ...]
    rule: Values = field(default_factory=dict)
    rule_of_few: Values = field(default_factory=dict)

    @property
    def splits(self) -> bool:
        """Say whether calls of few work tiles may have a variant of their own."""
        return bool(self.rule) and bool(self.size or self.rule_of_few)


@dataclass(frozen=True)
class Compiled:
    """A kernel's candidates by bucket; `tokens` names its dynamic dim, if it is over tokens.

    `beyond`: other numbers of tokens, at which the last bucket's choice is compared with PyTorch.
    `mugraph` names the muGraph where several are compared; of the others there are the rule's
    variants.
    """

    key: Key
    buckets: tuple[Candidates, ...]
    tokens: str = ""
    beyond: tuple[int, ...] = ()
    mugraph: str = ""
    mugraphs: tuple[Compiled, ...] = ()

    @property
    def digests(self) -> set[str]:
        """Names of all libraries."""
        own = {b.digest for bucket in self.buckets for b in bucket.built}
        return own.union(*(other.digests for other in self.mugraphs))

    @property
    def is_row_wise(self) -> bool:
        """Say whether blocks hold a token each: one variant serves any number of tokens."""
        return self.buckets[0].built[0].knobs["schedule"] == RowWise.schedule

    @property
    def sizes(self) -> tuple[int, ...]:
        """All numbers of tokens that anything of it is measured with."""
        return (*(b.size for b in self.buckets), *self.beyond)


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
        write_whole(path_in(folder), dumps(to_data(self)), hint=FOLDER_HINT)


def path_in(folder: Path) -> Path:
    """Return where a folder's manifest stands."""
    return folder / "manifest.json"


def load_manifest(folder: Path) -> Manifest:
    """Read a folder's manifest; raises FileError where there is none."""
    hint = f"`mirage-kernels tune --compile {folder}` writes it"
    return loaded(path_in(folder), Manifest, what="a tuning's manifest", hint=hint)
