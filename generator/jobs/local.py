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
from collections.abc import Callable, Generator
from contextlib import closing
from multiprocessing.connection import Connection
from typing import IO

from mirage_kernels.generator.jobs.work import Assignment, Message, end_with, work

Messages = Generator[Message, None, None]  # closing it ends the work
Executor = Callable[[Assignment, threading.Event], Messages]

LAST_LINES = 8
POLL_SECONDS = 0.2  # between looks whether all work is to stop
_FORK = multiprocessing.get_context("fork")
_starting = threading.Lock()


class WorkerLostError(Exception):
    """The process that did a job ended before the job did; says how, and its last words."""


def local(assignment: Assignment, stopping: threading.Event) -> Messages:
    """Yield the messages of a worker process; raises WorkerLostError when it ends before them."""
    with tempfile.TemporaryFile() as words:
        with _starting:  # so that no worker holds another one's end of a pipe open
            messages, told = _FORK.Pipe(duplex=False)
            process = _FORK.Process(target=_tell, args=(assignment, told, words, os.getpid()))
            process.start()
            told.close()
        try:
            with closing(messages):
                while not stopping.is_set():
                    if messages.poll(POLL_SECONDS):
                        yield messages.recv()
        except (EOFError, OSError) as error:  # the second one in the middle of a message
            process.join()
            raise WorkerLostError(_how_it_ended(process.exitcode or 0, words)) from error
        finally:
            process.kill()
            process.join()


def _tell(assignment: Assignment, told: Connection, words: IO[bytes], parent: int) -> None:
    """Do the work in a process of its own; what the search may print is no result."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    end_with(parent)
    for stream in (1, 2):
        os.dup2(words.fileno(), stream)
    sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    for message in work(assignment):
        told.send(message)


def _how_it_ended(code: int, words: IO[bytes]) -> str:
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    words.seek(0)
    return with_last_lines(how, words.read().decode(errors="replace"))


def with_last_lines(how: str, words: str) -> str:
    """Say how a worker ended, and below it the end of what it said."""
    lines = words.strip().splitlines()[-LAST_LINES:]
    return "\n    ".join([f"{how}; its last words:", *lines]) if lines else how
