"""A generated kernel on real data: on a GPU against PyTorch, on a CPU in two interpreters."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.bench.demonstrate import demonstrate
from mirage_kernels.generator.commands.extension import Loaded, call_on_cpu
from mirage_kernels.generator.commands.list import kernel_name
from mirage_kernels.generator.errors import PlanError, ToolchainError, VerifyError
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.plan.program import Roles
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.records.record import KernelRecord, MuGraphRecord
from mirage_kernels.generator.terminal import Table, Terminal, counted

TOKENS = (1, 8, 16, 64)
# Uneven: no tile divides it.
_INTERPRETED_TOKENS = 5


@dataclass(frozen=True)
class Trial:
    """One thing that ran: its error beside the unfused PyTorch program's, and its speed."""

    what: str
    sizes: Mapping[str, int]
    passed: bool
    error: float | None = None
    error_unfused: float | None = None
    seconds: float | None = None
    unfused_seconds: float | None = None
    floor_ratio: float | None = None
    complaint: str = ""  # why it failed, and what helps


def on_gpu(name: str, result: Result, terminal: Terminal) -> list[Trial]:
    """Measure the compiled op, in an interpreter of its own: this one may hold an older file."""
    request = result.request
    shape = ",".join(f"{dim}={size}" for dim, size in request.shape.dims.items())
    command = [sys.executable, "-m", "mirage_kernels.generator.cli", "bench", name]
    command += ["--shape", shape, "--dtype", request.dtype.value, "--json", "-"]
    command += ["--m", ",".join(map(str, TOKENS))]
    terminal.note("measuring on the GPU")
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    what = "compiled op on the GPU"
    if ran.returncode:
        complaint = "the measurement ended early; its message stands above"
        return [Trial(what, request.shape.dims, passed=False, complaint=complaint)]
    return [
        Trial(
            what=what,
            sizes=row["dims"],
            passed=_accurate(row["error_ours"], row["error_eager"], request.recipe),
            error=row["error_ours"],
            error_unfused=row["error_eager"],
            seconds=row["ours_us"] * 1e-6,
            unfused_seconds=row["eager_us"] * 1e-6,
            floor_ratio=row["ratio"],
        )
        for row in json.loads(ran.stdout)["rows"]
    ]


def kernel_of(result: Result) -> KernelRecord:
    """Return the record of a made kernel; raise PlanError where there is none that this runs."""
    record = result.record
    if isinstance(record, MuGraphRecord):
        raise PlanError(f"{record.recipe} has no kernel to run: {record.no_plan}")
    if not isinstance(record.roles, Roles):
        raise PlanError(
            f"{record.recipe} is attention, which this verb does not run",
            "benchmarks and tests of the library do, on a GPU",
        )
    return record


def on_cpu(result: Result, terminal: Terminal) -> list[Trial]:
    """Run the muGraph and the emitted Triton program in their interpreters."""
    terminal.note("running the muGraph and its Triton program on the CPU")
    recipe = result.request.recipe
    try:
        shown = demonstrate(kernel_of(result), recipe, _INTERPRETED_TOKENS)
    except VerifyError as error:
        what = "muGraph and Triton program, interpreted"
        complaint = f"{error.sentence}\n  hint: {error.hint}"
        return [Trial(what, result.record.shape, passed=False, complaint=complaint)]
    return [
        Trial(
            what=one.what,
            sizes=one.sizes,
            passed=_accurate(one.error, one.error_unfused, recipe),
            error=one.error,
            error_unfused=one.error_unfused,
            seconds=one.seconds,
        )
        for one in shown
    ]


def of_extension(name: str, result: Result, loaded: Loaded) -> Trial:
    """Call the extension's op on CPU tensors, and look the kernel up in its dispatch table."""
    what = f"compiled extension ({counted(len(loaded.kernels), 'kernel')}), op on CPU tensors"
    record = kernel_of(result)
    sizes = {**record.shape, record.roles.tokens: _INTERPRETED_TOKENS}
    kernel = kernel_name(record)
    if loaded.problem:
        return Trial(what, sizes, passed=False, complaint=loaded.problem)
    if kernel not in loaded.kernels:
        complaint = f"its dispatch table lacks {kernel}"
        return Trial(what, sizes, passed=False, complaint=complaint)
    try:
        called = call_on_cpu(name, result.record.dtype, sizes)
    except ToolchainError as failure:
        return Trial(what, sizes, passed=False, complaint=failure.hint)
    return Trial(
        what=what,
        sizes=sizes,
        passed=_accurate(called.error, called.error_eager, result.request.recipe),
        error=called.error,
        error_unfused=called.error_eager,
        seconds=called.seconds,
    )


def table(trials: Sequence[Trial]) -> Table:
    """Lay the trials out; columns that no trial fills are left away."""
    columns = {
        "what ran": [t.what for t in trials],
        "sizes": [",".join(f"{n}={size}" for n, size in t.sizes.items()) for t in trials],
        "result": ["ok" if t.passed else "FAILED" for t in trials],
        "error": [_number(t.error, "{:.2e}") for t in trials],
        "PyTorch's error": [_number(t.error_unfused, "{:.2e}") for t in trials],
        "time": [_duration(t.seconds) for t in trials],
        "PyTorch's time": [_duration(t.unfused_seconds) for t in trials],
        "ratio to floor": [_number(t.floor_ratio, "{:.2f}") for t in trials],
    }
    filled = {name: cells for name, cells in columns.items() if any(cells)}
    return Table(tuple(filled), tuple(zip(*filled.values(), strict=True)), left=3)


def _accurate(error: float, unfused: float, recipe: Recipe) -> bool:
    """Say whether the error is within the recipe's tolerance; false for NaN."""
    return error <= recipe.tolerance * unfused


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds * 1e6:.1f} us"
