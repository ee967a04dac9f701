"""`mirage-kernels compile`: kernels of a folder become shared objects that the library loads."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from mirage_kernels.generator.build.programs import SharedObject, compile_programs
from mirage_kernels.generator.commands.arguments import JOBS, JSON
from mirage_kernels.generator.errors import FileError, PlanError
from mirage_kernels.generator.records.folder import emitted
from mirage_kernels.generator.records.programs import object_text
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.terminal import Terminal, counted


def _folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=Path, help="what `generate --out` wrote to")


def compile_folder(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Each kernel takes seconds, attention minutes; one that is compiled already stays as it is.

    A record without its source, as an interrupted `generate` leaves it, is named; the others are
    compiled, and the exit code is 1.

    `mirage_kernels.load("DIR")` adds kernels of the library's recipes to what its ops dispatch to,
    and makes programs of the others, called by name. MIRAGE_KERNELS_PATH=DIR does it at import.

    examples:
      mirage-kernels generate rms_norm_linear --shape K=5120,N=7168 --out mine
      mirage-kernels compile mine
      python -c "import mirage_kernels; print(mirage_kernels.load('mine'))"

      mirage-kernels generate my_function.py:layer --out mine
      mirage-kernels compile mine
      MIRAGE_KERNELS_PATH=mine python -c "import mirage_kernels; mirage_kernels.program('layer')"
    """
    folder: Path = arguments.folder
    wanted = list[SharedObject]()
    programs, lost = list[KernelRecord](), 0
    for path, record in emitted(folder).items():
        try:
            text = object_text(record)
        except PlanError as error:
            terminal.note(f"  left out: {error.sentence}")
            continue
        out = (folder / path).with_suffix(".so").resolve()
        names = (f"{record.stem}.cu", *text.beside)
        sources = tuple((out.parent / name).resolve() for name in names)
        if missing := [str(source) for source in sources if not source.is_file()]:
            lost += 1
            again = f"left out: without {', '.join(missing)}; generate it again"
            terminal.note(f"  {folder / path} is {again}: {record.command}")
            continue
        wanted.append(SharedObject(out, text.text, sources, text.uses_cute))
        programs += [] if text.serves_op else [record]
    if not wanted:
        raise FileError(
            f"{folder} holds no kernels to compile",
            "`mirage-kernels generate RECIPE|FILE --out DIR` writes them",
        )
    said = terminal.note
    made = compile_programs(
        wanted,
        jobs=arguments.jobs,
        progress=lambda stage, done, total, text: said(f"  {stage:<9}{done}/{total}  {text}"),
    )
    terminal.line(f"{counted(len(made), 'kernel')} in {folder}")
    _say_next(folder, len(made) > len(programs), programs, terminal)
    terminal.document({"compiled": [str(path) for path in made]})
    return int(lost > 0)


def _say_next(
    folder: Path, has_ops: bool, programs: Sequence[KernelRecord], terminal: Terminal
) -> None:
    names = ", ".join(sorted({record.recipe for record in programs}))
    terminal.line(f'next: mirage_kernels.load("{folder}"), or MIRAGE_KERNELS_PATH={folder}')
    if has_ops:
        terminal.line("ops of the library then find these kernels by type and shape")
    if names:
        terminal.line(f"called by name or by a program's steps: {names}")


VERBS = {"compile": (compile_folder, _folder, JOBS, JSON)}
