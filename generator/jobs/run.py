"""From jobs to outcomes: look each one up, or have it made, keeping every finished task.

This process alone writes to the store: executors only tell what their workers found. A worker that
is lost costs the tasks it was at; its job is given out again, a few times.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum

from mirage_kernels.generator.errors import JobError, MirageError
from mirage_kernels.generator.jobs.job import Executor, Job, Progressed, WorkerLostError, local
from mirage_kernels.generator.jobs.store import Store, Unfinished
from mirage_kernels.generator.request import Event, Progress
from mirage_kernels.generator.search.sketch import Found

ATTEMPTS = 3


class Origin(Enum):
    """Where an outcome comes from."""

    STORE = "store"
    NEW = "new"
    RESUMED = "resumed"  # some tasks were kept from an earlier run
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """What became of a job; where nothing was found the reason stands in `failure`."""

    job: Job
    origin: Origin
    found: Found = field(default_factory=Found)
    seconds: float = 0.0  # of its tasks, all processes together, whenever they ran
    lost: int = 0  # workers that ended before their job did
    failure: MirageError | None = None


@dataclass(frozen=True)
class Workshop:
    """What jobs are run with: where results are kept, who works, in how many processes."""

    store: Store
    executor: Executor = local
    processes: int = 1
    fresh: bool = False  # make anew what the store has, and forget unfinished work
    stopping: threading.Event = field(default_factory=threading.Event)

    def stored(self, job: Job) -> Outcome | None:
        """Return the outcome of a job whose result is stored and may be taken."""
        kept = None if self.fresh else self.store.result(job.key)
        return Outcome(job, Origin.STORE, *kept) if kept else None


class StoppedError(Exception):
    """The work was stopped from outside; what is finished is kept."""


def complete_all(jobs: Sequence[Job], shop: Workshop, progress: Progress) -> list[Outcome]:
    """Return the outcomes of jobs, in order; as many are made at once as there are processes.

    The stage of an event is the name of a job. A job that fails leaves the others alone. An
    interruption, or a store that cannot be read or written (FileError), stops them all; what they
    have finished is kept.
    """
    every = {job.key: job for job in jobs}
    outcomes = {key: made for key, job in every.items() if (made := shop.stored(job))}
    missing = [job for key, job in every.items() if key not in outcomes]
    telling = threading.Lock()

    def tell(event: Event) -> None:
        with telling:
            progress(event)

    with ThreadPoolExecutor(max(1, min(len(missing), shop.processes))) as pool:
        making = []
        for i, job in enumerate(missing, start=1):
            share = max(1, (shop.processes + len(missing) - i) // len(missing))
            making.append(pool.submit(_Making(job, shop, share, tell).complete))
        try:
            outcomes |= {f.result().job.key: f.result() for f in as_completed(making)}
        except BaseException:
            shop.stopping.set()
            pool.shutdown(cancel_futures=True)
            raise
    return [outcomes[job.key] for job in jobs]


@dataclass
class _Making:
    """One job being made, in its share of the processes."""

    job: Job
    shop: Workshop
    processes: int
    progress: Progress
    round: Progressed = field(default=Progressed("", 0, 0))

    def complete(self) -> Outcome:
        """Have the job made, unless another process makes it meanwhile."""
        with self.shop.store.claim(self.job.key, waiting=self._wait) as unfinished:
            # The process that worked on it may have finished it.
            outcome = self.shop.stored(self.job)
            if outcome is not None:
                return outcome
            if self.shop.fresh:
                unfinished.forget()
            self._tell("cutting it into tasks")
            outcome = self._outcome(unfinished)
            every = max(1, self.round.tasks)
            self.round = Progressed("", every, every)
            self._tell("FAILED" if outcome.failure else "done")
            return outcome

    def _wait(self) -> None:
        self._tell("another process is at it")
        if self.shop.stopping.is_set():
            raise StoppedError

    def _outcome(self, unfinished: Unfinished) -> Outcome:
        """Return the outcome of the job, made by another worker where one is lost."""
        job, last = self.job, ""
        origin = Origin.RESUMED if unfinished.tasks else Origin.NEW
        for lost in range(ATTEMPTS):
            try:
                found = self._attempt(unfinished)
            except WorkerLostError as error:
                last = str(error)
                self._tell("a worker was lost: another takes over")
                continue
            if isinstance(found, MirageError):
                return Outcome(job, Origin.FAILED, lost=lost, failure=found)
            return Outcome(job, origin, found, unfinished.finish(job, found), lost)
        failure = JobError(
            f"search job {job.name} lost {ATTEMPTS} workers in a row, the last one {last}",
            "what is finished is kept: the same command goes on from there",
        )
        return Outcome(job, Origin.FAILED, lost=ATTEMPTS, failure=failure)

    def _attempt(self, unfinished: Unfinished) -> Found | MirageError:
        """Return the outcome of the search, or what its worker says is wrong with it."""
        shop, finished = self.shop, tuple(unfinished.tasks)
        told = shop.executor(self.job, finished, self.processes, shop.stopping)
        with closing(told) as messages:
            for message in messages:
                if isinstance(message, Found | MirageError):
                    return message
                self.round = message
                if message.last is not None:
                    unfinished.add(message.last)
                if message.done < message.tasks:  # only the end has all tasks done
                    self._tell(message.name)
        raise StoppedError

    def _tell(self, words: str) -> None:
        self.progress(Event(self.job.name, self.round.done, self.round.tasks, words))
