"""MuGraphs of a checkpoint in place of a search: those that prove equal to a recorded graph."""

from __future__ import annotations

import contextlib
from math import prod
from pathlib import Path

from mirage_kernels.generator.errors import MirageError, SearchError, VerifyError
from mirage_kernels.generator.frontend.mirage.binding import Choice, Terms, bound_as
from mirage_kernels.generator.frontend.mirage.imports import read_checkpoint
from mirage_kernels.generator.frontend.mirage.lower import Layout, Lowered, lower
from mirage_kernels.generator.frontend.mirage.proofs import Goal, prove
from mirage_kernels.generator.search.verify import Proof


def recalled(path: Path, spec: Lowered) -> list[Lowered]:
    """Return the graphs of a checkpoint that are proved equal to `spec`, tensor by tensor.

    Raises FileError for a file that is no checkpoint, SearchError when no graph in it is equal.
    """
    graphs = read_checkpoint(path)
    found = []
    for one in graphs:
        with contextlib.suppress(MirageError):  # refused: not parsed, or not equal
            if one.program is not None:
                lowered = lower(one.program)
                proof_of(lowered, spec)
                found.append(lowered)
    if not found:
        raise SearchError(
            f"none of the {len(graphs)} graphs in {path.name} is equal to the recorded one",
            "`mirage-kernels import-mirage FILE --verify RECIPE` says why",
        )
    return found


def proof_of(program: Lowered, spec: Lowered) -> Proof:
    """Return the record of a proof that two programs are equal, tensor by tensor in order.

    Raises VerifyError where they are not.
    """
    if _shapes(program) != _shapes(spec):
        raise VerifyError("the programs take or give tensors of other extents")
    names = [n.name for n in spec.graph.inputs]
    inputs = tuple(zip(names, (_dims(layout) for layout in spec.inputs), strict=True))
    choice = Choice(inputs, tuple(_dims(layout) for layout in spec.outputs))
    stated = {name: tuple(d for d in dims if d) for name, dims in inputs}
    outputs = tuple(tuple(d for d in dims if d) for dims in choice.outputs)
    terms = Terms("the recorded graph", stated, outputs, {})
    return prove(Goal(spec.graph, outputs, {}), bound_as(choice, program, terms))


def _dims(layout: Layout) -> tuple[str | None, ...]:
    return tuple(row[0] if row else None for row in layout)


def _shapes(program: Lowered) -> list[list[int]]:
    extents = program.extents
    layouts = (*program.inputs, *program.outputs)
    return [[prod(extents[part] for part in row) for row in layout] for layout in layouts]
