"""Where a job's work is done: in worker processes of this machine, or on a Ray cluster.

A worker process is this module as a program: an assignment on stdin, messages on stdout, pickled.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from typing import IO, Protocol

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.jobs.work import Assignment, Merged, Message, end_with, work

Messages = Generator[Message, None, None]  # closing it ends the work

LAST_LINES = 8


class WorkerLostError(Exception):
    """The process that did a job ended before the job did; says how, and its last words."""


class Executor(Protocol):
    """Does the work of one job, wherever; `run` may be called by several threads at once."""

    def run(self, assignment: Assignment) -> Messages:
        """Yield the messages of the work as they come.

        Raises WorkerLostError when the worker ends before its last message.
        """
        ...

    def stop(self) -> None:
        """End all work now, whatever it is doing; what still runs raises WorkerLostError."""
        ...


class Local:
    """Does the work of every job in a process of its own."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, assignment: Assignment) -> Messages:
        """Yield the messages of a worker process as they come."""
        with tempfile.TemporaryFile() as words:
            process = self._start(words)
            try:
                yield from _messages(process, assignment)
            except (EOFError, pickle.UnpicklingError, BrokenPipeError) as error:
                raise WorkerLostError(_how_it_ended(process.wait(), words)) from error
            finally:
                self._end(process)

    def stop(self) -> None:
        """Kill every worker process with its children."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _kill_group(process)

    def _start(self, words: IO[bytes]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "mirage_kernels.generator.jobs.executors"]
        with self._lock:
            if self._stopped:
                raise WorkerLostError("all work was stopped")
            # A session of its own: Ctrl-C reaches this process alone, and a worker's children
            # can be killed with it.
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                start_new_session=True,
            )
            self._running.add(process)
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.discard(process)
            _kill_group(process)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        process.wait()


def _messages(process: subprocess.Popen[bytes], assignment: Assignment) -> Messages:
    assert process.stdin is not None
    assert process.stdout is not None
    pickle.dump((assignment, os.getpid()), process.stdin)
    process.stdin.flush()
    while True:
        message: Message = pickle.load(process.stdout)
        yield message
        if isinstance(message, Merged | MirageError):
            return


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker and its children; the children of one that is gone see it and end."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _how_it_ended(code: int, words: IO[bytes]) -> str:
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    words.seek(0)
    lines = words.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:]
    return "\n    ".join([f"{how}; its last words:", *lines]) if lines else how


def main() -> None:
    """Do one assignment of the parent process."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the search may print is no message
    assignment, parent = pickle.load(sys.stdin.buffer)
    end_with(parent)
    for message in work(assignment):
        pickle.dump(message, out)
        out.flush()


if __name__ == "__main__":
    main()
