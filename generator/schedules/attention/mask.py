"""Whether a mask hides what a kernel must not look at: every key behind a sequence's length.

Lines of the cache behind the length are never read, so their weights have to be zero whatever the
scores are. The mask is whole-number arithmetic on positions; it is evaluated at all small lengths,
numbers of query tokens and values of int32 inputs, which is where comparisons differ by one.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType, Graph, Node

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


@dataclass(frozen=True)
class Positions:
    """Values of a block graph, by what they count."""

    keys: frozenset[str]
    tokens: frozenset[str]
    lengths: frozenset[str]
    counts: frozenset[str]  # of query tokens


def check_hidden(body: Graph, weights: str, positions: Positions) -> None:
    """Raise PlanError unless the weights are zero for all keys behind the length."""
    node = body.producers[weights]
    if node.op != "where" or not _is_zero(body.producers[node.args[2]]):
        raise PlanError(f"{weights} = {node.op}(..) is not masked, keys behind a length would show")
    mask = node.args[0]
    numbers = [n.name for n in body.inputs if _is_number(n)]
    span = range(MOST_KEYS + 1)
    for tokens, length in itertools.product(range(1, MOST_TOKENS + 1), span):
        for given in itertools.product(span, repeat=len(numbers)):
            known = dict(zip(numbers, given, strict=True))
            known |= dict.fromkeys(positions.lengths, length)
            known |= dict.fromkeys(positions.counts, tokens)
            for key, token in itertools.product((length, length + 1), range(tokens)):
                known |= dict.fromkeys(positions.keys, key)
                known |= dict.fromkeys(positions.tokens, token)
                if _number(mask, body, known):
                    raise PlanError(f"{mask} shows key {key} of a sequence of {length} keys")


def _is_number(node: Node) -> bool:
    return node.out.type.dtype is DType.INT32 and not node.out.type.dims


def _is_zero(node: Node) -> bool:
    return node.op == "const" and node.value == 0


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
