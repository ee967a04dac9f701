"""A search that is fast, always the same, and fails where and how it is told to."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mirage_kernels.generator.errors import SearchError
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.jobs.job import Executor, Job, Round, local
from mirage_kernels.generator.jobs.run import Outcome, Workshop, complete_all
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.search.sketch import Counts, Found, ProgramSketch


@dataclass(frozen=True)
class FakeSearch(Job):
    """Task i finds one program that costs i among i + 1 states; the third one is not proved.

    What it ran stands in `<folder>/<name>.ran`, a line per task. `trouble` comes when task `at` is
    run, the first `times` times: kill, exit, error, ours, hang; `print` is none.
    """

    folder: str
    tasks: int = 6
    seconds: float = 0.0  # that a task takes
    trouble: str = ""
    at: int = 3
    times: int = 1

    def identity(self) -> dict[str, Json]:
        return {"search": "fake", "name": self.name, "tasks": self.tasks}

    def next_round(self, earlier: Sequence[Sequence[Found]]) -> Round | None:
        if len(earlier) == 2:
            return None
        if not earlier:
            return Round("search", [partial(self.search, i) for i in range(self.tasks)])
        return Round("prove", [partial(self.prove, found) for found in earlier[0]])

    def search(self, index: int) -> Found:
        if index == self.at and self.trouble and len(self._lines("troubles")) < self.times:
            self._append("troubles", index)
            self._make_trouble()
        time.sleep(self.seconds)
        self._append("ran", index)
        return Found((ProgramSketch((), float(index)),), Counts(index + 1))

    def prove(self, found: Found) -> Found:
        return Found(tuple(p for p in found.programs if p.cost != 2.0))

    def merge(self, rounds: Sequence[Sequence[Found]]) -> Found:
        found, proofs = rounds
        proved = tuple(p for proof in proofs for p in proof.programs)
        states, pruned = sum(f.counts.states for f in found), {"type": 1700, "time": 2}
        return Found(proved, Counts(states, pruned, len(found) + 2, len(found) - len(proved)))

    def ran(self) -> list[int]:
        """Return the tasks that were run, by anyone, in order."""
        return self._lines("ran")

    def _make_trouble(self) -> None:
        if self.trouble == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.trouble == "exit":
            print("some words, the last ones", file=sys.stderr, flush=True)
            os._exit(7)
        elif self.trouble == "error":
            raise ZeroDivisionError("a bug of the search")
        elif self.trouble == "ours":
            raise SearchError("there is no such muGraph", "try another one")
        elif self.trouble == "print":
            print("words that are no message", flush=True)
        elif self.trouble == "hang":
            time.sleep(600)

    def _lines(self, what: str) -> list[int]:
        file = Path(self.folder) / f"{self.name}.{what}"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def _append(self, what: str, index: int) -> None:
        with (Path(self.folder) / f"{self.name}.{what}").open("a") as file:
            file.write(f"{index}\n")


def complete(
    folder: str, *jobs: Job, executor: Executor = local, processes: int = 1
) -> list[Outcome]:
    """Return the outcomes of jobs in the store of a test's folder."""
    shop = Workshop(Store(Path(folder) / "store"), executor, processes)
    return complete_all(jobs, shop, lambda event: None)
