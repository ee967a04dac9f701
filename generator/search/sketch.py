"""Found programs without tile sizes or types: what the search hands on, and its JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mirage_kernels.generator.errors import SearchError
from mirage_kernels.generator.ir import Json
from mirage_kernels.generator.ir.codec import from_data, to_data
from mirage_kernels.generator.search.extract import Program
from mirage_kernels.generator.search.refine import Refined
from mirage_kernels.generator.search.settings import PART, Setting, View
from mirage_kernels.generator.search.values import Counts, Saturation, Step


class Kernel:
    """A kernel of a program: a block graph, or a library operator."""


@dataclass(frozen=True)
class BlockSketch(Kernel):
    """A block graph: its setting, inputs, constants, steps and results.

    Steps and results count values in this order: inputs, constants, steps. `results` gives the
    dims of each, parts dims included.
    """

    setting: Setting
    views: tuple[View, ...]
    constants: tuple[str, ...]  # names of the spec's constant values
    steps: tuple[Step, ...]
    results: tuple[tuple[int, tuple[str, ...]], ...]


@dataclass(frozen=True)
class LibrarySketch(Kernel):
    """A library operator as a kernel: the matrix product of two tensors over a dim."""

    args: tuple[str, str]
    over: str
    dims: tuple[str, ...]


@dataclass(frozen=True)
class ProgramSketch:
    """A kernel graph: kernels in order; the results of all but the last go by `middle_name`."""

    kernels: tuple[Kernel, ...]
    cost: float = 0.0  # nominal microseconds


@dataclass(frozen=True)
class Found:
    """Programs, cheapest first, and what finding them took."""

    programs: tuple[ProgramSketch, ...] = ()
    counts: Counts = field(default_factory=Counts)


def middle_name(result: int) -> str:
    """Return the name of a tensor between two kernels: the first kernel's result number so."""
    return f"middle_{result}"


def block_sketch(
    found: Saturation | Refined, program: Program, order: Sequence[str], *, tensors: Sequence[str]
) -> BlockSketch:
    """Return a found program with its values numbered anew.

    Dims of results follow `order`, inputs the order of `tensors`, then what a first kernel made.
    """
    used = {a for _, step in program.steps for a in step.args} | set(program.roots)
    leaves = [i for i in sorted(used) if i in found.leaves]
    views = {i: v for i in leaves if isinstance(v := found.leaves[i], View)}
    constants = [i for i in leaves if i not in views]
    places = {name: place for place, name in enumerate(tensors)}
    ordered = sorted(views, key=lambda i: places.get(views[i].tensor, len(places)))
    made = [value for value, _ in program.steps]
    number = {old: new for new, old in enumerate((*ordered, *constants, *made))}
    steps = tuple(Step(s.op, tuple(number[a] for a in s.args), s.over) for _, s in program.steps)
    results = tuple((number[r], dims_of(found, r, order)) for r in program.roots)
    return BlockSketch(
        found.setting,
        tuple(views[i] for i in ordered),
        tuple(str(found.leaves[i]) for i in constants),
        steps,
        results,
    )


def dims_of(found: Saturation | Refined, value: int, order: Sequence[str]) -> tuple[str, ...]:
    """Return the dims of a stored value, parts first, then in that order."""
    dims = found.values[value].dims
    parts = sorted(d for d, how in dims if how == PART)
    return (*parts, *sorted((d for d, how in dims if how != PART), key=order.index))


def to_json(found: Found) -> dict[str, Json]:
    """Return what was found as JSON data."""
    programs: list[Json] = [
        {"cost": program.cost, "kernels": [to_data(kernel) for kernel in program.kernels]}
        for program in found.programs
    ]
    return {"programs": programs, "counts": to_data(found.counts)}


def from_json(data: Mapping[str, Json]) -> Found:
    """Read what was found back; raises SearchError for anything else."""
    try:
        return Found(
            from_data(tuple[ProgramSketch, ...], data["programs"], _READERS),
            from_data(Counts, data["counts"], _READERS),
        )
    except (KeyError, ValueError) as error:
        raise SearchError(
            f"a stored program is malformed: {type(error).__name__}: {error}",
            "search anew: `mirage-kernels search RECIPE --fresh`",
        ) from error


def _kernel(data: Json) -> Kernel:
    is_library = isinstance(data, dict) and "args" in data
    return from_data(LibrarySketch if is_library else BlockSketch, data)


_READERS = {
    Kernel: _kernel,
    Counter[str]: lambda data: Counter(from_data(dict[str, int], data)),
}
