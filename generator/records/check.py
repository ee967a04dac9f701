"""Checking a kernels folder: its muGraphs proved again, its sources emitted again."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path

from mirage_kernels.generator.errors import FileError, JobError, MirageError
from mirage_kernels.generator.ir import DType, Graph, dumps, retile, to_json
from mirage_kernels.generator.ir import check as check_graph
from mirage_kernels.generator.pipeline import graphs_of, prove_record, proved_graphs
from mirage_kernels.generator.recipe import (
    Recipe,
    Shape,
    catalog,
    load_function,
    load_recipe,
    trace,
)
from mirage_kernels.generator.records.folder import (
    emitted,
    emitted_files,
    sources_of,
    without_plan,
)
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.records.sources import recipe_sources, table_of
from mirage_kernels.generator.request import Event, Progress
from mirage_kernels.generator.search.gate import Gate, Measured

EXTENT = re.compile(r"=\d+")  # of a dim, in a muGraph's text
NO_FUNCTION = (
    "a PyTorch function's program is checked by `mirage-kernels check FILE.py:NAME --kernels DIR`"
)
ERRORS_ALIKE = 0.1  # of an error: records have two digits, and sums of another BLAS other last bits

Remade = Callable[[Sequence[KernelRecord]], list["KernelRecord | MirageError"]]


@dataclass(frozen=True)
class Difference:
    """A committed file that is not what the generator makes, or a muGraph that does not prove."""

    path: str
    reason: str
    diff: str = ""


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
    are those of the catalog and of `recipe_files`, where `FILE.py:NAME` names a PyTorch function:
    it is cut again, and its kernels and the order of its steps are compared.
    """
    kernels = emitted(kernels_dir)
    found = kernels | without_plan(kernels_dir)
    reasons: dict[str, str] = {}  # what is wrong, by path
    proved: dict[str, dict[str, KernelRecord]] = {}  # by recipe, then by path
    known = _known(tuple(recipe_files), kernels_dir)
    expected: dict[str, str] = {}
    with _processes(jobs) as pool:
        outcomes = _remade_by_path(found, pool, partial(_remade, recipe_files, kernels_dir))
        for done, (path, outcome) in enumerate(outcomes, start=1):
            progress(Event("check", done, len(found), path))
            if isinstance(outcome, MirageError):
                reasons[path] = outcome.sentence
                outcome = found[path]
            proved.setdefault(outcome.recipe, {})[path] = outcome
        bad = [alike.keys() & reasons.keys() for alike in proved.values()]
        for files, wrong in pool.map(partial(_expected_of, kernels_dir), proved.values(), bad):
            expected |= files
            reasons |= wrong
    for arch in sorted({r.arch for r in found.values()}):
        of_arch = [r for r in kernels.values() if r.arch == arch]
        expected[f"{arch}/table.cpp"] = table_of(arch, of_arch)
    expected |= known.programs
    from mirage_kernels.generator.partition.again import documents_in  # with torch

    reasons |= dict.fromkeys(documents_in(kernels_dir).keys() - known.programs.keys(), NO_FUNCTION)
    expected |= {path: _content(kernels_dir / path) for path in reasons if path not in expected}
    differences = [Difference(path, reason) for path, reason in reasons.items()]
    return differences + _compared(kernels_dir, expected)


def _expected_of(
    kernels_dir: Path, alike: Mapping[str, KernelRecord], bad: set[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the files of a recipe's records, and what is wrong with those that give none.

    Where one of them is bad, it and the sources are taken as they are: forms are shared, and what
    its own would be is not known.
    """
    wrong: dict[str, str] = {}
    if not bad:
        try:
            return recipe_sources(list(alike.values())), wrong
        except Exception:  # as in `_remade`
            wrong = {p: s for p, r in alike.items() if (s := _why_unwritten(r))}
            if not wrong:
                raise
    bad |= wrong.keys()
    good = {r.path: r.text() for path, r in alike.items() if path not in bad}
    taken = {kernels_dir / path for path in bad} | sources_of(kernels_dir, alike.values())
    return {str(p.relative_to(kernels_dir)): _content(p) for p in taken} | good, wrong


def _why_unwritten(record: KernelRecord) -> str:
    """Return why a record has no sources, or nothing."""
    try:
        recipe_sources([record])
    except Exception as error:
        return _sentence_of(error).sentence
    return ""


def _remade_by_path(
    found: Mapping[str, KernelRecord], pool: ProcessPoolExecutor, remade: Remade
) -> Iterator[tuple[str, KernelRecord | MirageError]]:
    """Yield what `_remade` says of every record."""
    alike: dict[str, list[str]] = {}
    for path, record in found.items():
        alike.setdefault(_what_is_proved(path, record), []).append(path)
    groups = [[found[path] for path in paths] for paths in alike.values()]
    for paths, outcomes in zip(alike.values(), pool.map(remade, groups), strict=True):
        yield from zip(paths, outcomes, strict=True)


@contextmanager
def _processes(jobs: int | None) -> Iterator[ProcessPoolExecutor]:
    """Give a pool of processes; an interrupt waits for nothing.

    Raises JobError where one of them is lost.
    """
    pool = ProcessPoolExecutor(jobs or os.cpu_count())
    try:
        yield pool
    except BrokenProcessPool as error:
        raise JobError(
            "a process that proved kernels again was killed, most often for want of memory",
            "fewer at once take less: --jobs 1",
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _what_is_proved(path: str, record: KernelRecord) -> str:
    """Return all that a proof depends on: finite fields know neither storage type nor GPU."""
    try:
        proved = proved_graphs(record)
    except Exception:  # the record was edited: `_remade` says what is wrong with it
        return path
    graphs = [dumps(to_json(g)).replace(DType.BF16.value, DType.FP16.value) for g in proved]
    return repr((record.recipe, sorted(record.shape.items()), [*proved.values()], graphs))


def _remade(
    recipe_files: Sequence[str], kernels_dir: Path, alike: Sequence[KernelRecord]
) -> list[KernelRecord | MirageError]:
    """Return records of which one proof holds for all, proved again, or what is wrong."""
    try:
        proof = proved_again(alike[0], recipe_files, kernels_dir).proof
        recipes = [_recipe_of(record, recipe_files, kernels_dir) for record in alike]
    except Exception as error:  # a record that was edited may lead to anything
        return [_sentence_of(error) for _ in alike]
    pairs = zip(alike, recipes, strict=True)
    return [_measured(replace(record, proof=proof), *known) for record, known in pairs]


def _measured(proved: KernelRecord, recipe: Recipe, spec: Graph) -> KernelRecord | MirageError:
    """Return a record with its recipe's summary, or what is wrong with its errors."""
    try:
        check_graph(proved.graph)
        gate = _gate_of(recipe, spec, proved.storage)
        measured = [gate.errors(graph) for graph in graphs_of(proved)]
        _require_errors(proved, measured[0])
        return replace(proved, summary=recipe.summary)
    except Exception as error:  # as above
        return _sentence_of(error)


class _Gate(Gate):
    """A recipe's gate for all its shapes: it has extents and tiles of its own."""

    @cached_property
    def known(self) -> dict[str, tuple[Measured, ...]]:
        """What was measured, by the text of what it depends on."""
        return {}

    def errors(self, graph: Graph) -> tuple[Measured, ...]:
        """Return a muGraph's errors, which are those of the same one of another shape."""
        text = EXTENT.sub("", dumps(to_json(retile(graph, self.tiles()))))
        if text not in self.known:
            self.known[text] = self.measure(graph)
        return self.known[text]


_gates: list[_Gate] = []


def _gate_of(recipe: Recipe, spec: Graph, dtype: DType) -> _Gate:
    known = next((g for g in _gates if g.recipe is recipe and g.dtype is dtype), None)
    if known is None:
        known = _Gate(spec, recipe, dtype)
        _gates[len(recipe.dtypes) - 1 :] = []  # records come recipe by recipe
        _gates.insert(0, known)
    return known


def _require_errors(record: KernelRecord, measured: Sequence[Measured]) -> None:
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


def proved_again(
    record: KernelRecord, recipe_files: Sequence[str] = (), kernels_dir: Path | None = None
) -> KernelRecord:
    """Return the record with its proof made anew from its recipe as it is now.

    Raises VerifyError when the muGraph does not prove, FileError for a recipe that is gone.
    """
    spec = _recipe_of(record, recipe_files, kernels_dir)[1]
    return prove_record(record, spec, lambda event: None)


@dataclass(frozen=True)
class Known:
    """Recipes by name, and the texts of programs of several steps by path."""

    recipes: dict[str, Recipe]
    programs: dict[str, str]


@cache
def _known(recipe_files: tuple[str, ...], kernels_dir: Path | None) -> Known:
    """Return what files define, each read once by a process; functions as a folder has them cut."""
    recipes, programs = catalog(), dict[str, str]()
    for file in recipe_files:
        function = load_function(file)
        if function is None:
            recipe = load_recipe(file)
            recipes[recipe.name] = recipe
        elif kernels_dir is not None:
            from mirage_kernels.generator.partition import again, document  # with torch

            there = emitted(kernels_dir)
            for path, before, made in again.programs_again(function, kernels_dir, there):
                own = made.document, kernels_dir, before.get("origin")
                programs[path] = document.document_text(*own)
                recipes |= {r.record.recipe: r.request.recipe for r in made.results}
    return Known(recipes, programs)


def _recipe_of(
    record: KernelRecord, recipe_files: Sequence[str], kernels_dir: Path | None
) -> tuple[Recipe, Graph]:
    """Return a record's recipe and what it computes at the record's shape."""
    known = _known(tuple(recipe_files), kernels_dir).recipes
    if record.recipe not in known:
        raise FileError(
            f"recipe {record.recipe} is not in the catalog; kernels of a recipe file are checked "
            "by `mirage-kernels check FILE --kernels DIR`, where FILE.py:NAME names a function"
        )
    recipe = known[record.recipe]
    return recipe, trace(recipe, Shape(record.source, record.shape), record.storage)


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
            shown = file.read_bytes().decode(errors="replace").splitlines(keepends=True)
            lines = text.splitlines(keepends=True)
            names = f"committed/{path}", f"generated/{path}"
            diff = "".join(difflib.unified_diff(shown, lines, *names))
            reason = "the file is not what the generator makes"
            differences.append(Difference(path, reason, diff))
    present = {str(path.relative_to(kernels_dir)) for path in emitted_files(kernels_dir)}
    stray = sorted(present - set(expected))
    return differences + [Difference(p, "no committed record makes this file") for p in stray]
