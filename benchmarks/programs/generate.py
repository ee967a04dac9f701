"""Generates kernels of the benchmark's programs: python -m programs.generate --out DIR

Each program goes from its PyTorch function through cutting, search, proof and emission in a process
of its own, with a limit of seconds. A row per program goes into DIR/programs.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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


def function_of(program: Program) -> Function:
    """Return a program's function, at the sizes of its first number of rows."""
    import torch

    inputs = program.inputs(program.rows[0], torch.bfloat16, "meta")
    dynamic = {
        name: {i: "M" for i, size in enumerate(shape) if size == "M"}
        for name, shape in program.shapes.items()
    }
    return Function(program.run, inputs, {n: d for n, d in dynamic.items() if d}, program.recipe)


def generated(program: Program, dtype: DType, folder: Path, jobs: int) -> dict[str, object]:
    """Generate the kernels of one program and return its row."""
    row: dict[str, object] = {"program": program.name, "dtype": dtype.value}
    started = time.monotonic()

    def make(recipe: Recipe) -> Result:
        request = Request(recipe, recipe.shapes[0], dtype, DEFAULT_ARCH)
        return generate(request, jobs=jobs, progress=lambda event: None)

    try:
        made = partitioned(function_of(program), dtype, DEFAULT_ARCH, make)
        records = [result.record for result in made.results]
        row["kernels"] = {
            r.recipe: {
                "proved": r.proof.log2_failure,
                "schedules": sorted({v.schedule for v in r.variants}),
            }
            for r in records
        }
        row |= {"ways": [*made.lines()], "reasons": sorted(made.reasons.values())}
        written = write(made.results, folder)
        row["triton"] = sum(path.suffix == ".py" for path in written)
        write_program(made.document, folder)
    except MirageError as error:
        row["reason"] = f"{type(error).__name__}: {error.sentence}"
    return row | {"seconds": round(time.monotonic() - started, 2)}


def limited(program: Program, options: argparse.Namespace) -> Mapping[str, object]:
    """Return the row that a process of its own makes, or that it took too long."""
    command = [sys.executable, "-m", "programs.generate", "--out", str(options.out), "--one"]
    command += ["--dtype", options.dtype, program.name]
    started = time.monotonic()
    try:
        made = subprocess.run(
            command, capture_output=True, text=True, timeout=options.limit, check=False
        )
        found: dict[str, object] = json.loads(made.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        found = {"program": program.name, "reason": f"over {options.limit} seconds"}
    except (json.JSONDecodeError, IndexError):
        said = made.stderr.strip().splitlines()[-1:] or [
            f"its process ended with {made.returncode}"
        ]
        found = {"program": program.name, "reason": said[0][:300]}
    found.setdefault("seconds", round(time.monotonic() - started, 2))
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Generate all programs, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", help="names; all when there are none")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp16"))
    parser.add_argument("--limit", type=int, default=90, help="seconds for a program")
    parser.add_argument("--jobs", type=int, default=2, help="programs at once")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    chosen = [PROGRAMS[name] for name in options.programs] or list(PROGRAMS.values())
    if options.one:
        print(json.dumps(generated(chosen[0], DType(options.dtype), options.out, 1)))
        return
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(lambda program: limited(program, options), chosen))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "programs.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
