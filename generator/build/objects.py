"""The cache of object files: keyed by compiler, command and contents, never by a folder's path.

A source with the command that compiles it has a list of headers (from the compiler's own dependency
file); the contents of all of them make the key of the object file. So a moved or fresh checkout
takes its objects from the cache, and an interrupted build goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

LARGEST_BYTES = 2 << 30  # of all objects together; those that were used last are kept
LISTS_KEPT = 8  # of headers that a source has had


@dataclass(frozen=True)
class Places:
    """Folders that are named in keys by what they hold: `/opt/venv/.../torch` by `torch`."""

    names: Mapping[str, str]  # the folders' names by path

    def named(self, text: str) -> str:
        """Return a path, or an option with a path in it, with folders by name."""
        for folder in sorted(self.names, key=len, reverse=True):
            text = re.sub(rf"{re.escape(folder)}(?=/|$)", self.names[folder], text)
        return text

    def path(self, name: str) -> str:
        """Return the path of a file by its name here."""
        for folder, called in self.names.items():
            if name.startswith(f"{called}/"):
                return f"{folder}/{name.removeprefix(f'{called}/')}"
        return name


@dataclass(frozen=True)
class Wanted:
    """One object file to find or to make: its source, and all else that the key names."""

    source: str
    command: tuple[str, ...]


@dataclass
class ObjectCache:
    """Object files in a folder that checkouts share; `root` is where relative paths start."""

    folder: Path
    root: Path
    places: Places
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
        """Move an object file into the cache; return its path there."""
        paths = map(os.path.normpath, _dependencies(dependency_file))
        headers = sorted({self.places.named(path) for path in paths})
        path = self._object(wanted, headers)
        path.parent.mkdir(parents=True, exist_ok=True)
        _place(made, path)
        lists = [headers, *(known for known in self._lists(wanted) if known != headers)]
        self._write_lists(wanted, lists[:LISTS_KEPT])
        return path

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
        file = self._lists_file(wanted)
        try:
            lists: list[list[str]] = json.loads(file.read_text())
        except (OSError, ValueError):  # none yet
            return []
        return lists

    def _write_lists(self, wanted: Wanted, lists: Sequence[Sequence[str]]) -> None:
        file = self._lists_file(wanted)
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(lists))
        os.replace(unfinished, file)

    def _lists_file(self, wanted: Wanted) -> Path:
        return self._file(_digest(self._about(wanted)), ".json")

    def _object(self, wanted: Wanted, headers: Sequence[str]) -> Path:
        contents = [[name, self._file_digest(name)] for name in headers]
        return self._file(_digest([*self._about(wanted), contents]), ".o")

    def _about(self, wanted: Wanted) -> list[object]:
        command = [self.places.named(word) for word in wanted.command]
        name = self.places.named(wanted.source)
        return [self.compilers, command, name, self._file_digest(name)]

    def _file(self, digest: str, ending: str) -> Path:
        return self.folder / digest[:2] / f"{digest[2:]}{ending}"

    def _file_digest(self, name: str) -> str:
        if name not in self._digests:
            file = self.root / self.places.path(name)
            content = file.read_bytes() if file.is_file() else None
            self._digests[name] = "missing" if content is None else _sha256(content)
        return self._digests[name]


def _digest(data: object) -> str:
    return _sha256(json.dumps(data).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _place(made: Path, path: Path) -> None:
    """Move a file to where others may be looking for it, whole, from another disk too."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    shutil.move(made, unfinished)
    os.replace(unfinished, path)


def _dependencies(dependency_file: Path) -> Iterator[str]:
    """Yield the paths of a Makefile rule `object : source header \\ header ...`."""
    _, _, paths = dependency_file.read_text().replace("\\\n", " ").partition(":")
    for path in re.split(r"(?<!\\)\s+", paths.strip()):
        yield path.replace("\\ ", " ")
