"""measured.json: every measurement of a tuning, written whole after each; what is there stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypeVar

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.ir.text import Json, dumps
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.tuning.files import read, read_file, written

SAME = ("gpu", "driver", "cuda", "torch")  # what one file's measurements must agree in
DIGITS = 3
T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """A candidate's time at a call, or why there is none.

    `few_tiles` says whether the launch finds few work tiles there.
    """

    us: float = 0.0
    error: float | None = None
    few_tiles: bool = False
    failed: str = ""


@dataclass(frozen=True)
class Peers:
    """What a kernel is compared with: the floor, PyTorch eager, what the library runs without it.

    `peers` are PyTorch's kernels one by one.
    """

    floor_us: float
    eager_us: float | None = None
    library_us: float | None = None
    peers: dict[str, float] = field(default_factory=dict)


def answered(kind: type[T], answer: Mapping[str, Json]) -> T:
    """Return what the worker answered, times rounded."""
    named = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    return read(kind, {name: _rounded(name, v) for name, v in answer.items() if name in named})


def _rounded(name: str, value: Json) -> Json:
    if isinstance(value, dict):
        return {inner: _rounded("us", v) for inner, v in value.items()}
    return round(value, DIGITS) if isinstance(value, float) and name.endswith("us") else value


@dataclass(frozen=True)
class Measured:
    """What a file of measurements holds, by library or kernel, and call: see `at`."""

    environment: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    peers: dict[str, Peers] = field(default_factory=dict)


@dataclass
class Results:
    """A file of measurements."""

    path: Path
    known: Measured = field(default_factory=Measured)

    def write(self) -> None:
        """Write the file whole."""
        document = dumps(written(self.known))
        write_whole(self.path, document, hint="choose another file: --results FILE")

    def begin(self, here: Mapping[str, str]) -> None:
        """Note where measurements come from; raises FileError where others came from elsewhere."""
        before = self.known.environment
        if not before:
            before.update(here)
        for name in SAME:
            was, now = before.get(name, ""), here.get(name, "")
            if was != now:
                raise FileError(
                    f"{self.path} was begun with {name} {was}, this is {now}",
                    "remove it to measure all anew, or name another: --results FILE",
                )


def at(name: str, call: str, *, assumed: bool = False) -> str:
    """Return under which name something is kept that was measured at a call."""
    return f"{name}@{call}{' assumed' if assumed else ''}"


def load_results(path: Path) -> Results:
    """Read the file of an interrupted tuning, or begin a new one."""
    if not path.is_file():
        return Results(path)
    hint = "remove it and measure again"
    return Results(path, read_file(path, Measured, what="a file of measurements", hint=hint))
