"""The interface of a schedule: one way of running the tile programs of some form as a kernel.

A schedule has a module below `generator/schedules/` and a row in the table `SCHEDULES`. It says
which programs it fits and why not others, has template constants of its own (`Knobs`), chooses them
for each bucket of the dynamic extent, lists the alternatives that tuning measures, and knows what
they take of shared memory and of time. Its writer turns a program into CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

from typing_extensions import TypeVar

from mirage_kernels.generator.emit.statements import camel
from mirage_kernels.generator.ir import Graph, Json
from mirage_kernels.generator.ir.codec import to_data
from mirage_kernels.generator.plan.arranged import Arranged
from mirage_kernels.generator.plan.program import Roles
from mirage_kernels.generator.target import Target


class Knobs:
    """Template constants of an emitted kernel: every schedule derives a dataclass with its own."""

    schedule: ClassVar[str]  # the name of the schedule that they belong to
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def label(self) -> str:
        """Name all that a kernel is: its schedule, and what goes with it."""
        return self.schedule

    @property
    def template(self) -> str:
        """Name the C++ template of its configs, for which the form overloads `launch`."""
        return camel(self.schedule)

    @property
    def has_workspace(self) -> bool:
        """Say whether blocks leave something for others, in a workspace."""
        return False

    @property
    def is_dynamic(self) -> bool:
        """Say whether blocks claim whole work tiles, for calls of many."""
        return False

    @property
    def preference(self) -> tuple[int, ...]:
        """Order knobs that are predicted to be equally fast: the least comes first."""
        return ()

    def config(self, program: Any) -> dict[str, int]:
        """Return the constants of an emitted kernel's config, by name.

        `program` is what the schedule reads the kernel's muGraph as.
        """
        return dict(vars(self))

    def tiles(self, roles: Any) -> dict[str, int]:
        """Return the tile sizes of the muGraph that such a kernel runs, by `Axis.tile_key`.

        `roles` are those that the schedule reads into the dims of a muGraph.
        """
        raise NotImplementedError

    def to_json(self) -> dict[str, Json]:
        """Return schedule and knobs as one JSON object."""
        knobs = to_data(self)
        assert isinstance(knobs, dict)
        return {"schedule": self.schedule, **knobs}


P = TypeVar("P")  # what a schedule reads a muGraph as
K = TypeVar("K", bound=Knobs, covariant=True, default=Knobs)
Model = Callable[[Any, int], float]  # microseconds, of knobs and a size


@dataclass(frozen=True)
class Variant(Generic[K]):
    """A kernel with fixed knobs, and the largest dynamic extent it is chosen for (0 = any)."""

    bucket: int
    knobs: K
    few_tiles: bool = False  # for calls of few work tiles only, with much to read for each

    @property
    def work_tiles(self) -> str:
        """How many work tiles a call has that it serves: few, many; nothing where that is open."""
        return "few" if self.few_tiles else "many" if self.knobs.is_dynamic else ""

    @property
    def schedule(self) -> str:
        """Name of the schedule that runs it."""
        return self.knobs.schedule

    def name(self, counted: str) -> str:
        """Return the name of its config: `UpTo8M`, `AnyM`, `AnyRowsFewTiles`."""
        name = f"UpTo{self.bucket}{counted}" if self.bucket else f"Any{counted}"
        return f"{name}{self.work_tiles.capitalize()}Tiles" if self.work_tiles else name

    def to_json(self) -> dict[str, Json]:
        """Return bucket, schedule and knobs as one JSON object."""
        few: dict[str, Json] = {"few_tiles": 1} if self.few_tiles else {}
        return {"bucket": self.bucket, **few, **self.knobs.to_json()}


@dataclass(frozen=True)
class Subject:
    """A muGraph that is to become a kernel on a target."""

    recipe: str
    graph: Graph
    on: Target


@dataclass(frozen=True, kw_only=True)
class Schedule(Generic[P]):
    """One way of running a muGraph."""

    knobs: type[Knobs]
    roles: type[Any]  # what it reads into the dims of a muGraph
    fits: Callable[[P, Target], tuple[str, ...]]  # reasons against; none: it fits
    shared_bytes: Callable[[P, Any], int] = lambda program, knobs: 0  # of a block with its knobs

    @property
    def name(self) -> str:
        """Name of the schedule, and of its room."""
        return self.knobs.schedule


@dataclass(frozen=True, kw_only=True)
class Ranked(Schedule[P]):
    """A schedule whose knobs a model of time ranks; `size` is a bucket of the dynamic extent."""

    roles: type[Any] = Roles
    choose: Callable[[P, int, Target], Knobs | None]  # by rule; None: another schedule is better
    candidates: Callable[[P, int, Target], Iterator[Knobs]]  # that fit a block
    registers: Callable[[P, Any], int] = lambda program, knobs: 0  # of a thread with its knobs
    predict: Callable[[P, Target], Model]
    arranged: Callable[[P, Any], Arranged]  # how blocks with its knobs run it
    buckets: tuple[int, ...] = ()  # sizes that it is compared at, of programs without a loop
    many: bool = False  # whether it serves the bucket of many tokens, of programs with a loop
