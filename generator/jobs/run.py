"""From jobs to outcomes: look each one up, or have it made, keeping every finished task.

This process alone writes to the store: executors only tell what their workers found. A worker that
is lost costs the tasks it was at; its job is given out again, a few times.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum

from mirage_kernels.generator.errors import JobError, MirageError
from mirage_kernels.generator.jobs.executors import Executor, WorkerLostError
from mirage_kernels.generator.jobs.job import Found, Job, TaskDone
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.jobs.work import Assignment, Merged, Planned

ATTEMPTS = 3


class Origin(Enum):
    """Where an outcome comes from."""

    STORE = "store"
    NEW = "new"
    RESUMED = "resumed"  # some tasks were kept from an earlier run
    REMADE = "remade"  # the stored result was damaged
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """What became of a job; without `found` the reason stands in `failure`."""

    job: Job
    origin: Origin
    found: Found = field(default_factory=dict)
    seconds: float | None = None  # of its tasks, all processes together, whenever they ran
    lost: int = 0  # workers that ended before their job did
    failure: MirageError | None = None


@dataclass(frozen=True)
class Tick:
    """How far a job is: tasks done of its round's (0 before they are known), and a few words."""

    job: Job
    done: int
    tasks: int
    words: str = ""


Progress = Callable[[Tick], None]


@dataclass(frozen=True)
class Workshop:
    """What jobs are run with: where results are kept, who works, in how many processes."""

    store: Store
    executor: Executor
    processes: int = 1
    fresh: bool = False  # make anew what the store has, and forget unfinished work
    stopping: threading.Event = field(default_factory=threading.Event)


class StoppedError(Exception):
    """The work was stopped from outside; what is finished is kept."""


def _complete(job: Job, shop: Workshop, progress: Progress, processes: int) -> Outcome:
    """Have one job made, unless another process makes it meanwhile."""

    def wait() -> None:
        progress(Tick(job, 0, 0, "another process is at it"))
        if shop.stopping.is_set():
            raise StoppedError

    with shop.store.claim(job.key, waiting=wait):
        # The one who held it may have finished it.
        stored = None if shop.fresh else _stored(job, shop.store)
        return stored or _Attempts(job, shop, progress).run(processes)


def _stored(job: Job, store: Store) -> Outcome | None:
    """Return the outcome of a job whose result is stored whole."""
    found = store.result(job.key)
    if found is None:
        return None
    return Outcome(job, Origin.STORE, found, store.seconds(job.key))


class _Attempts:
    """One job being made: what its workers have told so far."""

    def __init__(self, job: Job, shop: Workshop, progress: Progress) -> None:
        self.job = job
        self.shop = shop
        self.progress = progress
        self.origin = Origin.REMADE if shop.store.has(job.key) else Origin.NEW
        self.round = Planned("", 0, 0)
        self.finished: list[TaskDone] = []

    def run(self, processes: int) -> Outcome:
        """Have the job made, by another worker where one is lost."""
        self._resume()
        self.progress(Tick(self.job, 0, 0, "cutting it into tasks"))
        lost: list[str] = []
        while len(lost) < ATTEMPTS:
            try:
                found = self._attempt(processes)
            except WorkerLostError as error:
                if self.shop.stopping.is_set():
                    raise StoppedError from error
                lost.append(str(error))
                self._tell("a worker was lost: another takes over")
                continue
            return self._outcome(found, len(lost))
        failure = JobError(
            f"search job {self.job.name} lost {ATTEMPTS} workers in a row, the last one {lost[-1]}",
            "what is finished is kept: the same command goes on from there",
        )
        return self._outcome(failure, ATTEMPTS)

    def _resume(self) -> None:
        if self.shop.fresh:
            self.shop.store.forget_tasks(self.job.key)
            self.origin = Origin.NEW
        self.finished = self.shop.store.tasks(self.job.key)
        if self.finished:
            self.origin = Origin.RESUMED

    def _attempt(self, processes: int) -> Found | MirageError:
        """Return the outcome of the search, or what its worker says is wrong with it."""
        assignment = Assignment(self.job, self.job.key, tuple(self.finished), processes)
        with closing(self.shop.executor.run(assignment)) as messages:
            for message in messages:
                if isinstance(message, Merged):
                    return message.found
                if isinstance(message, MirageError):
                    return message
                if isinstance(message, Planned):
                    self.round = message
                else:
                    self._add(message)
                self._tell(self.round.name)
                if self.shop.stopping.is_set():
                    raise StoppedError
        raise WorkerLostError("gone without a last message")

    def _add(self, task: TaskDone) -> None:
        self.shop.store.keep_task(self.job.key, task)
        self.finished.append(task)
        self.round = replace(self.round, done=self.round.done + 1)

    def _tell(self, words: str, *, ended: bool = False) -> None:
        """Say how far the job is; only its end is told with all tasks done."""
        done, tasks = self.round.done, self.round.tasks
        if ended:
            self.progress(Tick(self.job, max(1, tasks), max(1, tasks), words))
        elif done < tasks:
            self.progress(Tick(self.job, done, tasks, words))

    def _outcome(self, found: Found | MirageError, lost: int) -> Outcome:
        """Keep what was found; its tasks go last, so that a kill in between loses nothing."""
        if isinstance(found, MirageError):
            self._tell("FAILED", ended=True)
            return Outcome(self.job, Origin.FAILED, lost=lost, failure=found)
        seconds = sum(task.seconds for task in self.finished)
        self.shop.store.keep(self.job, found)
        self.shop.store.keep_seconds(self.job.key, seconds)
        self.shop.store.forget_tasks(self.job.key)
        self._tell("done", ended=True)
        return Outcome(self.job, self.origin, found, seconds, lost)


class _Shares:
    """Processes dealt out to jobs as they start: an even share of those that are free."""

    def __init__(self, processes: int, jobs: int) -> None:
        self._free = processes
        self._waiting = jobs
        self._lock = threading.Lock()

    @contextmanager
    def share(self) -> Iterator[int]:
        """Hold the share of one job while it runs."""
        with self._lock:
            share = max(1, self._free // self._waiting)
            self._free -= share
            self._waiting -= 1
        try:
            yield share
        finally:
            with self._lock:
                self._free += share


def complete_all(jobs: Sequence[Job], shop: Workshop, progress: Progress) -> list[Outcome]:
    """Return the outcomes of jobs, in order; as many are made at once as there are processes.

    A job that fails leaves the others alone. An interruption, or a store that cannot be read or
    written (FileError), stops them all; what they have finished is kept.
    """
    every = {job.key: job for job in jobs}
    stored = () if shop.fresh else (_stored(job, shop.store) for job in every.values())
    outcomes = {outcome.job.key: outcome for outcome in stored if outcome is not None}
    missing = [job for key, job in every.items() if key not in outcomes]
    shares, telling = _Shares(shop.processes, len(missing)), threading.Lock()

    def tell(tick: Tick) -> None:
        with telling:
            progress(tick)

    def one(job: Job) -> Outcome:
        with shares.share() as processes:
            return _complete(job, shop, tell, processes)

    with ThreadPoolExecutor(max(1, min(len(missing), shop.processes))) as pool:
        futures = [pool.submit(one, job) for job in missing]
        try:
            outcomes |= {f.result().job.key: f.result() for f in as_completed(futures)}
        except BaseException:
            shop.stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            shop.executor.stop()
            raise
    return [outcomes[job.key] for job in jobs]
