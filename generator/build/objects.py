"""The cache of object files: keyed by compiler, options and contents, never by a folder's path.

A source with the options that compile it has a list of headers (from the compiler's own dependency
file); the contents of all of them make the key of the object file. So a moved or fresh checkout
takes its objects from the cache, and an interrupted build goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.generator.settings import OBJECTS_VARIABLE

OBJECTS_HINT = f"name a folder that can be written: {OBJECTS_VARIABLE}=DIR"
LARGEST_BYTES = 2 << 30  # of all objects together; those that were used last are kept
LISTS_KEPT = 8  # of headers that a source has had


@dataclass(frozen=True)
class Wanted:
    """One object file to find or to make: its source, and the compiler with what the key names."""

    source: str  # relative to the root
    compiler: tuple[str, ...]  # with options that only name folders of this machine
    options: tuple[str, ...]


@dataclass
class ObjectCache:
    """Object files in a folder that checkouts share; `root` is where relative paths start."""

    folder: Path
    root: Path
    compilers: str  # names and versions
    _digests: dict[str, str] = field(default_factory=dict)

    def find(self, wanted: Wanted) -> Path | None:
        """Return the object file made from these very contents, or None."""
        for headers in self._lists(wanted):
            path = self._object(wanted, headers)
            with suppress(OSError):
                os.utime(path)  # it is in use: others are removed first
                return path
        return None

    def keep(self, wanted: Wanted, made: Path, dependency_file: Path) -> Path:
        """Move an object file into the cache, from the same disk; return its path there."""
        headers = _dependencies(dependency_file)
        lists = [headers, *(known for known in self._lists(wanted) if known != headers)]
        text = json.dumps(lists[:LISTS_KEPT])
        write_whole(self._lists_file(wanted), text, hint=OBJECTS_HINT)
        path = self._object(wanted, headers)
        path.parent.mkdir(parents=True, exist_ok=True)
        return made.replace(path)

    def shrink(self, largest_bytes: int = LARGEST_BYTES) -> None:
        """Remove the objects that were used longest ago until the rest is small enough."""
        files = [(path, path.stat()) for path in self.folder.glob("??/*") if path.is_file()]
        total = sum(stat.st_size for _, stat in files)
        for path, stat in sorted(files, key=lambda file: file[1].st_mtime_ns):
            if total <= largest_bytes:
                return
            total -= stat.st_size
            path.unlink(missing_ok=True)

    def _lists(self, wanted: Wanted) -> list[list[str]]:
        try:
            lists: list[list[str]] = json.loads(self._lists_file(wanted).read_text())
        except (OSError, ValueError):  # none yet
            return []
        return lists

    def _lists_file(self, wanted: Wanted) -> Path:
        return self._file(wanted, [wanted.source], ".json")

    def _object(self, wanted: Wanted, headers: Sequence[str]) -> Path:
        return self._file(wanted, [wanted.source, *headers], ".o")

    def _file(self, wanted: Wanted, names: Sequence[str], ending: str) -> Path:
        contents = [[name, self._digest_of(name)] for name in names]
        digest = _digest(json.dumps([self.compilers, wanted.options, contents]).encode())
        return self.folder / digest[:2] / f"{digest[2:]}{ending}"

    def _digest_of(self, name: str) -> str:
        if name not in self._digests:
            file = self.root / name
            self._digests[name] = _digest(file.read_bytes()) if file.is_file() else "missing"
        return self._digests[name]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _dependencies(dependency_file: Path) -> list[str]:
    """Return the files of a Makefile rule `object : source header \\ header ...`, each once.

    Those of the toolkit, whose paths are absolute, are left out: its version stands for them.
    """
    _, _, rule = dependency_file.read_text().replace("\\\n", " ").partition(":")
    words = re.split(r"(?<!\\)\s+", rule.strip())
    paths = {os.path.normpath(word.replace("\\ ", " ")) for word in words}
    return sorted(path for path in paths if not os.path.isabs(path))
