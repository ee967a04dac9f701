"""The local executor: every job is worked on in a process of its own, which is forked from this.

An executor is a function that yields the messages of a job's work, wherever that is done, until
they end or all work is to stop; it is called by several threads at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing

from mirage_kernels.generator.jobs.job import Job, Message, TaskDone, end_with, work

Messages = Generator[Message, None, None]  # closing it ends the work
# What does a job's unfinished tasks, in so many processes, unless all work is to stop.
Executor = Callable[[Job, Sequence[TaskDone], int, threading.Event], Messages]

LAST_LINES = 8
POLL_SECONDS = 0.2  # between looks whether all work is to stop
_FORK = multiprocessing.get_context("fork")
_starting = threading.Lock()


class WorkerLostError(Exception):
    """The process that did a job ended before the job did; says how, and its last words."""


def local(
    job: Job, finished: Sequence[TaskDone], processes: int, stopping: threading.Event
) -> Messages:
    """Yield the messages of a worker process; raises WorkerLostError when it ends before them."""
    with tempfile.TemporaryFile() as words:

        def tell(parent: int) -> None:
            """Do the work in a process of its own; what the search may print is no result."""
            end_with(parent)
            for stream in (1, 2):
                os.dup2(words.fileno(), stream)
            sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
            for message in work(job, finished, processes):
                told.send(message)

        with _starting:  # so that no worker holds another one's end of a pipe open
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
            how = f"ended with exit code {code}"
            if code < 0:
                how = f"killed by {signal.Signals(-code).name}"
            words.seek(0)
            raise WorkerLostError(
                with_last_lines(how, words.read().decode(errors="replace"))
            ) from error
        finally:
            process.kill()
            process.join()


def with_last_lines(how: str, words: str) -> str:
    """Say how a worker ended, and below it the end of what it said."""
    lines = words.strip().splitlines()[-LAST_LINES:]
    return "\n    ".join([f"{how}; its last words:", *lines]) if lines else how
