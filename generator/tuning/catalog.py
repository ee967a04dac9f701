"""kernels/catalog.json: which variant was measured to be fastest, for every kernel and bucket.

Only `generate` reads it: a kernel's record then holds the variants and the largest number of tokens
that it serves, and everything else follows from the record. Candidates of a bucket are compared at
one call or at several; where a launch tells calls of few work tiles apart, these may have knobs of
their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import correlation

from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.ir.text import dumps
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.tuning.files import read_file, written

ELEMENT_TYPES = ("fp16", "bf16")
HINT = "measure again: mirage-kernels tune"


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
    a constant history; both are empty where that was not measured.
    """

    knobs: Knobs
    predicted_us: float | None = None
    us: tuple[float, ...] = ()
    assumed_us: tuple[float, ...] = ()
    failed: str = ""

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

    `correlation` is Spearman's, of predictions and measurements.
    """

    size: int
    chosen: tuple[Chosen, ...]
    points: tuple[Point, ...]
    tried: tuple[Tried, ...]
    correlation: float | None = None

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
        times: dict[str, float] = {}
        for t in (t for t in self.tried if t.assumed_us):
            times[t.knobs.label] = min(t.assumed_us[0], times.get(t.knobs.label, t.assumed_us[0]))
        return dict(sorted(times.items(), key=lambda plan: plan[1]))


@dataclass(frozen=True)
class Beyond:
    """The last bucket's choice at another number of tokens, with nothing assumed (None: failed)."""

    tokens: int
    us: float | None
    eager_us: float
    library_us: float | None = None

    @property
    def other_us(self) -> float:
        """What would run in its place."""
        return self.library_us or self.eager_us


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
    """

    key: Key
    buckets: tuple[Bucket, ...]
    max_tokens: int = 0
    beyond: tuple[Beyond, ...] = ()
    dense: tuple[Dense, ...] = ()
    form: str = ""
    forms: tuple[TriedForm, ...] = ()

    @property
    def knobs(self) -> tuple[Knobs, ...]:
        """All knobs that were chosen."""
        return tuple(c.knobs for b in self.buckets for c in b.chosen)


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
    """Kernels measured in one tuning: for which architecture, where, when, by which command."""

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
        kernels = tuple(k for k in self.kernels if k.key.name not in names)
        same = len(kernels) == len(self.kernels)
        correlation = self.correlation if same else overall_correlation(kernels)
        return replace(self, correlation=correlation, kernels=kernels)


@dataclass(frozen=True)
class Catalog:
    """Everything measured, a section per tuning; a kernel stands in one section of its arch."""

    sections: tuple[Section, ...] = ()

    def find(self, arch: str, key: Key) -> Tuned | None:
        """Return a kernel's entry."""
        return next((k for k in self.of(arch) if k.key == key), None)

    def of(self, arch: str) -> Iterator[Tuned]:
        """Yield the kernels of an architecture."""
        return (k for s in self.sections if s.arch == arch for k in s.kernels)

    def with_section(self, new: Section) -> Catalog:
        """Return the catalog with a tuning's kernels in place of what was known of them."""
        left = (s.without(new.names) if s.arch == new.arch else s for s in self.sections)
        return Catalog(tuple(s for s in (*left, new) if s.names))

    def text(self) -> str:
        """Return the file's text."""
        return dumps(written(self))


def committed_path() -> Path:
    """Return where the package's catalog stands, in a checkout or installed."""
    return (
        ROOT / "kernels" / "catalog.json" if (ROOT / "kernels").is_dir() else ROOT / "catalog.json"
    )


def load_catalog(path: Path) -> Catalog:
    """Read a catalog, an empty one where there is no file; raises FileError for another file."""
    return read_file(path, Catalog, what="a catalog", hint=HINT) if path.is_file() else Catalog()


def write_catalog(path: Path, catalog: Catalog) -> None:
    """Write a catalog whole."""
    write_whole(path, catalog.text(), hint="choose another file: --catalog FILE")


def tuned_kernel(
    arch: str, key: Key, *, path: Path | None = None, of_any_type: bool = False
) -> Tuned | None:
    """Return what the package's catalog says of a kernel.

    With `of_any_type` buckets never tuned have what the same kernel of the other element type has,
    for kernels whose types take as many bytes and instructions.
    """
    catalog = load_catalog(path or committed_path())
    types = (key.dtype, *(t for t in ELEMENT_TYPES if of_any_type and t != key.dtype))
    found = [k for k in (catalog.find(arch, replace(key, dtype=t)) for t in types) if k is not None]
    if not found:
        return None
    own = {b.size for b in found[0].buckets}
    more = (b for tuned in found[1:] for b in tuned.buckets if b.size not in own)
    return replace(found[0], buckets=(*found[0].buckets, *more))
