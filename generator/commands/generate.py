"""`generate` and `search`: find the muGraphs of recipes, prove them, write their kernels."""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_kernels.generator import pipeline
from mirage_kernels.generator.commands import arguments as given
from mirage_kernels.generator.commands.arguments import argument, flag
from mirage_kernels.generator.commands.making import Made, abreast, generate_all, generate_one
from mirage_kernels.generator.commands.models import generate_model
from mirage_kernels.generator.errors import MirageError, ShapeError, ToolchainError
from mirage_kernels.generator.ir.dtypes import STORAGE_DTYPES, DType
from mirage_kernels.generator.jobs.job import Executor, local
from mirage_kernels.generator.jobs.run import Origin, Outcome, Workshop, complete_all
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.recipe import Recipe, catalog
from mirage_kernels.generator.records import documents
from mirage_kernels.generator.records.files import all_or_nothing
from mirage_kernels.generator.records.folder import remove, write
from mirage_kernels.generator.report import pruned_by
from mirage_kernels.generator.request import Request, parse_shape, requests
from mirage_kernels.generator.search.superoptimizer import search_jobs
from mirage_kernels.generator.settings import ray_address, store_folder
from mirage_kernels.generator.terminal import Terminal, counted

if TYPE_CHECKING:
    from mirage_kernels.generator.partition.program import Program
    from mirage_kernels.generator.partition.trace import Function

NOT_EMITTED = 3  # exit code: proved, and no block has room for it


def generate(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Without --shape and --dtype every shape of the recipe's catalog is generated in every dtype.

    The files of recipes that the library has an op for go to kernels/ in a source checkout, those
    of the catalog's other recipes to generated/ here, those of a recipe file to kernels/ beside it;
    --out names another folder. A muGraph that no block of the architecture has room for is kept as
    it was proved, in a file that ends in .mugraph.json, and the exit code is 3. All files are
    written at the end, each whole. `mirage-kernels compile` makes those of another folder ready for
    `mirage_kernels.load`, without a build of the library.

    --model reads a Hugging Face config.json, or knows some models by name, and generates what their
    decode step needs on one of --tp GPUs and is not there yet; `list --model` shows it.

    FILE.py:NAME is a PyTorch function or module (docs/from_torch.md). It is cut into kernels and
    operators that PyTorch runs itself, and `mirage-kernels compile` makes a program of them.

    examples:
      mirage-kernels generate rms_norm_linear
      mirage-kernels generate rms_norm_linear --shape K=4096,N=6144 --dtype fp16 --dry-run
      mirage-kernels generate path/to/my_recipe.py --shape K=1024,N=512
      mirage-kernels generate rms_norm_linear --shape K=5120,N=7168 --out mine
      mirage-kernels generate --model path/to/config.json --tp 8 --dtype bf16 --out mine
    """
    if arguments.model:
        return generate_model(arguments, terminal)
    if arguments.recipe is None:
        raise MirageError("generate takes a recipe, a file or a model", "RECIPE, or --model NAME")
    function = given.function(arguments.recipe)
    folder = given.output_folder(arguments.out, arguments.recipe, arguments.arch)
    if function is not None:
        return _generate_function(function, folder, arguments, terminal)
    source = given.recipe(arguments.recipe)
    documents.require_records(folder, source.name)
    wanted = _requests(source, folder, arguments)
    if arguments.dry_run:
        terminal.line(f"would generate {counted(len(wanted), 'kernel')} into {folder}")
        rows = [{"kernel": r.name, "arch": r.arch, "shape from": r.shape.source} for r in wanted]
        terminal.table(rows, left=3)
        terminal.document({"folder": str(folder), "kernels": [_asked(r) for r in wanted]})
        return 0
    made = generate_all(wanted, arguments, terminal)
    with all_or_nothing():
        written = write([result for result, _ in made], folder)
    _report(made, terminal)
    terminal.line(f"{counted(len(written), 'file')} in {folder}")
    if any(not result.record.no_plan for result, _ in made):
        terminal.line(f"next: {next_step(folder, [source.name])}")
    terminal.document(
        {"kernels": [made_json(m) for m in made], "written": [str(path) for path in written]}
    )
    return NOT_EMITTED if any(result.record.no_plan for result, _ in made) else 0


def _requests(source: Recipe, folder: Path, arguments: argparse.Namespace) -> list[Request]:
    """Return what is asked for of a recipe."""
    shapes = [parse_shape(text, source) for text in arguments.shape or ()]
    if not (shapes or source.shapes):
        raise ShapeError(
            f"recipe {source.name} has no shapes of its own",
            f"write --shape {','.join(f'{n}=...' for n in source.static_dims)}",
        )
    catalogs = given.catalogs(arguments.catalog, folder)
    asked = requests(source, arguments.arch, arguments.dtype, shapes)
    return [replace(request, catalogs=catalogs) for request in asked]


def next_step(folder: Path, recipes: Sequence[str]) -> str:
    """Return the command that compiles what was written."""
    if folder.resolve() == given.package_kernels().resolve():
        names = " ".join(dict.fromkeys(recipes))
        return f'make extension KERNELS="{names}" (this checkout), or make wheel'
    return f"mirage-kernels compile {shlex.quote(str(folder))}"


def _generate_function(
    function: Function, folder: Path, arguments: argparse.Namespace, terminal: Terminal
) -> int:
    """Generate the program of a PyTorch function in every dtype."""
    from mirage_kernels.generator.partition.document import write_program

    if arguments.shape:
        raise ShapeError(
            f"{function.named} is a PyTorch function, whose extents its example inputs give",
            "leave out --shape, and change example_inputs",
        )
    origin = documents.origin_of(arguments.recipe, folder)
    documents.require_own_name(function.named, origin, folder)
    documents.require_records(folder, function.named)
    if arguments.dry_run:
        terminal.line(f"would generate {function.named} into {folder}")
        terminal.document({"folder": str(folder), "kernels": [{"function": function.named}]})
        return 0
    made, written = list[Made](), list[Path]()
    before = documents.kernels_below(folder)
    with all_or_nothing():
        for dtype in arguments.dtype or STORAGE_DTYPES:
            asked = (dtype, given.catalogs(arguments.catalog, folder))
            program, kernels = _program(function, asked, arguments, terminal)
            made += [m for m in kernels if m[0] in program.results]
            written += [
                *write(program.results, folder),
                write_program(program.document, folder, origin),
            ]
        outdated = documents.outdated(folder, before, function.named)
    if made:
        print_kernels(made, terminal)
    for file, inputs in outdated.items():
        remove(file)
        terminal.line(f"removed {file}: its kernels are others now. It was of {inputs}")
    terminal.line(f"{counted(len(written), 'file')} in {folder}")
    terminal.line(f"next: mirage-kernels compile {shlex.quote(str(folder))}")
    told = {"written": [*map(str, written)], "removed": [*map(str, outdated)]}
    terminal.document({"kernels": [made_json(m) for m in made], **told})
    return 0


def _program(
    function: Function,
    asked: tuple[DType, tuple[Path, ...]],
    arguments: argparse.Namespace,
    terminal: Terminal,
) -> tuple[Program, list[Made]]:
    """Cut a function, generate its kernels, and say what they are."""
    from mirage_kernels.generator.partition.program import partitioned

    kernels, (dtype, catalogs) = list[Made](), asked
    known = dict[int, Request]()

    def request_of(recipe: Recipe) -> Request:
        made = Request(recipe, recipe.shapes[0], dtype, arguments.arch, catalogs)
        return known.setdefault(id(recipe), made)

    with abreast(arguments) as others:

        def make(recipe: Recipe) -> Result:
            kernels.append(generate_one(request_of(recipe), arguments, terminal, others))
            return kernels[-1][0]

        def ahead(recipes: Sequence[Recipe]) -> None:
            others.begin([*map(request_of, recipes)])

        program = partitioned(function, dtype, arguments.arch, make, ahead)
    for line in (f"{program.name} {dtype.value}", *program.lines()):
        terminal.line(line)
    for line in dict.fromkeys(program.reason_lines()):
        terminal.line(line)
    return program, kernels


def _asked(request: Request) -> dict[str, object]:
    return {
        "recipe": request.recipe.name,
        "shape": dict(request.shape.dims),
        "dtype": request.dtype.value,
        "arch": request.arch,
        "source": request.shape.source,
    }


def made_json(made: Made) -> dict[str, object]:
    """Return what was asked for, what the search did, and the time as given.JSON data."""
    result, seconds = made
    return _asked(result.request) | {
        "report": result.report.to_json(),
        "seconds": round(seconds, 2),
        "log2_failure": result.record.proof.log2_failure,
    }


def search_lines(result: Result) -> tuple[str, str]:
    """Say what the search did, what it cut away and why."""
    report = result.report
    return (
        f"searched {report.states:,} states, pruned by {pruned_by(report.pruned)}",
        f"{report.candidates:,} candidates: {report.proved:,} proved, {report.rejected:,} rejected",
    )


def _report(made: Sequence[Made], terminal: Terminal) -> None:
    """Print the search, which all kernels share, then a row per kernel."""
    for line in search_lines(made[0][0]):
        terminal.line(line)
    if len(made) == 1:
        others = Counter(line.strip() for line in made[0][0].report.alternatives)
        for line, count in others.items():
            terminal.line(f"  also proved: {line}" + (f"; {count} of these" if count > 1 else ""))
    print_kernels(made, terminal)


def print_kernels(made: Sequence[Made], terminal: Terminal) -> None:
    """Print a row per kernel, and which could not be emitted."""
    rows = [
        {
            "kernel": result.request.name,
            "gated": f"{result.report.gated:,}",
            "proof draws": str(result.record.proof.draws),
            "wrong passes": f"2^{result.record.proof.log2_failure:g}",
            "variants": str(len(result.record.variants)),
            "seconds": f"{seconds:.1f}",
        }
        for result, seconds in made
    ]
    terminal.table(rows, left=1)
    terminal.line("gated: faster by prediction, but refused by the numeric gate")
    for record in (result.record for result, _ in made if result.record.no_plan):
        terminal.line(f"{record.recipe} {record.stem}: proved, not emitted: {record.no_plan}")


def search(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Without RECIPE the whole catalog. One job per recipe and class of shapes of one search.

    A result is kept under a key of all that it depends on, so a second run only looks it up.
    `generate` takes its searches from the same store. A search that was interrupted or killed goes
    on from its last finished task; the result is the same for any executor and any number of
    processes. Exit code 1 when a job failed; the others are done all the same.

    examples:
      mirage-kernels search
      mirage-kernels search rms_norm_linear path/to/my_recipe.py --jobs 8
      mirage-kernels search --executor ray --ray-address 10.0.0.1:6379
    """
    started = time.monotonic()
    recipes = [given.recipe(name) for name in arguments.recipes] or list(catalog().values())
    jobs = search_jobs(recipes, pipeline.LIMITS, arch=arguments.arch)
    store = Store(store_folder(arguments.store))
    title = f"searching {counted(len(jobs), 'job')}"
    try:
        with _executor(arguments) as executor, terminal.watch(title, abreast=True) as progress:
            shop = Workshop(store, executor, arguments.jobs, fresh=arguments.fresh)
            outcomes = complete_all(jobs, shop, progress)
    except KeyboardInterrupt:
        terminal.note(f"finished tasks are kept in {store.folder}: the same command goes on")
        raise
    found = [_outcome_json(outcome) for outcome in outcomes]
    terminal.table([_row(data) for data in found], left=2)
    for outcome in outcomes:
        for line in _notes(outcome):
            terminal.line(line)
    terminal.line("seconds: of all tasks together, when they ran")
    counts = [(o.value, sum(outcome.origin is o for outcome in outcomes)) for o in Origin]
    origins = ", ".join(f"{count} {word}" for word, count in counts if count)
    seconds = time.monotonic() - started
    terminal.line(
        f"{counted(len(outcomes), 'job')} ({origins}) in {seconds:.1f} s; "
        f"results are in {store.folder}"
    )
    terminal.document({"store": str(store.folder), "jobs": found})
    return 1 if any(o.failure for o in outcomes) else 0


@contextmanager
def _executor(arguments: argparse.Namespace) -> Iterator[Executor]:
    if arguments.executor == "local":
        yield local
        return
    if importlib.util.find_spec("ray") is None:
        raise ToolchainError("Ray is not installed", "pip install 'mirage-kernels[ray]'")
    from mirage_kernels.generator.jobs.ray import connected

    with connected(ray_address(arguments.ray_address), arguments.jobs) as executor:
        yield executor


def _notes(outcome: Outcome) -> Iterator[str]:
    """Say what a job cut away and why, and what went wrong."""
    name, failure = outcome.job.name, outcome.failure
    if failure is not None:
        yield f"FAILED {name}: {failure.sentence}\n  hint: {failure.hint}"
        return
    yield f"{name}: pruned by {pruned_by(outcome.found.counts.pruned)}"
    if outcome.lost:
        yield f"{name}: {counted(outcome.lost, 'worker')} lost on the way, and replaced"


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    data = {
        "job": outcome.job.name,
        "key": outcome.job.key,
        "from": outcome.origin.value,
        "lost_workers": outcome.lost,
    }
    if outcome.failure is not None:
        return data | {"error": outcome.failure.sentence, "hint": outcome.failure.hint}
    found = outcome.found
    counts, proved = found.counts, len(found.programs)
    return data | {
        "seconds": outcome.seconds,
        "pruned": dict(counts.pruned),
        "states": counts.states,
        "candidates": counts.candidates,
        "verified": proved + counts.rejected,
        "proved": proved,
    }


def _row(data: dict[str, Any]) -> dict[str, str]:
    if "error" in data:
        return {"job": data["job"], "from": "FAILED"}
    counts = {name: f"{data[name]:,}" for name in ("states", "candidates", "verified", "proved")}
    return {"job": data["job"], "from": data["from"], **counts, "seconds": f"{data['seconds']:.1f}"}


VERBS = {
    "generate": (
        generate,
        argument("recipe", "RECIPE|FILE", "a recipe's name, or a file that defines one", nargs="?"),
        *(given.MODEL, given.TP, given.SEPARATE),
        *(given.DTYPES, given.SHAPES, given.ARCH, given.JOBS, given.STORE),
        argument("--out", "DIR", "folder to write to: DIR/sm_90a/..."),
        argument("--catalog", "FILE", "measured knobs (default: DIR/catalog.json, then ours)"),
        flag("--dry-run", "say what would be generated, and stop"),
        given.JSON,
    ),
    "search": (
        search,
        argument("recipes", "RECIPE|FILE", "default: every recipe of the catalog", nargs="*"),
        *(given.ARCH, given.JOBS),
        argument(
            "--executor",
            "{local,ray}",
            "worker processes on this machine (default), or tasks on a Ray cluster",
            choices=("local", "ray"),
            default="local",
        ),
        argument(
            "--ray-address",
            "ADDRESS",
            "a running cluster (default: RAY_ADDRESS, or one of --jobs CPUs on this machine)",
        ),
        given.STORE,
        given.one_of(
            flag("--resume", "go on from what is finished (this is the default)"),
            flag("--fresh", "make everything anew"),
        ),
        given.JSON,
    ),
}
