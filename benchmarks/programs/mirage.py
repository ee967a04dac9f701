"""Generates kernels of programs recorded with `mi`: python -m programs.mirage --out DIR

Each is superoptimized, and the kernel of its best muGraph goes into DIR, at every batch size it
names, in fp16. With --checkpoints also the best of the muGraphs in Mirage's files that are proved
equal to the program. A row per program and batch size goes into DIR/programs.json.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.mirage.kernels import kernel_of
from programs import PROGRAMS, Program
from programs.generate import Command, Row, catalogs_of, described, parser_of
from programs.recorded import Recorded


def generated(program: Program, options: argparse.Namespace) -> list[Row]:
    """Generate the kernels of one program and return a row for each batch size."""
    assert isinstance(program, Recorded)
    rows: list[Row] = []
    for count in program.rows:
        started = time.monotonic()
        row = {"program": program.name, "dtype": "fp16", "rows": count}
        row |= _row(program, count, options)
        rows.append(row | {"seconds": round(time.monotonic() - started, 2)})
    return rows


def _row(program: Recorded, count: int, options: argparse.Namespace) -> Row:
    try:
        found = program.superoptimized(count, options.checkpoints)
        kernel = kernel_of(found, program.recipe, [*program.shapes], catalogs_of(options))
        written = kernel.write(options.out)
    except MirageError as error:
        return {"reason": f"{type(error).__name__}: {error.sentence}"}
    return {"muGraphs": found.proved, **described([kernel.result], written)}


def main() -> None:
    """Generate all programs, or those that are named; checkpoints where there is a folder."""
    parser = parser_of(__doc__)
    parser.add_argument("--checkpoints", type=Path, help="folder of Mirage's checkpoints")
    options = parser.parse_args()
    chosen = [
        one
        for one in PROGRAMS.values()
        if isinstance(one, Recorded) and (options.checkpoints or not one.checkpoint)
    ]
    own = ["--checkpoints", str(options.checkpoints)] if options.checkpoints else []
    Command("programs.mirage", generated, options, own).run(chosen)


if __name__ == "__main__":
    main()
