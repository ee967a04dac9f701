"""The online-softmax step: all that a kernel does with the scores of a step of keys, one statement.

With scores s, a mask, and what is carried (running maximum m, sum, product):

    m' = max(m, max of s over the keys that the mask shows)
    sum, product *= exp(m - m')
    w = exp(s - m') where the mask shows a key, 0 elsewhere
    sum += w over the keys,  product += values w

A muGraph says so in seven nodes, and device code may run these in another way: take weights before
the maximum is known and once more if one is too large, sum them with their product, begin the next
step's scores in between. That is right where nobody else sees a value between the scores and the
two sums. This module forms the statement where that holds; elsewhere the nodes stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.schedules.attention.program import AttentionProgram, Do, Step


def with_softmax_step(program: AttentionProgram) -> AttentionProgram:
    """Return the program with one online-softmax step last in its loop, where it can be formed."""
    try:
        step = softmax_step(program)
    except PlanError:
        return program
    others = (s for s in program.loop if s not in step.covers)
    return replace(program, loop=(*others, step))


def softmax_step(program: AttentionProgram) -> Step:
    """Return the online-softmax step of a loop.

    The precondition: the running maximum is over `where(mask, scores, -inf)`; the weights are
    `where(mask, exp(scores - maximum), 0)` with the same scores and the same mask; the sum and the
    product take these weights; and no other statement reads a value in between. Raises PlanError
    with the statement that breaks it.
    """
    made = {s.out: s for s in program.loop}
    raised, summed, product = (_only(program, do) for do in (Do.RAISE, Do.SUM, Do.PRODUCT))
    seen = _made(made, raised.args[0], "where")
    mask, scores, hidden = seen.args
    weights = _made(made, product.args[-1], "where")
    exponential = _made(made, weights.args[1], "exp")
    lowered = _made(made, exponential.args[0], "sub")
    _require(summed.args == (weights.out,), f"{summed.out} sums other weights than {weights.out}")
    _require(program.literals.get(hidden) == -inf, f"{seen.out} is not -inf under its mask")
    _require(program.literals.get(weights.args[2]) == 0.0, f"{weights.out} is not 0 under its mask")
    _require(weights.args[0] == mask, f"{weights.out} has another mask than {seen.out}")
    _require(lowered.args == (scores, raised.out), f"{lowered.out} is not {scores} - {raised.out}")
    for step in (seen, lowered, exponential):
        _require(step.dtype is DType.FP32, f"{step.out} is {step.dtype.value}, not fp32")
    covers = (seen, raised, lowered, exponential, weights, summed, product)
    _require_alone(program, covers)
    ordered = tuple(s for s in program.loop if s in covers)
    return Step(Do.SOFTMAX, product.out, (scores, mask), product.type, covers=ordered)


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise PlanError(f"no online-softmax step: {reason}")


def _only(program: AttentionProgram, do: Do) -> Step:
    found = [s for s in program.loop if s.do is do]
    _require(len(found) == 1, f"{len(found)} statements {do.value}")
    return found[0]


def _made(made: Mapping[str, Step], name: str, op: str) -> Step:
    step = made.get(name)
    if step is None or step.op != op:
        raise PlanError(f"no online-softmax step: {name} is not computed by {op} in the loop")
    return step


def _require_alone(program: AttentionProgram, covers: tuple[Step, ...]) -> None:
    """Refuse other readers of what the step computes, and another order than the listed one."""
    inside = {s.out for s in covers}
    for step in (*program.before, *program.loop, *program.after):
        read = sorted(inside & {*step.args})
        _require(step in covers or not read, f"{step.out} reads {' and '.join(read)}, too")
    order = [s.out for s in program.loop]
    places = [order.index(s.out) for s in covers[:-1]]  # sum and product may change places
    _require(places == sorted(places), "its statements stand in another order")
