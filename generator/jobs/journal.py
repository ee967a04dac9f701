"""The finished tasks of an unfinished job: one checksummed line each, only ever appended.

A line that was torn by a kill or a full disk ends the journal: what stands before it holds, the
rest is made again. The file is locked while a process works on the job; the kernel frees the lock
when that process ends, however it does.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.jobs.job import Found, canonical

STORE_HINT = "keep results elsewhere: --store DIR"
_CHECKSUM_DIGITS = 16


@dataclass(frozen=True)
class TaskDone:
    """A finished task: its round, its place in it, what it found, and the seconds it took."""

    round: int
    index: int
    found: Found
    seconds: float

    def line(self) -> bytes:
        """Return the task as a line of a journal."""
        text = canonical([self.round, self.index, f"{self.seconds:.4f}", self.found])
        return f"{_checksum(text)} {text}\n".encode()


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_CHECKSUM_DIGITS]


def _task(line: bytes) -> TaskDone | None:
    """Read a line back; None for one that is torn or damaged."""
    try:
        checksum, _, text = line.decode().partition(" ")
        if not text.endswith("\n") or checksum != _checksum(text[:-1]):
            return None
        number, index, seconds, found = json.loads(text)
        return TaskDone(number, index, found, float(seconds))
    except ValueError:
        return None


@dataclass(frozen=True)
class Journal:
    """A journal that this process holds."""

    path: Path
    descriptor: int

    def read(self) -> list[TaskDone]:
        """Return the tasks that hold, and cut off what does not."""
        with open_for(self.path), self.path.open("rb") as file:
            tasks, good = [], 0
            for line in file:
                task = _task(line)
                if task is None:
                    break
                tasks.append(task)
                good += len(line)
            os.ftruncate(self.descriptor, good)
        return tasks

    def append(self, task: TaskDone) -> None:
        """Add a finished task; raises FileError where it cannot be written."""
        rest = task.line()
        with open_for(self.path):
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]

    def clear(self) -> None:
        """Forget all tasks."""
        os.ftruncate(self.descriptor, 0)

    def remove(self) -> None:
        """Remove the file of a job that is done."""
        with open_for(self.path):
            self.path.unlink(missing_ok=True)

    def release(self) -> None:
        """Let others have the journal."""
        os.close(self.descriptor)


@contextlib.contextmanager
def open_for(path: Path) -> Iterator[None]:
    """Turn what the system says of a file of the store into an error that names the way out."""
    try:
        yield
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}", STORE_HINT) from error


def take(path: Path) -> Journal | None:
    """Return the journal at a path, made if need be and now held; None while another holds it."""
    with open_for(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
    if not _is_at(path, descriptor):  # its holder was done and removed it just now
        os.close(descriptor)
        return None
    return Journal(path, descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
