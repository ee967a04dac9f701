"""The kernels folder: writing results into it, reading it back, checking it."""

from __future__ import annotations

import difflib
import fcntl
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from mirage_kernels.generator.emit.forms import FORMS
from mirage_kernels.generator.errors import FileError, JobError, MirageError
from mirage_kernels.generator.ir import DType, Graph, dumps, to_json
from mirage_kernels.generator.ir import check as check_graph
from mirage_kernels.generator.pipeline import Result, proof_cases, prove_record
from mirage_kernels.generator.plan.program import Roles
from mirage_kernels.generator.recipe import Recipe, Shape, catalog, load_recipe, trace
from mirage_kernels.generator.records.files import OUT_HINT, write_whole
from mirage_kernels.generator.records.headers import recipe_command
from mirage_kernels.generator.records.record import (
    MUGRAPH_ENDING,
    KernelRecord,
    MuGraphRecord,
    Record,
    load_mugraph,
    load_record,
)
from mirage_kernels.generator.records.sources import recipe_sources, table_of
from mirage_kernels.generator.request import Event, Progress
from mirage_kernels.generator.search.gate import Gate, Measured
from mirage_kernels.generator.target import TARGETS

R = TypeVar("R", bound=Record)
SOURCES = (".cu", ".cuh", ".py")
INCLUDE = re.compile(r'^#include "([^"]*)"$', re.MULTILINE)
ERRORS_ALIKE = 0.1  # of an error: records have two digits, and sums of another BLAS other last bits


@dataclass(frozen=True)
class Difference:
    """A committed file that is not what the generator makes, or a muGraph that does not prove."""

    path: str
    reason: str
    diff: str = ""


def write(results: Sequence[Result], kernels_dir: Path) -> list[Path]:
    """Write the files of results and the tables of their architectures; return their paths.

    Each file is written whole or not at all; the table, which names the others, comes last. Sources
    of a recipe are made of all of its records, for forms are shared: those of kernels that were
    there before may change their names, and what no record makes any more is removed.
    Raises FileError for a folder that cannot be written.
    """
    made = [result.record for result in results]
    written = [write_whole(kernels_dir / record.path, record.text()) for record in made]
    with _alone_in(kernels_dir):
        found = list(emitted(kernels_dir).values())
        for recipe in sorted({record.recipe for record in made}):
            written += _write_recipe([r for r in found if r.recipe == recipe], kernels_dir)
        for arch in sorted({record.arch for record in made}):
            table = table_of(arch, [record for record in found if record.arch == arch])
            written.append(write_whole(kernels_dir / arch / "table.cpp", table))
    return list(dict.fromkeys(written))


def _write_recipe(alike: Sequence[KernelRecord], kernels_dir: Path) -> list[Path]:
    """Write the sources of a recipe's records; remove those that an earlier generation left."""
    written = [write_whole(kernels_dir / n, text) for n, text in recipe_sources(alike).items()]
    made_by = {command for record in alike for command in (record.command, recipe_command(record))}
    for path in sorted(set(_present(kernels_dir)).difference(written)):
        if path.suffix in SOURCES and _maker(path) in made_by:
            _remove(path)
    return written


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


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        raise FileError(f"{path} cannot be removed: {error.strerror}", OUT_HINT) from error


def sources_below(kernels_dir: Path, record: KernelRecord) -> list[Path]:
    """Return the sources that a record made: its instantiations, the forms that they include."""
    names = (f"{record.stem}.cu", f"{record.stem}.py")
    found = {path for name in names for path in (kernels_dir / record.arch).glob(f"*/{name}")}
    sources = {path for path in found if _maker(path) == record.command}
    for path in found & sources:
        sources |= _included(path)
    programs = {f"triton{suffix}.py" for suffix in _suffixes(record)}
    beside = {folder / name for folder in {p.parent for p in sources - found} for name in programs}
    return sorted(sources | {path for path in beside if path.is_file()})


def _suffixes(record: KernelRecord) -> Iterator[str]:
    """Yield what may stand behind the name of a form that a record has (`forms.py`)."""
    extents = (f"{name}{size}" for name, size in record.shape.items())
    whole = f"{record.stem}_{record.arch}"
    yield from ("", *(f"_{word}" for word in (record.dtype, record.arch, *extents, whole)))


def _present(kernels_dir: Path) -> Iterator[Path]:
    """Yield every file of the folder that may have been emitted."""
    for top in (FORMS, *TARGETS):
        for path in (kernels_dir / top).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def _included(path: Path) -> set[Path]:
    """Return the files beside a file that it includes, and what they include."""
    named = INCLUDE.findall(path.read_text(errors="replace"))
    beside = {Path(os.path.normpath(path.parent / name)) for name in named}
    present = {file for file in beside if file.is_file()}
    return present.union(*map(_included, present))


def _maker(path: Path) -> str:
    """Return the command that made a source, which its first line says."""
    with path.open(errors="replace") as file:
        return file.readline().rstrip("\n").lstrip("/# ")


def emitted(kernels_dir: Path, arch: str = "*") -> dict[str, KernelRecord]:
    """Return every committed kernel by the path of its record below the folder."""
    paths = sorted(kernels_dir.glob(f"{arch}/*/*.json"))
    paths = [p for p in paths if not p.name.endswith(MUGRAPH_ENDING)]
    return {str(p.relative_to(kernels_dir)): load_record(p) for p in paths}


def without_plan(kernels_dir: Path) -> dict[str, MuGraphRecord]:
    """Return every muGraph that was kept without a kernel, by its path below the folder."""
    paths = sorted(kernels_dir.glob(f"*/*/*{MUGRAPH_ENDING}"))
    return {str(p.relative_to(kernels_dir)): load_mugraph(p) for p in paths}


def records(kernels_dir: Path, arch: str = "*") -> dict[str, KernelRecord]:
    """Return the committed kernels that stream weights, which are tuned and measured alike."""
    found = emitted(kernels_dir, arch).items()
    return {path: record for path, record in found if isinstance(record.roles, Roles)}


def check(
    kernels_dir: Path,
    *,
    progress: Progress,
    jobs: int | None = None,
    recipe_files: Sequence[str] = (),
) -> list[Difference]:
    """Re-verify every committed muGraph and re-emit every committed source.

    Returns what differs: a recipe that is gone, a muGraph that does not prove, a proof record or a
    source that is not byte for byte what the generator makes, a file that nothing makes. Recipes
    are those of the catalog and of `recipe_files`.
    """
    kernels = emitted(kernels_dir)
    found: dict[str, Record] = {**kernels, **without_plan(kernels_dir)}
    differences, proved = [], dict(found)
    outcomes = _remade_by_path(found, jobs, recipe_files)
    for done, (path, outcome) in enumerate(outcomes, start=1):
        progress(Event("check", done, len(found), path))
        if isinstance(outcome, MirageError):
            differences.append(Difference(path, outcome.sentence))
        else:
            proved[path] = outcome
    failed = {difference.path for difference in differences}
    expected: dict[str, str] = {}
    for alike in _by_recipe(proved).values():
        expected |= _expected_of(kernels_dir, alike, failed, differences)
    for arch in sorted({r.arch for r in found.values()}):
        of_arch = [r for r in kernels.values() if r.arch == arch]
        expected[f"{arch}/table.cpp"] = table_of(arch, of_arch)
    return differences + _compared(kernels_dir, expected)


def _by_recipe(found: Mapping[str, Record]) -> dict[str, dict[str, Record]]:
    groups: dict[str, dict[str, Record]] = {}
    for path, record in found.items():
        groups.setdefault(record.recipe, {})[path] = record
    return groups


def _expected_of(
    kernels_dir: Path, alike: Mapping[str, Record], failed: set[str], found: list[Difference]
) -> dict[str, str]:
    """Return the files of a recipe's records.

    Where one of them failed, or cannot be emitted (which is added to `found`), sources are taken as
    they are: forms are shared, and what its own would be is not known.
    """
    emitting = {p: r for p, r in alike.items() if not isinstance(r, MuGraphRecord)}
    refused = {path: error for path, r in emitting.items() if (error := _refusal(r))}
    found += [Difference(p, error.sentence) for p, error in refused.items() if p not in failed]
    bad = {kernels_dir / path for path in alike if path in failed or path in refused}
    records = {r.path: r.text() for path, r in alike.items() if kernels_dir / path not in bad}
    if not bad:
        return records | recipe_sources(list(emitting.values()))
    sources = {p for record in emitting.values() for p in sources_below(kernels_dir, record)}
    return records | {str(p.relative_to(kernels_dir)): _content(p) for p in sources | bad}


def _refusal(record: KernelRecord) -> MirageError | None:
    """Return why a record cannot be emitted, if it cannot."""
    try:
        recipe_sources([record])
    except Exception as error:  # a record that was edited may lead to anything
        return _sentence_of(error)
    return None


def _remade_by_path(
    found: Mapping[str, Record], jobs: int | None, recipe_files: Sequence[str]
) -> Iterator[tuple[str, Record | MirageError]]:
    """Yield what `_remade` says of every record; an interrupt waits for nothing.

    Raises JobError where a process of its pool is lost.
    """
    alike: dict[str, list[str]] = {}
    for path, record in found.items():
        alike.setdefault(_what_is_proved(path, record), []).append(path)
    groups = [[found[path] for path in paths] for paths in alike.values()]
    pool = ProcessPoolExecutor(jobs or os.cpu_count())
    remade = partial(_remade, recipe_files)
    try:
        for paths, outcomes in zip(alike.values(), pool.map(remade, groups), strict=True):
            yield from zip(paths, outcomes, strict=True)
    except BrokenProcessPool as error:
        raise JobError(
            "a process that proved kernels again was killed, most often for want of memory",
            "fewer at once take less: --jobs 1",
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _what_is_proved(path: str, record: Record) -> str:
    """Return all that a proof depends on: finite fields know neither storage type nor GPU."""
    graph = dumps(to_json(record.graph)).replace(DType.BF16.value, DType.FP16.value)
    try:
        cases = proof_cases(record)
    except Exception:  # the record was edited: `_remade` says what is wrong with it
        return path
    return repr((record.recipe, sorted(record.shape.items()), cases, graph))


def _remade(recipe_files: Sequence[str], alike: Sequence[Record]) -> list[Record | MirageError]:
    """Return records of which one proof holds for all, proved again, or what is wrong."""
    try:
        recipe = _recipe_of(alike[0], recipe_files)
        proof = _proved(alike[0], recipe).proof
    except Exception as error:  # a record that was edited may lead to anything
        return [_sentence_of(error) for _ in alike]
    return [_measured(replace(record, proof=proof), recipe) for record in alike]


def _measured(proved: Record, recipe: Recipe) -> Record | MirageError:
    try:
        check_graph(proved.graph)
        measured = Gate(_spec_of(proved, recipe), recipe, proved.storage).measure(proved.graph)
        _require_errors(proved, measured)
        return replace(proved, summary=recipe.summary)
    except Exception as error:  # as above
        return _sentence_of(error)


def _require_errors(record: Record, measured: Sequence[Measured]) -> None:
    """Raise FileError where a record tells of other errors than those measured now."""
    told = {m.distribution: (m.error, m.unfused) for m in record.accuracy}
    found = {m.distribution: (m.error, m.unfused) for m in measured}
    for name in sorted(told.keys() | found.keys()):
        said, is_ = told.get(name, ()), found.get(name, ())
        alike = (a == b or abs(a - b) <= ERRORS_ALIKE * b for a, b in zip(said, is_, strict=False))
        if len(said) != len(is_) or not all(alike):
            raise FileError(
                f"its errors on inputs {name} are {said} in the record, {is_} as measured now",
                "`mirage-kernels generate` makes the record anew",
            )


def _sentence_of(error: Exception) -> MirageError:
    """Return an error that the check of one record met as what is wrong with that record."""
    if isinstance(error, MirageError):
        return error
    words = str(error).partition("\n")[0]
    return FileError(f"no kernel can be made of this record: {type(error).__name__}: {words}")


def proved_again(record: R) -> R:
    """Return the record with its proof made anew from the catalog's recipe as it is now.

    Raises VerifyError when the muGraph does not prove.
    """
    return _proved(record, _recipe_of(record))


def _proved(record: R, recipe: Recipe) -> R:
    return prove_record(record, _spec_of(record, recipe), lambda event: None)


@cache
def _known(recipe_files: tuple[str, ...]) -> dict[str, Recipe]:
    """Return recipes by name, each file read once by a process."""
    return catalog() | {recipe.name: recipe for recipe in map(load_recipe, recipe_files)}


def _recipe_of(record: Record, recipe_files: Sequence[str] = ()) -> Recipe:
    known = _known(tuple(recipe_files))
    if record.recipe not in known:
        raise FileError(
            f"recipe {record.recipe} is not in the catalog; kernels of a recipe file are checked "
            "by `mirage-kernels check FILE --kernels DIR`"
        )
    return known[record.recipe]


def _spec_of(record: Record, recipe: Recipe) -> Graph:
    return trace(recipe, Shape(record.source, record.shape), record.storage)


def _content(path: Path) -> str:
    """Return a file's text from which its bytes could be made again, whatever they are."""
    return path.read_bytes().decode(errors="surrogateescape")


def _compared(kernels_dir: Path, expected: dict[str, str]) -> list[Difference]:
    differences = []
    for path, text in sorted(expected.items()):
        file = kernels_dir / path
        if not file.is_file():
            differences.append(Difference(path, "the file is missing"))
        elif _content(file) != text:
            reason = "the file is not what the generator makes"
            shown = file.read_bytes().decode(errors="replace")
            differences.append(Difference(path, reason, _diff(path, shown, text)))
    present = {str(path.relative_to(kernels_dir)) for path in _present(kernels_dir)}
    stray = sorted(present - set(expected))
    return differences + [Difference(p, "no committed record makes this file") for p in stray]


def _diff(path: str, committed: str, made: str) -> str:
    lines = difflib.unified_diff(
        committed.splitlines(keepends=True),
        made.splitlines(keepends=True),
        f"committed/{path}",
        f"generated/{path}",
    )
    return "".join(lines)
