"""The degree reading: how large the fractions are that the field test compares, and its bound.

Two different fractions agree at a random point only where their cross difference, which is not the
zero sum, is 0 (`expsums.py`). The reading bounds one element of every value, and what it depends
on: along which coordinates it varies (dims, within a tile where a block cuts them; grid axes and
the loop, written "@axis") and how many calls of random functions it is made of.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement

from mirage_kernels.generator.ir import (
    Axis,
    DType,
    Graph,
    Kind,
    Node,
    count,
    ops_of_kind,
    parts_of,
)
from mirage_kernels.generator.meaning import expsums
from mirage_kernels.generator.meaning.expsums import Call, Cut, Extents, Fraction
from mirage_kernels.generator.meaning.field import WHOLE_BELOW
from mirage_kernels.generator.meaning.walk import Reading, Rule, results

_LAWFUL: dict[str, Callable[..., Fraction]] = {
    "neg": lambda a: a,
    "square": lambda a: a * a,
    "exp": Fraction.exp,
    "add": operator.add,
    "sub": operator.add,
    "mul": operator.mul,
    "div": operator.truediv,
    "less": expsums.mask,
    "both": expsums.mask,
    "where": expsums.where,
}


def _elementwise(node: Node, args: Sequence[Fraction]) -> list[Fraction]:
    if node.op in _LAWFUL:
        return [_LAWFUL[node.op](*args)]
    if node.op == "max":
        return [expsums.maximum(args[0], args[1], node.name)]
    if node.op == "rsqrt":
        return [expsums.number(1) / args[0].called("sqrt", node.name)]
    return [args[0].called(node.op, node.name)]


def degree_reading(sizes: Extents) -> Reading[Fraction]:
    """Return the reading at the given extents, of a graph outside of blocks."""

    def source(node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        whole = abs(node.value) < WHOLE_BELOW and node.value == round(node.value)
        if node.op == "const" and not whole:
            return [expsums.variable({})]  # a random element, one per constant
        size = abs(round(node.value)) if node.op == "const" else sizes[node.over]
        along = {d: sizes[d] for d in node.out.type.names}
        return [expsums.number(size, along, exact=node.op != "iota")]

    def reduce(node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        return [args[0].total(node.over, args[0].along.get(node.over, 1))]

    def contract(node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        return reduce(node, [args[0] * args[1]])

    def peak(node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        return [expsums.variable({c: n for c, n in args[0].along.items() if c != node.over})]

    def block(node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        whole = {d: n for a in args for d, n in a.along.items()}
        return _Block(node, rules, {**sizes, **whole}).run(args)

    def thread(node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        assert node.body is not None
        return results(node.body, args, rules)

    def inside(node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        raise AssertionError(f"{node.op} outside of a block graph")

    rules: dict[str, Rule[Fraction]] = dict.fromkeys(ops_of_kind(Kind.ELEMENTWISE), _elementwise)
    rules |= dict.fromkeys(ops_of_kind(Kind.CARRY, Kind.OUTPUT), inside)
    rules |= dict.fromkeys(("const", "size", "iota"), source)
    rules |= {"sum": reduce, "contract": contract, "peak": peak, "block": block, "thread": thread}
    return rules


class _Block:
    """The reading of one block graph."""

    def __init__(self, kernel: Node, outside: Reading[Fraction], sizes: Extents) -> None:
        assert kernel.body is not None
        assert kernel.body.space is not None
        self.kernel, self.body, self.outside = kernel.name, kernel.body, outside
        self.space, self.sizes = kernel.body.space, sizes
        self.counts = {a.name: count(a, sizes[a.dim]) for a in self.space.grid}
        if self.space.loop is not None:
            self.counts[self.space.loop.name] = self.space.steps(sizes)

    def run(self, args: Sequence[Fraction]) -> list[Fraction]:
        """Return the block graph's results as whole tensors."""
        rules: dict[str, Rule[Fraction]] = {
            "output": self.output,
            "peak": self.peak,
            "accum": self.accum,
            "accum_rescaled": self.accum,
            "last": self.last,
            "combine": self.combine,
            "combine_rescaled": self.combine,
        }
        inputs = [self.input(n, a) for n, a in zip(self.body.inputs, args, strict=True)]
        return results(self.body, inputs, {**self.outside, **rules})

    def input(self, node: Node, whole: Fraction) -> Fraction:
        """Return the tile of a tensor that an imap and fmap give a block in one step."""
        cuts: dict[str, Cut] = {}
        for axis, dim in zip(self.space.axes, (*node.cuts, node.loop_cut), strict=False):
            if dim is not None:
                old = cuts.get(dim, Cut(dim, whole.along.get(dim, 1), {}))
                share = -(-old.within // self.counts[axis.name])
                within = min(axis.tile, old.within) if dim == axis.dim else share
                axes = {**old.axes, _at(axis): self.counts[axis.name]}
                cuts[dim] = Cut(dim, within, axes)
        return expsums.tile(whole, cuts, f"{self.kernel}.{node.name}")

    def output(self, node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        parts = {parts_of(a.dim): self.counts[a.name] for a in self.space.reduced}
        sizes = {**self.sizes, **parts}
        axes = list(zip(self.space.axes, (*node.cuts, node.loop_cut), strict=False))
        names = node.out.type.names
        cuts = {d: frozenset(_at(a) for a, cut in axes if cut == d) for d in names}
        return [expsums.stored(args[0], {d: sizes[d] for d in node.out.type.names}, cuts)]

    def peak(self, node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        rows = {c: n for c, n in args[0].along.items() if c != node.over}
        return [expsums.variable(rows | {_at(a): self.counts[a.name] for a in self.space.grid})]

    def accum(self, node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        assert self.space.loop is not None
        value = args[0].rescaled(args[1]) if node.op == "accum_rescaled" else args[0]
        loop = self.space.loop
        return [value.total(_at(loop), self.counts[loop.name])]

    def last(self, node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        assert self.space.loop is not None
        return [args[0].at_one(_at(self.space.loop))]

    def combine(self, node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        value = args[0].rescaled(args[1]) if node.op == "combine_rescaled" else args[0]
        for axis in self.space.reduced:
            if axis.dim == node.over:
                value = value.total(_at(axis), self.counts[axis.name])
        return [value]


def _at(axis: Axis) -> str:
    return f"@{axis.name}"


def failure_probability(spec: Graph, candidate: Graph, sizes: Extents, p: int) -> float:
    """Return how likely one draw accepts a candidate that differs from its spec, at most.

    With exp, terms are counted for each monomial in one input's variables; the input for which
    there are fewest gives the bound.
    """
    chosen: list[int | None] = [None]
    same = [n.name for n in spec.inputs] == [n.name for n in candidate.inputs]
    if same and spec.of("exp"):
        chosen += [i for i, n in enumerate(spec.inputs) if n.out.type.dtype.is_real]
    return min(_probability((spec, candidate), sizes, p, i) for i in chosen)


def _probability(graphs: tuple[Graph, Graph], sizes: Extents, p: int, chosen: int | None) -> float:
    reading = degree_reading(sizes)
    found = []
    for graph in graphs:
        inputs = [_input(n, sizes, tied=i == chosen) for i, n in enumerate(graph.inputs)]
        found.append(results(graph, inputs, reading))
    return max(_differing(a, b, p) for a, b in zip(*found, strict=True))


def _input(node: Node, sizes: Extents, *, tied: bool) -> Fraction:
    along = {d: sizes[d] for d in node.out.type.names}
    if node.out.type.dtype in (DType.INT32, DType.BOOL):
        return expsums.number(max(sizes.values(), default=1), along)
    return expsums.variable(along, tied=tied)


def _differing(a: Fraction, b: Fraction, p: int) -> float:
    """Return how likely two elements agree that differ, or calls that they depend on collide."""
    calls = [*a.calls.values(), *b.calls.values()]
    collisions = sum(_colliding(x, y, p) for x, y in combinations_with_replacement(calls, 2))
    return min(1.0, expsums.vanishing(a.cross(b), p) + collisions)


def _colliding(a: Call, b: Call, p: int) -> float:
    pairs = a.number * (a.number - 1) // 2 if a is b else a.number * b.number
    if a.function != b.function or not pairs:
        return 0.0
    return pairs * expsums.vanishing(a.argument.cross(b.argument), p)
