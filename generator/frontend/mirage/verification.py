"""The verdict on every graph of a checkpoint: parsed or not, equal to a recipe or refused, and why.

The graphs of a file come from one program, so they are bound to the recipe alike: under the binding
that most of them are equal with. A graph that is equal under another one only is refused.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from mirage_kernels.generator.errors import (
    GraphError,
    MirageError,
    RecipeError,
    SearchError,
    VerifyError,
)
from mirage_kernels.generator.frontend.mirage.binding import (
    Choice,
    Held,
    Terms,
    bindings,
    bound_as,
    shape,
)
from mirage_kernels.generator.frontend.mirage.checkpoints import Imported, read_checkpoint
from mirage_kernels.generator.frontend.mirage.proofs import prove
from mirage_kernels.generator.frontend.positional.lower import Layout, Lowered, lower
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.recipe import Recipe, Shape, trace
from mirage_kernels.generator.search.verify import Proof

Progress = Callable[[int, int], None]


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
        if self.program is None:
            return 0
        return sum(n.op not in ("input", "const", "size") for n in self.program.graph.nodes)


def parsed(imported: Imported) -> Verdict:
    """Return a graph with named dims, or why it has none."""
    if imported.program is None:
        return Verdict(imported.number, None, imported.reason)
    try:
        return Verdict(imported.number, lower(imported.program))
    except GraphError as error:
        return Verdict(imported.number, None, error.sentence)


def terms_of(recipe: Recipe, held: Held) -> Terms:
    """Return what a recipe is stated in; raise RecipeError for a held input that it lacks."""
    inputs = {n: tuple(t.partition(":")[0].split()) for n, t in recipe.inputs.items()}
    dims = {d for names in inputs.values() for d in names}
    for name, value in held.items():
        if name not in inputs:
            raise RecipeError(
                f"{recipe.name} has no input {name!r} to hold", f"inputs: {', '.join(inputs)}"
            )
        if isinstance(value, str) and value not in dims:
            raise RecipeError(
                f"{name} is held at {value!r}, which is no number and no dim of {recipe.name}",
                f"dims: {', '.join(sorted(dims))}",
            )

    @cache
    def traced(sizes: tuple[tuple[str, int], ...]) -> Graph:
        return trace(recipe, Shape("a checkpoint", dict(sizes)), DType.FP16)

    def spec(extents: Mapping[str, int]) -> Graph:
        return traced(tuple((name, extents.get(name, 1)) for name in recipe.static_dims))

    return Terms(recipe.name, inputs, (tuple(recipe.output.split()),), held, spec)


@dataclass(frozen=True)
class Verification:
    """The comparison of a file's graphs with one recipe."""

    terms: Terms

    def all(self, verdicts: Sequence[Verdict], progress: Progress) -> list[Verdict]:
        """Return the verdicts on parsed graphs."""
        found = []
        favourite: Choice | None = None
        for done, verdict in enumerate(verdicts, start=1):
            found.append(self.judged(verdict, favourite))
            favourite = favourite or found[-1].choice
            progress(done, len(verdicts))
        chosen = Counter(v.choice for v in found if v.choice is not None).most_common(1)
        return [self.agreeing(v, chosen[0][0]) if chosen else v for v in found]

    def agreeing(self, verdict: Verdict, chosen: Choice) -> Verdict:
        """Return a verdict under the file's binding."""
        if verdict.choice in (None, chosen):
            return verdict
        again = self.judged(verdict, chosen, only=True)
        if again.proof is not None:
            return again
        reason = f"equal only as {verdict.choice}, the file's other graphs are as {chosen}"
        return replace(again, reason=reason)

    def judged(self, verdict: Verdict, favourite: Choice | None, *, only: bool = False) -> Verdict:
        """Return the verdict on one graph, the favourite binding tried first."""
        if verdict.program is None:
            return verdict
        program, verdict = verdict.program, Verdict(verdict.number, verdict.program)
        try:
            bound = list(bindings(self.terms, program))
        except VerifyError as error:
            why = f"{error.sentence}; {error.hint}" if error.hint else error.sentence
            return replace(verdict, reason=why)
        first = [b for b in bound if b.choice == favourite]
        rest = [] if only else [b for b in bound if b.choice != favourite]
        reason = ""
        for one in (*first, *rest):
            try:
                proof = prove(self.terms, one)
                return replace(verdict, proof=proof, choice=one.choice)
            except MirageError as error:
                reason = reason or error.sentence
        return replace(verdict, reason=reason)


def recalled(path: Path, spec: Lowered) -> list[Lowered]:
    """Return the graphs of a checkpoint that are proved equal to `spec`, tensor by tensor.

    Raises FileError for a file that is no checkpoint, SearchError when no graph in it is equal.
    """
    graphs = read_checkpoint(path)
    found = []
    for one in graphs:
        with contextlib.suppress(MirageError):  # refused: not parsed, or not equal
            if one.program is not None:
                program = lower(one.program)
                proof_of(program, spec)
                found.append(program)
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
    inputs = tuple(zip(names, map(_dims, spec.inputs), strict=True))
    choice = Choice(inputs, tuple(map(_dims, spec.outputs)))
    stated = {name: tuple(d for d in dims if d) for name, dims in inputs}
    outputs = tuple(tuple(d for d in dims if d) for dims in choice.outputs)
    terms = Terms("the recorded graph", stated, outputs, {}, lambda extents: spec.graph)
    return prove(terms, bound_as(choice, program, terms))


def _dims(layout: Layout) -> tuple[str | None, ...]:
    return tuple(row[0] if row else None for row in layout)


def _shapes(program: Lowered) -> list[list[int]]:
    return [shape(layout, program) for layout in (*program.inputs, *program.outputs)]
