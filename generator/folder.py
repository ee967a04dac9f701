"""The kernels folder: writing results into it, reading it back, checking it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from mirage_kernels.generator.errors import FileError, MirageError
from mirage_kernels.generator.files import write_whole
from mirage_kernels.generator.ir import DType, Graph, dumps, to_json
from mirage_kernels.generator.ir import check as check_graph
from mirage_kernels.generator.pipeline import Result, proof_cases, prove_record
from mirage_kernels.generator.recipe import Recipe, Shape, catalog, trace
from mirage_kernels.generator.record import MUGRAPH_ENDING, Emitted, KernelRecord, load_emitted
from mirage_kernels.generator.request import Event, Progress
from mirage_kernels.generator.search.gate import Gate
from mirage_kernels.generator.sources import sources_of, table_of
from mirage_kernels.generator.target import TARGETS

E = TypeVar("E", bound=Emitted)


@dataclass(frozen=True)
class Difference:
    """A committed file that is not what the generator makes, or a muGraph that does not prove."""

    path: str
    reason: str
    diff: str = ""


def write(results: Sequence[Result], kernels_dir: Path) -> list[Path]:
    """Write the files of results and the tables of their architectures; return their paths.

    Each file is written whole or not at all; the table, which names the others, comes last.
    Raises FileError for a folder that cannot be written.
    """
    written = []
    for result in results:
        for name, text in result.files.items():
            written.append(write_whole(kernels_dir / name, text))
    for arch in sorted({r.request.arch for r in results}):
        table = table_of(arch, list(emitted(kernels_dir, arch).values()))
        written.append(write_whole(kernels_dir / arch / "table.cpp", table))
    return written


def emitted(kernels_dir: Path, arch: str = "*") -> dict[str, Emitted]:
    """Return every committed kernel by the path of its record below the folder."""
    paths = sorted(kernels_dir.glob(f"{arch}/*/*.json"))
    paths = [p for p in paths if not p.name.endswith(MUGRAPH_ENDING)]
    return {str(p.relative_to(kernels_dir)): load_emitted(p) for p in paths}


def records(kernels_dir: Path, arch: str = "*") -> dict[str, KernelRecord]:
    """Return the committed kernels that stream weights, which are tuned and measured alike."""
    found = emitted(kernels_dir, arch).items()
    return {path: record for path, record in found if isinstance(record, KernelRecord)}


def check(kernels_dir: Path, *, progress: Progress, jobs: int | None = None) -> list[Difference]:
    """Re-verify every committed muGraph and re-emit every committed source.

    Returns what differs: a recipe that is gone, a muGraph that does not prove, a proof record or a
    source that is not byte for byte what the generator makes, a file that nothing makes.
    """
    found = emitted(kernels_dir)
    differences = []
    expected: dict[str, str] = {}
    for done, (path, outcome) in enumerate(_remade_by_path(found, jobs), start=1):
        progress(Event("check", done, len(found), path))
        if isinstance(outcome, MirageError):
            differences.append(Difference(path, outcome.sentence))
            expected |= _as_they_are(kernels_dir, path)
        else:
            expected |= outcome
    for arch in sorted({r.arch for r in found.values()}):
        of_arch = [r for r in found.values() if r.arch == arch]
        expected[f"{arch}/table.cpp"] = table_of(arch, of_arch)
    return differences + _compared(kernels_dir, expected)


def _remade_by_path(
    found: Mapping[str, Emitted], jobs: int | None
) -> Iterator[tuple[str, dict[str, str] | MirageError]]:
    """Yield what `_remade` says of every record; an interrupt waits for nothing."""
    alike: dict[str, list[str]] = {}
    for path, record in found.items():
        alike.setdefault(_what_is_proved(record), []).append(path)
    groups = [[found[path] for path in paths] for paths in alike.values()]
    pool = ProcessPoolExecutor(jobs or os.cpu_count())
    try:
        for paths, outcomes in zip(alike.values(), pool.map(_remade, groups), strict=True):
            yield from zip(paths, outcomes, strict=True)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _what_is_proved(record: Emitted) -> str:
    """Return all that a proof depends on: finite fields know neither storage type nor GPU."""
    graph = dumps(to_json(record.graph)).replace(DType.BF16.value, DType.FP16.value)
    return repr((record.recipe, sorted(record.shape.items()), proof_cases(record), graph))


def _remade(alike: Sequence[Emitted]) -> list[dict[str, str] | MirageError]:
    """Return the files of records of which one proof holds for all, or why there are none."""
    try:
        proof = proved_again(alike[0]).proof
    except MirageError as error:
        return [error for _ in alike]
    return [_emitted(replace(record, proof=proof)) for record in alike]


def _emitted(proved: Emitted) -> dict[str, str] | MirageError:
    try:
        recipe, spec = _spec_of(proved)
        check_graph(proved.graph)
        Gate(spec, recipe, proved.storage).measure(proved.graph)
        return sources_of(proved)
    except MirageError as error:
        return error


def proved_again(record: E) -> E:
    """Return the record with its proof made anew from the recipe as it is now.

    Raises VerifyError when the muGraph does not prove.
    """
    return prove_record(record, _spec_of(record)[1], lambda event: None)


def _spec_of(record: Emitted) -> tuple[Recipe, Graph]:
    known = catalog()
    if record.recipe not in known:
        raise FileError(f"recipe {record.recipe} is not in the catalog any more")
    recipe = known[record.recipe]
    return recipe, trace(recipe, Shape(record.source, record.shape), record.storage)


def _as_they_are(kernels_dir: Path, record_path: str) -> dict[str, str]:
    base = record_path.removesuffix(".json")
    paths = [kernels_dir / f"{base}{ending}" for ending in (".json", ".cu", ".py")]
    return {str(p.relative_to(kernels_dir)): p.read_text() for p in paths if p.is_file()}


def _compared(kernels_dir: Path, expected: dict[str, str]) -> list[Difference]:
    differences = []
    for path, text in sorted(expected.items()):
        file = kernels_dir / path
        if not file.is_file():
            differences.append(Difference(path, "the file is missing"))
        elif file.read_text() != text:
            reason = "the file is not what the generator makes"
            differences.append(Difference(path, reason, _diff(path, file.read_text(), text)))
    present = {
        str(p.relative_to(kernels_dir))
        for arch in TARGETS
        for p in (kernels_dir / arch).rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }
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
