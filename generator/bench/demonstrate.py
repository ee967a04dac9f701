"""Running a kernel's muGraph and its emitted Triton program on the CPU, against float64."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import DType, Graph, retile
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64, STORAGE, round_to
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.recipe import Recipe, Shape, trace
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.schedules.streaming import triton_of
from mirage_kernels.generator.search.gate import Gate, relative_error

Real = npt.NDArray[np.float64]


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


def demonstrate(record: KernelRecord, recipe: Recipe, sizes: dict[str, int]) -> list[Demonstration]:
    """Run a kernel's muGraph block by block, and its Triton program under Triton's interpreter.

    Raises VerifyError when the Triton program fails.
    """
    spec = trace(recipe, Shape(record.source, record.shape), record.storage)
    inputs = _inputs(spec, recipe, sizes, record.storage)
    exact = results(spec, inputs, array_reading(FLOAT64, sizes))
    narrow = [Array(a.dims, (np.asarray(a.parts[0], np.float32),)) if a.real else a for a in inputs]
    storage = array_reading(STORAGE, sizes)
    unfused = Gate(spec, recipe, record.storage).unfused()
    error_unfused = _largest_error(results(unfused, narrow, storage), exact)

    def judged(what: str, error: float, seconds: float) -> Demonstration:
        return Demonstration(what, sizes, error, error_unfused, seconds, recipe.tolerance)

    shown = []
    start = time.perf_counter()
    graph = retile(record.graph, record.tiles(record.variants[0]))
    made = results(graph, narrow, storage)
    seconds = time.perf_counter() - start
    what = "muGraph, block by block"
    shown.append(judged(what, _largest_error(made, exact), seconds))
    start = time.perf_counter()
    found = triton_results(record, inputs)
    made = [Array(e.dims, (part,)) for e, part in zip(exact, found, strict=True)]
    seconds = time.perf_counter() - start
    what = f"emitted Triton program, interpreted on {_INTERPRETED[record.storage]}"
    shown.append(judged(what, _largest_error(made, exact), seconds))
    return shown


def _largest_error(made: Sequence[Array], exact: Sequence[Array]) -> float:
    """Return the largest relative error of several results."""
    return max(relative_error(a, b) for a, b in zip(made, exact, strict=True))


def _inputs(spec: Graph, recipe: Recipe, sizes: dict[str, int], dtype: DType) -> list[Array]:
    rng = np.random.default_rng(0)
    inputs = []
    for node in spec.inputs:
        names = node.out.type.names
        real = node.out.type.dtype.is_real
        if not real:
            least, largest = recipe.range_of(node.name, sizes)
            data = rng.integers(least, largest + 1, [sizes[d] for d in names], np.int32)
        elif not names:
            data = np.asarray(recipe.scalars.get(node.name, 1.0))
        else:
            scale = 1.0 if len(names) == 1 else sizes[names[-1]] ** -0.5
            scale = scale if recipe.is_weight(node.name) else 1.0
            data = rng.standard_normal([sizes[d] for d in names]) * scale
            data = np.asarray(round_to(data, dtype), np.float64)
        inputs.append(Array(names, (data,), real))
    return inputs


# Triton's interpreter multiplies the bit patterns of bf16 operands: there it runs on fp32 copies.
_INTERPRETED = {DType.FP16: "float16", DType.BF16: "float32"}
_RUNNER = """
import importlib.util, sys
import numpy, torch
program, data, recipe, dtype, count = sys.argv[1:]
spec = importlib.util.spec_from_file_location("program", program)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
with open(data, "rb") as file:
    arrays = [numpy.load(file) for _ in range(int(count))]
tensors = [torch.from_numpy(a) if a.ndim else a.item() for a in arrays]
arguments = [
    t.to(getattr(torch, dtype)) if a.ndim and a.dtype.kind == "f" else t
    for a, t in zip(arrays, tensors)
]
made = getattr(module, recipe)(*arguments)
with open(data, "wb") as file:
    for result in made if isinstance(made, tuple) else (made,):
        numpy.save(file, result.double().numpy())
"""


def triton_results(record: KernelRecord, inputs: list[Array]) -> list[Real]:
    """Return the results of a kernel's emitted Triton program, run by Triton's interpreter."""
    text = triton_of(record)
    torch_dtype = _INTERPRETED[record.storage]
    with tempfile.TemporaryDirectory() as folder:
        program, data = Path(folder) / "program.py", Path(folder) / "data.npy"
        program.write_text(text)
        with data.open("wb") as file:
            for array in sorted(inputs, key=lambda a: not a.dims):  # run-time scalars come last
                np.save(file, np.asarray(array.parts[0], np.float64 if array.real else np.int32))
        arguments = [str(program), str(data), record.recipe, torch_dtype, str(len(inputs))]
        ran = subprocess.run(
            [sys.executable, "-c", _RUNNER, *arguments],
            env={**os.environ, "TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
        )
        if ran.returncode:
            lines = ran.stderr.strip().splitlines() or ["no message"]
            raise VerifyError(f"the Triton program of {record.stem} fails: {lines[-1]}")
        with data.open("rb") as file:
            return [np.asarray(np.load(file), np.float64) for _ in record.graph.outputs]
