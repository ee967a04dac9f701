"""The folder of results: one file per search, named by its key, written whole or not at all.

    results/<key>.json     what was asked for and what was found; the same bytes whoever makes it
    results/<key>.tasks/   finished tasks of a search that is not finished, a file each
    seconds/<key>.json     what it took here

Every file carries its own checksum: one that was damaged counts as missing and is made again. A
process that works on a search holds a lock on the folder of its tasks; the kernel frees the lock
when that process ends, however it does.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.ir.text import dumps
from mirage_kernels.generator.jobs.job import Found, Job, TaskDone, digest
from mirage_kernels.generator.records.files import write_whole

FORMAT = 1
STORE_HINT = "keep results elsewhere: --store DIR"
WAIT_SECONDS = 0.1  # between looks at a search that another process works on


@dataclass(frozen=True)
class Store:
    """Results of searches in a folder; nothing is made there before there is something to write."""

    folder: Path

    def path(self, key: str) -> Path:
        """Return the file of a result."""
        return self.folder / "results" / f"{key}.json"

    def tasks_folder(self, key: str) -> Path:
        """Return the folder of an unfinished search."""
        return self.folder / "results" / f"{key}.tasks"

    def has(self, key: str) -> bool:
        """Say whether there is a file for a result, whole or damaged."""
        return self.path(key).exists()

    def result(self, key: str) -> Found | None:
        """Return what a search found; None where it is missing, damaged, or another search's."""
        content = _read(self.path(key)) or {}
        expected = content.get("key") == key and content.get("format") == FORMAT
        found = content.get("found")
        return found if expected and isinstance(found, dict) else None

    def keep(self, job: Job, found: Found) -> Path:
        """Write a result, whole or not at all; an unchanged file is left alone."""
        asked = job.problem.identity()
        content: Found = {"format": FORMAT, "key": job.key, "asked": asked, "found": found}
        return _write(self.path(job.key), content)

    def seconds(self, key: str) -> float | None:
        """Return the seconds that the tasks of a search took, all processes together, if known."""
        seconds = (_read(self._seconds_path(key)) or {}).get("tasks")
        return seconds if isinstance(seconds, float) else None

    def keep_seconds(self, key: str, seconds: float) -> None:
        """Write what a search took; apart from its result, which says nothing of this machine."""
        _write(self._seconds_path(key), {"tasks": round(seconds, 2)})

    def _seconds_path(self, key: str) -> Path:
        return self.folder / "seconds" / f"{key}.json"

    def tasks(self, key: str) -> list[TaskDone]:
        """Return the finished tasks of an unfinished search, those that are whole."""
        tasks = []
        for path in sorted(self.tasks_folder(key).glob("[0-9]*.json")):
            match _read(path):
                case {"round": int(r), "index": int(i), "found": dict(found), "seconds": float(s)}:
                    tasks.append(TaskDone(r, i, found, s))
        return tasks

    def keep_task(self, key: str, task: TaskDone) -> None:
        """Write a finished task of a search."""
        _write(self.tasks_folder(key) / f"{task.round}-{task.index}.json", vars(task))

    def forget_tasks(self, key: str) -> None:
        """Remove the finished tasks of a search that this process holds."""
        for path in self.tasks_folder(key).iterdir():
            path.unlink()

    @contextlib.contextmanager
    def claim(self, key: str, *, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold a search; `waiting` is called now and then while another process does."""
        folder = self.tasks_folder(key)
        while (descriptor := _lock(folder)) is None:
            waiting()
            time.sleep(WAIT_SECONDS)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # not empty: the search is not finished
                folder.rmdir()
            os.close(descriptor)


def _read(path: Path) -> Found | None:
    """Return what a file holds; None where it is missing or damaged."""
    try:
        content: Found = json.loads(path.read_bytes())
        return content if content.pop("sha256") == digest(content) else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}", STORE_HINT) from error
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(path: Path, content: Found) -> Path:
    # What is kept must be what is read: content that JSON changes would never be found whole.
    return write_whole(path, dumps({**content, "sha256": digest(content)}), hint=STORE_HINT)


def _lock(folder: Path) -> int | None:
    """Return the descriptor that holds a folder, made if need be; None while another holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, FileExistsError):  # its holder was done and removed it just now
        return None
    except OSError as error:
        raise FileError(f"{folder} cannot be written: {error.strerror}", STORE_HINT) from error
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(folder), os.fstat(descriptor)):
            return descriptor
    os.close(descriptor)
    return None
