"""`run`: generate one kernel, compile the extension, run it on real data; what `make run` calls."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict

import mirage_kernels
from mirage_kernels.generator.build.compile import build_extension
from mirage_kernels.generator.build.selection import kernel_name, selected
from mirage_kernels.generator.build.toolchain import find_toolchain
from mirage_kernels.generator.commands import trial
from mirage_kernels.generator.commands.arguments import (
    ARCH,
    JOBS,
    JSON,
    STORE,
    argument,
    dtype,
    is_checkout,
    package_kernels,
    recipe,
)
from mirage_kernels.generator.commands.extension import (
    Loaded,
    compiled_arch,
    compiled_names,
    extension_file,
    load,
)
from mirage_kernels.generator.commands.generate import generate_one, search_lines
from mirage_kernels.generator.commands.show import proof_sentence
from mirage_kernels.generator.errors import FileError, RecipeError, ToolchainError
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.records.files import all_or_nothing
from mirage_kernels.generator.records.folder import emitted, write
from mirage_kernels.generator.request import Event, Request, parse_shape, requests
from mirage_kernels.generator.target import target
from mirage_kernels.generator.terminal import Terminal

DETAILS = """\
Generates the recipe's first shape in fp16 (or the one that is asked for; the other kernels stay as
committed), compiles it into the extension beside the kernels that are in it, and prints one table.
With --no-write nothing is written, the extension stays as it is. With a GPU of the architecture:
the compiled op against PyTorch. Without: the muGraph in the block-by-block interpreter, the emitted
Triton program in Triton's interpreter, and the extension's op on CPU tensors, against float64. Exit
code 1 when a row fails, 2 without a compiler (then nothing is written).
"""
ARGUMENTS = (
    argument("recipe", metavar="RECIPE", help="a recipe that the library has an op for"),
    argument("--shape", metavar="K=4096,N=6144", help="default: the recipe's first"),
    argument("--dtype", type=dtype, metavar="fp16|bf16", default=DType.FP16),
    *(ARCH, JOBS, STORE),
    argument("--no-write", action="store_true", help="write nothing: no kernel, no extension"),
    JSON,
)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Take one kernel the whole way and print what came out."""
    started = time.monotonic()
    if not is_checkout():
        raise FileError(
            "run compiles, which needs a source checkout; this is an installed package",
            "in a checkout: `make run`; here, on a GPU: `mirage-kernels bench`",
        )
    request = _request(arguments)
    missing = _missing_compiler()
    made = generate_one(request, arguments, terminal)
    result, failure = made.result, missing
    if not (arguments.no_write or missing):
        with all_or_nothing():
            write([result], package_kernels())
        failure = _compile(result, terminal)
    sizes = json.dumps(trial.interpreted_sizes(result))
    loaded = Loaded() if failure else load(arguments.recipe, result.record.dtype, sizes)
    trials = _trials(arguments, result, loaded, terminal)
    if failure:
        trials.append(trial.Trial("compiled extension", {}, complaint=trial.words_of(failure)))
    _print(result, trials, loaded, terminal)
    terminal.line(f"{time.monotonic() - started:.0f} s in all")
    terminal.document(
        {"kernel": made.to_json(), "gpu": loaded.gpu, "rows": [asdict(t) for t in trials]}
    )
    if missing:
        return 2
    return 0 if all(t.passed for t in trials) else 1


def _request(arguments: argparse.Namespace) -> Request:
    source = recipe(arguments.recipe)
    if source.name not in mirage_kernels.__all__:
        raise RecipeError(
            f"run calls the library's op, and it has none for {source.name}",
            "`mirage-kernels generate RECIPE --out DIR` makes kernels of any recipe",
        )
    shapes = [parse_shape(arguments.shape, source)] if arguments.shape else None
    return requests(source, arguments.arch, [arguments.dtype], shapes)[0]


def _missing_compiler() -> ToolchainError | None:
    """Return why nothing can be compiled, if nothing can: then nothing is written either."""
    try:
        find_toolchain()
    except ToolchainError as error:
        return error
    return None


def _compile(result: Result, terminal: Terminal) -> ToolchainError | None:
    """Compile the kernel beside those that are compiled; return why that fails, if it does."""
    folder, arch = package_kernels(), result.request.arch
    try:
        with terminal.watch("compiling the extension") as progress:
            names = {kernel_name(trial.kernel_of(result)), *_compiled_before(arch)}
            build_extension(
                selected(sorted(names), arch, folder),
                extension_file(),
                progress=lambda *step: progress(Event(*step)),
            )
    except ToolchainError as error:
        return error
    return None


def _compiled_before(arch: str) -> set[str]:
    """Return the committed kernels that the extension holds now, if it is for the architecture."""
    if compiled_arch() != arch:
        return set()
    return compiled_names(kernel_name(r) for r in emitted(package_kernels(), arch).values())


def _trials(
    arguments: argparse.Namespace, result: Result, loaded: Loaded, terminal: Terminal
) -> list[trial.Trial]:
    if loaded.gpu:
        if loaded.capability == target(result.request.arch).capability:
            return trial.on_gpu(arguments.recipe, result, terminal)
        terminal.note(f"{loaded.gpu} does not run {result.request.arch} code: trying on the CPU")
    trials = trial.on_cpu(result, terminal)
    there = kernel_name(trial.kernel_of(result)) in loaded.kernels
    if there or (loaded != Loaded() and not arguments.no_write):
        trials.append(trial.of_extension(result, loaded))
    return trials


def _print(
    result: Result, trials: Sequence[trial.Trial], loaded: Loaded, terminal: Terminal
) -> None:
    where = f" on {loaded.gpu}" if loaded.gpu else ""
    terminal.line()
    for line in search_lines(result):
        terminal.line(line)
    terminal.line(proof_sentence(result.record))
    terminal.line(f"\n{result.request.recipe.name}: {result.request.recipe.summary}{where}")
    terminal.table(trial.table(trials))
    terminal.line("error: relative, against float64; PyTorch's: its unfused program's")
    for failed in (t for t in trials if t.complaint):
        terminal.line(f"FAILED {failed.what}: {failed.complaint}")
