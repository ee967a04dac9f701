"""A search as a job: the key of its result, and the work on it, here or in a process of its own.

An executor is a function that yields the messages of a job's work, wherever that is done, until
they end or all work is to stop; it is called by several threads at once.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mirage_kernels.generator.errors import JobError, MirageError
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.search.sketch import Found

# What a search's outcome depends on, below the generator's folder.
SEARCH_CODE = ("ir", "meaning", "search", "target.py")
LAST_LINES = 8
ALLOCATIONS = 1_000_000  # between looks for cycles
POLL_SECONDS = 0.2  # between looks whether all work is to stop
_SIGNAL_AT_DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
_FORK = multiprocessing.get_context("fork")
_starting = [threading.Lock()]
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


class Progressed(NamedTuple):
    """How far a round is: the word for it, its tasks, those that are done, and the last of them."""

    name: str
    tasks: int
    done: int
    last: TaskDone | None = None  # none where the round begins


Message = Progressed | Found | MirageError  # the last two end the work


@dataclass(frozen=True)
class Job(ABC):
    """One search to make or to look up, by the name that a person knows it by; can be pickled."""

    name: str

    @abstractmethod
    def identity(self) -> dict[str, Json]:
        """Return everything that the outcome depends on, the version of the code included."""

    @abstractmethod
    def next_round(self, earlier: Sequence[Sequence[Found]]) -> Round | None:
        """Return the round after those whose results are known; None after the last."""

    @abstractmethod
    def merge(self, rounds: Sequence[Sequence[Found]]) -> Found:
        """Return the outcome from the results of all rounds, in the order of their tasks."""

    @cached_property
    def key(self) -> str:
        """The name of the result; a worker gets the job with the key that was asked for."""
        return key_of(self)


def key_of(job: Job) -> str:
    """Return the digest of all that the outcome of a job depends on here."""
    return hashlib.sha256(msgspec.json.encode(job.identity())).hexdigest()


@cache
def code_digest(root: Path = Path(__file__).parents[1]) -> str:
    """Return the digest of the sources that a search depends on, wherever their folder lies."""
    total = hashlib.sha256()
    paths = (p for name in SEARCH_CODE for p in (root / name, *root.glob(f"{name}/*.py")))
    for path in sorted(p for p in paths if p.is_file()):
        total.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return total.hexdigest()


Messages = Generator[Message, None, None]  # closing it ends the work
# What does a job's unfinished tasks, in so many processes, unless all work is to stop.
Executor = Callable[[Job, Sequence[TaskDone], int, threading.Event], Messages]

_round_here: list[tuple[int, Sequence[Task]]] = []


class WorkerLostError(Exception):
    """The process that did a job ended before the job did."""

    def __init__(self, how: str, words: str) -> None:
        """Say how it ended, and below that the end of what it printed."""
        lines = words.strip().splitlines()[-LAST_LINES:]
        super().__init__("\n    ".join([f"{how}; its last words:", *lines]) if lines else how)


def work(job: Job, finished: Sequence[TaskDone], processes: int) -> Iterator[Message]:
    """Do what is left of a job, message by message; an error of ours is the last message.

    The work of other sources is refused: a cluster may hold another version of them.
    """
    try:
        if key_of(job) != job.key:
            raise JobError(
                f"the worker's generator is another version than the one that asks for {job.name}",
                "install the same version of mirage-kernels wherever workers run",
            )
        rounds: list[list[Found]] = []
        while (this := _next_round(job, rounds)) is not None:
            known = {t.index: t.found for t in finished if t.round == len(rounds)}
            yield Progressed(this.name, len(this.tasks), len(known))
            todo = [i for i in range(len(this.tasks)) if i not in known]
            _round_here[:] = [(len(rounds), this.tasks)]
            with closing(_run_tasks(todo, processes)) as messages:
                for task in messages:
                    known[task.index] = task.found
                    yield Progressed(this.name, len(this.tasks), len(known), task)
            rounds.append([known[i] for i in range(len(this.tasks))])
        yield job.merge(rounds)
    except MirageError as error:
        yield error


@contextmanager
def few_collections() -> Iterator[None]:
    """Let Python look for cycles rarely.

    A search makes millions of small objects that hold none: looking for them takes a third of its
    time where Python does it as often as usual.
    """
    usual = gc.get_threshold()
    gc.set_threshold(ALLOCATIONS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


@few_collections()
def _next_round(job: Job, earlier: Sequence[Sequence[Found]]) -> Round | None:
    return job.next_round(earlier)


def _run_tasks(todo: Sequence[int], processes: int) -> Generator[TaskDone, None, None]:
    """Run some tasks of this round, in any order; closing it ends those that still run."""
    if processes == 1 or len(todo) < 2:
        yield from map(_run_task, todo)
        return
    others = set(multiprocessing.active_children())
    # Forked: the children share the tasks, and all that was read to make them.
    pool = ProcessPoolExecutor(min(processes, len(todo)), _FORK, _end_with, (os.getpid(),))
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


@few_collections()
def _run_task(index: int) -> TaskDone:
    number, tasks = _round_here[0]
    start = time.perf_counter()
    return TaskDone(number, index, tasks[index](), time.perf_counter() - start)


def _end_with(parent: int) -> None:
    """End this process when its parent ends, which may be killed; interruptions are the parent's.

    Linux sends the signal.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_SIGNAL_AT_DEATH_OF_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(1)


Say = Callable[[Any], None]


def in_process(do: Callable[[Say], None], stopping: threading.Event) -> Generator[Any, None, None]:
    """Yield what `do` says in a process of its own, until nothing more is wanted or all is to stop.

    It is forked: it has all that was made here. Raises WorkerLostError when it ends before that.
    """
    with tempfile.TemporaryFile() as words:

        def tell(parent: int) -> None:
            """Do the work; what it may print is no result."""
            _starting[:] = [threading.Lock()]  # of this process: the other one is taken
            _end_with(parent)
            for stream in (1, 2):
                os.dup2(words.fileno(), stream)
            sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
            do(told.send)

        with _starting[0]:  # so that no worker holds another one's end of a pipe open
            messages, told = _FORK.Pipe(duplex=False)
            process = _FORK.Process(target=tell, args=(os.getpid(),))
            process.start()
            told.close()
        try:
            with closing(messages):
                while not stopping.is_set():
                    if messages.poll(POLL_SECONDS):
                        yield messages.recv()
        except (EOFError, OSError) as error:  # the second one in the middle of a message
            process.join()
            code = process.exitcode or 0
            killed = f"killed by {signal.Signals(-code).name}" if code < 0 else ""
            words.seek(0)
            said = words.read().decode(errors="replace")
            raise WorkerLostError(killed or f"ended with exit code {code}", said) from error
        finally:
            process.kill()
            process.join()


def local(
    job: Job, finished: Sequence[TaskDone], processes: int, stopping: threading.Event
) -> Messages:
    """Yield the messages of a worker process; raises WorkerLostError when it ends before them."""

    def tell(say: Say) -> None:
        for message in work(job, finished, processes):
            say(message)

    return in_process(tell, stopping)
