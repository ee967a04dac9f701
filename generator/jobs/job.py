"""A search as a job: what it must offer, the key that its result is kept under, and its work.

Every executor runs `work`, here or elsewhere; what it does is told as messages.
"""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from mirage_kernels.generator.errors import JobError, MirageError
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.search.sketch import Found

# What a search's outcome depends on, below the generator's folder.
SEARCH_CODE = ("ir", "meaning", "search", "target.py")
_SIGNAL_AT_DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
Task = Callable[[], Found]  # finds the same whenever and wherever it runs


class Round(NamedTuple):
    """Tasks that run in any order and in any process, with a word for what they do."""

    name: str
    tasks: Sequence[Task]


@dataclass(frozen=True)
class TaskDone:
    """A finished task: its round, its place in it, what it found, and the seconds it took."""

    round: int
    index: int
    found: Found
    seconds: float


class Planned(NamedTuple):
    """A round begins: the word for it, how many tasks it has, and how many are finished."""

    name: str
    tasks: int
    done: int


Message = Planned | TaskDone | Found | MirageError  # the last two end the work


class Problem(Protocol):
    """A search that can be pickled, and is made in rounds; each may build on those before."""

    def identity(self) -> dict[str, Json]:
        """Return everything that the outcome depends on, the version of the code included."""
        ...

    def next_round(self, earlier: Sequence[Sequence[Found]]) -> Round | None:
        """Return the round after those whose results are known; None after the last."""
        ...

    def merge(self, rounds: Sequence[Sequence[Found]]) -> Found:
        """Return the outcome from the results of all rounds, in the order of their tasks."""
        ...


@dataclass(frozen=True)
class Job:
    """One search to make or to look up, with the name that a person knows it by."""

    name: str
    problem: Problem

    @cached_property
    def key(self) -> str:
        """The name of the result: a digest of all that it depends on.

        A worker gets the job with the key that was asked for.
        """
        return hashlib.sha256(msgspec.json.encode(self.problem.identity())).hexdigest()


@cache
def code_digest(root: Path = Path(__file__).parents[1]) -> str:
    """Return the digest of the sources that a search depends on, wherever their folder lies."""
    total = hashlib.sha256()
    paths = (p for name in SEARCH_CODE for p in (root / name, *root.glob(f"{name}/*.py")))
    for path in sorted(p for p in paths if p.is_file()):
        total.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return total.hexdigest()


def work(job: Job, finished: Sequence[TaskDone], processes: int) -> Iterator[Message]:
    """Do what is left of a job, message by message; an error of ours is the last message.

    The work of other sources is refused: a cluster may hold another version of them.
    """
    try:
        if Job(job.name, job.problem).key != job.key:
            raise JobError(
                f"the worker's generator is another version than the one that asks for {job.name}",
                "install the same version of mirage-kernels wherever workers run",
            )
        rounds: list[list[Found]] = []
        while (this := job.problem.next_round(rounds)) is not None:
            number = len(rounds)
            known = {t.index: t.found for t in finished if t.round == number}
            yield Planned(this.name, len(this.tasks), len(known))
            todo = [i for i in range(len(this.tasks)) if i not in known]
            with closing(_run_tasks(number, this.tasks, todo, processes)) as messages:
                for task in messages:
                    yield task
                    known[task.index] = task.found
            rounds.append([known[i] for i in range(len(this.tasks))])
        yield job.problem.merge(rounds)
    except MirageError as error:
        yield error


def _run_tasks(
    number: int, tasks: Sequence[Task], todo: Sequence[int], processes: int
) -> Generator[TaskDone, None, None]:
    """Run some tasks of a round, in any order; closing it ends those that still run."""
    _round_here[:] = [(number, tasks)]
    if processes == 1 or len(todo) < 2:
        yield from map(_run_task, todo)
        return
    others = set(multiprocessing.active_children())
    # Forked: the children share the tasks, and all that was read to make them.
    pool = ProcessPoolExecutor(
        min(processes, len(todo)),
        mp_context=multiprocessing.get_context("fork"),
        initializer=end_with,
        initargs=(os.getpid(),),
    )
    ended = False
    try:
        for future in as_completed([pool.submit(_run_task, index) for index in todo]):
            yield future.result()
        ended = True
    finally:
        if not ended:
            for child in set(multiprocessing.active_children()) - others:
                child.kill()
        pool.shutdown(wait=ended, cancel_futures=True)


_round_here: list[tuple[int, Sequence[Task]]] = []


def _run_task(index: int) -> TaskDone:
    number, tasks = _round_here[0]
    start = time.perf_counter()
    return TaskDone(number, index, tasks[index](), time.perf_counter() - start)


def end_with(parent: int) -> None:
    """End this process when its parent ends, which may be killed; interruptions are the parent's.

    Linux sends the signal.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_SIGNAL_AT_DEATH_OF_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(1)
