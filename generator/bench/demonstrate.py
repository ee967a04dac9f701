"""Running a kernel's muGraph and its emitted Triton program on the CPU, against float64."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import DType, retile
from mirage_kernels.generator.meaning.arrays import Array, array_reading, relative_error
from mirage_kernels.generator.meaning.reals import FLOAT64, STORAGE
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.recipe import Recipe, Shape, trace
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.records.triton import triton_of
from mirage_kernels.generator.search.distributions import DISTRIBUTIONS
from mirage_kernels.generator.search.gate import Gate

Real = npt.NDArray[np.float64]
T = TypeVar("T")
# Triton's interpreter multiplies the bit patterns of bf16 operands: there it runs on fp32 copies.
_INTERPRETED = {DType.FP16: "float16", DType.BF16: "float32"}


@dataclass(frozen=True)
class Demonstration:
    """One way of running a kernel: relative Frobenius errors against float64, and seconds."""

    what: str
    sizes: dict[str, int]
    error: float
    error_unfused: float
    seconds: float
    tolerance: float = 1.1  # the recipe's

    @property
    def good(self) -> bool:
        """Whether the error is within the recipe's tolerance of the unfused program's."""
        return self.error <= self.tolerance * self.error_unfused


@dataclass(frozen=True)
class _GateAt(Gate):
    """The numeric gate at extents of a call."""

    extents: dict[str, int] = field(default_factory=dict)

    def sizes(self) -> dict[str, int]:
        return self.extents


def demonstrate(record: KernelRecord, recipe: Recipe, sizes: dict[str, int]) -> list[Demonstration]:
    """Run a kernel's muGraph block by block, and its Triton program under Triton's interpreter.

    Raises VerifyError when the Triton program fails.
    """
    spec = trace(recipe, Shape(record.source, record.shape), record.storage)
    gate = _GateAt(spec, recipe, record.storage, extents=sizes)
    inputs = gate.inputs(DISTRIBUTIONS[0])
    exact = results(spec, inputs, array_reading(FLOAT64, sizes))
    narrow = [Array(a.dims, (np.asarray(a.parts[0], np.float32),)) if a.real else a for a in inputs]
    storage = array_reading(STORAGE, sizes)
    unfused = _largest_error(results(gate.unfused(), narrow, storage), exact)

    def blocks() -> list[Array]:
        return results(retile(record.graph, record.tiles(record.variants[0])), narrow, storage)

    def triton() -> list[Array]:
        made = triton_results(record, inputs)
        return [Array(one.dims, (part,)) for one, part in zip(exact, made, strict=True)]

    def shown(what: str, program: Callable[[], list[Array]]) -> Demonstration:
        start = time.perf_counter()
        made = program()
        seconds = time.perf_counter() - start
        error = _largest_error(made, exact)
        return Demonstration(what, sizes, error, unfused, seconds, recipe.tolerance)

    interpreted = f"emitted Triton program, interpreted on {_INTERPRETED[record.storage]}"
    return [shown("muGraph, block by block", blocks), shown(interpreted, triton)]


def _largest_error(made: Sequence[Array], exact: Sequence[Array]) -> float:
    """Return the largest relative error of several results."""
    return max(relative_error(a, b) for a, b in zip(made, exact, strict=True))


def triton_results(record: KernelRecord, inputs: Sequence[Array]) -> list[Real]:
    """Return the results of a kernel's emitted Triton program, run by Triton's interpreter.

    Raises VerifyError when it fails.
    """
    arrays = [np.asarray(a.parts[0], "float64" if a.real else "int32") for a in inputs]
    named = (record.recipe, _INTERPRETED[record.storage])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(triton_of(record))
        try:
            return interpreted(_results, path, *named, arrays)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise VerifyError(f"the Triton program of {record.stem} fails: {why}") from error


def interpreted(run: Callable[..., T], *given: object) -> T:
    """Call a function in the process that has Triton's interpreter; raise what it raises."""
    try:
        return _interpreter().submit(run, *given).result()
    except BrokenExecutor:
        _interpreter.cache_clear()
        raise


@cache
def _interpreter() -> ProcessPoolExecutor:
    """Return a process of its own, for Triton reads a variable when it is imported."""
    return ProcessPoolExecutor(1, get_context("spawn"), _interpret)


def _interpret() -> None:
    os.environ["TRITON_INTERPRET"] = "1"


def loaded(path: Path) -> ModuleType:
    """Return an emitted program as a module."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _results(
    path: Path, recipe: str, dtype: str, arrays: list[npt.NDArray[np.generic]]
) -> list[Real]:
    """Run a Triton program, in the interpreter's process."""
    import torch

    program, dtypes = loaded(path), {"f": getattr(torch, dtype)}
    arguments = [
        torch.from_numpy(a).to(dtypes.get(a.dtype.kind)) if a.ndim else a.item() for a in arrays
    ]
    made = getattr(program, recipe)(*arguments)
    return [t.double().numpy() for t in (made if isinstance(made, tuple) else (made,))]
