"""`mirage-kernels compile`: kernels of a folder become shared objects that programs load."""

from __future__ import annotations

import argparse
from pathlib import Path

from mirage_kernels.generator.build.programs import compile_programs
from mirage_kernels.generator.commands.arguments import JOBS, JSON
from mirage_kernels.generator.errors import FileError, PlanError
from mirage_kernels.generator.records.programs import program_source
from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.terminal import Terminal, counted


def _folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=Path, help="what `generate --out` wrote to")


def compile_folder(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Kernels whose shared object is newer than they are stay as they are. Each takes seconds.

    example:
      mirage-kernels generate my_function.py:layer --out mine
      mirage-kernels compile mine
      MIRAGE_KERNELS_PATH=mine python -c "import mirage_kernels; mirage_kernels.program('layer')"
    """
    texts = dict[Path, str]()
    for path in sorted(arguments.folder.glob("sm_*/*/*.json")):
        record = load_record(path)
        try:
            texts[path.with_suffix(".so").resolve()] = program_source(record)
        except PlanError as error:
            terminal.note(f"  left out: {error.sentence}")
    if not texts:
        raise FileError(
            f"{arguments.folder} holds no kernels that are programs",
            "`mirage-kernels generate FILE --out DIR` writes them",
        )
    said = terminal.note
    made = compile_programs(
        texts,
        jobs=arguments.jobs,
        progress=lambda stage, done, total, text: said(f"  {stage:<9}{done}/{total}  {text}"),
    )
    terminal.line(f"{counted(len(made), 'kernel')} in {arguments.folder}")
    terminal.document({"compiled": [str(path) for path in made]})
    return 0


VERBS = {"compile": (compile_folder, _folder, JOBS, JSON)}
