"""Measures the search and writes the tables of docs/search.md.

python benchmarks/search_table.py               # measure, write results/search.json and the page
python benchmarks/search_table.py --cutoff 60   # seconds that one search may take, instead of 600
python benchmarks/search_table.py --recipe-cutoff 60    # those of the second table only
python benchmarks/search_table.py --added       # only recipes that the second table lacks
python benchmarks/search_table.py --tables      # only the page's tables, from the results
python benchmarks/search_table.py --check       # exit 1 if the page is not what the results say

RMSNorm+Linear with at most 5, 6, ..., 11 block operators: everything on, in one process, without
pruning by abstract expression. A search with more operators contains those with fewer: after one
that was cut off there is none. Then every recipe at its main shape. Each search is a process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TypedDict

from mirage_kernels.generator.recipe import catalog, load_recipe
from mirage_kernels.generator.search.sketch import Limits
from mirage_kernels.generator.search.superoptimizer import run_search, search_job

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "search.json"
PAGE = ROOT / "docs" / "search.md"
BEGIN, END = "<!-- measured: python benchmarks/search_table.py -->", "<!-- end of measured -->"
NORM, OPERATORS = "rms_norm_linear", range(5, 12)
MAIN = ("rms_norm_linear", "lora_linear", "gated_mlp", "gqa", "qk_norm_attention")
NO_BUDGET = 10**9  # values of a setting
ARCH = "sm_90a"
MOST_GIB = 12  # of memory, for one search

# Seconds that the Mirage paper reports (docs/search.md): all on, one thread, no abstract pruning.
PAPER = {
    5: ("11", "58", "768"),
    6: ("16", "93", "19,934"),
    7: ("22", "150", "> 10 h"),
    8: ("24", "152", ""),
    9: ("26", "166", ""),
    10: ("26", "166", ""),
    11: ("28", "183", ""),
}


class Searched(TypedDict):
    """What one search took and found; no seconds, but why, if it was cut off."""

    seconds: float | None
    beyond: str
    states: int
    pruned: dict[str, int]
    candidates: int
    proved: int
    rejected: int


class Row(TypedDict):
    """RMSNorm+Linear with at most so many operators."""

    operators: int
    all_on: Searched
    one_process: Searched
    unpruned: Searched


class Added(TypedDict):
    """Recipes that were measured after the others."""

    environment: dict[str, str]
    recipes: list[str]


class Results(TypedDict):
    """What benchmarks/results/search.json holds."""

    environment: dict[str, str]
    by_operators: list[Row]
    recipes: dict[str, Searched]
    added: list[Added]


class Asked(TypedDict):
    """What one process is to search."""

    recipe: str
    jobs: int
    block_ops: int
    pruned: bool


def cut_off(beyond: str) -> Searched:
    """Return what is known of a search that took more than it may."""
    return {
        "seconds": None,
        "beyond": beyond,
        "states": 0,
        "pruned": {},
        "candidates": 0,
        "proved": 0,
        "rejected": 0,
    }


def main() -> int:
    """Measure everything and write the page, or do what an option says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cutoff", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--recipe-cutoff", type=float, metavar="SECONDS")
    parser.add_argument("--added", action="store_true")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--one", metavar="JSON", help="make one search here and print it")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(searched(json.loads(arguments.one))))
        return 0
    if not (arguments.tables or arguments.check):
        made = more if arguments.added else everything
        results = made(arguments.cutoff, arguments.recipe_cutoff or arguments.cutoff)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    page = f"{before}{BEGIN}\n\n{tables()}\n{END}{rest.partition(END)[2]}"
    if arguments.check:
        return int(page != PAGE.read_text())
    PAGE.write_text(page)
    return 0


def everything(cutoff: float, recipe_cutoff: float) -> Results:
    """Measure all rows."""
    return {
        "environment": environment(cutoff, recipe_cutoff),
        "by_operators": list(by_operators(cutoff)),
        "recipes": {name: whole(name, recipe_cutoff) for name in (*MAIN, *others())},
        "added": [],
    }


def more(cutoff: float, recipe_cutoff: float) -> Results:
    """Measure the recipes that the results lack; they are named beside where that was."""
    data: Results = json.loads(RESULTS.read_text())
    new = [name for name in others() if name not in data["recipes"]]
    where = environment(cutoff, recipe_cutoff)
    where["command"] += " --added"
    rows = data["recipes"] | {name: whole(name, recipe_cutoff) for name in new}
    recipes = {name: rows[name] for name in (*MAIN, *others())}
    return {
        **data,
        "recipes": recipes,
        "added": [*data["added"], Added(environment=where, recipes=new)],
    }


def others() -> list[str]:
    """Return the names of the catalog's recipes that are not among the main ones."""
    return [name for name in catalog() if name not in MAIN]


def by_operators(cutoff: float) -> Iterator[Row]:
    """Yield RMSNorm+Linear with at most so many operators."""
    unpruned: Searched | None = None
    for most in OPERATORS:
        asked: Asked = {"recipe": NORM, "jobs": 1, "block_ops": most, "pruned": True}
        if unpruned is None or unpruned["seconds"] is not None:
            unpruned = measured({**asked, "pruned": False}, cutoff)
        yield {
            "operators": most,
            "all_on": measured({**asked, "jobs": 2}, cutoff),
            "one_process": measured(asked, cutoff),
            "unpruned": unpruned,
        }


def whole(recipe: str, cutoff: float) -> Searched:
    """Measure a recipe with the limits that `mirage-kernels generate` searches with."""
    most = Limits().block_ops
    return measured({"recipe": recipe, "jobs": 2, "block_ops": most, "pruned": True}, cutoff)


def measured(asked: Asked, cutoff: float) -> Searched:
    """Make one search in a process of its own; it is cut off when it takes too long."""
    command = [sys.executable, __file__, "--one", json.dumps(asked)]
    print(json.dumps(asked), end=" ", file=sys.stderr, flush=True)
    try:
        ran = subprocess.run(command, capture_output=True, timeout=cutoff, check=True)
        found: Searched = json.loads(ran.stdout)
    except subprocess.TimeoutExpired:
        found = cut_off(f"> {cutoff:g}")
    except subprocess.CalledProcessError as failed:
        if not failed.stderr.rstrip().endswith(b"MemoryError"):
            raise
        found = cut_off(f"> {MOST_GIB} GiB")
    print(_seconds(found), file=sys.stderr)
    return found


def searched(asked: Asked) -> Searched:
    """Search, prove, and return what that took; the memory that it may take is bounded."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_GIB << 30, MOST_GIB << 30))
    recipe = load_recipe(asked["recipe"])
    start = time.perf_counter()
    limits = Limits(block_ops=asked["block_ops"])
    if not asked["pruned"]:
        limits = replace(limits, prune_abstract=False, values=NO_BUDGET)
    job = search_job(recipe, recipe.shapes[0], limits, arch=ARCH)
    found = run_search(job, jobs=asked["jobs"], progress=lambda event: None)
    return {
        "seconds": round(time.perf_counter() - start, 1),
        "beyond": "",
        "states": found.counts.states,
        "pruned": dict(sorted(found.counts.pruned.items())),
        "candidates": found.counts.candidates,
        "proved": len(found.programs),
        "rejected": found.counts.rejected,
    }


def environment(cutoff: float, recipe_cutoff: float) -> dict[str, str]:
    """Return where and when the search is measured."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    git = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    option = f" --cutoff {cutoff:g}" if cutoff != 600 else ""
    option += f" --recipe-cutoff {recipe_cutoff:g}" if recipe_cutoff != cutoff else ""
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": subprocess.check_output(git, text=True).strip(),
        "command": f"python benchmarks/search_table.py{option}",
    }


def tables() -> str:
    """Return the measured part of the page."""
    if not RESULTS.is_file():
        return "Not measured yet.\n"
    data: Results = json.loads(RESULTS.read_text())
    added = (f"{', '.join(a['recipes'])}: {_place(a['environment'])}" for a in data["added"])
    return "\n".join(
        [
            "RMSNorm+Linear (4096 -> 6144), search and quick proofs, seconds; in brackets what the",
            "Mirage paper reports (8 threads of C++; one thread; one pruner off).",
            "",
            *_operators_table(data["by_operators"]),
            "",
            "Every recipe at its main shape, in two processes:",
            "",
            *_recipes_table(data["recipes"]),
            "",
            f"`benchmarks/results/search.json`: {_place(data['environment'])}",
            *(line for words in added for line in ("", words)),
            "",
        ]
    )


def _place(e: dict[str, str]) -> str:
    return (
        f"{e['cpu']}, {e['cores']} cores, Python {e['python']}, {e['date']}, commit {e['commit']}, "
        f"`{e['command']}`"
    )


def _operators_table(rows: list[Row]) -> Iterator[str]:
    columns = ("all on", "one process", "no abstract pruning")
    yield _line(["at most", *columns, "states", "candidates", "proved"])
    yield _line(["---"] * 7)
    for row in rows:
        runs = (row["all_on"], row["one_process"], row["unpruned"])
        paper = PAPER[row["operators"]]
        cells = [
            f"{_seconds(run)} ({theirs})" if theirs else _seconds(run)
            for run, theirs in zip(runs, paper, strict=True)
        ]
        on = row["all_on"]
        counts = [f"{n:,}" for n in (on["states"], on["candidates"], on["proved"])]
        yield _line([f"{row['operators']} ops", *cells, *counts])


def _recipes_table(recipes: dict[str, Searched]) -> Iterator[str]:
    yield _line(["recipe", "seconds", "states", "pruned", "candidates", "proved", "rejected"])
    yield _line(["---"] * 7)
    for name, run in recipes.items():
        pruned = ", ".join(f"{n:,} by {why}" for why, n in run["pruned"].items())
        counts = [f"{n:,}" for n in (run["candidates"], run["proved"], run["rejected"])]
        yield _line([name, _seconds(run), f"{run['states']:,}", pruned, *counts])


def _seconds(run: Searched) -> str:
    return run["beyond"] if run["seconds"] is None else f"{run['seconds']:.1f}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
