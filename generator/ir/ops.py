"""The one op table: every operator of every level, what it takes and how its type follows.

What an operator *means* is not said here but once per reading (`meaning/`) and per writer
(`emit/`): one line in each of their tables. A test fails until every reading covers every op.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """How an op's result type follows from its operands."""

    SOURCE = "source"  # no operands: input, const, size, iota
    ELEMENTWISE = "elementwise"  # dims are the union, by name; missing dims broadcast
    REDUCE = "reduce"  # one dim disappears
    STABILISER = "stabiliser"  # one dim disappears; proofs draw the result at random
    CONTRACT = "contract"  # elementwise product, then one shared dim disappears
    CARRY = "carry"  # a value carried across the iterations of a loop, or across blocks
    GRAPH = "graph"  # a nested graph: block in kernel, thread in block
    OUTPUT = "output"  # a result leaves a block graph through its omap


@dataclass(frozen=True)
class Op:
    """One operator: its name, kind, number of operands and laws that enumeration may use."""

    name: str
    kind: Kind
    arity: int
    commutative: bool = False


_UNARY = (
    *("neg", "exp", "log", "sqrt", "rsqrt", "square"),
    *("sigmoid", "silu", "gelu", "gelu_tanh", "tanh", "relu"),
    *("abs", "softplus", "mish", "elu", "sin", "cos", "erf"),
    *("floor", "round"),  # ties to even
    *("inner_exp", "log1p"),  # exp of what another exp is made of; log(1 + x)
)

OPS: dict[str, Op] = {
    op.name: op
    for op in (
        Op("input", Kind.SOURCE, 0),
        Op("const", Kind.SOURCE, 0),  # a number, in `value`
        Op("size", Kind.SOURCE, 0),  # the extent of the dim in `over`
        Op("iota", Kind.SOURCE, 0),  # 0, 1, 2, ... along the dim in `over`
        *(Op(name, Kind.ELEMENTWISE, 1) for name in _UNARY),
        Op("add", Kind.ELEMENTWISE, 2, commutative=True),
        Op("sub", Kind.ELEMENTWISE, 2),
        Op("mul", Kind.ELEMENTWISE, 2, commutative=True),
        Op("div", Kind.ELEMENTWISE, 2),
        Op("max", Kind.ELEMENTWISE, 2, commutative=True),
        Op("gt", Kind.ELEMENTWISE, 2),  # numbers in, 1 where a > b, 0 elsewhere
        Op("ge", Kind.ELEMENTWISE, 2),  # the same of a >= b
        Op("masked", Kind.ELEMENTWISE, 2),  # masked(c, a): a where c is not 0, 0 elsewhere
        Op("less", Kind.ELEMENTWISE, 2),  # positions in, truth values out
        Op("both", Kind.ELEMENTWISE, 2, commutative=True),  # logical and
        Op("where", Kind.ELEMENTWISE, 3),  # where(condition, a, b)
        Op("sum", Kind.REDUCE, 1),
        Op("amax", Kind.REDUCE, 1),  # the maximum along `over`
        Op("contract", Kind.CONTRACT, 2, commutative=True),
        Op("peak", Kind.STABILISER, 1),  # a bound of the operand along `over`; in a loop it runs
        Op("accum", Kind.CARRY, 1),  # sum over the iterations of the loop
        Op("accum_max", Kind.CARRY, 1),  # maximum over the iterations of the loop
        Op("accum_rescaled", Kind.CARRY, 2),  # the same of x * exp(-peak), for the final peak
        Op("last", Kind.CARRY, 1),  # a running peak after the loop
        Op(
            "combine", Kind.CARRY, 1
        ),  # sum over the blocks of the reduced grid axis that cuts `over`
        Op("combine_max", Kind.CARRY, 1),  # maximum over those blocks
        Op("combine_rescaled", Kind.CARRY, 2),  # the same of x * exp(-peak), for their common peak
        Op("block", Kind.GRAPH, -1),
        Op("thread", Kind.GRAPH, -1),
        Op("output", Kind.OUTPUT, 1),
    )
}


ACCUMS = ("accum", "accum_max", "accum_rescaled")
COMBINES = ("combine", "combine_max", "combine_rescaled")
MAXIMA = ("amax", "accum_max", "combine_max")  # where sums are sum, accum, combine


def ops_of_kind(*kinds: Kind) -> tuple[str, ...]:
    """Return the names of all ops of the given kinds, in table order."""
    return tuple(op.name for op in OPS.values() if op.kind in kinds)
