"""What tuning knows of kernels: candidates, measurements, choices; kernels/catalog.json keeps them.

A folder's manifest.json has the same form: sections of kernels whose candidates are compiled, and
not measured yet. Only `generate` reads the catalog: a kernel's record then holds the variants and
the largest number of tokens that it serves, and everything else follows from the record. Candidates
of a bucket are compared at one call or at several; where a launch tells calls of few work tiles
apart, these may have knobs of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import correlation
from typing import TypeVar, cast

from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.ir.codec import from_data, to_data
from mirage_kernels.generator.ir.text import Json, dumps
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.schedules import read_knobs
from mirage_kernels.generator.schedules.schedule import Knobs

ELEMENT_TYPES = ("fp16", "bf16")
HINT = "measure again: mirage-kernels tune"
MANIFEST, CATALOG = "manifest.json", "catalog.json"
FOLDER_HINT = "choose a folder that can be written"
T = TypeVar("T")


# -- a bucket --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A call that candidates were compared at: what else was measured there.

    `library_us` is the time of what the op runs where no kernel serves; `few_tiles` says whether
    the launch finds few work tiles.
    """

    name: str
    floor_us: float
    eager_us: float | None = None
    library_us: float | None = None
    few_tiles: bool = False


@dataclass(frozen=True)
class Tried:
    """One candidate: its times at the bucket's points, or in `failed` why it has none.

    `us` are those of calls that assume nothing, `assumed_us` those that assume constant weights and
    a constant history; both are empty where that was not measured. Of a compiled candidate `digest`
    names its files and stands for its whole source.
    """

    knobs: Knobs
    predicted_us: float | None = None
    us: tuple[float, ...] = ()
    assumed_us: tuple[float, ...] = ()
    failed: str = ""
    digest: str = ""
    registers: int = 0

    def means(self) -> tuple[float, ...]:
        """Return the mean of both times at each point."""
        return tuple((a + b) / 2 for a, b in zip(self.us, self.assumed_us, strict=True))


@dataclass(frozen=True)
class Chosen:
    """The knobs of a bucket's calls, of few work tiles or of others, and their time.

    `ratio` is the geometric mean of their times over the floors; `rule_ratio` that of the rule's.
    """

    knobs: Knobs
    ratio: float
    rule_ratio: float | None = None
    few_tiles: bool = False


@dataclass(frozen=True)
class Bucket:
    """What serves up to `size` tokens or query rows (0: any number), and all candidates.

    The rule's choice is the first candidate; before measuring, `rule_of_few` is the rule's for
    calls of few work tiles, where they have a variant, and `sizes` are the dynamic extents that
    candidates of a program are compared at. `correlation` is Spearman's, of predictions and
    measurements.
    """

    size: int
    chosen: tuple[Chosen, ...] = ()
    points: tuple[Point, ...] = ()
    tried: tuple[Tried, ...] = ()
    correlation: float | None = None
    rule_of_few: Knobs | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)

    def choice(self, *, few: bool = False) -> Chosen | None:
        """Return what was chosen for calls of few work tiles, or for others."""
        return next((c for c in self.chosen if c.few_tiles is few), None)

    @property
    def best(self) -> Tried | None:
        """The candidate that was chosen for all calls but those of few work tiles."""
        choice = self.choice()
        found = (t for t in self.tried if choice and t.knobs == choice.knobs and not t.failed)
        return next(found, None)

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """Prediction and measurement of every candidate that has both."""
        return [
            (t.predicted_us, t.assumed_us[0]) for t in self.tried if t.predicted_us and t.assumed_us
        ]

    @property
    def plans(self) -> dict[str, float]:
        """The least time of every schedule at the first point, the fastest first."""
        found: dict[str, float] = {}
        for t in sorted((t for t in self.tried if t.assumed_us), key=lambda t: t.assumed_us):
            found.setdefault(t.knobs.label, t.assumed_us[0])
        return found


# -- a kernel --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """What names a kernel: recipe, element type, static extents."""

    recipe: str
    dtype: str
    shape: Mapping[str, int]

    @property
    def name(self) -> str:
        """`rms_norm_linear/K4096_N6144_fp16`."""
        dims = "_".join(f"{name}{size}" for name, size in self.shape.items())
        return f"{self.recipe}/{dims}_{self.dtype}"


@dataclass(frozen=True)
class Beyond:
    """The last bucket's choice at another number of tokens, with nothing assumed (None: failed)."""

    tokens: int
    us: float | None
    eager_us: float
    library_us: float | None = None


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
    peers: dict[str, float]

    @property
    def lines(self) -> int:
        """Query lines: tokens of all sequences times heads."""
        return self.sequences * self.tokens * self.heads

    @property
    def served_by(self) -> str:
        """The faster of what the library can run."""
        return "ours" if self.us <= self.sdpa_us else "SDPA"


@dataclass(frozen=True)
class TriedForm:
    """A muGraph that the search found: how its rule's variants do at all points, as `Chosen`."""

    form: str
    ratio: float | None  # None: it failed somewhere


@dataclass(frozen=True)
class Tuned:
    """One kernel's buckets, and up to how many tokens it serves calls (0: any number).

    `form` names the fastest of the muGraphs that were compared (`forms`, as predicted), where the
    search found several.

    Before measuring, `dim` names the dynamic dim where every bucket is measured at its own number
    of tokens; there the last bucket's choice is also compared at other numbers, `above`. Kernels
    without it are measured at calls of several dynamic extents. `others` are the same kernel by
    other muGraphs, with the rule's variants.
    """

    key: Key
    buckets: tuple[Bucket, ...]
    max_tokens: int = 0
    beyond: tuple[Beyond, ...] = ()
    dense: tuple[Dense, ...] = ()
    form: str = ""
    forms: tuple[TriedForm, ...] = ()
    dim: str = ""
    above: tuple[int, ...] = ()
    others: tuple[Tuned, ...] = ()
    symbol: str = ""  # before measuring, of a program's kernel: the function that launches it

    @property
    def candidates(self) -> dict[str, Tried]:
        """All candidates by their digests, those of other muGraphs too."""
        kernels = (self, *self.others)
        return {t.digest: t for kernel in kernels for b in kernel.buckets for t in b.tried}


# -- tunings ---------------------------------------------------------------------------------------


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Spearman's rank correlation of pairs; equal values share the mean of their ranks.

    None where it has no meaning: fewer than three pairs, or all values of a side equal.
    """
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    if len(pairs) < 3 or any(len(set(values)) == 1 for values in sides):
        return None
    first, second = ([sorted(v).index(x) + v.count(x) / 2 for x in v] for v in sides)
    return round(correlation(first, second), 3)


def overall_correlation(kernels: Sequence[Tuned]) -> float | None:
    """Return the rank correlation over all buckets, times relative to the least of each."""
    found: list[tuple[float, float]] = []
    for pairs in (bucket.pairs for kernel in kernels for bucket in kernel.buckets if bucket.pairs):
        least = [min(pair[side] for pair in pairs) for side in (0, 1)]
        found += [(predicted / least[0], us / least[1]) for predicted, us in pairs]
    return rank_correlation(found)


@dataclass(frozen=True)
class Section:
    """Kernels of one tuning: for which architecture, where measured, when, by which command.

    Before measuring, `measured` has the command that compiled them only.
    """

    arch: str
    measured: dict[str, str]
    correlation: float | None
    kernels: tuple[Tuned, ...]

    @property
    def names(self) -> set[str]:
        """Names of all its kernels."""
        return {k.key.name for k in self.kernels}

    def without(self, names: set[str]) -> Section:
        """Return the section without some kernels; its correlation is that of the others."""
        if not names & self.names:
            return self
        kernels = tuple(k for k in self.kernels if k.key.name not in names)
        return replace(self, correlation=overall_correlation(kernels), kernels=kernels)


@dataclass(frozen=True)
class Catalog:
    """Everything measured, a section per tuning; a kernel stands in one section of its arch."""

    sections: tuple[Section, ...] = ()

    def of(self, arch: str) -> Iterator[Tuned]:
        """Yield the kernels of an architecture."""
        return (k for s in self.sections if s.arch == arch for k in s.kernels)

    def with_section(self, new: Section) -> Catalog:
        """Return the catalog with a tuning's kernels in place of what was known of them."""
        left = (s.without(new.names) if s.arch == new.arch else s for s in self.sections)
        return Catalog(tuple(s for s in (*left, new) if s.names))


# -- files -----------------------------------------------------------------------------------------


def read_file(path: Path, kind: type[T], *, what: str, hint: str) -> T:
    """Read a JSON file that is `what`; raises FileError naming the file and what is wrong."""
    try:
        return read(kind, json.loads(path.read_text()))
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}", hint) from error
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} is not {what}: {type(error).__name__}: {error}", hint) from error


def write_file(path: Path, value: object, *, hint: str = FOLDER_HINT) -> None:
    """Write a value whole, as `read_file` reads it."""
    write_whole(path, dumps(written(value)), hint=hint)


def read(kind: type[T], data: Json) -> T:
    """Return JSON data as a value of a type, knobs as those of their schedule."""
    return from_data(kind, data, {Knobs: lambda item: read_knobs(cast(dict[str, Json], item))})


def written(value: object) -> Json:
    """Return a value as JSON data."""
    return to_data(value, lambda v: v.to_json() if isinstance(v, Knobs) else None)


def load_manifest(folder: Path) -> Section:
    """Read what a folder holds; raises FileError where there is no manifest."""
    hint = f"`mirage-kernels tune --compile {folder}` writes it"
    return read_file(folder / MANIFEST, Section, what="a tuning's manifest", hint=hint)


def committed_path() -> Path:
    """Return where the package's catalog stands, in a checkout or installed."""
    folder = ROOT / "kernels" if (ROOT / "kernels").is_dir() else ROOT
    return folder / CATALOG


def load_catalog(path: Path) -> Catalog:
    """Read a catalog, an empty one where there is no file; raises FileError for another file."""
    return read_file(path, Catalog, what="a catalog", hint=HINT) if path.is_file() else Catalog()


def write_catalog(path: Path, catalog: Catalog) -> None:
    """Write a catalog whole."""
    write_file(path, catalog, hint="choose another file: --catalog FILE")


def tuned_program(arch: str, key: Key, paths: Sequence[Path]) -> Tuned | None:
    """Return what the first of some catalogs that knows a kernel says of it, of either type."""
    found = (tuned_kernel(arch, key, path=path, of_any_type=True) for path in paths)
    return next((tuned for tuned in found if tuned is not None), None)


def tuned_kernel(
    arch: str, key: Key, *, path: Path | None = None, of_any_type: bool = False
) -> Tuned | None:
    """Return what a catalog, the package's if none is named, says of a kernel.

    With `of_any_type` buckets never tuned have what the same kernel of the other element type has,
    for kernels whose types take as many bytes and instructions.
    """
    types = (key.dtype, *(t for t in ELEMENT_TYPES if of_any_type and t != key.dtype))
    known = list(load_catalog(path or committed_path()).of(arch))
    found = [k for dtype in types for k in known if k.key == replace(key, dtype=dtype)]
    if not found:
        return None
    own = {b.size for b in found[0].buckets}
    more = (b for tuned in found[1:] for b in tuned.buckets if b.size not in own)
    buckets = (*found[0].buckets, *more)
    most = max(found, key=lambda tuned: tuned.buckets[-1].size).max_tokens
    return replace(found[0], buckets=buckets, max_tokens=most)
