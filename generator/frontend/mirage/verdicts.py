"""The verdict on every graph of a checkpoint: parsed or not, equal to a recipe or refused, and why.

The graphs of a file come from one program, so they are bound to the recipe alike: under the binding
that most of them are equal with. A graph that is equal under another one only is refused.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mirage_kernels.generator.errors import GraphError, MirageError, SearchError, VerifyError
from mirage_kernels.generator.frontend.mirage.checkpoints import read_checkpoint
from mirage_kernels.generator.frontend.mirage.proofs import Bound, Choice, Terms, prove
from mirage_kernels.generator.frontend.positional.lower import Lowered, lower
from mirage_kernels.generator.frontend.positional.program import Program
from mirage_kernels.generator.search.verify import Proof


@dataclass(frozen=True)
class Verdict:
    """What is known of one graph; `reason` says why it is not parsed, or not equal."""

    number: int
    program: Lowered | None
    reason: str = ""
    proof: Proof | None = None
    choice: Choice | None = None

    @property
    def kernels(self) -> int:
        """How many kernels the graph launches."""
        nodes = self.program.graph.nodes if self.program else ()
        return sum(n.op not in ("input", "const", "size") for n in nodes)


def parsed(number: int, found: Program | str) -> Verdict:
    """Return a graph with named dims, or why it has none."""
    if isinstance(found, str):
        return Verdict(number, None, found)
    try:
        return Verdict(number, lower(found))
    except GraphError as error:
        return Verdict(number, None, error.sentence)


def verified(
    terms: Terms, verdicts: Sequence[Verdict], progress: Callable[[int, int], None]
) -> list[Verdict]:
    """Return the verdicts on parsed graphs of one file, compared with a recipe."""
    found: list[Verdict] = []
    for done, verdict in enumerate(verdicts, start=1):
        favourite = next((v.choice for v in found if v.choice), None)
        found.append(_judged(terms, verdict, favourite))
        progress(done, len(verdicts))
    for chosen, _ in Counter(v.choice for v in found if v.choice).most_common(1):
        for i, verdict in enumerate(found):
            if verdict.choice not in (None, chosen):
                found[i] = _judged(terms, verdict, chosen, only=True)
    return found


def _judged(
    terms: Terms, verdict: Verdict, favourite: Choice | None, *, only: bool = False
) -> Verdict:
    """Return the verdict on one graph, the favourite binding tried first, or nothing but it."""
    if verdict.program is None:
        return verdict
    try:
        bound = sorted(terms.bindings(verdict.program), key=lambda one: one.choice != favourite)
    except VerifyError as error:
        why = f"{error.sentence}; {error.hint}" if error.hint else error.sentence
        return replace(verdict, reason=why)
    reason = f"equal only as {verdict.choice}, the file's other graphs are as {favourite}"
    if not only:
        reason = ""
    for one in bound:
        if not only or one.choice == favourite:
            try:
                return replace(verdict, reason="", proof=prove(one), choice=one.choice)
            except MirageError as error:
                reason = reason or error.sentence
    return Verdict(verdict.number, verdict.program, reason)


def recalled(path: Path, spec: Lowered) -> list[Lowered]:
    """Return the graphs of a checkpoint that are proved equal to `spec`, tensor by tensor.

    Raises FileError for a file that is no checkpoint, SearchError when no graph in it is equal.
    """
    graphs = read_checkpoint(path)
    found = []
    for program in (parsed(i, graph).program for i, graph in enumerate(graphs)):
        with contextlib.suppress(MirageError):  # refused: not equal
            if program is not None:
                proof_of(program, spec)
                found.append(program)
    if not found:
        raise SearchError(
            f"none of the {len(graphs)} graphs in {path.name} is equal to the recorded one",
            "`mirage-kernels import-mirage FILE --verify RECIPE` says why",
        )
    return found


def proof_of(program: Lowered, spec: Lowered) -> Proof:
    """Return the record of a proof that a program equals another one without blocks.

    Tensors are compared in order. Raises VerifyError where they differ.
    """
    if program.shapes != spec.shapes:
        raise VerifyError("the programs take or give tensors of other extents")
    layouts = (*spec.inputs, *spec.outputs)
    if any(len(row) > 1 for layout in layouts for row in layout):
        raise VerifyError("a dim of the recorded program is several dims of its graph")
    dims = [tuple(row[0] if row else None for row in layout) for layout in layouts]
    names = [n.name for n in spec.graph.inputs]
    choice = Choice(tuple(zip(names, dims, strict=False)), tuple(dims[len(names) :]))
    return prove(Bound(choice, spec.graph, {}, program))
