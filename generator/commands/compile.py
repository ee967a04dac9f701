"""`mirage-kernels compile`: kernels of a folder become shared objects that the library loads."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mirage_kernels.early_weights import first_kernels
from mirage_kernels.generator.build.programs import SharedObject, compile_programs, exported
from mirage_kernels.generator.commands.arguments import JOBS, JSON
from mirage_kernels.generator.errors import FileError, PlanError
from mirage_kernels.generator.records.documents import function_of, kernel_digest
from mirage_kernels.generator.records.folder import record_files
from mirage_kernels.generator.records.programs import is_of_the_catalog, object_text
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.schedules.general import GeneralRoles
from mirage_kernels.generator.terminal import Terminal, counted
from mirage_kernels.program_documents import DIGEST, document_files, read_document


def _folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=Path, help="what `generate --out` wrote to")


def compile_folder(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Each kernel takes seconds, attention minutes; one that is compiled already stays as it is.

    `mirage_kernels.load("DIR")` adds kernels of the library's recipes to what its ops dispatch to,
    and makes programs of the others, called by name. MIRAGE_KERNELS_PATH=DIR does it at import. A
    record that is damaged or lacks its source is named at the end, with exit code 1; the other
    kernels are compiled all the same.

    examples:
      mirage-kernels generate rms_norm_linear --shape K=5120,N=7168 --out mine
      mirage-kernels compile mine
      python -c "import mirage_kernels; print(mirage_kernels.load('mine'))"

      mirage-kernels generate my_function.py:layer --out mine
      mirage-kernels compile mine
      MIRAGE_KERNELS_PATH=mine python -c "import mirage_kernels; mirage_kernels.program('layer')"
    """
    folder: Path = arguments.folder
    found, failures = list[tuple[KernelRecord, SharedObject, bool]](), list[str]()
    records = dict(_records(folder, failures))
    programs = _programs(folder)
    first = _first_kernels(programs.values(), records.values())
    failures += _outdated(programs, records.values())
    for path, record in records.items():
        try:
            found.append(_wanted(path, record, waits_first=_key(record) in first))
        except PlanError as error:
            terminal.note(f"  left out: {error.sentence}")
        except FileError as error:
            failures.append(_failure(error))
    if not (found or failures):
        raise FileError(
            f"{folder} holds no kernels to compile",
            "`mirage-kernels generate RECIPE|FILE --out DIR` writes them",
        )
    made = _compiled([wanted for _, wanted, _ in found], arguments.jobs, terminal)
    terminal.line(f"{counted(len(made), 'kernel')} in {folder}")
    for failure in failures:
        terminal.line(f"FAILED {failure}")
    if found:
        _say_next(folder, [(record, serves_op) for record, _, serves_op in found], terminal)
    terminal.document({"compiled": [str(path) for path in made], "failed": failures})
    return 1 if failures else 0


def _compiled(wanted: Sequence[SharedObject], jobs: int | None, terminal: Terminal) -> list[Path]:
    """Compile shared objects; without any, no compiler is needed."""
    if not wanted:
        return []
    said = terminal.note
    return compile_programs(
        wanted,
        jobs=jobs,
        progress=lambda stage, done, total, text: said(f"  {stage:<9}{done}/{total}  {text}"),
    )


def _records(folder: Path, failures: list[str]) -> Iterator[tuple[Path, KernelRecord]]:
    """Yield the records of a folder with their files; those that are damaged are failures."""
    for path in record_files(folder):
        try:
            yield path, load_record(path)
        except FileError as error:
            failures.append(_failure(error))


def _failure(error: FileError) -> str:
    return f"{error.sentence}; {error.hint}"


def _key(record: KernelRecord) -> str:
    return f"{record.arch}/{record.recipe}_{record.stem}"


def _programs(folder: Path) -> dict[Path, dict[str, Any]]:
    """Return the programs of a folder; raises FileError for one of another version."""
    try:
        return {path: read_document(path) for path in document_files(folder)}
    except (ImportError, ValueError) as error:
        raise FileError(str(error), "`mirage-kernels generate` makes the program anew") from error


def _first_kernels(
    programs: Collection[Mapping[str, Any]], records: Collection[KernelRecord]
) -> frozenset[str]:
    """Return the kernels that let the next one start after their wait, since programs begin so."""
    general = {_key(record) for record in records if isinstance(record.roles, GeneralRoles)}
    return frozenset(key for each in programs for key in first_kernels(each, general))


def _outdated(
    programs: Mapping[Path, Mapping[str, Any]], records: Collection[KernelRecord]
) -> Iterator[str]:
    """Say which programs were generated with other kernels than those that are there now."""
    digests = {_key(record): kernel_digest(record) for record in records}
    for path, program in programs.items():
        wanted = {f"{program['arch']}/{k}": n for k, n in program.get("kernels", {}).items()}
        if others := [key for key, digest in wanted.items() if digests.get(key) != digest]:
            origin = program.get("origin")
            of = function_of(origin, path.parents[1]) if origin else "its function"
            yield (
                f"{path}: its kernels {', '.join(others)} are others now, or gone; generate {of} "
                "again, or remove the file"
            )


def _wanted(
    path: Path, record: KernelRecord, *, waits_first: bool
) -> tuple[KernelRecord, SharedObject, bool]:
    """Return a record, the shared object to make of it, and whether an op dispatches to that.

    Raises PlanError for a kernel that nothing calls, FileError for one without a source.
    """
    text = object_text(record, waits_first=waits_first)
    names = (f"{record.stem}.cu", *text.beside)
    sources = tuple((path.parent / name).resolve() for name in names)
    for source in sources:
        if not source.is_file():
            made_by = (
                record.command if is_of_the_catalog(record) else "mirage-kernels generate FILE"
            )
            raise FileError(
                f"{path}: its source {source.name} is not there",
                f"generate it again: {made_by} --out {shlex.quote(str(path.parents[2]))}",
            )
    out = path.with_suffix(".so").resolve()
    whole = text.text + exported(DIGEST, kernel_digest(record))
    return record, SharedObject(out, whole, sources, text.uses_cute), text.serves_op


def _say_next(
    folder: Path, kernels: Sequence[tuple[KernelRecord, bool]], terminal: Terminal
) -> None:
    names = ", ".join(sorted({record.recipe for record, serves_op in kernels if not serves_op}))
    terminal.line(f'next: mirage_kernels.load("{folder}"), or MIRAGE_KERNELS_PATH={folder}')
    if any(serves_op for _, serves_op in kernels):
        terminal.line("ops of the library then find these kernels by type and shape")
    if names:
        terminal.line(f"called by name or by a program's steps: {names}")


VERBS = {"compile": (compile_folder, _folder, JOBS, JSON)}
