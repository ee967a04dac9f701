"""Found programs without tile sizes or types: what the search hands on, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.ir import Json
from mirage_kernels.generator.search.extract import Program
from mirage_kernels.generator.search.refine import Refined
from mirage_kernels.generator.search.settings import PART, Setting, View
from mirage_kernels.generator.search.values import Saturation, Step


@dataclass(frozen=True)
class BlockSketch:
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
class LibrarySketch:
    """A library operator as a kernel: the matrix product of two tensors over a dim."""

    args: tuple[str, str]
    over: str
    dims: tuple[str, ...]


Kernel = BlockSketch | LibrarySketch


@dataclass(frozen=True)
class ProgramSketch:
    """A kernel graph: kernels in order; the results of all but the last go by `middle_name`."""

    kernels: tuple[Kernel, ...]
    cost: float = 0.0  # nominal microseconds


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
    views = [i for i in leaves if isinstance(found.leaves[i], View)]
    constants = [i for i in leaves if i not in views]
    views.sort(key=lambda i: _position(found.leaves[i], tensors))
    made = [value for value, _ in program.steps]
    number = {old: new for new, old in enumerate((*views, *constants, *made))}
    steps = tuple(Step(s.op, tuple(number[a] for a in s.args), s.over) for _, s in program.steps)
    results = tuple((number[r], _dims(found, r, order)) for r in program.roots)
    return BlockSketch(
        found.setting,
        tuple(v for v in (found.leaves[i] for i in views) if isinstance(v, View)),
        tuple(str(found.leaves[i]) for i in constants),
        steps,
        results,
    )


def _position(leaf: View | str, tensors: Sequence[str]) -> int:
    name = leaf.tensor if isinstance(leaf, View) else leaf
    return tensors.index(name) if name in tensors else len(tensors)


def _dims(found: Saturation | Refined, value: int, order: Sequence[str]) -> tuple[str, ...]:
    dims = found.values[value].dims
    parts = sorted(d for d, how in dims if how == PART)
    rest = sorted((d for d, how in dims if how != PART), key=list(order).index)
    return (*parts, *rest)


def to_json(sketch: ProgramSketch) -> Json:
    """Return a found program as JSON data."""
    return {"cost": sketch.cost, "kernels": [_kernel_json(k) for k in sketch.kernels]}


def _kernel_json(kernel: Kernel) -> Json:
    if isinstance(kernel, LibrarySketch):
        return {"args": list(kernel.args), "over": kernel.over, "dims": list(kernel.dims)}
    setting = kernel.setting
    return {
        "grid": list(setting.grid),
        "loop": setting.loop,
        "split": setting.split,
        "views": [[v.tensor, list(v.cuts), v.loop_cut] for v in kernel.views],
        "constants": list(kernel.constants),
        "steps": [[s.op, list(s.args), s.over] for s in kernel.steps],
        "results": [[value, list(dims)] for value, dims in kernel.results],
    }


def from_json(data: Mapping[str, Json]) -> ProgramSketch:
    """Read a found program back; raises KeyError, TypeError or ValueError for anything else."""
    kernels = tuple(_kernel(k) for k in _list(data["kernels"]))
    cost = data["cost"]
    if not isinstance(cost, int | float):
        raise TypeError(f"cost must be a number, not {cost!r}")
    return ProgramSketch(kernels, float(cost))


def _kernel(data: Json) -> Kernel:
    if not isinstance(data, dict):
        raise TypeError(f"a kernel must be an object, not {data!r}")
    if "args" in data:
        a, b = _names(data["args"])
        return LibrarySketch((a, b), str(data["over"]), _names(data["dims"]))
    setting = Setting(_names(data["grid"]), _name(data["loop"]), _name(data["split"]))
    views = tuple(_view(_list(v)) for v in _list(data["views"]))
    steps = tuple(_step(_list(s)) for s in _list(data["steps"]))
    results = tuple((_number(r[0]), _names(r[1])) for r in map(_list, _list(data["results"])))
    return BlockSketch(setting, views, _names(data["constants"]), steps, results)


def _view(data: Sequence[Json]) -> View:
    tensor, cuts, loop_cut = data
    return View(str(tensor), tuple(_name(c) for c in _list(cuts)), _name(loop_cut))


def _step(data: Sequence[Json]) -> Step:
    op, args, over = data
    return Step(str(op), tuple(_number(a) for a in _list(args)), str(over))


def _list(data: Json) -> list[Json]:
    if not isinstance(data, list):
        raise TypeError(f"expected a list, found {data!r}")
    return data


def _names(data: Json) -> tuple[str, ...]:
    return tuple(str(item) for item in _list(data))


def _name(data: Json) -> str | None:
    return None if data is None else str(data)


def _number(data: Json) -> int:
    if not isinstance(data, int):
        raise TypeError(f"expected a whole number, found {data!r}")
    return data
