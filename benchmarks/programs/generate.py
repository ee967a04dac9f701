"""Generates kernels of the benchmark's programs: python -m programs.generate --out DIR

Each program goes from its PyTorch function through cutting, search, proof and emission in a process
of its own, with a limit of seconds. A row per program and type goes into DIR/programs.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage_kernels.generator.build.compile import DEFAULT_ARCH
from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.partition.document import write_program
from mirage_kernels.generator.partition.program import partitioned
from mirage_kernels.generator.partition.trace import Function
from mirage_kernels.generator.pipeline import Result, generate
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.records.folder import write
from mirage_kernels.generator.request import Request
from programs import PROGRAMS, Program, level1, level2, others, serving  # noqa: F401  (they register)

CATALOG = Path(__file__).resolve().parents[1] / "results/programs_catalog.json"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"} | os.environ  # products wait by spinning
Row = dict[str, Any]


def function_of(program: Program) -> Function:
    """Return a program's function, at the sizes of its first number of rows."""
    import torch

    inputs = program.inputs(program.rows[0], torch.bfloat16, "meta")
    dynamic = {
        name: {i: str(size) for i, size in enumerate(shape) if size in ("M", "T")}
        for name, shape in program.shapes.items()
    }
    return Function(program.run, inputs, {n: d for n, d in dynamic.items() if d}, program.recipe)


def generated(program: Program, options: argparse.Namespace) -> list[Row]:
    """Generate the kernels of one program and return a row for each type; one search serves all."""
    rows: list[Row] = []
    for dtype in map(DType, options.dtype):
        started = time.monotonic()
        row = {"program": program.name, "dtype": dtype.value} | _row(program, dtype, options)
        rows.append(row | {"seconds": round(time.monotonic() - started, 2)})
    return rows


def catalogs_of(options: argparse.Namespace) -> tuple[Path, ...]:
    """Return the catalog of measured knobs, if there is one."""
    return (options.catalog,) if options.catalog.is_file() else ()


def _row(program: Program, dtype: DType, options: argparse.Namespace) -> Row:
    """Generate the kernels of one program in one type and say what they are."""

    def make(recipe: Recipe) -> Result:
        request = Request(recipe, recipe.shapes[0], dtype, DEFAULT_ARCH, catalogs_of(options))
        return generate(request, jobs=1, progress=lambda event: None)

    try:
        made = partitioned(function_of(program), dtype, DEFAULT_ARCH, make)
        written = write(made.results, options.out)
        write_program(made.document, options.out)
    except MirageError as error:
        return {"reason": f"{type(error).__name__}: {error.sentence}"}
    ways = {"ways": [*made.lines()], "reasons": sorted(made.reasons.values())}
    return described(made.results, written) | ways


def described(results: Sequence[Result], written: Sequence[Path]) -> Row:
    """Say what kernels are: the bound of their proof, their schedules, how many Triton programs."""
    kernels = {
        r.recipe: {
            "proved": r.proof.log2_failure,
            "schedules": sorted({v.schedule for v in r.variants}),
        }
        for r in (result.record for result in results)
    }
    return {"kernels": kernels, "triton": sum(path.suffix == ".py" for path in written)}


def parser_of(about: str | None) -> argparse.ArgumentParser:
    """Return what reads the options that commands have that generate programs."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("programs", nargs="*", help="names; all when there are none")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--catalog", type=Path, default=CATALOG, help="what `tune` measured")
    parser.add_argument("--limit", type=int, default=90, help="seconds for a program")
    parser.add_argument("--jobs", type=int, default=2, help="programs at once")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    return parser


@dataclass(frozen=True)
class Command:
    """A command that generates programs: its module, how it makes one, what it was called with.

    `own` are its options beside those of `parser_of`, as they are written.
    """

    module: str
    rows_of: Callable[[Program, argparse.Namespace], list[Row]]
    options: argparse.Namespace
    own: Sequence[str]

    def run(self, every: Sequence[Program]) -> None:
        """Generate all programs, or those that are named, each in a process of its own."""
        options = self.options
        chosen = [PROGRAMS[name] for name in options.programs] or every
        if options.one:
            print(json.dumps(self.rows_of(chosen[0], options)))
            return
        with ThreadPoolExecutor(options.jobs) as pool:
            rows = [row for several in pool.map(self.limited, chosen) for row in several]
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "programs.json").write_text(json.dumps(rows, indent=1) + "\n")

    def limited(self, program: Program) -> list[Row]:
        """Return the rows that a process of its own makes, or that it took too long."""
        limit, out = self.options.limit, str(self.options.out)
        command = [sys.executable, "-m", self.module, "--one", "--out", out, *self.own]
        command += ["--catalog", str(self.options.catalog)]
        command += ["--", program.name]
        started = time.monotonic()
        try:
            made = subprocess.run(
                command, capture_output=True, text=True, timeout=limit, check=False, env=ONE_THREAD
            )
            found: list[Row] = json.loads(made.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired:
            found = [{"program": program.name, "reason": f"over {limit} seconds"}]
        except (json.JSONDecodeError, IndexError):
            said = made.stderr.strip().splitlines()[-1:] or [
                f"its process ended with {made.returncode}"
            ]
            found = [{"program": program.name, "reason": said[0][:300]}]
        for row in found:
            row.setdefault("seconds", round(time.monotonic() - started, 2))
            print(json.dumps(row), file=sys.stderr, flush=True)
        return found


def command_in_types(
    about: str | None, module: str, rows_of: Callable[[Program, argparse.Namespace], list[Row]]
) -> Command:
    """Return what a module was called for that generates programs in the types of --dtype."""
    parser = parser_of(about)
    parser.add_argument("--dtype", nargs="+", default=["bf16"], choices=("bf16", "fp16"))
    options = parser.parse_args()
    return Command(module, rows_of, options, ["--dtype", *options.dtype])


def main() -> None:
    """Generate all programs, or those that are named."""
    command_in_types(__doc__, "programs.generate", generated).run([*PROGRAMS.values()])


if __name__ == "__main__":
    main()
