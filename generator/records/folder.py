"""The kernels folder: writing results into it, reading it back, checking it."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from mirage_kernels.generator.emit.cuda import FORMS
from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.records.files import OUT_HINT, write_whole
from mirage_kernels.generator.records.record import MUGRAPH_ENDING, KernelRecord, load_record
from mirage_kernels.generator.records.sources import recipe_sources, table_of
from mirage_kernels.generator.records.triton import marks_of
from mirage_kernels.generator.target import TARGETS

SOURCES, COMPILED = (".cu", ".cuh", ".py"), ".so"
INCLUDE = re.compile(r'^#include "([^"]*)"$', re.MULTILINE)


def write(results: Sequence[Result], kernels_dir: Path) -> list[Path]:
    """Write the files of results and the tables of their architectures; return their paths.

    Each file is written whole or not at all; the table, which names the others, comes last. Sources
    of a recipe are made of all of its records, for forms are shared: those of kernels that were
    there before may change their names, and what no record makes any more is removed.
    Raises FileError for a folder that cannot be written.
    """
    made = [result.record for result in results]
    if not made:
        return []
    written = [write_whole(kernels_dir / record.path, record.text()) for record in made]
    with _alone_in(kernels_dir):
        found = list(emitted(kernels_dir).values())
        for recipe in sorted({record.recipe for record in made}):
            alike = [r for r in found if r.recipe == recipe]
            files = recipe_sources(alike)
            written += [write_whole(kernels_dir / name, text) for name, text in files.items()]
            for path in sorted(sources_of(kernels_dir, alike).difference(written)):
                remove(path)
        for arch in sorted({record.arch for record in made}):
            table = table_of(arch, [record for record in found if record.arch == arch])
            written.append(write_whole(kernels_dir / arch / "table.cpp", table))
    return list(dict.fromkeys(written))


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from writing a table or forms that lack what this one is to write."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a network file system may have no locks for folders
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file; raises FileError where that cannot be."""
    try:
        path.unlink()
    except OSError as error:
        raise FileError(f"{path} cannot be removed: {error.strerror}", OUT_HINT) from error


def emitted(kernels_dir: Path, arch: str = "*") -> dict[str, KernelRecord]:
    """Return every committed kernel by the path of its record below the folder."""
    return _loaded(kernels_dir, record_files(kernels_dir, arch))


def record_files(kernels_dir: Path, arch: str = "*") -> list[Path]:
    """Return the records of kernels in a folder, readable or not, in order."""
    tops = TARGETS if arch == "*" else (arch,)  # other folders there are not ours
    paths = (p for top in tops for p in kernels_dir.glob(f"{top}/*/*.json"))
    return sorted(p for p in paths if not p.name.endswith(MUGRAPH_ENDING))


def without_plan(kernels_dir: Path) -> dict[str, KernelRecord]:
    """Return every muGraph that was kept without a kernel, by its path below the folder."""
    paths = (p for top in TARGETS for p in kernels_dir.glob(f"{top}/*/*{MUGRAPH_ENDING}"))
    return _loaded(kernels_dir, paths)


def _loaded(kernels_dir: Path, paths: Iterable[Path]) -> dict[str, KernelRecord]:
    return {str(p.relative_to(kernels_dir)): load_record(p) for p in sorted(paths)}


def sources_below(kernels_dir: Path, record: KernelRecord) -> list[Path]:
    """Return the sources that a record made: its instantiations, the forms that they include."""
    names = (f"{record.stem}.cu", f"{record.stem}.py")
    found = {path for name in names for path in (kernels_dir / record.arch).glob(f"*/{name}")}
    sources = {path for path in found if _command_of(path) == record.command}
    forms = set[Path]().union(*map(_included, sources))
    triton = ["triton.py", *(f"triton_{mark}.py" for mark in marks_of(record))]
    beside = {kernels_dir / FORMS / record.recipe / name for name in triton}
    return sorted(sources | forms | {path for path in beside if path.is_file()})


def _included(path: Path) -> set[Path]:
    """Return the files beside a file that it includes, and what they include."""
    named = INCLUDE.findall(path.read_text(errors="replace"))
    beside = {Path(os.path.normpath(path.parent / name)) for name in named}
    present = {file for file in beside if file.is_file()}
    return present.union(*map(_included, present))


def sources_of(kernels_dir: Path, alike: Iterable[KernelRecord]) -> set[Path]:
    """Return the sources whose first line says that one of these records made them."""
    made_by = {command for r in alike for command in (r.command, r.recipe_command)}
    sources = (path for path in emitted_files(kernels_dir) if path.suffix in SOURCES)
    return {path for path in sources if _command_of(path) in made_by}


def emitted_files(kernels_dir: Path) -> Iterator[Path]:
    """Yield every file of the folder that may have been emitted."""
    for top in (FORMS, *TARGETS):
        for path in (kernels_dir / top).rglob("*"):
            made = path.suffix != COMPILED and "__pycache__" not in path.parts
            if made and path.is_file():
                yield path


def _command_of(path: Path) -> str:
    """Return the command that made a source, which its first line says."""
    with path.open(errors="replace") as file:
        return file.readline().rstrip("\n").lstrip("/# ")
