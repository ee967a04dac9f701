"""The degree reading: how large the polynomials are that the field test compares.

A value is a fraction of polynomials in the random inputs; two different fractions agree at a
random point with probability at most (degree of their cross difference) / p (Schwartz-Zippel).
A random function's result counts as a fresh variable; that two of its arguments collide without
being equal is counted as one more event of the same kind (`collisions`, in units of 1/p).
Adding fractions multiplies their denominators, unless a sum runs along a dim that the denominator
does not vary along: then all its terms share one denominator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import Graph, Kind, Node, ops_of_kind
from mirage_kernels.generator.meaning.walk import Reading, Rule, results

Dims = frozenset[str]


@dataclass(frozen=True)
class Degree:
    """Degrees of numerator and denominator, and what random functions add to the bound."""

    top: int
    bottom: int
    dims: Dims = frozenset()  # of the value
    varies: Dims = frozenset()  # dims that the denominator varies along
    calls: int = 0  # random functions applied
    collisions: int = 0


def _join(a: Degree, b: Degree, top: int, bottom: int) -> Degree:
    pairs = a.calls * b.calls * max(a.top + b.bottom, b.top + a.bottom, 1)
    return Degree(
        top,
        bottom,
        a.dims | b.dims,
        a.varies | b.varies,
        a.calls + b.calls,
        a.collisions + b.collisions + pairs,
    )


def _add(a: Degree, b: Degree) -> Degree:
    return _join(a, b, max(a.top + b.bottom, b.top + a.bottom), a.bottom + b.bottom)


def _mul(a: Degree, b: Degree) -> Degree:
    return _join(a, b, a.top + b.top, a.bottom + b.bottom)


def _div(a: Degree, b: Degree) -> Degree:
    joined = _join(a, b, a.top + b.bottom, a.bottom + b.top)
    return replace(joined, varies=joined.varies | b.dims)


def _function(a: Degree) -> Degree:
    return Degree(1, 0, a.dims, frozenset(), a.calls + 1, a.collisions + max(a.top, a.bottom, 1))


def _no_law(*args: Degree) -> Degree:
    raise VerifyError(
        "no failure bound is derived for programs with exp yet",
        "see docs/verification.md for what the field test covers",
    )


def _mask(*args: Degree) -> Degree:
    return Degree(0, 0, frozenset(d for a in args for d in a.dims))


_ELEMENTWISE: dict[str, Callable[..., Degree]] = {
    "neg": lambda a: a,
    "square": lambda a: _mul(a, a),
    "exp": _no_law,
    "add": _add,
    "sub": _add,
    "mul": _mul,
    "div": _div,
    "less": _mask,
    "both": _mask,
    "where": lambda condition, a, b: _add(a, b),
}
_ELEMENTWISE |= {
    name: _function for name in ops_of_kind(Kind.ELEMENTWISE) if name not in _ELEMENTWISE
}


def degree_reading(sizes: Mapping[str, int]) -> Reading[Degree]:
    """Return the reading into degrees at the given extents."""

    def total(node: Node, args: Sequence[Degree]) -> list[Degree]:
        (a,) = args
        lengths = sizes[node.over] if node.over in a.varies else 1
        summed = replace(a, top=a.top + (lengths - 1) * a.bottom, bottom=lengths * a.bottom)
        return [replace(summed, dims=a.dims - {node.over}, varies=a.varies - {node.over})]

    def contract(node: Node, args: Sequence[Degree]) -> list[Degree]:
        return total(node, [_mul(*args)])

    def nested(node: Node, args: Sequence[Degree]) -> list[Degree]:
        assert node.body is not None  # a sum in a loop and its accumulation count as one sum
        return results(node.body, args, degree_reading(sizes))

    def source(node: Node, args: Sequence[Degree]) -> list[Degree]:
        return [Degree(0, 0, frozenset(node.out.type.names))]

    rules: dict[str, Rule[Degree]] = {
        name: lambda node, args: [_ELEMENTWISE[node.op](*args)] for name in _ELEMENTWISE
    }
    rules |= dict.fromkeys(("const", "size", "iota"), source)
    rules |= {"sum": total, "contract": contract, "block": nested, "thread": nested}
    rules |= dict.fromkeys(("accum", "output"), lambda node, args: list(args))
    return Reading("degree", rules)


def failure_probability(spec: Graph, candidate: Graph, sizes: Mapping[str, int], p: int) -> float:
    """Return how likely one draw accepts a candidate that differs from its spec, at most."""
    reading = degree_reading(sizes)
    found = []
    for graph in (spec, candidate):
        inputs = [Degree(1, 0, frozenset(n.out.type.names)) for n in graph.inputs]
        found.append(results(graph, inputs, reading)[0])
    joined = _add(*found)
    return min(1.0, (joined.top + joined.bottom + joined.collisions) / p)
