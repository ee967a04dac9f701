"""`generate`: search, prove, plan and emit the kernels of a recipe."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirage_kernels.generator import pipeline
from mirage_kernels.generator.commands.arguments import (
    ARCH,
    DTYPES,
    JOBS,
    JSON,
    SHAPES,
    STORE,
    argument,
    output_folder,
    recipe,
)
from mirage_kernels.generator.errors import ShapeError
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.records.files import all_or_nothing
from mirage_kernels.generator.records.folder import write
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.report import pruned_by
from mirage_kernels.generator.request import Request, parse_shape, requests
from mirage_kernels.generator.schedules.loop import ALIGNED_ELEMENTS
from mirage_kernels.generator.settings import store_folder
from mirage_kernels.generator.terminal import Table, Terminal, counted, listed

DETAILS = """\
Without --shape and --dtype every shape of the recipe's catalog is generated in every dtype. The
files of recipes that the library has an op for go to kernels/ in a source checkout, those of the
catalog's other recipes to generated/ here, those of a recipe file to kernels/ beside it; --out
names another folder. A muGraph that this version has no plan for is kept as it was proved, in a
file that ends in .mugraph.json. All files are written at the end, each whole.

examples:
  mirage-kernels generate rms_norm_linear
  mirage-kernels generate rms_norm_linear --shape K=4096,N=6144 --dtype fp16 --dry-run
  mirage-kernels generate path/to/my_recipe.py --shape K=1024,N=512
"""
ARGUMENTS = (
    argument("recipe", metavar="RECIPE|FILE", help="a recipe's name, or a file that defines one"),
    *(DTYPES, SHAPES, ARCH, JOBS, STORE),
    argument("--out", metavar="DIR", help="folder to write to: DIR/sm_90a/..."),
    argument("--dry-run", action="store_true", help="say what would be generated, and stop"),
    JSON,
)


@dataclass(frozen=True)
class Made:
    """A generated kernel and the seconds that it took here, a shared search included once."""

    result: Result
    seconds: float

    def to_json(self) -> dict[str, Json]:
        """Return what was asked for, what the search did, and the time as JSON data."""
        return _request_json(self.result.request) | {
            "report": self.result.report.to_json(),
            "seconds": round(self.seconds, 2),
            "log2_failure": self.result.record.proof.log2_failure,
        }


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Generate every requested kernel, write all files, and report what the search did."""
    source = recipe(arguments.recipe)
    folder = output_folder(arguments.out, arguments.recipe, arguments.arch)
    wanted = _requested(source, arguments)
    if arguments.dry_run:
        _say_what_would_happen(wanted, folder, terminal)
        return 0
    made = [generate_one(request, arguments, terminal) for request in wanted]
    with all_or_nothing():
        written = write([m.result for m in made], folder)
    _report(made, terminal)
    terminal.line(f"{counted(len(written), 'file')} in {folder}")
    terminal.document(
        {"kernels": [m.to_json() for m in made], "written": [str(path) for path in written]}
    )
    return 0


def _requested(source: Recipe, arguments: argparse.Namespace) -> list[Request]:
    shapes = [parse_shape(text, source) for text in arguments.shape or ()]
    if not (shapes or source.shapes):
        raise ShapeError(
            f"recipe {source.name} has no shapes of its own",
            f"write --shape {','.join(f'{n}=...' for n in source.static_dims)}",
        )
    return requests(source, arguments.arch, arguments.dtype, shapes)


def generate_one(request: Request, arguments: argparse.Namespace, terminal: Terminal) -> Made:
    """Generate one kernel with live progress, then print its line; its search may be stored."""
    started = time.monotonic()
    store = Store(store_folder(arguments.store))
    with terminal.watch(request.name) as progress:
        result = pipeline.generate(request, jobs=arguments.jobs, progress=progress, store=store)
    made = Made(result, time.monotonic() - started)
    terminal.note(f"  done     {request.name}  {made.seconds:.1f} s")
    return made


def search_lines(result: Result) -> Iterator[str]:
    """Say what the search did, what it cut away and why."""
    report = result.report
    yield f"searched {report.states:,} states, pruned by {pruned_by(report.pruned)}"
    yield (
        f"{report.candidates:,} candidates: {report.proved:,} proved, {report.rejected:,} rejected"
    )


def _request_json(request: Request) -> dict[str, Json]:
    return {
        "recipe": request.recipe.name,
        "shape": dict(request.shape.dims),
        "dtype": request.dtype.value,
        "arch": request.arch,
        "source": request.shape.source,
    }


def _say_what_would_happen(wanted: Sequence[Request], folder: Path, terminal: Terminal) -> None:
    terminal.line(f"would generate {counted(len(wanted), 'kernel')} into {folder}")
    rows = tuple((r.name, r.arch, r.shape.source) for r in wanted)
    terminal.table(Table(("kernel", "arch", "shape from"), rows, left=3))
    terminal.document({"folder": str(folder), "kernels": [_request_json(r) for r in wanted]})


def _report(made: Sequence[Made], terminal: Terminal) -> None:
    """Print the search, which all kernels share, then a row per kernel."""
    for line in search_lines(made[0].result):
        terminal.line(line)
    if len(made) == 1:
        others = Counter(line.strip() for line in made[0].result.report.alternatives)
        for line, count in others.items():
            terminal.line(f"  also proved: {line}" + (f"; {count} of these" if count > 1 else ""))
    columns = ("kernel", "gated", "proof draws", "wrong passes", "variants", "seconds")
    terminal.table(Table(columns, tuple(_row(m) for m in made), left=1))
    terminal.line("gated: faster by prediction, but refused by the numeric gate")
    for record in (m.result.record for m in made):
        if record.no_plan:
            _say_why_not_emitted(record, terminal)


def _row(made: Made) -> tuple[str, ...]:
    record, proof = made.result.record, made.result.record.proof
    counts = (f"{made.result.report.gated:,}", str(proof.draws), f"2^{proof.log2_failure:g}")
    return made.result.request.name, *counts, str(len(record.variants)), f"{made.seconds:.1f}"


def _say_why_not_emitted(record: KernelRecord, terminal: Terminal) -> None:
    terminal.line(f"{record.recipe} {record.stem}: proved, not emitted: {record.no_plan}")
    size = ALIGNED_ELEMENTS
    odd = [f"{name} {extent}" for name, extent in record.shape.items() if extent % size]
    if odd:
        terminal.line(
            f"  hint: kernels read {size} elements of a row at a time; with a multiple of {size} "
            f"in place of {listed(odd)} there may be a plan"
        )
