"""The store: results of searches by key, and finished tasks of those that are not finished.

A SQLite database in a folder. A process that works on a search holds a lock on a file beside it;
the kernel frees the lock when that process ends, however it does.
"""

from __future__ import annotations

import fcntl
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec import MsgspecError, json

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.jobs.job import Job, TaskDone
from mirage_kernels.generator.search.sketch import Found

STORE_HINT = "keep results elsewhere: --store DIR"
WAIT_SECONDS = 0.1  # between looks at a search that another process works on
BUSY_SECONDS = 60.0  # that a statement waits for those of other processes
# Nothing waits for the disk: a killed process loses nothing; after a power cut the database may be
# damaged, then searches are made again.
TABLES = """
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS results (key PRIMARY KEY, asked, found, seconds);
CREATE TABLE IF NOT EXISTS tasks (key, round, i, found, seconds, PRIMARY KEY (key, round, i));
"""


@dataclass(frozen=True)
class Store:
    """Results of searches in a folder; nothing is made there before there is something to write.

    Every method raises FileError for a database that cannot be read or written.
    """

    folder: Path

    @property
    def path(self) -> Path:
        """The database."""
        return self.folder / "searches.sqlite"

    def result(self, key: str) -> tuple[Found, float] | None:
        """Return what a search found, and the seconds of its tasks, all processes together."""
        if not self.path.exists():
            return None
        with self._database() as database:
            query = "SELECT found, seconds FROM results WHERE key = ?"
            row = database.execute(query, (key,)).fetchone()
            return (json.decode(row[0], type=Found), row[1]) if row else None

    def keep(self, job: Job, found: Found, seconds: float) -> None:
        """Keep a result with what was asked for, and forget the tasks that it was made from."""
        row = (job.key, json.encode(job.problem.identity()), json.encode(found), seconds)
        with self._database() as database:
            database.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?)", row)
            database.execute("DELETE FROM tasks WHERE key = ?", (job.key,))

    def tasks(self, key: str) -> list[TaskDone]:
        """Return the finished tasks of an unfinished search."""
        with self._database() as database:
            query = "SELECT round, i, found, seconds FROM tasks WHERE key = ?"
            rows = database.execute(query, (key,)).fetchall()
            return [TaskDone(n, i, json.decode(found, type=Found), s) for n, i, found, s in rows]

    def keep_task(self, key: str, task: TaskDone) -> None:
        """Keep a finished task of a search."""
        row = (key, task.round, task.index, json.encode(task.found), task.seconds)
        with self._database() as database:
            database.execute("INSERT OR REPLACE INTO tasks VALUES (?, ?, ?, ?, ?)", row)

    def forget_tasks(self, key: str) -> None:
        """Remove the finished tasks of a search."""
        with self._database() as database:
            database.execute("DELETE FROM tasks WHERE key = ?", (key,))

    @contextmanager
    def claim(self, key: str, *, waiting: Callable[[], None]) -> Iterator[None]:
        """Lock a search; `waiting` is called now and then while another process has it."""
        with self._database():  # makes the folder
            lock = (self.folder / f"{key}.lock").open("w")
        with lock:
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                waiting()
                time.sleep(WAIT_SECONDS)
            try:
                yield
            finally:
                Path(lock.name).unlink(missing_ok=True)
                fcntl.flock(lock, fcntl.LOCK_UN)  # forked workers may still have it open

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """Open the database for one transaction."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, BUSY_SECONDS)) as database, database:
                database.executescript(TABLES)
                yield database
        except OSError as error:
            why = f"{self.folder} cannot be used: {error.strerror}"
            raise FileError(why, STORE_HINT) from error
        except sqlite3.OperationalError as error:
            raise FileError(f"{self.path} cannot be used: {error}", STORE_HINT) from error
        except (sqlite3.DatabaseError, MsgspecError) as error:
            damaged = self.path.replace(self.path.with_suffix(".damaged"))
            raise FileError(
                f"{self.path} was damaged ({error}); it is {damaged} now",
                "the same command makes its results again",
            ) from error
