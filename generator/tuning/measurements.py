"""At which calls a kernel is measured, and measured.json: what was measured at each.

The file is written whole after each measurement; what is there stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from mirage_kernels.generator.bench.workloads.lists import Workload, dense_calls, kernel_calls
from mirage_kernels.generator.bench.workloads.programs import ProgramCall
from mirage_kernels.generator.bench.workloads.tensors import TensorWorkload
from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.tuning.catalog import Bucket, Tuned, read, read_file, write_file

SAME = ("gpu", "driver", "cuda", "torch")  # what one file's measurements must agree in
DIGITS = 3
UNMEASURED = "not measured"
Call = Workload | ProgramCall
T = TypeVar("T")


# -- calls -----------------------------------------------------------------------------------------


def bucketed_calls(kernel: Tuned) -> dict[int, dict[str, Call]]:
    """Return the calls that each bucket serves: one with its number of tokens, or several."""
    if kernel.symbol:
        return {b.size: program_call(kernel, b) for b in kernel.buckets}
    sizes = [bucket.size for bucket in kernel.buckets]
    if kernel.dim:
        return {size: _at_tokens(kernel, (size,)) for size in sizes}
    found: dict[int, dict[str, Call]] = {size: {} for size in sizes}
    key = kernel.key
    for name, workload in kernel_calls(key.recipe, DType(key.dtype), key.shape).items():
        found[bucket_of(workload.rows, sizes)][name] = workload
    return found


def program_call(kernel: Tuned, bucket: Bucket) -> dict[str, Call]:
    """Return the call at which a bucket's candidates of a program are compared, by its extents."""
    name = ", ".join(f"{dim}={size}" for dim, size in bucket.sizes.items()) or "any extents"
    return {name: ProgramCall(kernel.symbol, bucket.sizes)}


def bucket_of(rows: int, sizes: list[int]) -> int:
    """Return the bucket of a number of rows: the least that holds it, 0 above all."""
    return min((size for size in sizes if rows <= size), default=0)


def calls_above(kernel: Tuned) -> dict[str, Call]:
    """Return the calls at which the last bucket's choice is compared with what else may serve.

    These have other numbers of tokens than the buckets, or are dense ones of many query tokens.
    """
    if kernel.symbol:
        return {}
    if kernel.dim:
        return {**_at_tokens(kernel, kernel.above)}
    return {**dense_calls(kernel.key.recipe, DType(kernel.key.dtype), kernel.key.shape)}


def _at_tokens(kernel: Tuned, numbers: tuple[int, ...]) -> dict[str, Call]:
    key, dim = kernel.key, kernel.dim
    return {
        f"{dim}={m}": TensorWorkload(key.recipe, {**key.shape, dim: m}, dtype=DType(key.dtype))
        for m in numbers
    }


# -- measurements ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """A candidate's time at a call, or why there is none.

    `few_tiles` says whether the launch finds few work tiles there.
    """

    us: float = 0.0
    error: float | None = None
    few_tiles: bool = False
    failed: str = ""


@dataclass(frozen=True)
class Peers:
    """What a kernel is compared with: the floor, PyTorch eager, what the library runs without it.

    `peers` are PyTorch's kernels one by one.
    """

    floor_us: float
    eager_us: float | None = None
    library_us: float | None = None
    peers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """What a file of measurements holds, by library or kernel, and call: see `at`."""

    environment: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    peers: dict[str, Peers] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """A file of measurements."""

    path: Path
    known: Measured

    @staticmethod
    def at(path: Path) -> Results:
        """Read the file of an interrupted tuning, or begin a new one."""
        if not path.is_file():
            return Results(path, Measured())
        hint = "remove it and measure again"
        return Results(path, read_file(path, Measured, what="a file of measurements", hint=hint))

    def write(self) -> None:
        """Write the file whole."""
        write_file(self.path, self.known, hint="choose another file: --results FILE")

    def begin(self, here: Mapping[str, str]) -> None:
        """Note where measurements come from; raises FileError where others came from elsewhere."""
        before = self.known.environment
        if not before:
            before.update(here)
        for name in SAME:
            was, now = before.get(name, ""), here.get(name, "")
            if was != now:
                raise FileError(
                    f"{self.path} was begun with {name} {was}, this is {now}",
                    "remove it to measure all anew, or name another: --results FILE",
                )


def at(name: str, call: str, *, assumed: bool = False) -> str:
    """Return under which name something is kept that was measured at a call."""
    return f"{name}@{call}{' assumed' if assumed else ''}"


def answered(kind: type[T], answer: Mapping[str, Json]) -> T:
    """Return what the worker answered, times rounded."""
    return read(kind, {name: _rounded(name, value) for name, value in answer.items()})


def _rounded(name: str, value: Json) -> Json:
    if isinstance(value, dict):
        return {inner: _rounded("us", v) for inner, v in value.items()}
    return round(value, DIGITS) if isinstance(value, float) and name.endswith("us") else value
