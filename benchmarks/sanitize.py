"""Runs every compiled kernel under compute-sanitizer's four tools and writes what they say.

    python benchmarks/sanitize.py --json benchmarks/results/sanitizers.json

Every variant of every kernel runs as it was compiled (benchmarks/sanitize_calls.py). Workspaces
have been written before initcheck sees them, and nothing else: their flags are read before anyone
sets them, and count only with a call's nonce. Processes are dealt out to all visible GPUs. What has
not ended in time is run once more, with what is known kept, by `--again FILE`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from typing import Any

import sanitize_calls
import sanitize_reports
import torch
from sanitize_reports import Watched

from mirage_kernels import KernelEntry, kernel_table
from mirage_kernels.generator.bench.measure import Environment
from mirage_kernels.generator.bench.workloads.cache import RECIPES
from mirage_kernels.generator.commands.bench import document_of, measured_here
from mirage_kernels.generator.records.files import write_whole

HERE = Path(__file__).resolve().parent
TOOLS = ("memcheck", "initcheck", "synccheck", "racecheck")
# Kernels of a process: starting one takes as long as three or four kernels; racecheck takes longer
# over one, and all tools do over those whose blocks claim segments.
TOGETHER = {"memcheck": 5, "initcheck": 5, "synccheck": 5, "racecheck": 1}
OPTIONS = {"initcheck": ["--filled"]}
OURS_ALONE = ("--kernel-name", "kernel_substring=mirage")
MOST_PRINTED = 5000
PADDING = 1 << 16  # bytes behind each allocation: the next tensor would hide reads past the end
LAUNCH_SECONDS = 600  # until the tool gives up on a process that has not begun


@dataclass(frozen=True)
class Task:
    """One process: a tool that watches some kernels, no two of the same recipe."""

    tool: str
    names: tuple[str, ...]

    def command(self, sanitizer: str) -> list[str]:
        """Return its command line."""
        # What PyTorch's kernels write has to be seen to be known as written.
        only = () if self.tool == "initcheck" else OURS_ALONE
        watch = [sanitizer, "--tool", self.tool, "--print-limit", str(MOST_PRINTED), *only]
        watch += ["--launch-timeout", str(LAUNCH_SECONDS)]
        if self.tool == "memcheck":
            watch += ["--padding", str(PADDING)]
        options = OPTIONS.get(self.tool, [])
        return [*watch, sys.executable, str(HERE / "sanitize_calls.py"), *options, *self.names]


def main() -> int:
    """Run all tools on all kernels; return 1 if there is anything but clean ones."""
    arguments = parsed()
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(sanitizer).is_file():
        print("needs compute-sanitizer, of NVIDIA's CUDA toolkit", file=sys.stderr)
        return 2
    if not gpus():
        print("needs a GPU", file=sys.stderr)
        return 2
    before = None if arguments.again is None else json.loads(arguments.again.read_text())
    kept = [row for row in before["rows"] if row["outcome"] == "clean"] if before else []
    known = {(str(row["kernel"]), str(row["tool"])): row for row in kept}
    tasks = list(planned(kernel_table(), arguments, known))
    end = time.monotonic() + arguments.within

    def watched(task: Task, gpu: str) -> list[dict[str, object]]:
        started = time.monotonic()
        seconds = min(arguments.seconds, end - started)
        command = task.command(sanitizer)
        text = output_of(command, seconds, gpu) if seconds > 0 else ""
        if arguments.logs is not None:
            stem = f"{task.tool}_{task.names[0].replace('/', '_')}"
            (arguments.logs / f"{stem}.log").write_text(text)
        rows = [row_of(task, found) for found in sanitize_reports.read(text, task.names)]
        took = f"{time.monotonic() - started:.0f} s"
        print(task.tool, took, *(f"{r['kernel']}: {r['outcome']}" for r in rows), flush=True)
        return rows

    if arguments.logs is not None:
        arguments.logs.mkdir(parents=True, exist_ok=True)
    # So far not run.
    rows = known | {(n, task.tool): row_of(task, Watched(n)) for task in tasks for n in task.names}
    here = measured_here("python benchmarks/sanitize.py", arguments.commit)
    if before and before["environment"]["commit"] != here.commit:
        print(f"{arguments.again} is not of commit {here.commit}", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for found in as_completed(map(partial(pool.submit, watched), tasks, cycle(gpus()))):
            rows |= {(str(row["kernel"]), str(row["tool"])): row for row in found.result()}
            if arguments.json is not None:
                write(arguments.json, here, list(rows.values()), version(sanitizer), before)
    unclean = sum(row["outcome"] != "clean" for row in rows.values())
    print(f"{len(rows)} runs, {unclean} not clean")
    return int(unclean > 0)


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write environment and rows there")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="in names")
    parser.add_argument("--tool", nargs="+", default=[*TOOLS], choices=TOOLS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--seconds", type=float, default=300, help="for a process to end")
    parser.add_argument("--within", type=float, default=3600, help="seconds; the rest is not run")
    parser.add_argument("--again", type=Path, metavar="FILE", help="but for what is clean there")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep what tools print")
    parser.add_argument("--commit", metavar="ID", help="what to record as run")
    return parser.parse_args()


def planned(
    table: Sequence[KernelEntry],
    arguments: argparse.Namespace,
    known: Collection[tuple[str, str]] = (),
) -> Iterator[Task]:
    """Yield all processes, the slowest tool's last: what is known is written as it comes."""
    over_cache = [kernel.name for kernel in table if kernel.recipe in RECIPES]
    others = [kernel.name for kernel in table if kernel.recipe not in RECIPES]
    every = [*over_cache, *others, *sanitize_calls.append_names()]
    names = [name for name in every if any(text in name for text in arguments.only)]
    for tool in sorted(arguments.tool, key=TOOLS.index):
        wanted = [name for name in names if (name, tool) not in known]
        alone = [name for name in wanted if name.startswith(sanitize_calls.CLAIM)]
        rest = [name for name in wanted if name not in alone]
        for together in [*groups(alone, 1), *groups(rest, TOGETHER[tool])]:
            yield Task(tool, together)


def groups(names: Sequence[str], most: int) -> list[tuple[str, ...]]:
    """Deal names out, in their order, so that no group has two of the same recipe."""
    made: list[dict[str, str]] = []
    for name in names:
        recipe = name.partition("/")[0]
        open_ = (group for group in made if len(group) < most and recipe not in group)
        group = next(open_, None)
        if group is None:
            group = {}
            made.append(group)
        group[recipe] = name
    return [tuple(group.values()) for group in made]


def gpus() -> list[str]:
    """Return the names of those that processes are dealt out to."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]


def output_of(command: Sequence[str], seconds: float, gpu: str) -> str:
    """Run a command on a GPU, for so long at most, and return what it printed."""
    ours = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "CUDA_VISIBLE_DEVICES": gpu}
    environment = os.environ | ours
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the tool and what it watches
            return process.communicate()[0]


def row_of(task: Task, found: Watched) -> dict[str, object]:
    """Return a line of the result file."""
    return {
        "kernel": found.name,
        "tool": task.tool,
        "outcome": found.outcome,
        "calls": found.calls,
        "reports": dict(sorted(found.reports.items())),
    }


def write(
    path: Path,
    here: Environment,
    rows: Sequence[dict[str, object]],
    tool: str,
    before: dict[str, Any] | None,
) -> None:
    """Write what is known so far, whole; of a run that goes on with another one, after that one."""
    ordered = sorted(rows, key=lambda row: (str(row["kernel"]), TOOLS.index(str(row["tool"]))))
    document = json.loads(document_of(here, ordered)) | {"sanitizer": tool}
    if before is not None:
        again = [*before.get("again", []), document["environment"]]
        document |= {"environment": before["environment"], "again": again}
    write_whole(path, json.dumps(document, indent=1) + "\n")


@cache
def version(sanitizer: str) -> str:
    """Return the tool's version."""
    ran = subprocess.run([sanitizer, "--version"], capture_output=True, text=True, check=True)
    return next(line for line in ran.stdout.splitlines() if line.startswith("Version")).split()[1]


if __name__ == "__main__":
    sys.exit(main())
