"""The store: a file with the result of each search, and one with the finished tasks of each other.

A process that works on a search holds a lock on its file of tasks; the kernel frees the lock when
that process ends, however it does.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from msgspec import MsgspecError, Raw, Struct, json

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.jobs.job import Job, TaskDone
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.search.sketch import Found

STORE_HINT = "keep results elsewhere: --store DIR"
WAIT_SECONDS = 0.1  # between looks at a search that another process works on


class _Result(Struct):
    asked: Raw  # for people
    seconds: float
    found: Found


@dataclass(frozen=True)
class Unfinished:
    """A search that this process alone may work on, and its finished tasks.

    A task is a line of the file. Nothing waits for the disk: a line that is not whole is no task.
    """

    result: Path
    file: FileIO
    tasks: list[TaskDone]

    def add(self, task: TaskDone) -> None:
        """Keep a finished task; raises FileError."""
        with _no_traceback(self.result.parent):
            self.file.write(b"\n" + json.encode(task))
        self.tasks.append(task)

    def forget(self) -> None:
        """Remove the finished tasks."""
        self.file.truncate(0)
        self.tasks.clear()

    def finish(self, job: Job, found: Found) -> float:
        """Keep the result; return the seconds they took. Raises FileError."""
        seconds = round(sum(task.seconds for task in self.tasks), 2)
        result = _Result(Raw(json.encode(job.identity())), seconds, found)
        write_whole(self.result, json.encode(result).decode(), hint=STORE_HINT)
        return seconds


@dataclass(frozen=True)
class Store:
    """Results of searches in a folder; nothing is made there before there is something to write."""

    folder: Path

    def result(self, key: str) -> tuple[Found, float] | None:
        """Return what a search found, and the seconds of its tasks, all processes together.

        Raises FileError for a file that cannot be read.
        """
        path = self.folder / f"{key}.json"
        try:
            with _no_traceback(path):
                result = json.decode(path.read_bytes(), type=_Result) if path.exists() else None
        except MsgspecError as error:
            damaged = path.replace(path.with_suffix(".damaged"))
            raise FileError(
                f"{path} was damaged ({error}); it is {damaged} now",
                "the same command makes its result again",
            ) from error
        return (result.found, result.seconds) if result else None

    @contextmanager
    def claim(self, key: str, *, waiting: Callable[[], None]) -> Iterator[Unfinished]:
        """Lock a search; `waiting` is called now and then while another process has it.

        Raises FileError where nothing can be written.
        """
        result = self.folder / f"{key}.json"
        with _no_traceback(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            file = FileIO(result.with_suffix(".tasks"), "a+")
        with file:
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                waiting()
                time.sleep(WAIT_SECONDS)
            file.seek(0)
            tasks = []
            for line in file.readall().splitlines():
                with suppress(MsgspecError):
                    tasks.append(json.decode(line, type=TaskDone))
            try:
                yield Unfinished(result, file, tasks)
            finally:
                if result.exists():
                    result.with_suffix(".tasks").unlink(missing_ok=True)
                fcntl.flock(file, fcntl.LOCK_UN)  # forked workers may still have it open


@contextmanager
def _no_traceback(path: Path) -> Iterator[None]:
    """Raise what the system says of a file as FileError."""
    try:
        yield
    except OSError as error:
        raise FileError(f"{path} cannot be used: {error.strerror}", STORE_HINT) from error
