"""`search`: the muGraphs of many recipes at once, kept in a store, in processes or on Ray."""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mirage_kernels.generator import pipeline
from mirage_kernels.generator.commands.arguments import (
    Parser,
    Verb,
    add_effort,
    add_json,
    add_store,
    known_arch,
    recipe,
)
from mirage_kernels.generator.errors import ToolchainError
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.jobs.catalog import search_jobs
from mirage_kernels.generator.jobs.executors import Executor, Local
from mirage_kernels.generator.jobs.job import Job
from mirage_kernels.generator.jobs.run import Origin, Outcome, Tick, Workshop, complete_all
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.recipe import catalog
from mirage_kernels.generator.request import Event
from mirage_kernels.generator.search.sketch import Found, from_json
from mirage_kernels.generator.settings import ray_address, store_folder
from mirage_kernels.generator.terminal import Table, Terminal, Watcher, counted, listed

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


def add_arguments(parser: Parser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "recipes", nargs="*", metavar="RECIPE|FILE", help="default: every recipe of the catalog"
    )
    add_effort(parser)
    parser.add_argument(
        "--executor",
        choices=("local", "ray"),
        default="local",
        help="worker processes on this machine (default), or tasks on a Ray cluster",
    )
    parser.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="a running cluster (default: RAY_ADDRESS, or one of --jobs CPUs on this machine)",
    )
    add_store(parser)
    again = parser.add_mutually_exclusive_group()
    again.add_argument(
        "--resume", action="store_true", help="go on from what is finished (this is the default)"
    )
    again.add_argument("--fresh", action="store_true", help="make everything anew")
    add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Have every search made or looked up, and report on each."""
    started = time.monotonic()
    arch = known_arch(arguments.arch)
    recipes = [recipe(name) for name in arguments.recipes] or list(catalog().values())
    jobs = search_jobs(recipes, pipeline.LIMITS, arch=arch)
    store = Store(store_folder(arguments.store))
    with _executor(arguments) as executor, _watched(jobs, store, terminal) as progress:
        shop = Workshop(store, executor, arguments.jobs, fresh=arguments.fresh)
        outcomes = complete_all(jobs, shop, lambda tick: progress(_event(tick)))
    _report(outcomes, terminal)
    seconds = time.monotonic() - started
    terminal.line(f"{_tally(outcomes)} in {seconds:.1f} s; results are in {store.folder}")
    terminal.document(
        {"store": str(store.folder), "jobs": [_outcome_json(o, store) for o in outcomes]}
    )
    return 1 if any(o.failure for o in outcomes) else 0


@contextmanager
def _executor(arguments: argparse.Namespace) -> Iterator[Executor]:
    if arguments.executor == "local":
        yield Local()
        return
    if importlib.util.find_spec("ray") is None:
        raise ToolchainError("Ray is not installed", "pip install 'mirage-kernels[ray]'")
    from mirage_kernels.generator.jobs.ray import connected

    with connected(ray_address(arguments.ray_address), arguments.jobs) as executor:
        yield executor


@contextmanager
def _watched(jobs: Sequence[Job], store: Store, terminal: Terminal) -> Iterator[Watcher]:
    """Show the progress of all jobs; an interruption says that nothing finished is lost."""
    try:
        with terminal.watch(f"searching {counted(len(jobs), 'job')}", abreast=True) as progress:
            yield progress
    except KeyboardInterrupt:
        terminal.note(f"finished tasks are kept in {store.folder}: the same command goes on")
        raise


def _event(tick: Tick) -> Event:
    return Event(tick.job.name, tick.done, tick.tasks, tick.words)


def _report(outcomes: Sequence[Outcome], terminal: Terminal) -> None:
    """Print a row per job, what each one cut away and why, and what went wrong."""
    columns = ("job", "from", "states", "candidates", "verified", "proved", "seconds")
    terminal.table(Table(columns, tuple(_row(o) for o in outcomes), left=2))
    for outcome in outcomes:
        if outcome.failure is None:
            terminal.line(f"{outcome.job.name}: pruned by {_pruned(from_json(outcome.found))}")
    for outcome in outcomes:
        if outcome.failure is not None:
            terminal.line(f"FAILED {outcome.job.name}: {outcome.failure.sentence}")
            terminal.line(f"  hint: {outcome.failure.hint}")
        elif outcome.lost:
            lost = counted(outcome.lost, "worker")
            terminal.line(f"{outcome.job.name}: {lost} lost on the way, and replaced")
    terminal.line("seconds: of all tasks together, when they ran")


def _row(outcome: Outcome) -> tuple[str, ...]:
    if outcome.failure is not None:
        return (outcome.job.name, "FAILED", "", "", "", "", "")
    found = from_json(outcome.found)
    numbers = [f"{n:,}" for n in _numbers(found).values()]
    seconds = "" if outcome.seconds is None else f"{outcome.seconds:.1f}"
    return (outcome.job.name, outcome.origin.value, *numbers, seconds)


def _numbers(found: Found) -> dict[str, int]:
    proved = len(found.programs)
    return {
        "states": found.counts.states,
        "candidates": found.counts.candidates,
        "verified": proved + found.counts.rejected,
        "proved": proved,
    }


def _pruned(found: Found) -> str:
    cut = sorted(found.counts.pruned.items(), key=lambda item: -item[1])
    return listed([f"{reason} {count:,}" for reason, count in cut if count]) or "nothing"


def _tally(outcomes: Sequence[Outcome]) -> str:
    """Count the jobs by where they come from: `5 jobs (3 new, 2 store)`."""
    counts = [(o.value, sum(outcome.origin is o for outcome in outcomes)) for o in Origin]
    parts = ", ".join(f"{count} {word}" for word, count in counts if count)
    return f"{counted(len(outcomes), 'job')} ({parts})"


def _outcome_json(outcome: Outcome, store: Store) -> dict[str, Json]:
    data: dict[str, Json] = {
        "job": outcome.job.name,
        "key": outcome.job.key,
        "from": outcome.origin.value,
        "lost_workers": outcome.lost,
    }
    if outcome.failure is not None:
        return data | {"error": outcome.failure.sentence, "hint": outcome.failure.hint}
    found = from_json(outcome.found)
    pruned: dict[str, Json] = {**found.counts.pruned}
    data |= {"result": str(store.path(outcome.job.key)), "seconds": outcome.seconds}
    return data | {"pruned": pruned, **_numbers(found)}


VERB = Verb(DETAILS, add_arguments, run)
