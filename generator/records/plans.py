"""The plan step: which kinds of muGraphs become kernels, and what the schedules of a kind share.

The schedules of a kind read a muGraph alike: as weights that are streamed past tokens, or as keys
that are partitioned over warps. A kind chooses the variants of a kernel, says what they are proved
on, and turns them into sources.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mirage_kernels.generator.emit.table import Entry
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.records.record import About, KernelRecord
from mirage_kernels.generator.schedules.schedule import Subject, Variant
from mirage_kernels.generator.search.cases import Case


@dataclass(frozen=True)
class Plan:
    """How muGraphs of one kind become kernels."""

    roles: type[Any]  # what it reads into the dims of a muGraph
    form: Callable[[Subject], str]  # names the muGraph; raises PlanError for one of another kind
    require: Callable[[Subject], None]  # raises PlanError for a muGraph that no schedule runs
    record: Callable[[About, Graph], KernelRecord]  # of a kernel with its variants, not yet proved
    cases: Callable[[KernelRecord, Variant], list[Case]]  # what a variant is proved on
    sources: Callable[[Sequence[KernelRecord]], dict[str, str]]  # of a recipe's records, by path
    entries: Callable[[KernelRecord], list[Entry]]  # rows of the dispatch table
    proves_small: bool = False  # whether only small extents have a bound, as with exponentials


def require_room(
    recipe: str, carried: Mapping[str, Collection[str]], room: Mapping[str, int]
) -> None:
    """Raise PlanError where there is more of something than a launch has room for."""
    for what, names in carried.items():
        if len(names) > room[what]:
            raise PlanError(f"{recipe}: a launch carries {room[what]} {what}, not {len(names)}")


def options_of(record: KernelRecord) -> tuple[str, ...]:
    """Return the inputs that a call may leave out."""
    return tuple(n.name for n in record.graph.of("input") if n.optional)
