"""kernels/catalog.json: which variant was measured to be fastest, for every kernel and bucket.

Only `generate` reads it: a kernel's record then holds the variants and the largest number of tokens
that it serves, and everything else follows from the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir.text import Json, dumps
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.schedules import read_knobs
from mirage_kernels.generator.schedules.candidates import by_size, untuned
from mirage_kernels.generator.schedules.choose import member
from mirage_kernels.generator.schedules.loop import REGISTERS_LEFT
from mirage_kernels.generator.schedules.schedule import Knobs, Variant
from mirage_kernels.generator.schedules.sizes import producers_of, registers, shared_bytes
from mirage_kernels.generator.target import Target
from mirage_kernels.generator.tuning.attention_catalog import TunedAttention
from mirage_kernels.generator.tuning.correlation import rank_correlation, relative
from mirage_kernels.generator.tuning.fields import (
    entries,
    entry,
    integer,
    loaded,
    maybe,
    number,
    text,
    texts,
)
from mirage_kernels.generator.tuning.keys import Key as Key

MAX_TOKENS = 64  # of kernels never measured: above it the library's program runs
ATTENTION_TYPES = ("fp16", "bf16")
HINT = "measure again: mirage-kernels tune"


@dataclass(frozen=True)
class Tried:
    """One candidate: predicted, and measured or, in `failed`, why it was not.

    `default_us` is its time in calls that promise nothing, if that was measured.
    """

    knobs: Knobs
    predicted_us: float
    us: float | None = None
    failed: str = ""
    default_us: float | None = None

    def to_json(self) -> dict[str, Json]:
        """Return the candidate as JSON data."""
        outcome: dict[str, Json] = {"failed": self.failed} if self.failed else {"us": self.us}
        made: dict[str, Json] = {"plan": self.knobs.label, **self.knobs.to_json()}
        default: dict[str, Json] = {"default_us": self.default_us} if self.default_us else {}
        return made | {"predicted_us": self.predicted_us} | outcome | default

    @staticmethod
    def read(data: Mapping[str, Json]) -> Tried:
        """Read what `to_json` makes."""
        failed = text(data, "failed") if "failed" in data else ""
        times = (number(data, "predicted_us"), maybe(data, "us"))
        return Tried(read_knobs(data), *times, failed, maybe(data, "default_us"))


@dataclass(frozen=True)
class Bucket:
    """A bucket of tokens: the chosen knobs with their time, the floor, PyTorch, all candidates.

    `default_us` is the time of calls that promise nothing about weights, None where it failed;
    `library_us` that of what the op runs where no kernel serves, if that was measured.
    """

    tokens: int
    knobs: Knobs
    us: float
    default_us: float | None
    floor_us: float
    eager_us: float
    correlation: float | None  # Spearman's, of predictions and measurements
    tried: tuple[Tried, ...]
    library_us: float | None = None

    @property
    def other_us(self) -> float:
        """What would run in its place."""
        return self.library_us or self.eager_us

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """Prediction and measurement of every candidate that was measured."""
        return [(t.predicted_us, t.us) for t in self.tried if t.us is not None]

    @property
    def plans(self) -> dict[str, float]:
        """The least time of every plan, the fastest first."""
        times: dict[str, float] = {}
        for t in self.tried:
            if t.us is not None:
                name = t.knobs.label
                times[name] = min(t.us, times.get(name, t.us))
        return dict(sorted(times.items(), key=lambda plan: plan[1]))

    def to_json(self) -> dict[str, Json]:
        """Return the bucket as JSON data."""
        numbers: dict[str, Json] = {
            "us": self.us,
            "default_us": self.default_us,
            "floor_us": self.floor_us,
            "ratio": round(self.us / self.floor_us, 3),
            "eager_us": self.eager_us,
        }
        numbers |= {"library_us": self.library_us} if self.library_us else {}
        numbers |= {"correlation": self.correlation}
        chosen: dict[str, Json] = {"tokens": self.tokens, "plan": self.knobs.label}
        chosen["knobs"] = self.knobs.to_json()
        by_plan: dict[str, Json] = {"plans": dict(self.plans)}
        return chosen | numbers | by_plan | {"candidates": [t.to_json() for t in self.tried]}

    @staticmethod
    def read(data: Mapping[str, Json]) -> Bucket:
        """Read what `to_json` makes."""
        return Bucket(
            integer(data, "tokens"),
            read_knobs(entry(data["knobs"])),
            number(data, "us"),
            maybe(data, "default_us"),
            number(data, "floor_us"),
            number(data, "eager_us"),
            maybe(data, "correlation"),
            tuple(Tried.read(t) for t in entries(data, "candidates")),
            maybe(data, "library_us"),
        )


@dataclass(frozen=True)
class Beyond:
    """Ours, by default, and PyTorch where the last bucket's choice serves another number."""

    tokens: int
    default_us: float | None
    eager_us: float
    library_us: float | None = None

    @property
    def other_us(self) -> float:
        """What would run in its place."""
        return self.library_us or self.eager_us

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON data."""
        return {n: v for n, v in vars(self).items() if n != "library_us" or v is not None}

    @staticmethod
    def read(data: Mapping[str, Json]) -> Beyond:
        """Read what `to_json` makes."""
        ours = maybe(data, "default_us")
        times = (number(data, "eager_us"), maybe(data, "library_us"))
        return Beyond(integer(data, "tokens"), ours, *times)


@dataclass(frozen=True)
class Tuned:
    """One kernel's buckets, and up to how many tokens it serves calls."""

    key: Key
    max_tokens: int
    buckets: tuple[Bucket, ...]
    beyond: tuple[Beyond, ...]

    def to_json(self) -> dict[str, Json]:
        """Return the kernel as JSON data."""
        return self.key.to_json() | {
            "max_tokens": self.max_tokens,
            "buckets": [b.to_json() for b in self.buckets],
            "beyond": [b.to_json() for b in self.beyond],
        }

    @staticmethod
    def read(data: Mapping[str, Json]) -> Tuned:
        """Read what `to_json` makes."""
        return Tuned(
            Key.read(data),
            integer(data, "max_tokens"),
            tuple(Bucket.read(b) for b in entries(data, "buckets")),
            tuple(Beyond.read(b) for b in entries(data, "beyond")),
        )


def overall_correlation(kernels: Sequence[Tuned]) -> float | None:
    """Return the rank correlation over all buckets, times relative to the least of each."""
    return rank_correlation([p for k in kernels for b in k.buckets for p in relative(b.pairs)])


@dataclass(frozen=True)
class Section:
    """Kernels measured in one tuning: for which architecture, where, when, by which command."""

    arch: str
    measured: Mapping[str, str]
    correlation: float | None
    kernels: tuple[Tuned, ...]
    attention: tuple[TunedAttention, ...] = ()

    @property
    def names(self) -> set[str]:
        """Names of all its kernels."""
        return {k.key.name for k in self.kernels} | {k.key.name for k in self.attention}

    def without(self, names: set[str]) -> Section:
        """Return the section without some kernels; its correlation is that of the others."""
        kernels = tuple(k for k in self.kernels if k.key.name not in names)
        attention = tuple(k for k in self.attention if k.key.name not in names)
        same = len(kernels) == len(self.kernels)
        correlation = self.correlation if same else overall_correlation(kernels)
        return replace(self, correlation=correlation, kernels=kernels, attention=attention)

    def to_json(self) -> dict[str, Json]:
        """Return the section as JSON data."""
        made: dict[str, Json] = {
            "arch": self.arch,
            "measured": dict(self.measured),
            "correlation": self.correlation,
            "kernels": [k.to_json() for k in self.kernels],
        }
        attention: dict[str, Json] = {"attention": [k.to_json() for k in self.attention]}
        return made | (attention if self.attention else {})

    @staticmethod
    def read(data: Mapping[str, Json]) -> Section:
        """Read what `to_json` makes."""
        return Section(
            text(data, "arch"),
            texts(data, "measured"),
            maybe(data, "correlation"),
            tuple(Tuned.read(k) for k in entries(data, "kernels")),
            tuple(TunedAttention.read(k) for k in entries(data, "attention"))
            if "attention" in data
            else (),
        )


@dataclass(frozen=True)
class Catalog:
    """Everything measured, a section per tuning; a kernel stands in one section of its arch."""

    sections: tuple[Section, ...] = ()

    def find(self, arch: str, key: Key) -> Tuned | None:
        """Return a kernel's entry."""
        own = (k for s in self.sections if s.arch == arch for k in s.kernels)
        return next((k for k in own if k.key == key), None)

    def find_attention(self, arch: str, key: Key) -> TunedAttention | None:
        """Return an attention kernel's entry."""
        own = (k for s in self.sections if s.arch == arch for k in s.attention)
        return next((k for k in own if k.key == key), None)

    def with_section(self, new: Section) -> Catalog:
        """Return the catalog with a tuning's kernels in place of what was known of them."""
        left = (s.without(new.names) if s.arch == new.arch else s for s in self.sections)
        return Catalog(tuple(s for s in (*left, new) if s.names))

    def text(self) -> str:
        """Return the file's text."""
        return dumps({"sections": [s.to_json() for s in self.sections]})


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
    if not path.is_file():
        return Catalog()

    def read(data: Json) -> Catalog:
        return Catalog(tuple(Section.read(s) for s in entries(entry(data), "sections")))

    return loaded(path, read, what="a catalog", hint=HINT)


def write_catalog(path: Path, catalog: Catalog) -> None:
    """Write a catalog whole."""
    write_whole(path, catalog.text(), hint="choose another file: --catalog FILE")


def chosen_variants(
    programs: tuple[TileProgram, ...], on: Target, tuned: Tuned | None
) -> tuple[Variant, ...]:
    """Return one variant per bucket: the measured one where there is one, else the rule's.

    A kernel never tuned has what `untuned` returns. What was measured without the plan that the
    rule takes says nothing against it, and is left. Raises PlanError for measured knobs that no
    longer fit the kernel.
    """
    if tuned is None:
        return untuned(programs[0], on)
    rule = by_size(programs[0], on)
    found = {b.tokens: b for b in tuned.buckets}
    known = {
        m: found[m].knobs
        for m, variant in rule.items()
        if m in found and variant.knobs.label in {t.knobs.label for t in found[m].tried}
    }
    producers = next((has_producers(k) for k in known.values()), programs[0].producer_blocks > 0)
    program = member(programs, producers=producers)
    known = {m: k for m, k in known.items() if has_producers(k) is producers}
    _check_fit(program, on, known)
    return tuple(replace(v, knobs=known.get(m, v.knobs)) for m, v in by_size(program, on).items())


def has_producers(knobs: Knobs) -> bool:
    """Say whether producer blocks compute something for all other blocks."""
    return producers_of(knobs) is not None


def _check_fit(program: TileProgram, on: Target, measured: Mapping[int, Knobs]) -> None:
    for tokens, knobs in measured.items():
        shared, needed = shared_bytes(program, knobs), registers(program, knobs)
        if shared > on.shared_bytes or needed > REGISTERS_LEFT:
            raise PlanError(
                f"{program.recipe}: the knobs that the catalog has for {tokens} tokens "
                f"do not fit the kernel of today: {shared} bytes, {needed} registers",
                HINT,
            )


def tuned_attention(arch: str, key: Key, *, path: Path | None = None) -> TunedAttention | None:
    """Return what the package's catalog says of an attention kernel.

    Buckets never tuned have what the same kernel of the other element type has: both take as many
    bytes and instructions, and where both were measured the same knobs were the fastest.
    """
    catalog = load_catalog(path or committed_path())
    types = (key.dtype, *(t for t in ATTENTION_TYPES if t != key.dtype))
    entries = (catalog.find_attention(arch, replace(key, dtype=t)) for t in types)
    found = [tuned for tuned in entries if tuned is not None]
    if not found:
        return None
    own = {b.rows for b in found[0].buckets}
    more = (b for tuned in found[1:] for b in tuned.buckets if b.rows not in own)
    return replace(found[0], buckets=(*found[0].buckets, *more))


def tuned_kernel(arch: str, key: Key, *, path: Path | None = None) -> Tuned | None:
    """Return what the package's catalog says of a kernel."""
    return load_catalog(path or committed_path()).find(arch, key)
