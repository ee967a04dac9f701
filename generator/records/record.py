"""The committed record of one kernel: muGraph, proof, accuracy, plan; emission is a function of it.

The record and everything emitted from it hold no date, host, path or time, so that an unchanged
kernel is an unchanged file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from mirage_kernels.generator.errors import FileError, GraphError
from mirage_kernels.generator.ir import DType, Graph, Json, dumps, from_json, to_json
from mirage_kernels.generator.plan.program import Roles
from mirage_kernels.generator.schedules import read_variant
from mirage_kernels.generator.schedules.attention.program import AttentionRoles
from mirage_kernels.generator.schedules.attention.variants import AttentionVariant, read_knobs
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.search.gate import Measured
from mirage_kernels.generator.search.verify import Compared, Proof

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

    roles: Roles
    variants: tuple[Variant, ...]
    max_tokens: int  # above it the library runs PyTorch's own program; 0: never
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
            "roles": self.roles.to_json(),
            "variants": [v.to_json() for v in self.variants],
            "max_tokens": self.max_tokens,
        }
        return given | ({"stacked": list(self.stacked)} if self.stacked else {})


@dataclass(frozen=True)
class AttentionRecord(Written):
    """One attention kernel of the library, in `kernels/<arch>/<recipe>/<stem>.json`."""

    roles: AttentionRoles
    variants: tuple[AttentionVariant, ...]

    def tiles(self, variant: AttentionVariant) -> dict[str, int]:
        """Return the tile sizes of the muGraph that a variant runs."""
        return variant.tiles(self.roles)

    @property
    def all_tiles(self) -> list[dict[str, int]]:
        """The same, variant by variant."""
        return [self.tiles(variant) for variant in self.variants]

    def plan_json(self) -> dict[str, Json]:
        """Return the plan's name, roles and variants."""
        return {
            "plan": ATTENTION,
            "roles": self.roles.to_json(),
            "variants": [v.to_json() for v in self.variants],
        }


ATTENTION = "attention"  # the plan of such a record; the others stream weights


@dataclass(frozen=True)
class MuGraphRecord(Written):
    """A muGraph that was found, proved and gated, and that this version has no plan for."""

    ending: ClassVar[str] = MUGRAPH_ENDING

    no_plan: str  # the reason
    variants: tuple[Variant, ...] = ()

    def plan_json(self) -> dict[str, Json]:
        """Return why there is none."""
        return {"no_plan": self.no_plan}


Emitted = KernelRecord | AttentionRecord
Record = Emitted | MuGraphRecord


def load_record(path: Path) -> KernelRecord:
    """Read the record of a kernel that streams weights; raises FileError saying what is wrong."""
    return _loaded(path, _record)


def load_emitted(path: Path) -> Emitted:
    """Read a committed record; raises FileError naming the file and what is wrong with it."""
    return _loaded(path, lambda data: (_attention if "plan" in data else _record)(data))


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
    fields = _Fields(data)
    return KernelRecord(
        **vars(_about(fields)),
        roles=_roles(_Fields(fields.object("roles"))),
        variants=tuple(read_variant(v) for v in fields.objects("variants")),
        max_tokens=fields.integer("max_tokens"),
        stacked=fields.texts("stacked"),
        graph=from_json(fields.object("mugraph")),
    )


def _roles(fields: _Fields) -> Roles:
    rows = fields.text("rows") if "rows" in fields.data else ""
    return Roles(rows, fields.text("tokens"), fields.text("depth"), fields.texts("inner"))


def _attention(data: dict[str, Json]) -> AttentionRecord:
    fields = _Fields(data)
    if fields.text("plan") != ATTENTION:
        raise ValueError(f"there is no plan called {fields.text('plan')}")
    roles = _Fields(fields.object("roles"))
    named = {name: roles.text(name) for name in ("keys", "depth", "heads", "sequences")}
    more = roles.text("more") if "more" in roles.data else ""
    return AttentionRecord(
        **vars(_about(fields)),
        roles=AttentionRoles(**named, rows=roles.texts("rows"), more=more),
        variants=tuple(_attention_variant(_Fields(v)) for v in fields.objects("variants")),
        graph=from_json(fields.object("mugraph")),
    )


def _attention_variant(fields: _Fields) -> AttentionVariant:
    few = bool(fields.data.get("few_tiles", False))
    return AttentionVariant(fields.integer("bucket"), read_knobs(fields.data), few_tiles=few)


def _mugraph(data: dict[str, Json]) -> MuGraphRecord:
    fields = _Fields(data)
    graph = from_json(fields.object("mugraph"))
    return MuGraphRecord(**vars(_about(fields)), graph=graph, no_plan=fields.text("no_plan"))


def _about(fields: _Fields) -> About:
    search = _Fields(fields.object("search"))
    return About(
        recipe=fields.text("recipe"),
        summary=fields.text("summary"),
        shape=_Fields(fields.object("shape")).integers(),
        source=fields.text("source"),
        dtype=DType(fields.text("dtype")).value,
        arch=fields.text("arch"),
        search=SearchSummary(**search.integers()),
        proof=_proof(_Fields(fields.object("proof"))),
        accuracy=tuple(
            Measured(a.text("distribution"), a.number("error"), a.number("unfused"))
            for a in map(_Fields, fields.objects("accuracy"))
        ),
    )


def _proof(fields: _Fields) -> Proof:
    compared = tuple(
        Compared(
            _Fields(c.object("tiles")).integers(),
            _Fields(c.object("sizes")).integers(),
            c.integer("seed"),
            c.integer("draws"),
            c.number("log2_failure"),
        )
        for c in map(_Fields, fields.objects("cases"))
    )
    return Proof(compared, fields.number("log2_failure"))


@dataclass(frozen=True)
class _Fields:
    """Typed access to a JSON object; a wrong kind of value raises TypeError with its name."""

    data: Mapping[str, Json]

    def text(self, name: str) -> str:
        value = self.data[name]
        if not isinstance(value, str):
            raise TypeError(f"{name} must be text, not {value!r}")
        return value

    def number(self, name: str) -> float:
        value = self.data[name]
        if not isinstance(value, int | float):
            raise TypeError(f"{name} must be a number, not {value!r}")
        return value

    def integer(self, name: str) -> int:
        value = self.data[name]
        if not isinstance(value, int):
            raise TypeError(f"{name} must be a whole number, not {value!r}")
        return value

    def integers(self) -> dict[str, int]:
        return {name: self.integer(name) for name in self.data}

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts that may be absent."""
        value = self.data.get(name, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise TypeError(f"{name} must be a list of texts, not {value!r}")
        return tuple(str(v) for v in value)

    def object(self, name: str) -> dict[str, Json]:
        value = self.data[name]
        if not isinstance(value, dict):
            raise TypeError(f"{name} must be an object, not {value!r}")
        return value

    def objects(self, name: str) -> list[dict[str, Json]]:
        value = self.data[name]
        if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
            raise TypeError(f"{name} must be a list of objects")
        return [v for v in value if isinstance(v, dict)]
