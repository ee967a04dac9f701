"""Generates kernels of the benchmark's programs: python -m programs.generate --out DIR

Each program goes from its PyTorch function through cutting, search, proof and emission in a process
of its own, with a limit of seconds. A row per program and type goes into DIR/programs.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mirage_kernels.generator.build.compile import DEFAULT_ARCH
from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.partition.program import partitioned, write_program
from mirage_kernels.generator.partition.trace import Function
from mirage_kernels.generator.pipeline import Result, generate
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.records.folder import write
from mirage_kernels.generator.request import Request
from programs import PROGRAMS, Program, level1, level2, serving  # noqa: F401  (they register)

Row = dict[str, Any]


def function_of(program: Program) -> Function:
    """Return a program's function, at the sizes of its first number of rows."""
    import torch

    inputs = program.inputs(program.rows[0], torch.bfloat16, "meta")
    dynamic = {
        name: {i: "M" for i, size in enumerate(shape) if size == "M"}
        for name, shape in program.shapes.items()
    }
    return Function(program.run, inputs, {n: d for n, d in dynamic.items() if d}, program.recipe)


def generated(program: Program, dtypes: Sequence[DType], folder: Path) -> list[Row]:
    """Generate the kernels of one program and return a row for each type; one search serves all."""
    rows: list[Row] = []
    for dtype in dtypes:
        started = time.monotonic()
        row = {"program": program.name, "dtype": dtype.value} | _row(program, dtype, folder)
        rows.append(row | {"seconds": round(time.monotonic() - started, 2)})
    return rows


def _row(program: Program, dtype: DType, folder: Path) -> Row:
    """Generate the kernels of one program in one type and say what they are."""

    def make(recipe: Recipe) -> Result:
        request = Request(recipe, recipe.shapes[0], dtype, DEFAULT_ARCH)
        return generate(request, jobs=1, progress=lambda event: None)

    try:
        made = partitioned(function_of(program), dtype, DEFAULT_ARCH, make)
        written = write(made.results, folder)
        write_program(made.document, folder)
    except MirageError as error:
        return {"reason": f"{type(error).__name__}: {error.sentence}"}
    records = [result.record for result in made.results]
    kernels = {
        r.recipe: {
            "proved": r.proof.log2_failure,
            "schedules": sorted({v.schedule for v in r.variants}),
        }
        for r in records
    }
    return {
        "kernels": kernels,
        "ways": [*made.lines()],
        "reasons": sorted(made.reasons.values()),
        "triton": sum(path.suffix == ".py" for path in written),
    }


def limited(program: Program, options: argparse.Namespace) -> list[Row]:
    """Return the rows that a process of its own makes, or that it took too long."""
    command = [sys.executable, "-m", "programs.generate", "--out", str(options.out), "--one"]
    command += ["--dtype", *options.dtype, "--", program.name]
    started = time.monotonic()
    try:
        made = subprocess.run(
            command, capture_output=True, text=True, timeout=options.limit, check=False
        )
        found: list[Row] = json.loads(made.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        found = [{"program": program.name, "reason": f"over {options.limit} seconds"}]
    except (json.JSONDecodeError, IndexError):
        said = made.stderr.strip().splitlines()[-1:] or [
            f"its process ended with {made.returncode}"
        ]
        found = [{"program": program.name, "reason": said[0][:300]}]
    for row in found:
        row.setdefault("seconds", round(time.monotonic() - started, 2))
        print(json.dumps(row), file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Generate all programs, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", help="names; all when there are none")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", nargs="+", default=["bf16"], choices=("bf16", "fp16"))
    parser.add_argument("--limit", type=int, default=90, help="seconds for a program")
    parser.add_argument("--jobs", type=int, default=2, help="programs at once")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    chosen = [PROGRAMS[name] for name in options.programs] or list(PROGRAMS.values())
    if options.one:
        print(json.dumps(generated(chosen[0], [*map(DType, options.dtype)], options.out)))
        return
    with ThreadPoolExecutor(options.jobs) as pool:
        made = pool.map(lambda program: limited(program, options), chosen)
        rows = [row for several in made for row in several]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "programs.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
