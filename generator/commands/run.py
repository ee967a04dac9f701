"""`run`: generate one kernel, compile the extension, run it on real data; what `make run` calls."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from dataclasses import asdict

import mirage_kernels
from mirage_kernels.generator.build.compile import build_extension
from mirage_kernels.generator.build.toolchain import find_toolchain
from mirage_kernels.generator.commands import trial
from mirage_kernels.generator.commands.arguments import (
    Parser,
    Verb,
    add_effort,
    add_json,
    add_store,
    dtype,
    is_checkout,
    known_arch,
    package_kernels,
    recipe,
)
from mirage_kernels.generator.commands.extension import Loaded, extension_file, load
from mirage_kernels.generator.commands.generate import generate_one, made_json, search_lines
from mirage_kernels.generator.commands.show import proof_sentence
from mirage_kernels.generator.errors import FileError, RecipeError, ToolchainError
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.records.folder import write
from mirage_kernels.generator.request import Event, Request, parse_shape, requests
from mirage_kernels.generator.target import target
from mirage_kernels.generator.terminal import Terminal

DETAILS = """\
Generates the recipe's first shape in fp16 (or the one that is asked for; the other kernels stay as
committed), compiles every committed kernel into the extension, and prints one table. With a GPU of
the architecture: the compiled op against PyTorch. Without: the muGraph in the block-by-block
interpreter, the emitted Triton program in Triton's interpreter, and the extension's op on CPU
tensors, against float64. Exit code 1 when a row fails, 2 without a compiler (then nothing is
written).
"""


def add_arguments(parser: Parser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe that the library has an op for")
    parser.add_argument("--shape", metavar="K=4096,N=6144", help="default: the recipe's first")
    parser.add_argument("--dtype", type=dtype, metavar="fp16|bf16", default=DType.FP16)
    add_effort(parser)
    add_store(parser)
    parser.add_argument(
        "--no-write", action="store_true", help="leave the committed kernels as they are"
    )
    add_json(parser)


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
    result = made.result
    if not (arguments.no_write or missing):
        write([result], package_kernels())
    failure = missing or _compile(request.arch, terminal)
    loaded = None if failure else load()
    trials = _trials(arguments.recipe, result, loaded, terminal)
    if failure:
        trials.append(failure)
    _print(result, trials, loaded, terminal)
    terminal.line(f"{time.monotonic() - started:.0f} s in all")
    terminal.document(
        {
            "kernel": made_json(made),
            "gpu": loaded.gpu if loaded else "",
            "rows": [asdict(t) for t in trials],
        }
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
    arch = known_arch(arguments.arch)
    shapes = [parse_shape(arguments.shape, source)] if arguments.shape else None
    return requests(source, arch, [arguments.dtype], shapes)[0]


def _missing_compiler() -> trial.Trial | None:
    """Return a failed row where nothing can be compiled: then nothing is written either."""
    try:
        find_toolchain()
    except ToolchainError as error:
        return _not_compiled(error)
    return None


def _compile(arch: str, terminal: Terminal) -> trial.Trial | None:
    """Compile everything committed; return a failed row when that does not work."""
    try:
        with terminal.watch("compiling the extension") as progress:
            build_extension(
                arch,
                package_kernels(),
                extension_file(),
                jobs=None,
                progress=lambda line: progress(_event(line)),
            )
    except ToolchainError as error:
        return _not_compiled(error)
    return None


def _event(line: str) -> Event:
    """Read a line of the build: `compile   3/15 x.cu  2.0 s`, `link      _C.abi3.so  0.3 s`."""
    stage, _, text = line.partition(" ")
    counted = re.match(r" *(\d+)/(\d+) +(.*)", text)
    if counted is None:
        return Event(stage, 0, 0, text.strip())
    return Event(stage, int(counted[1]), int(counted[2]), counted[3])


def _not_compiled(error: ToolchainError) -> trial.Trial:
    complaint = f"{error.sentence}\n  hint: {error.hint}"
    return trial.Trial("compiled extension", {}, passed=False, complaint=complaint)


def _trials(
    name: str, result: Result, loaded: Loaded | None, terminal: Terminal
) -> list[trial.Trial]:
    if loaded and loaded.gpu:
        if loaded.capability == target(result.request.arch).capability:
            return trial.on_gpu(name, result, terminal)
        terminal.note(f"{loaded.gpu} does not run {result.request.arch} code: trying on the CPU")
    trials = trial.on_cpu(result, terminal)
    if loaded:
        trials.append(trial.of_extension(name, result, loaded))
    return trials


def _print(
    result: Result, trials: Sequence[trial.Trial], loaded: Loaded | None, terminal: Terminal
) -> None:
    where = f" on {loaded.gpu}" if loaded and loaded.gpu else ""
    terminal.line()
    for line in search_lines(result):
        terminal.line(line)
    terminal.line(proof_sentence(result.record))
    terminal.line(f"\n{result.request.recipe.name}: {result.request.recipe.summary}{where}")
    terminal.table(trial.table(trials))
    terminal.line("error: relative, against float64; PyTorch's: its unfused program's")
    for failed in (t for t in trials if t.complaint):
        terminal.line(f"FAILED {failed.what}: {failed.complaint}")


VERB = Verb(DETAILS, add_arguments, run)
