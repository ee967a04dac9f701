"""measured.json: every measurement of a tuning, written whole after each; what is there stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.ir.codec import from_data, to_data
from mirage_kernels.generator.ir.text import Json, dumps
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.tuning.files import loaded

SAME = ("gpu", "driver", "cuda", "torch")  # what one file's measurements must agree in
DIGITS = 3


@dataclass(frozen=True)
class Outcome:
    """A candidate's time and relative error, or why there is none; see `At.few_tiles`."""

    us: float | None = None
    error: float | None = None
    few_tiles: bool = False
    failed: str = ""


@dataclass(frozen=True)
class Peers:
    """What a call is compared with: the floor, PyTorch eager, the library without a kernel of ours.

    `peers` are kernels of PyTorch, those that take the call.
    """

    floor_us: float = 0.0
    eager_us: float | None = None
    library_us: float | None = None
    peers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """What a file holds: times of libraries by digest and call, of peers by kernel and call."""

    environment: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    peers: dict[str, Peers] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """A file of measurements."""

    path: Path
    measured: Measured

    def write(self) -> None:
        """Write the file whole."""
        names = ("environment", "outcomes", "peers")
        document = {name: to_data(getattr(self.measured, name)) for name in names}
        write_whole(self.path, dumps(document), hint="choose another file: --results FILE")

    def begin(self, here: Mapping[str, str]) -> None:
        """Note where measurements come from; raises FileError where others came from elsewhere."""
        known = self.measured.environment
        if not known:
            known.update(here)
        for name in SAME:
            before, now = known.get(name, ""), here.get(name, "")
            if before != now:
                raise FileError(
                    f"{self.path} was begun with {name} {before}, this is {now}",
                    "remove it to measure all anew, or name another: --results FILE",
                )


def at(name: str, call: str, *, promised: bool = True) -> str:
    """Return under which name something is kept that was measured at a call."""
    return f"{name}@{call}{'' if promised else ' by default'}"


def outcome_of(answer: dict[str, Json]) -> Outcome:
    """Return what the worker answered of a candidate."""
    return from_data(Outcome, _rounded({n: v for n, v in answer.items() if n != "leaving"}))


def peers_of(answer: dict[str, Json]) -> Peers:
    """Return what the worker answered of a call."""
    return from_data(Peers, _rounded(answer))


def _rounded(data: Json, name: str = "us") -> Json:
    """Return data with its times, and whatever stands below "peers", to a thousandth."""
    if isinstance(data, dict):
        return {n: _rounded(v, "us" if name == "peers" else n) for n, v in data.items()}
    return round(data, DIGITS) if isinstance(data, float) and name.endswith("us") else data


def load_results(path: Path) -> Results:
    """Read the file of an interrupted tuning, or begin a new one."""
    if not path.is_file():
        return Results(path, Measured())
    hint = "remove it and measure again"
    return Results(path, loaded(path, Measured, what="a file of measurements", hint=hint))
