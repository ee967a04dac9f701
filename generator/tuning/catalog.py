"""kernels/catalog.json: which variant was measured to be fastest, for every kernel and bucket.

Only `generate` reads it: a kernel's record then holds the variants and the largest number of tokens
that it serves, and everything else follows from the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.ir.codec import to_data
from mirage_kernels.generator.ir.text import dumps
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.tuning.correlation import rank_correlation, relative
from mirage_kernels.generator.tuning.files import loaded
from mirage_kernels.generator.tuning.keys import Key as Key
from mirage_kernels.generator.tuning.knobs import Values

MAX_TOKENS = 64  # of kernels never measured: above it the library's program runs
HINT = "measure again: mirage-kernels tune"


@dataclass(frozen=True)
class Tried:
    """One candidate: predicted, and measured at each of its bucket's calls or, in `failed`, not.

    `us` are its times with all assumption flags, `default_us` those without any.
    """

    knobs: Values
    schedule: str = ""
    predicted_us: float | None = None
    us: tuple[float, ...] = ()
    default_us: tuple[float, ...] = ()
    failed: str = ""

    @property
    def first_us(self) -> float | None:
        """Its time at the bucket's first call."""
        return self.us[0] if self.us else None

    @property
    def means(self) -> tuple[float, ...]:
        """The mean of both times at each call."""
        return tuple((a + b) / 2 for a, b in zip(self.us, self.default_us, strict=True))


@dataclass(frozen=True)
class At:
    """A call that candidates were compared at: its floor, PyTorch eager, the library's program.

    `few_tiles`: the launch finds it to be of few work tiles.
    """

    name: str
    floor_us: float
    eager_us: float | None = None
    library_us: float | None = None
    few_tiles: bool = False


@dataclass(frozen=True)
class Chosen:
    """The knobs of a bucket's calls, of few work tiles or of all others.

    `ratio` is their time over the floor, a geometric mean where calls are several; `rule_ratio`
    that of the rule's.
    """

    knobs: Values
    ratio: float
    rule_ratio: float | None = None
    few_tiles: bool = False


@dataclass(frozen=True)
class Bucket:
    """A bucket of tokens or query rows (0: any number): what was chosen, where, all candidates."""

    size: int
    chosen: tuple[Chosen, ...]
    calls: tuple[At, ...]
    tried: tuple[Tried, ...]
    correlation: float | None = None  # Spearman's, of predictions and measurements

    def choice(self, *, few: bool = False) -> Chosen | None:
        """Return what was chosen for calls of few work tiles, or for others."""
        return next((c for c in self.chosen if c.few_tiles is few), None)

    @property
    def best(self) -> Tried:
        """The candidate that was chosen."""
        return next(t for t in self.tried if t.knobs == self.chosen[0].knobs and not t.failed)

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """Prediction and measurement of every candidate that was predicted and measured."""
        found = ((t.predicted_us, t.first_us) for t in self.tried)
        return [(a, b) for a, b in found if a is not None and b is not None]

    @property
    def schedules(self) -> dict[str, float]:
        """The least time of every schedule, the fastest first."""
        times: dict[str, float] = {}
        for t in self.tried:
            if t.first_us is not None:
                times[t.schedule] = min(t.first_us, times.get(t.schedule, t.first_us))
        return dict(sorted(times.items(), key=lambda one: one[1]))


@dataclass(frozen=True)
class Beyond:
    """A call that the last bucket's choice also serves, and the library without a kernel of ours.

    `default_us` is our time without assumption flags, None where it failed; `peers` are kernels of
    PyTorch, those that take the call.
    """

    sizes: Mapping[str, int]
    default_us: float | None
    eager_us: float | None = None
    library_us: float | None = None
    causal: bool = False
    peers: Mapping[str, float] = field(default_factory=dict)

    @property
    def other_us(self) -> float:
        """What would run in its place."""
        other = self.library_us or self.eager_us
        assert other is not None
        return other

    @property
    def is_ours(self) -> bool:
        """Say whether ours serves: it takes no longer."""
        return self.default_us is not None and self.default_us <= self.other_us


@dataclass(frozen=True)
class TriedGraph:
    """A muGraph that the search found: how its rule's variants do at all calls, as `Chosen`."""

    name: str
    ratio: float | None = None  # None: it failed somewhere


@dataclass(frozen=True)
class Tuned:
    """One kernel's buckets, up to how many tokens it serves calls (0: all), other calls.

    `mugraph` names the fastest of the muGraphs that were compared, if several were.
    """

    key: Key
    buckets: tuple[Bucket, ...]
    beyond: tuple[Beyond, ...] = ()
    max_tokens: int = 0
    mugraph: str = ""
    mugraphs: tuple[TriedGraph, ...] = ()


def overall_correlation(kernels: Sequence[Tuned]) -> float | None:
    """Return the rank correlation over all buckets, times relative to the least of each."""
    return rank_correlation([p for k in kernels for b in k.buckets for p in relative(b.pairs)])


@dataclass(frozen=True)
class Section:
    """Kernels measured in one tuning: for which architecture, where, when, by which command."""

    arch: str
    measured: Mapping[str, str]
    kernels: tuple[Tuned, ...]
    correlation: float | None = None

    @property
    def names(self) -> set[str]:
        """Names of all its kernels."""
        return {k.key.name for k in self.kernels}

    def without(self, names: set[str]) -> Section:
        """Return the section without some kernels; its correlation is that of the others."""
        kernels = tuple(k for k in self.kernels if k.key.name not in names)
        same = len(kernels) == len(self.kernels)
        correlation = self.correlation if same else overall_correlation(kernels)
        return replace(self, correlation=correlation, kernels=kernels)


@dataclass(frozen=True)
class Catalog:
    """Everything measured, a section per tuning; a kernel stands in one section of its arch."""

    sections: tuple[Section, ...]

    def find(self, arch: str, key: Key) -> Tuned | None:
        """Return a kernel's entry."""
        own = (k for s in self.sections if s.arch == arch for k in s.kernels)
        return next((k for k in own if k.key == key), None)

    def with_section(self, new: Section) -> Catalog:
        """Return the catalog with a tuning's kernels in place of what was known of them."""
        left = (s.without(new.names) if s.arch == new.arch else s for s in self.sections)
        return Catalog(tuple(s for s in (*left, new) if s.names))


def committed_path() -> Path:
    """Return where the package's catalog stands, in a checkout or installed."""
    return (
        ROOT / "kernels" / "catalog.json" if (ROOT / "kernels").is_dir() else catalog_beside(ROOT)
    )


def catalog_beside(folder: Path) -> Path:
    """Return where the catalog stands in a folder of kernels."""
    return folder / "catalog.json"


def load_catalog(path: Path) -> Catalog:
    """Read a catalog, an empty one where there is no file; raises FileError for another file."""
    return loaded(path, Catalog, what="a catalog", hint=HINT) if path.is_file() else Catalog(())


def write_catalog(path: Path, catalog: Catalog) -> None:
    """Write a catalog whole."""
    write_whole(path, dumps(to_data(catalog)), hint="choose another file: --catalog FILE")


def tuned_kernel(arch: str, key: Key, *, path: Path | None = None) -> Tuned | None:
    """Return what the package's catalog says of a kernel."""
    return load_catalog(path or committed_path()).find(arch, key)


def tuned_by_any_type(arch: str, key: Key, *, path: Path | None = None) -> Tuned | None:
    """Return what the package's catalog says of a kernel whose element type hardly matters.

    Buckets never tuned have what the same kernel of the other element type has: both take as many
    bytes and instructions, and where both were measured the same knobs were the fastest.
    """
    catalog = load_catalog(path or committed_path())
    types = (key.dtype, *(t for t in ("fp16", "bf16") if t != key.dtype))
    entries = (catalog.find(arch, replace(key, dtype=t)) for t in types)
    found = [tuned for tuned in entries if tuned is not None]
    if not found:
        return None
    own = {b.size for b in found[0].buckets}
    more = (b for tuned in found[1:] for b in tuned.buckets if b.size not in own)
    return replace(found[0], buckets=(*found[0].buckets, *more))
