"""The work itself: the tasks of one job in one process or several, told as messages.

Every executor runs `work`, here or elsewhere.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass

from mirage_kernels.generator.errors import JobError, MirageError
from mirage_kernels.generator.jobs.job import Job, Task, TaskDone
from mirage_kernels.generator.search.sketch import Found

_SIGNAL_AT_DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass(frozen=True)
class Planned:
    """A round begins: the word for it, how many tasks it has, and how many are finished."""

    name: str
    tasks: int
    done: int


Message = Planned | TaskDone | Found | MirageError  # the last two end the work


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


Finished = Generator[TaskDone, None, None]  # closing it ends the tasks that still run


def _run_tasks(number: int, tasks: Sequence[Task], todo: Sequence[int], processes: int) -> Finished:
    """Run some tasks of a round, in any order."""
    _round_here[:] = [(number, tasks)]
    if processes == 1 or len(todo) < 2:
        yield from map(_run_task, todo)
        return
    others = set(multiprocessing.active_children())
    # Forked: the children share the tasks, and all that was read to make them.
    pool = ProcessPoolExecutor(
        min(processes, len(todo)),
        mp_context=multiprocessing.get_context("fork"),
        initializer=_start_child,
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


def _start_child(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    end_with(parent)


def end_with(parent: int) -> None:
    """Have the kernel end this process with its parent, which may be killed without a word."""
    ctypes.CDLL(None).prctl(_SIGNAL_AT_DEATH_OF_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(1)
