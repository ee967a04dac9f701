"""The interface of a schedule: one way of running the tile programs of some form as a kernel.

A schedule has a room below `generator/schedules/` and a row in the table `SCHEDULES`. It says which
programs it fits and why not others, has template constants of its own (`Knobs`), chooses them
for each bucket of the dynamic extent, lists the alternatives that tuning measures, and knows what
they take of shared memory and of time. Its writer turns a program into CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from mirage_kernels.generator.ir import Graph, Json
from mirage_kernels.generator.ir.codec import to_data
from mirage_kernels.generator.target import Target


@dataclass(frozen=True)
class Knobs:
    """Template constants of an emitted kernel: every schedule derives a class with its own."""

    schedule: ClassVar[str]  # the name of the schedule that they belong to


P = TypeVar("P")  # what a schedule reads a muGraph as
K = TypeVar("K", bound=Knobs, covariant=True)


@dataclass(frozen=True)
class Variant(Generic[K]):
    """A kernel with fixed knobs, and the largest dynamic extent it is chosen for (0 = any)."""

    bucket: int
    knobs: K

    @property
    def schedule(self) -> str:
        """Name of the schedule that runs it."""
        return self.knobs.schedule

    def to_json(self) -> dict[str, Json]:
        """Return bucket, schedule and knobs as one JSON object."""
        knobs = to_data(self.knobs)
        assert isinstance(knobs, dict)
        return {"bucket": self.bucket, "schedule": self.schedule, **knobs}


@dataclass(frozen=True)
class Subject:
    """A muGraph that is to become a kernel on a target."""

    recipe: str
    graph: Graph
    on: Target


@dataclass(frozen=True)
class Schedule(Generic[P]):
    """One way of running a muGraph; `size` is a bucket of the dynamic extent."""

    name: str
    knobs: type[Knobs]
    lower: Callable[[Subject], P]  # raises PlanError for a muGraph of another form
    fits: Callable[[P, Target], tuple[str, ...]]  # reasons against; none: it fits
    choose: Callable[[P, int, Target], Knobs | None]  # by rule; None: another schedule is better
    candidates: Callable[[P, int, Target], Iterator[Knobs]]  # that fit a block
    shared_bytes: Callable[[P, Knobs], int]  # of a block
    predict: Callable[[P, Knobs, int, Target], float]  # microseconds

    def reasons(self, subject: Subject) -> tuple[str, ...]:
        """Return what speaks against this schedule; raises PlanError for another form."""
        return self.fits(self.lower(subject), subject.on)
