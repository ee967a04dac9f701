"""The verdict on every graph of a checkpoint: parsed or not, equal to a recipe or refused, and why.

The graphs of a file come from one program, so they are bound to the recipe alike: under the binding
that most of them are equal with. A graph that is equal under another one only is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mirage_kernels.generator.errors import GraphError, MirageError, RecipeError, VerifyError
from mirage_kernels.generator.frontend.mirage.binding import Bound, Choice, Held, Terms, bindings
from mirage_kernels.generator.frontend.mirage.imports import Imported
from mirage_kernels.generator.frontend.mirage.lower import Lowered, lower
from mirage_kernels.generator.frontend.mirage.proofs import Goal, prove
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
    return Terms(recipe.name, inputs, (tuple(recipe.output.split()),), held)


@dataclass
class Verification:
    """The comparison of a file's graphs with one recipe."""

    recipe: Recipe
    terms: Terms
    specs: dict[tuple[tuple[str, int], ...], Graph] = field(default_factory=dict)

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
        return Verdict(verdict.number, verdict.program, reason)

    def judged(self, verdict: Verdict, favourite: Choice | None, *, only: bool = False) -> Verdict:
        """Return the verdict on one graph, the favourite binding tried first."""
        if verdict.program is None:
            return verdict
        try:
            bound = list(bindings(self.terms, verdict.program))
        except VerifyError as error:
            why = f"{error.sentence}; {error.hint}" if error.hint else error.sentence
            return Verdict(verdict.number, verdict.program, why)
        first = [b for b in bound if b.choice == favourite]
        rest = [] if only else [b for b in bound if b.choice != favourite]
        reason = ""
        for one in (*first, *rest):
            try:
                proof = prove(self.goal(one), one)
                return Verdict(verdict.number, verdict.program, "", proof, one.choice)
            except MirageError as error:
                reason = reason or error.sentence
        return Verdict(verdict.number, verdict.program, reason)

    def goal(self, bound: Bound) -> Goal:
        """Return the recipe's spec at the extents of a graph."""
        sizes = {d.name: d.size for n in bound.graph.inputs for d in n.out.type.dims}
        extents = bound.extents(sizes)
        dims = {name: extents.get(name, 1) for name in self.recipe.static_dims}
        key = tuple(dims.items())
        if key not in self.specs:
            self.specs[key] = trace(self.recipe, Shape("a checkpoint", dims), DType.FP16)
        return Goal(self.specs[key], self.terms.outputs, self.terms.held)
