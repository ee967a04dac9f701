"""A generated kernel on real data: on a GPU against PyTorch, on a CPU in two interpreters."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.bench.demonstrate import demonstrate
from mirage_kernels.generator.build.selection import kernel_name
from mirage_kernels.generator.commands.extension import Loaded
from mirage_kernels.generator.errors import MirageError, PlanError, VerifyError
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.plan.program import Roles
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.request import sizes_text
from mirage_kernels.generator.terminal import Table, Terminal, counted

TOKENS = (1, 8, 16, 64)
# At most so many are interpreted on the CPU. Uneven: no tile divides them.
_TOKENS, _ROWS = 5, 1035


@dataclass(frozen=True)
class Trial:
    """One thing that ran: its error beside the unfused PyTorch program's, and its speed."""

    what: str
    sizes: Mapping[str, int]
    passed: bool = False
    error: float | None = None
    error_unfused: float | None = None
    seconds: float | None = None
    unfused_seconds: float | None = None
    floor_ratio: float | None = None
    complaint: str = ""  # why it failed, and what helps


def words_of(error: MirageError) -> str:
    """Return an error as the complaint of a failed row."""
    return f"{error.sentence}\n  hint: {error.hint}"


def on_gpu(name: str, result: Result, terminal: Terminal) -> list[Trial]:
    """Measure the compiled op, in an interpreter of its own: this one may hold an older file."""
    request, what = result.request, "compiled op on the GPU"
    command = [sys.executable, "-m", "mirage_kernels.generator.cli", "bench", name]
    command += ["--shape", sizes_text(request.shape.dims), "--dtype", request.dtype.value]
    command += ["--m", ",".join(map(str, TOKENS)), "--json", "-"]
    terminal.note("measuring on the GPU")
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode:
        complaint = "the measurement ended early; its message stands above"
        return [Trial(what, request.shape.dims, complaint=complaint)]
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
    if record.no_plan:
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
    try:
        shown = demonstrate(kernel_of(result), result.request.recipe, interpreted_sizes(result))
    except VerifyError as error:
        what = "muGraph and Triton program, interpreted"
        return [Trial(what, result.record.shape, complaint=words_of(error))]
    return [Trial(d.what, d.sizes, d.good, d.error, d.error_unfused, d.seconds) for d in shown]


def interpreted_sizes(result: Result) -> dict[str, int]:
    """Return the kernel's sizes with few tokens and few rows of weights."""
    record = kernel_of(result)
    rows, sizes = record.roles.rows, {**record.shape, record.roles.tokens: _TOKENS}
    return sizes | ({rows: min(_ROWS, sizes[rows])} if rows else {})


def of_extension(result: Result, loaded: Loaded) -> Trial:
    """Say what came of the op's call on CPU tensors, and of the kernel in the dispatch table."""
    what = f"compiled extension ({counted(len(loaded.kernels), 'kernel')}), op on CPU tensors"
    sizes, kernel = interpreted_sizes(result), kernel_name(kernel_of(result))
    complaint = "" if kernel in loaded.kernels else f"its dispatch table lacks {kernel}"
    called = loaded.call
    if called is None or complaint:
        return Trial(what, sizes, complaint=loaded.problem or complaint)
    passed = _accurate(called.error, called.error_eager, result.request.recipe)
    return Trial(what, sizes, passed, called.error, called.error_eager, called.seconds)


def table(trials: Sequence[Trial]) -> Table:
    """Lay the trials out; columns that no trial fills are left away."""
    columns = {
        "what ran": [t.what for t in trials],
        "sizes": [sizes_text(t.sizes) for t in trials],
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
