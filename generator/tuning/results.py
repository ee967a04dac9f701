"""measured.json: every measurement of a tuning, written whole after each; what is there stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.ir.text import Json, dumps
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.tuning.attention_results import AttentionResults
from mirage_kernels.generator.tuning.fields import entry, loaded, maybe, number, text, texts

SAME = ("gpu", "driver", "cuda", "torch")  # what one file's measurements must agree in
DIGITS = 3
NOTHING: Json = AttentionResults().to_json()


@dataclass(frozen=True)
class Outcome:
    """A candidate's time and relative error, or why there is none."""

    us: float | None = None
    error: float | None = None
    failed: str = ""

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON data."""
        if self.failed:
            return {"failed": self.failed}
        return {"us": self.us, "error": self.error}

    @staticmethod
    def read(data: Mapping[str, Json]) -> Outcome:
        """Read what `to_json` makes, and what the worker answers."""
        if "failed" in data:
            return Outcome(failed=text(data, "failed"))
        return Outcome(round(number(data, "us"), DIGITS), maybe(data, "error"))


@dataclass(frozen=True)
class Peers:
    """What a kernel is compared with: the floor, PyTorch eager, the library's own program."""

    floor_us: float
    eager_us: float
    library_us: float | None = None

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON data."""
        return {name: us for name, us in vars(self).items() if us is not None}

    @staticmethod
    def read(data: Mapping[str, Json]) -> Peers:
        """Read what `to_json` makes, and what the worker answers."""
        floor, eager = (round(number(data, name), DIGITS) for name in ("floor_us", "eager_us"))
        library = maybe(data, "library_us")
        return Peers(floor, eager, None if library is None else round(library, DIGITS))


@dataclass
class Results:
    """A file of measurements: of libraries by digest and tokens, of peers by kernel and tokens."""

    path: Path
    environment: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    peers: dict[str, Peers] = field(default_factory=dict)
    attention: AttentionResults = field(default_factory=AttentionResults)

    def write(self) -> None:
        """Write the file whole."""
        document: dict[str, Json] = {
            "environment": dict(self.environment),
            "outcomes": {name: o.to_json() for name, o in self.outcomes.items()},
            "peers": {name: p.to_json() for name, p in self.peers.items()},
        }
        if self.attention.floors:
            document["attention"] = self.attention.to_json()
        write_whole(self.path, dumps(document), hint="choose another file: --results FILE")

    def begin(self, here: Mapping[str, str]) -> None:
        """Note where measurements come from; raises FileError where others came from elsewhere."""
        if not self.environment:
            self.environment = dict(here)
        for name in SAME:
            before, now = self.environment.get(name, ""), here.get(name, "")
            if before != now:
                raise FileError(
                    f"{self.path} was begun with {name} {before}, this is {now}",
                    "remove it to measure all anew, or name another: --results FILE",
                )


def at(name: str, tokens: int, *, promised: bool = True) -> str:
    """Return under which name something is kept that was measured at a number of tokens."""
    return f"{name}@{tokens}{'' if promised else ' by default'}"


def load_results(path: Path) -> Results:
    """Read the file of an interrupted tuning, or begin a new one."""
    if not path.is_file():
        return Results(path)

    def read(data: Json) -> Results:
        whole = entry(data)
        outcomes, peers = entry(whole["outcomes"]), entry(whole["peers"])
        return Results(
            path,
            texts(whole, "environment"),
            {name: Outcome.read(entry(o)) for name, o in outcomes.items()},
            {name: Peers.read(entry(p)) for name, p in peers.items()},
            AttentionResults.read(entry(whole.get("attention", NOTHING))),
        )

    return loaded(path, read, what="a file of measurements", hint="remove it and measure again")
