"""The committed record of one kernel: muGraph, proof, accuracy, plan; emission is a function of it.

The record and everything emitted from it hold no date, host, path or time, so that an unchanged
kernel is an unchanged file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mirage_kernels.generator.emit.cuda import Entry
from mirage_kernels.generator.errors import FileError, GraphError, PlanError
from mirage_kernels.generator.ir import DType, Graph, Indexed, Json, dumps, from_json, to_json
from mirage_kernels.generator.ir.codec import from_data, to_data
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.schedules import SCHEDULES, read_variant
from mirage_kernels.generator.schedules.schedule import Subject, Variant
from mirage_kernels.generator.search.cases import Case
from mirage_kernels.generator.search.gate import Measured
from mirage_kernels.generator.search.verify import Proof

MUGRAPH_ENDING = ".mugraph.json"


@dataclass(frozen=True)
class SearchSummary:
    """What the search that found this muGraph did."""

    states: int
    candidates: int
    proved: int


@dataclass(frozen=True)
class About:
    """What is recorded of every muGraph that was chosen for a recipe at a shape."""

    recipe: str
    summary: str  # the recipe's formula
    shape: Mapping[str, int]
    source: str  # which model the shape comes from
    dtype: str
    arch: str
    search: SearchSummary
    proof: Proof
    accuracy: tuple[Measured, ...]
    indexed: tuple[Indexed, ...] = field(default=(), kw_only=True)  # through index tensors
    # Rows of weights and results of their own, which rows come in.
    row_parts: tuple[int, ...] = field(default=(), kw_only=True)

    @property
    def stem(self) -> str:
        """File name without ending: `K4096_N6144_fp16`."""
        return Shape(self.source, self.shape).kernel(self.storage)

    @property
    def storage(self) -> DType:
        """Element type of the kernel's tensors."""
        return DType(self.dtype)

    @property
    def recipe_command(self) -> str:
        """The command that makes what is the same for all shapes of the recipe."""
        return f"mirage-kernels generate {self.recipe}"

    @property
    def command(self) -> str:
        """The command that makes this kernel's files."""
        dims = ",".join(f"{name}={size}" for name, size in self.shape.items())
        chosen = f" --shape {dims}" if dims else ""
        return f"{self.recipe_command} --arch {self.arch} --dtype {self.dtype}{chosen}"


@dataclass(frozen=True)
class KernelRecord(About):
    """One kernel of the library, as it is committed in `kernels/<arch>/<recipe>/<stem>.json`.

    A muGraph that was found, proved and gated, and that this version has no plan for, is kept in
    a record too, with the reason and without variants.
    """

    graph: Graph
    roles: Any = None  # what its schedules read into the dims of the muGraph
    variants: tuple[Variant, ...] = ()
    max_tokens: int = 0  # above it the library runs PyTorch's own program; 0: never
    stacked: tuple[str, ...] = ()  # weights that may be slices of stacks, by token
    strided: bool = False  # tensors lie apart in memory, all strides are of the call
    broadcast: tuple[str, ...] = ()  # vectors that calls give as one element, with a stride of 0
    no_plan: str = ""  # why there is no kernel

    @property
    def path(self) -> str:
        """Path of the JSON below the kernels folder."""
        ending = MUGRAPH_ENDING if self.no_plan else ".json"
        return f"{self.arch}/{self.recipe}/{self.stem}{ending}"

    @property
    def options(self) -> tuple[str, ...]:
        """The inputs that a call may leave out."""
        return tuple(n.name for n in self.graph.of("input") if n.optional)

    def tiles(self, variant: Variant) -> dict[str, int]:
        """Return the tile sizes of the muGraph that a variant runs."""
        return variant.knobs.tiles(self.roles)

    def to_json(self) -> dict[str, Json]:
        """Return the record as JSON data."""
        about = ("recipe", "summary", "arch", "dtype", "shape", "source")
        plan: dict[str, Json] = {"no_plan": self.no_plan}
        if not self.no_plan:
            plan = {
                "roles": to_data(self.roles),
                "variants": [v.to_json() for v in self.variants],
                "max_tokens": self.max_tokens,
            }
        return {
            "made_by": self.command,
            **{name: to_data(getattr(self, name)) for name in about},
            **plan,
            **({"stacked": list(self.stacked)} if self.stacked else {}),
            **({"strided": True} if self.strided else {}),
            **({"broadcast": list(self.broadcast)} if self.broadcast else {}),
            **({"row_parts": list(self.row_parts)} if self.row_parts else {}),
            **({"indexed": to_data(self.indexed)} if self.indexed else {}),
            "search": to_data(self.search),
            "proof": self.proof.to_json(),
            "accuracy": [m.to_json() for m in self.accuracy],
            "mugraph": to_json(self.graph),
        }

    def text(self) -> str:
        """Return the committed file's text."""
        return dumps(self.to_json())


def load_record(path: Path) -> KernelRecord:
    """Read a committed record; raises FileError naming the file and what is wrong with it."""
    try:
        data = json.loads(path.read_text())
        if not isinstance(data, dict) or "mugraph" not in data:
            raise _no_record(path, "it holds no muGraph: 'mugraph' is missing")
        return _read(data)
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}", "check the path") from error
    except GraphError as error:
        raise FileError(f"{path}: {error.sentence}", "regenerate the kernel") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_record(path, f"it is no JSON ({error})") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _no_record(path, f"{type(error).__name__}: {error}") from error


def _no_record(path: Path, problem: str) -> FileError:
    hint = "`mirage-kernels generate RECIPE` writes records"
    return FileError(f"{path} is not a kernel record: {problem}", hint)


def _read(data: dict[str, Json]) -> KernelRecord:
    about = vars(from_data(About, data))
    DType(about["dtype"])
    if "no_plan" in data:
        reason = from_data(str, data["no_plan"])
        return KernelRecord(**about, graph=from_json(data["mugraph"]), no_plan=reason)
    variants = tuple(map(read_variant, from_data(list[dict[str, Any]], data["variants"])))
    return KernelRecord(
        **about,
        graph=from_json(data["mugraph"]),
        roles=from_data(SCHEDULES[variants[0].schedule].roles, data["roles"]),
        variants=variants,
        max_tokens=from_data(int, data["max_tokens"]),
        stacked=from_data(tuple[str, ...], data.get("stacked", [])),
        strided=from_data(bool, data.get("strided", False)),
        broadcast=from_data(tuple[str, ...], data.get("broadcast", [])),
    )


@dataclass(frozen=True)
class Plan:
    """How muGraphs of one kind become kernels.

    The schedules of a kind read a muGraph alike: as weights that are streamed past tokens, or as
    keys that are partitioned over warps.
    """

    roles: type[Any]  # what it reads into the dims of a muGraph
    form: Callable[[Subject], str]  # names the muGraph; raises PlanError for one of another kind
    require: Callable[[Subject], None]  # raises PlanError for a muGraph that no schedule runs
    # Of a kernel with its variants, not yet proved; measured ones as files say before the package.
    record: Callable[[About, Graph, Sequence[Path]], KernelRecord]
    cases: Callable[[KernelRecord, Variant], list[Case]]  # what a variant is proved on
    sources: Callable[[Sequence[KernelRecord]], dict[str, str]]  # of a recipe's records, by path
    entries: Callable[[KernelRecord], list[Entry]]  # rows of the dispatch table
    # The muGraph that a variant computes, where it is another form of the record's.
    mugraph: Callable[[KernelRecord, Variant], Graph] = lambda record, variant: record.graph
    proves_small: bool = False  # whether only small extents have a bound, as with exponentials


def require_room(
    recipe: str, carried: Mapping[str, Collection[str]], room: Mapping[str, int]
) -> None:
    """Raise PlanError where there is more of something than a launch has room for."""
    for what, names in carried.items():
        if len(names) > room[what]:
            raise PlanError(f"{recipe}: a launch carries {room[what]} {what}, not {len(names)}")
