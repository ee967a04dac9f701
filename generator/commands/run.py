"""`run`: generate one kernel, compile the extension, run it on real data; what `make run` calls.

On a GPU the compiled op runs against PyTorch, on a CPU the kernel in two interpreters.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mirage_kernels
from mirage_kernels.generator import errors
from mirage_kernels.generator.bench.demonstrate import demonstrate
from mirage_kernels.generator.build.compile import build_extension
from mirage_kernels.generator.build.selection import kernel_name, selected
from mirage_kernels.generator.build.toolchain import find_toolchain
from mirage_kernels.generator.commands import arguments as given
from mirage_kernels.generator.commands import extension
from mirage_kernels.generator.commands.arguments import argument, flag
from mirage_kernels.generator.commands.extension import Loaded
from mirage_kernels.generator.commands.generate import made_json, search_lines
from mirage_kernels.generator.commands.kernels import proof_sentence
from mirage_kernels.generator.commands.making import generate_one
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.plan.program import Roles
from mirage_kernels.generator.records.files import all_or_nothing
from mirage_kernels.generator.records.folder import emitted, write
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.request import Event, parse_shape, requests, sizes_text
from mirage_kernels.generator.target import target
from mirage_kernels.generator.terminal import Terminal, counted

# Numbers of tokens on a GPU; and at most so many tokens and rows on a CPU: no tile divides them.
TOKENS = (1, 8, 16, 64)
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


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Generates the recipe's first shape in fp16, or the one that is asked for.

    The other kernels stay as committed. It is compiled into the extension beside the kernels that
    are in it, and one table is printed. With --no-write nothing is written, the extension stays as
    it is. With a GPU of the architecture: the compiled op against PyTorch. Without: the muGraph in
    the block-by-block interpreter, the emitted Triton program in Triton's interpreter, and the
    extension's op on CPU tensors, against float64. Exit code 1 when a row fails, 2 without a
    compiler (then nothing is written).
    """
    started = time.monotonic()
    if not given.is_checkout():
        raise errors.FileError(
            "run compiles, which needs a source checkout; this is an installed package",
            "in a checkout: `make run`; here, on a GPU: `mirage-kernels bench`",
        )
    source = given.drawn_recipe(arguments.recipe, "run")
    if source.name not in mirage_kernels.__all__:
        raise errors.RecipeError(
            f"run calls the library's op, and it has none for {source.name}",
            "`mirage-kernels generate RECIPE --out DIR` makes kernels of any recipe",
        )
    shapes = [parse_shape(arguments.shape, source)] if arguments.shape else None
    (request, *_) = requests(source, arguments.arch, [arguments.dtype], shapes)
    missing = _missing_compiler()
    made = generate_one(request, arguments, terminal)
    result, failure = made[0], missing
    if not (arguments.no_write or missing):
        with all_or_nothing():
            write([result], given.package_kernels())
        failure = _compile(result, terminal)
    sizes = json.dumps(_interpreted_sizes(result))
    loaded = Loaded() if failure else extension.load(arguments.recipe, result.record.dtype, sizes)
    trials = _trials(arguments, result, loaded, terminal)
    if failure:
        trials.append(Trial("compiled extension", {}, complaint=_complaint(failure)))
    _print(result, trials, loaded, terminal)
    terminal.line(f"{time.monotonic() - started:.0f} s in all")
    terminal.document({"kernel": made_json(made), "gpu": loaded.gpu, "rows": trials})
    if missing:
        return 2
    return 0 if all(t.passed for t in trials) else 1


def _missing_compiler() -> errors.ToolchainError | None:
    """Return why nothing can be compiled, if nothing can: then nothing is written either."""
    try:
        find_toolchain()
    except errors.ToolchainError as error:
        return error
    return None


def _compile(result: Result, terminal: Terminal) -> errors.ToolchainError | None:
    """Compile the kernel beside those that are compiled; return why that fails, if it does."""
    folder, arch = given.package_kernels(), result.request.arch
    records = emitted(folder, arch)
    before = {kernel_name(records[path]) for path in extension.compiled_paths(records)}
    names, file = {kernel_name(_kernel_of(result)), *before}, extension.extension_file()
    try:
        with terminal.watch("compiling the extension") as progress:
            sources = selected(sorted(names), arch, folder)
            build_extension(sources, file, progress=lambda *step: progress(Event(*step)))
    except errors.ToolchainError as error:
        return error
    return None


def _kernel_of(result: Result) -> KernelRecord:
    """Return the record of a made kernel; raise PlanError where there is none to run."""
    record = result.record
    if record.no_plan:
        raise errors.PlanError(f"{record.recipe} has no kernel to run: {record.no_plan}")
    if not isinstance(record.roles, Roles):
        raise errors.PlanError(
            f"{record.recipe} is attention, which this verb does not run",
            "benchmarks and tests of the library do, on a GPU",
        )
    return record


def _interpreted_sizes(result: Result) -> dict[str, int]:
    """Return the kernel's sizes with few tokens and few rows of weights."""
    record = _kernel_of(result)
    rows, sizes = record.roles.rows, {**record.shape, record.roles.tokens: _TOKENS}
    return sizes | ({rows: min(_ROWS, sizes[rows])} if rows else {})


# -- running it --------------------------------------------------------------------------------


def _trials(
    arguments: argparse.Namespace, result: Result, loaded: Loaded, terminal: Terminal
) -> list[Trial]:
    if loaded.gpu:
        if loaded.capability == target(result.request.arch).capability:
            terminal.note("measuring on the GPU")
            return _on_gpu(arguments.recipe, result)
        terminal.note(f"{loaded.gpu} does not run {result.request.arch} code: trying on the CPU")
    terminal.note("running the muGraph and its Triton program on the CPU")
    trials = _interpreted(result)
    there = kernel_name(_kernel_of(result)) in loaded.kernels
    if there or (loaded != Loaded() and not arguments.no_write):
        trials.append(_of_extension(result, loaded))
    return trials


def _on_gpu(name: str, result: Result) -> list[Trial]:
    """Measure the compiled op, in an interpreter of its own: this one may hold an older file."""
    request, what = result.request, "compiled op on the GPU"
    command = [sys.executable, "-m", "mirage_kernels.generator.cli", "bench", name]
    command += ["--shape", sizes_text(request.shape.dims), "--dtype", request.dtype.value]
    command += ["--m", ",".join(map(str, TOKENS)), "--json", "-"]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode:
        complaint = "the measurement ended early; its message stands above"
        return [Trial(what, request.shape.dims, complaint=complaint)]
    return [
        Trial(
            what=what,
            sizes=row["dims"],
            passed=_is_accurate(result, row["error_ours"], row["error_eager"]),
            error=row["error_ours"],
            error_unfused=row["error_eager"],
            seconds=row["ours_us"] * 1e-6,
            unfused_seconds=row["eager_us"] * 1e-6,
            floor_ratio=row["ratio"],
        )
        for row in json.loads(ran.stdout)["rows"]
    ]


def _interpreted(result: Result) -> list[Trial]:
    """Run the muGraph and the emitted Triton program in their interpreters."""
    try:
        shown = demonstrate(_kernel_of(result), result.request.recipe, _interpreted_sizes(result))
    except errors.VerifyError as error:
        what = "muGraph and Triton program, interpreted"
        return [Trial(what, result.record.shape, complaint=_complaint(error))]
    return [Trial(d.what, d.sizes, d.good, d.error, d.error_unfused, d.seconds) for d in shown]


def _of_extension(result: Result, loaded: Loaded) -> Trial:
    """Say what came of the op's call on CPU tensors, and of the kernel in the dispatch table."""
    what = f"compiled extension ({counted(len(loaded.kernels), 'kernel')}), op on CPU tensors"
    sizes, kernel, called = _interpreted_sizes(result), kernel_name(result.record), loaded.call
    complaint = "" if kernel in loaded.kernels else f"its dispatch table lacks {kernel}"
    if called is None or complaint:
        return Trial(what, sizes, complaint=loaded.problem or complaint)
    return Trial(what, sizes, _is_accurate(result, *called[:2]), *called)


def _is_accurate(result: Result, error: float, unfused: float) -> bool:
    """Say whether the error is within the recipe's tolerance; false for NaN."""
    return error <= result.request.recipe.tolerance * unfused


# -- telling of it -----------------------------------------------------------------------------


def _print(result: Result, trials: Sequence[Trial], loaded: Loaded, terminal: Terminal) -> None:
    where = f" on {loaded.gpu}" if loaded.gpu else ""
    terminal.line()
    for line in (*search_lines(result), proof_sentence(result.record)):
        terminal.line(line)
    terminal.line(f"\n{result.request.recipe.name}: {result.request.recipe.summary}{where}")
    rows = [
        {
            "what ran": t.what,
            "sizes": sizes_text(t.sizes),
            "result": "ok" if t.passed else "FAILED",
            "error": _number(t.error, ".2e"),
            "PyTorch's error": _number(t.error_unfused, ".2e"),
            "time": _duration(t.seconds),
            "PyTorch's time": _duration(t.unfused_seconds),
            "ratio to floor": _number(t.floor_ratio, ".2f"),
        }
        for t in trials
    ]
    terminal.table(rows, left=3)
    terminal.line("error: relative, against float64; PyTorch's: its unfused program's")
    for failed in (t for t in trials if t.complaint):
        terminal.line(f"FAILED {failed.what}: {failed.complaint}")


def _complaint(error: errors.MirageError) -> str:
    return f"{error.sentence}\n  hint: {error.hint}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds * 1e6:.1f} us"


VERBS = {
    "run": (
        run,
        argument("recipe", "RECIPE", "a recipe that the library has an op for"),
        argument("--shape", "K=4096,N=6144", "default: the recipe's first"),
        argument("--dtype", "fp16|bf16", type=given.dtype, default=DType.FP16),
        *(given.ARCH, given.JOBS, given.STORE),
        flag("--no-write", "write nothing: no kernel, no extension"),
        given.JSON,
    ),
}
