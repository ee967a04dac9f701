"""The online-softmax step: all that a kernel does with the scores of a step of keys, one statement.

With scores s, a mask, and what is carried (running maximum m, sum, product):

    m' = max(m, max of s over the keys that the mask shows)
    sum, product *= exp(m - m')
    w = exp(s - m') where the mask shows a key, 0 elsewhere
    sum += w over the keys,  product += values w

A muGraph says so in seven nodes, and device code may run these in another way: take weights before
the maximum is known and once more if one is too large, sum them with their product, begin the next
step's scores in between. That is right where nobody else sees a value in between; elsewhere the
nodes stay as they are.

The mask hides every key behind a sequence's length, for those lines of the cache are never read. It
is whole-number arithmetic on positions, and is evaluated at all small lengths, numbers of query
tokens and values of int32 inputs, which is where comparisons differ by one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from itertools import product
from math import inf

from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.schedules.attention.program import AttentionProgram, Do, Step, require

COUNTED = (Do.KEY_POSITIONS, Do.ROW_TOKENS, Do.LENGTH, Do.TOKEN_COUNT)
MOST_KEYS, MOST_TOKENS = 6, 3  # of the small cases
_OPS: dict[str, Callable[..., int]] = {
    "less": operator.lt,
    "both": operator.and_,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "max": max,
    "neg": operator.neg,
}


def check_hidden(body: Graph, weights: str, counted: Mapping[str, Do]) -> None:
    """Raise PlanError unless the weights are zero for all keys behind the length.

    `counted` says which of `COUNTED` a value of the block graph is.
    """
    node = body.producers[weights]
    hidden = body.producers[node.args[2]] if node.op == "where" else None
    masked = hidden is not None and hidden.op == "const" and hidden.value == 0
    sentence = f"{weights} = {node.op}(..) is not masked, keys behind a length would show"
    require(masked, sentence)
    mask, numbers = node.args[0], [n.out for n in body.inputs if not n.out.type.dims]
    names = [v.name for v in numbers if v.type.dtype is DType.INT32]
    lengths = range(MOST_KEYS + 1)
    for tokens, length in product(range(1, MOST_TOKENS + 1), lengths):
        for key, token in product((length, length + 1), range(tokens)):
            case = dict(zip(COUNTED, (key, token, length, tokens), strict=True))
            for given in product(lengths, repeat=len(names)):
                known = {name: case[do] for name, do in counted.items()}
                shows = _number(mask, body, known | dict(zip(names, given, strict=True)))
                require(not shows, f"{mask} shows key {key} of a sequence of {length} keys")


def _number(name: str, body: Graph, known: Mapping[str, int]) -> int:
    """Return a value of the mask at one place."""
    if name in known:
        return known[name]
    node = body.producers[name]
    if node.op == "const":
        return int(node.value)
    sentence = f"{name} = {node.op}(..) is no arithmetic of positions, which masks are"
    require(node.op in _OPS, sentence)
    return _OPS[node.op](*(_number(a, body, known) for a in node.args))


def softmax_step(program: AttentionProgram) -> Step:
    """Return the online-softmax step of a loop.

    The precondition: the running maximum is over `where(mask, scores, -inf)`; the weights are
    `where(mask, exp(scores - maximum), 0)` with the same scores and the same mask; the sum and the
    product take these weights; and no other statement reads a value in between. Raises PlanError
    with the statement that breaks it.
    """
    steps = {s.out: s for s in program.loop}

    def made(name: str, op: str) -> Step:
        found = name in steps and steps[name].op == op
        require(found, f"no online-softmax step: {name} is not computed by {op} in the loop")
        return steps[name]

    raised, summed, contracted = (
        steps[name] for name in (program.peak, program.sum.name, program.product.name)
    )
    seen, weights = made(raised.args[0], "where"), made(contracted.args[-1], "where")
    exponential = made(weights.args[1], "exp")
    lowered = made(exponential.args[0], "sub")
    mask, scores, hidden = seen.args
    for holds, reason in (
        (summed.args == (weights.out,), f"{summed.out} sums other weights than {weights.out}"),
        (program.literals.get(hidden) == -inf, f"{seen.out} is not -inf under its mask"),
        (program.literals.get(weights.args[2]) == 0.0, f"{weights.out} is not 0 under its mask"),
        (weights.args[0] == mask, f"{weights.out} has another mask than {seen.out}"),
        (lowered.args == (scores, raised.out), f"{lowered.out} is not {scores} - {raised.out}"),
        *((s.dtype is DType.FP32, f"{s.out} is not fp32") for s in (seen, lowered, exponential)),
    ):
        require(holds, f"no online-softmax step: {reason}")
    covers = (seen, raised, lowered, exponential, weights, summed, contracted)
    inside = {s.out for s in covers}
    for step in (*program.before, *program.loop, *program.after):
        read = sorted(inside & {*step.args})
        require(step in covers or not read, f"{step.out} reads {' and '.join(read)}, too")
    ordered = tuple(s for s in program.loop if s in covers)
    in_order = ordered[:5] == covers[:5]  # sum and product may change places
    require(in_order, "no online-softmax step: its statements stand in another order")
    return Step(Do.SOFTMAX, contracted.out, (scores, mask), contracted.type, covers=ordered)
