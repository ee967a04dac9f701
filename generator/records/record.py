"""The committed record of one kernel: muGraph, proof, accuracy, plan; emission is a function of it.

The record and everything emitted from it hold no date, host, path or time, so that an unchanged
kernel is an unchanged file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from mirage_kernels.generator.errors import FileError, GraphError
from mirage_kernels.generator.ir import DType, Graph, Json, dumps, from_json, to_json
from mirage_kernels.generator.ir.codec import from_data, to_data
from mirage_kernels.generator.schedules import SCHEDULES, read_variant
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.search.gate import Measured
from mirage_kernels.generator.search.verify import Proof

R = TypeVar("R")


@dataclass(frozen=True)
class SearchSummary:
    """What the search that found this muGraph did."""

    states: int
    candidates: int
    proved: int

    def text(self) -> str:
        """Return the summary as one sentence."""
        plural = "s" if self.candidates > 1 else ""
        counts = f"({self.states} states, {self.candidates} candidate{plural})"
        if self.proved == 1:
            return f"the one proved muGraph; it passes the numeric gate and has a plan {counts}"
        return (
            f"the first by predicted time of {self.proved} proved muGraphs that passes the "
            f"numeric gate and has a plan {counts}"
        )


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

    @property
    def stem(self) -> str:
        """File name without ending: `K4096_N6144_fp16`."""
        dims = "_".join(f"{name}{size}" for name, size in self.shape.items())
        return f"{dims}_{self.dtype}"

    @property
    def storage(self) -> DType:
        """Element type of the kernel's tensors."""
        return DType(self.dtype)

    @property
    def command(self) -> str:
        """The command that makes this kernel's files."""
        dims = ",".join(f"{name}={size}" for name, size in self.shape.items())
        return (
            f"mirage-kernels generate {self.recipe} --arch {self.arch} "
            f"--dtype {self.dtype} --shape {dims}"
        )

    def about_json(self) -> dict[str, Json]:
        """Return what stands first in every record."""
        return {
            "made_by": self.command,
            "recipe": self.recipe,
            "summary": self.summary,
            "arch": self.arch,
            "dtype": self.dtype,
            "shape": dict(self.shape),
            "source": self.source,
        }

    def evidence_json(self) -> dict[str, Json]:
        """Return how the muGraph was found and what speaks for it."""
        return {
            "search": dict(vars(self.search)),
            "proof": self.proof.to_json(),
            "accuracy": [m.to_json() for m in self.accuracy],
        }


MUGRAPH_ENDING = ".mugraph.json"


@dataclass(frozen=True)
class Written(About):
    """A record with its muGraph, in a file below the kernels folder."""

    ending: ClassVar[str] = ".json"

    graph: Graph

    @property
    def path(self) -> str:
        """Path of the JSON below the kernels folder."""
        return f"{self.arch}/{self.recipe}/{self.stem}{self.ending}"

    def plan_json(self) -> dict[str, Json]:
        """Return how the muGraph becomes a kernel, or why it does not."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Json]:
        """Return the record as JSON data."""
        graph: dict[str, Json] = {"mugraph": to_json(self.graph)}
        return self.about_json() | self.plan_json() | self.evidence_json() | graph

    def text(self) -> str:
        """Return the committed file's text."""
        return dumps(self.to_json())


@dataclass(frozen=True)
class KernelRecord(Written):
    """One kernel of the library, as it is committed in `kernels/<arch>/<recipe>/<stem>.json`."""

    roles: Any  # what its schedules read into the dims of the muGraph
    variants: tuple[Variant, ...]
    max_tokens: int = 0  # above it the library runs PyTorch's own program; 0: never
    stacked: tuple[str, ...] = ()  # weights that may be slices of stacks, by token

    def tiles(self, variant: Variant) -> dict[str, int]:
        """Return the tile sizes of the muGraph that a variant runs."""
        return variant.knobs.tiles(self.roles)

    @property
    def all_tiles(self) -> list[dict[str, int]]:
        """The same, variant by variant."""
        return [self.tiles(variant) for variant in self.variants]

    def plan_json(self) -> dict[str, Json]:
        """Return roles, variants and up to how many tokens they serve; what may be stacked."""
        given: dict[str, Json] = {
            "roles": to_data(self.roles),
            "variants": [v.to_json() for v in self.variants],
            "max_tokens": self.max_tokens,
        }
        return given | ({"stacked": list(self.stacked)} if self.stacked else {})


@dataclass(frozen=True)
class MuGraphRecord(Written):
    """A muGraph that was found, proved and gated, and that this version has no plan for."""

    ending: ClassVar[str] = MUGRAPH_ENDING

    no_plan: str  # the reason
    variants: tuple[Variant, ...] = ()

    def plan_json(self) -> dict[str, Json]:
        """Return why there is none."""
        return {"no_plan": self.no_plan}


Record = KernelRecord | MuGraphRecord


def load_record(path: Path) -> KernelRecord:
    """Read a committed record; raises FileError naming the file and what is wrong with it."""
    return _loaded(path, _record)


def load_mugraph(path: Path) -> MuGraphRecord:
    """Read a muGraph's record; raises FileError naming the file and what is wrong with it."""
    return _loaded(path, _mugraph)


def _loaded(path: Path, read: Callable[[dict[str, Json]], R]) -> R:
    try:
        return read(json.loads(path.read_text()))
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from error
    except GraphError as error:
        raise FileError(f"{path}: {error.sentence}", "regenerate the kernel") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(
            f"{path} is not a kernel record: {type(error).__name__}: {error}",
            "write it with: mirage-kernels generate RECIPE",
        ) from error


def _record(data: dict[str, Json]) -> KernelRecord:
    variants = tuple(read_variant(_object(v)) for v in _list(data["variants"]))
    return KernelRecord(
        **vars(_about(data)),
        roles=from_data(SCHEDULES[variants[0].schedule].roles, data["roles"]),
        variants=variants,
        max_tokens=from_data(int, data["max_tokens"]),
        stacked=from_data(tuple[str, ...], data.get("stacked", [])),
        graph=from_json(data["mugraph"]),
    )


def _mugraph(data: dict[str, Json]) -> MuGraphRecord:
    no_plan = from_data(str, data["no_plan"])
    return MuGraphRecord(**vars(_about(data)), graph=from_json(data["mugraph"]), no_plan=no_plan)


def _about(data: dict[str, Json]) -> About:
    about = from_data(About, data)
    DType(about.dtype)
    return about


def _object(data: Json) -> dict[str, Json]:
    if not isinstance(data, dict):
        raise TypeError(f"{data!r} is no object")
    return data


def _list(data: Json) -> list[Json]:
    if not isinstance(data, list):
        raise TypeError(f"{data!r} is no list")
    return data
