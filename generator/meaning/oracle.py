"""z3's opinion on abstract expressions: asked where the normal form cannot decide (terms.py).

A part is refused only with a certificate, which is independent of the normal form: an
interpretation that obeys all axioms (valuations.py) and gives the part more than the whole. Answers
depend on the question alone: a fresh z3 context each, work bounded by z3's own count.

z3 takes about a second to import; that happens at the first question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from mirage_kernels.generator.meaning.expressions import Expression, expression_of, in_few_ops
from mirage_kernels.generator.meaning.terms import Terms
from mirage_kernels.generator.meaning.valuations import Script, Tropical, Weights, total

WORK = 100_000  # z3's resource limit for one script
LARGEST = 2_000  # ops and leaves of a question that `keeps` asks
HEAVY = 8  # leaves that are tried with a value above the others'


def keeps(terms: Terms, target: int, part: int) -> bool:
    """Return whether z3 finds no reason why `part` is none of `target`: a fallback of Terms."""
    expressions = expression_of(terms, target), expression_of(terms, part)
    if sum(1 for e in expressions for _ in e.parts()) > LARGEST:
        return True
    return all(solve(s()) != "sat" for s in separations(*expressions))


def solve(script: Sequence[str]) -> str:
    """Return what z3 says of a script: sat, unsat or unknown."""
    import z3

    solver = z3.SimpleSolver(ctx=z3.Context())
    solver.set("auto_config", False)
    solver.set("mbqi", False)  # no models of quantified axioms: only instances of them
    solver.set("qi.eager_threshold", 100.0)
    solver.set("rlimit", WORK)
    solver.from_string("\n".join(script))
    return str(solver.check())


def separations(target: Expression, part: Expression) -> list[Callable[[], list[str]]]:
    """Return makers of scripts that have a solution only if `part` is no part of `target`."""
    whole, piece = in_few_ops(target), in_few_ops(part)
    return [
        partial(_tropical, whole, piece, inverse=3, root=2),
        partial(_weighed, whole, piece),
        partial(_tropical, whole, piece, inverse=1, root=2),
    ]


def _tropical(whole: Expression, piece: Expression, *, inverse: int, root: int) -> list[str]:
    script = Script()
    valuation = Tropical(script, inverse, root)
    x, y = valuation.of(whole), valuation.of(piece)
    greater = "false"
    if x.slope and y.slope:
        greater = f"(> {total(y.slope)} {total(x.slope)})"
    script.check(greater)
    return script.lines


def _weighed(whole: Expression, piece: Expression) -> list[str]:
    script = Script()
    choices = ["false"]
    leaves = len({e for e in (*whole.parts(), *piece.parts()) if not e.args})
    has_exp = any(e.op == "exp" for e in whole.parts())
    for inverse, root in ((1, 1), (2, 1), (1, 2)):
        for at in range(min(leaves, HEAVY) + 1):
            valuation = Weights(script, inverse, root, at=at)
            x, y = valuation.of(whole), valuation.of(piece)
            if x.slope and y.slope:
                choices.append(f"(> {y.slope[0]} {x.slope[0]})")
            if not has_exp:
                choices.append(f"(> {y.value[0]} {x.value[0]})")
    script.check(*choices)
    return script.lines
