"""Whether a mask hides what a kernel must not look at: every key behind a sequence's length.

Lines of the cache behind the length are never read, so their weights have to be zero whatever the
scores are. The mask is whole-number arithmetic on positions; it is evaluated at all small lengths,
numbers of query tokens and values of int32 inputs, which is where comparisons differ by one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from itertools import product

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.schedules.attention.program import Do

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
    if hidden is None or hidden.op != "const" or hidden.value != 0:
        raise PlanError(f"{weights} = {node.op}(..) is not masked, keys behind a length would show")
    mask, numbers = node.args[0], [n.name for n in body.inputs if not n.out.type.dims]
    numbers = [name for name in numbers if body.values[name].type.dtype is DType.INT32]
    for case in _behind():
        for given in product(range(MOST_KEYS + 1), repeat=len(numbers)):
            known = dict(zip(numbers, given, strict=True))
            known |= {name: case[do] for name, do in counted.items()}
            if _number(mask, body, known):
                key, length = case[Do.KEY_POSITIONS], case[Do.LENGTH]
                raise PlanError(f"{mask} shows key {key} of a sequence of {length} keys")


def _behind() -> Iterator[dict[Do, int]]:
    """Yield keys behind a length, by query token."""
    for tokens, length in product(range(1, MOST_TOKENS + 1), range(MOST_KEYS + 1)):
        for key, token in product((length, length + 1), range(tokens)):
            yield dict(zip(COUNTED, (key, token, length, tokens), strict=True))


def _number(name: str, body: Graph, known: Mapping[str, int]) -> int:
    """Return a value of the mask at one place."""
    if name in known:
        return known[name]
    node = body.producers[name]
    if node.op == "const":
        return int(node.value)
    if node.op not in _OPS:
        raise PlanError(f"{name} = {node.op}(..) is no arithmetic of positions, which masks are")
    return _OPS[node.op](*(_number(a, body, known) for a in node.args))
