"""`search`: the muGraphs of many recipes at once, kept in a store, in processes or on Ray."""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mirage_kernels.generator import pipeline
from mirage_kernels.generator.commands.arguments import (
    ARCH,
    JOBS,
    JSON,
    STORE,
    argument,
    one_of,
    recipe,
)
from mirage_kernels.generator.errors import ToolchainError
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.jobs.local import Executor, local
from mirage_kernels.generator.jobs.run import Origin, Outcome, Workshop, complete_all
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.recipe import catalog
from mirage_kernels.generator.report import pruned_by
from mirage_kernels.generator.search.sketch import Found
from mirage_kernels.generator.search.superoptimizer import search_jobs
from mirage_kernels.generator.settings import ray_address, store_folder
from mirage_kernels.generator.terminal import Table, Terminal, counted

DETAILS = """\
Without RECIPE the whole catalog. One job per recipe and class of shapes that one search serves; its
result is kept under a key of all that it depends on, so a second run only looks it up. `generate`
takes its searches from the same store. A search that was interrupted or killed goes on from its
last finished task; the result is the same for any executor and any number of processes. Exit code
1 when a job failed; the others are done all the same.

examples:
  mirage-kernels search
  mirage-kernels search rms_norm_linear path/to/my_recipe.py --jobs 8
  mirage-kernels search --executor ray --ray-address 10.0.0.1:6379
"""
ARGUMENTS = (
    argument(
        "recipes", nargs="*", metavar="RECIPE|FILE", help="default: every recipe of the catalog"
    ),
    *(ARCH, JOBS),
    argument(
        "--executor",
        choices=("local", "ray"),
        default="local",
        help="worker processes on this machine (default), or tasks on a Ray cluster",
    ),
    argument(
        "--ray-address",
        metavar="ADDRESS",
        help="a running cluster (default: RAY_ADDRESS, or one of --jobs CPUs on this machine)",
    ),
    STORE,
    one_of(
        argument(
            "--resume",
            action="store_true",
            help="go on from what is finished (this is the default)",
        ),
        argument("--fresh", action="store_true", help="make everything anew"),
    ),
    JSON,
)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Have every search made or looked up, and report on each."""
    started = time.monotonic()
    recipes = [recipe(name) for name in arguments.recipes] or list(catalog().values())
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
    _report(outcomes, terminal)
    seconds = time.monotonic() - started
    terminal.line(f"{_tally(outcomes)} in {seconds:.1f} s; results are in {store.folder}")
    terminal.document({"store": str(store.folder), "jobs": [_outcome_json(o) for o in outcomes]})
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


def _report(outcomes: Sequence[Outcome], terminal: Terminal) -> None:
    """Print a row per job, what each one cut away and why, and what went wrong."""
    columns = ("job", "from", "states", "candidates", "verified", "proved", "seconds")
    terminal.table(Table(columns, tuple(_row(o) for o in outcomes), left=2))
    for outcome in outcomes:
        name, failure = outcome.job.name, outcome.failure
        if failure is not None:
            terminal.line(f"FAILED {name}: {failure.sentence}\n  hint: {failure.hint}")
            continue
        terminal.line(f"{name}: pruned by {pruned_by(outcome.found.counts.pruned)}")
        if outcome.lost:
            lost = counted(outcome.lost, "worker")
            terminal.line(f"{name}: {lost} lost on the way, and replaced")
    terminal.line("seconds: of all tasks together, when they ran")


def _row(outcome: Outcome) -> tuple[str, ...]:
    if outcome.failure is not None:
        return (outcome.job.name, "FAILED", "", "", "", "", "")
    numbers = [f"{n:,}" for n in _numbers(outcome.found).values()]
    return (outcome.job.name, outcome.origin.value, *numbers, f"{outcome.seconds:.1f}")


def _numbers(found: Found) -> dict[str, int]:
    proved = len(found.programs)
    return {
        "states": found.counts.states,
        "candidates": found.counts.candidates,
        "verified": proved + found.counts.rejected,
        "proved": proved,
    }


def _tally(outcomes: Sequence[Outcome]) -> str:
    """Count the jobs by where they come from: `5 jobs (3 new, 2 store)`."""
    counts = [(o.value, sum(outcome.origin is o for outcome in outcomes)) for o in Origin]
    parts = ", ".join(f"{count} {word}" for word, count in counts if count)
    return f"{counted(len(outcomes), 'job')} ({parts})"


def _outcome_json(outcome: Outcome) -> dict[str, Json]:
    data: dict[str, Json] = {
        "job": outcome.job.name,
        "key": outcome.job.key,
        "from": outcome.origin.value,
        "lost_workers": outcome.lost,
    }
    if outcome.failure is not None:
        return data | {"error": outcome.failure.sentence, "hint": outcome.failure.hint}
    found = outcome.found
    pruned: dict[str, Json] = {**found.counts.pruned}
    return data | {"seconds": outcome.seconds, "pruned": pruned, **_numbers(found)}
