"""The folder of results: one file per search, named by its key, written whole or not at all.

    results/<key>.json     what was asked for and what was found; the same bytes whoever makes it
    results/<key>.tasks    the journal of a search that is not finished
    seconds/<key>.json     what it took here

A result carries its own checksum: one that was damaged counts as missing and is made again.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.ir.text import dumps
from mirage_kernels.generator.jobs.job import Found, Job, digest
from mirage_kernels.generator.jobs.journal import STORE_HINT, Journal, take
from mirage_kernels.generator.records.files import write_whole

FORMAT = 1
WAIT_SECONDS = 0.1  # between looks at a journal that another process holds


@dataclass(frozen=True)
class Store:
    """Results of searches in a folder; nothing is made there before there is something to write."""

    folder: Path

    def path(self, key: str) -> Path:
        """Return the file of a result."""
        return self.folder / "results" / f"{key}.json"

    def journal_path(self, key: str) -> Path:
        """Return the file of an unfinished search."""
        return self.folder / "results" / f"{key}.tasks"

    def has(self, key: str) -> bool:
        """Say whether there is a file for a result, whole or damaged."""
        return self.path(key).exists()

    def result(self, key: str) -> Found | None:
        """Return what a search found; None where it is missing, damaged, or another search's."""
        try:
            data = json.loads(self.path(key).read_bytes())
            checksum, content = data.pop("sha256"), data
            whole = checksum == digest(content) and content["key"] == key
        except FileNotFoundError:
            return None
        except OSError as error:
            sentence = f"{self.path(key)} cannot be read: {error.strerror}"
            raise FileError(sentence, STORE_HINT) from error
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return content["found"] if whole and content["format"] == FORMAT else None

    def keep(self, job: Job, found: Found) -> Path:
        """Write a result, whole or not at all; an unchanged file is left alone."""
        content: Found = {"format": FORMAT, "key": job.key, "asked": job.problem.identity()}
        content["found"] = found
        # What is kept must be what is read: a result that JSON changes would never be found whole.
        return write_whole(
            self.path(job.key), dumps({**content, "sha256": digest(content)}), hint=STORE_HINT
        )

    def seconds(self, key: str) -> float | None:
        """Return the seconds that the tasks of a search took, all processes together, if known."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return float(json.loads(self._seconds_path(key).read_bytes())["tasks"])
        return None

    def keep_seconds(self, key: str, seconds: float) -> None:
        """Write what a search took; apart from its result, which says nothing of this machine."""
        text = dumps({"tasks": round(seconds, 2)})
        write_whole(self._seconds_path(key), text, hint=STORE_HINT)

    def _seconds_path(self, key: str) -> Path:
        return self.folder / "seconds" / f"{key}.json"

    @contextlib.contextmanager
    def claim(self, key: str, *, waiting: Callable[[], None]) -> Iterator[Journal]:
        """Hold a search's journal; `waiting` is called now and then while another process does."""
        while (journal := take(self.journal_path(key))) is None:
            waiting()
            time.sleep(WAIT_SECONDS)
        try:
            yield journal
        finally:
            journal.release()
