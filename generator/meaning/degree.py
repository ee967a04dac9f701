"""The degree reading: how large the fractions are that the field test compares, and its bound.

Two different fractions agree at a random point only where their cross difference, which is not the
zero sum, is 0 (`expsums.py`). The reading bounds one element of every value, and what it depends
on: along which coordinates it varies (dims, within a tile where a block cuts them; grid axes and
the loop, written "@axis") and how many calls of random functions it is made of.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import combinations_with_replacement

from mirage_kernels.generator.ir import Axis, Graph, Kind, Node, Space, count, ops_of_kind, parts_of
from mirage_kernels.generator.ir.ops import MAXIMA
from mirage_kernels.generator.meaning import expsums
from mirage_kernels.generator.meaning.expsums import Coordinates, Extents, Fraction
from mirage_kernels.generator.meaning.field import CONSTANTS_BELOW, LAWLESS_OF_TWO
from mirage_kernels.generator.meaning.walk import Reading, Rule, reading, results


def _called_of_two(op: str, name: str, a: Fraction, b: Fraction) -> Fraction:
    """Return a random function of the sum of one of each operand."""
    return (a.called(op, f"{name}.0") + b.called(op, f"{name}.1")).called(op, name)


_RULES: dict[str, Callable[..., Fraction]] = {  # from the node's name and its operands
    "neg": lambda name, a: a,
    "square": lambda name, a: a * a,
    "exp": lambda name, a: a.exp(),
    "add": lambda name, a, b: a + b,
    "sub": lambda name, a, b: a + b,
    "mul": lambda name, a, b: a * b,
    "div": lambda name, a, b: a / b,
    "rsqrt": lambda name, a: expsums.number(1) / a.called("sqrt", name),
    # A random permutation's inverse of a sum of its values: f'(f(a) + f(b)).
    "max": lambda name, a, b: _called_of_two("max", name, a, b),
    **{op: partial(_called_of_two, op) for op in LAWLESS_OF_TWO},
    "less": lambda name, a, b: expsums.mask(a, b),
    "both": lambda name, a, b: expsums.mask(a, b),
    "where": lambda name, *args: expsums.where(*args),
}
# The same where an operand is a logarithm, and the others are exponents: from what they are of.
_OF_LOGARITHMS: dict[str, Callable[..., Fraction]] = {
    "neg": lambda a: expsums.number(1) / a,
    "add": lambda a, b: a * b,
    "sub": lambda a, b: a / b,
}


def degree_reading(sizes: Extents, *, exponents: bool = True) -> Reading[Fraction]:
    """Return the reading at the given extents, of a graph outside of blocks.

    Without `exponents` the logarithm is a random function like others.
    """

    laws = _RULES if not exponents else {**_RULES, "log": lambda name, a: a.log()}

    def elementwise(node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        made = _of_logarithms(node.op, args)
        if made is not None:
            return [made]
        args, rule = _numbers(node, args), laws.get(node.op)
        return [rule(node.name, *args) if rule else args[0].called(node.op, node.name)]

    def source(node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        whole = abs(node.value) < CONSTANTS_BELOW and node.value == round(node.value)
        if node.op == "const" and not whole:
            return [expsums.variable({})]  # a random element, one per constant
        size = abs(round(node.value)) if node.op == "const" else sizes[node.over]
        along = {d: sizes[d] for d in node.out.type.names}
        return [expsums.number(size, along, exact=node.op != "iota")]

    def peak(node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        return [expsums.variable({c: n for c, n in args[0].along.items() if c != node.over})]

    def nested(node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        assert node.body is not None
        if node.body.space is None:
            return results(node.body, args, rules)
        whole = {d: n for a in args for d, n in a.along.items()}
        return _Block(node, node.body.space, {**sizes, **whole}).run(args, rules)

    def inside(node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        raise AssertionError(f"{node.op} outside of a block graph")

    rules = reading(
        {
            Kind.SOURCE: source,
            Kind.ELEMENTWISE: elementwise,
            Kind.REDUCE: _reduced,
            Kind.STABILISER: peak,
            Kind.CONTRACT: _reduced,
            Kind.CARRY: inside,
            Kind.GRAPH: nested,
            Kind.OUTPUT: inside,
        }
    )
    return rules


class _Block:
    """The reading of one block graph; `counts` are tiles by axis, grid axes and the loop."""

    def __init__(self, kernel: Node, space: Space, sizes: Extents) -> None:
        self.kernel, self.space, self.sizes = kernel, space, sizes
        self.counts = {_at(a): count(a, sizes[a.dim]) for a in space.grid}
        if space.loop is not None:
            self.counts[_at(space.loop)] = space.steps(sizes)

    def run(self, args: Sequence[Fraction], outside: Reading[Fraction]) -> list[Fraction]:
        """Return the block graph's results as whole tensors."""
        assert self.kernel.body is not None
        carries = ops_of_kind(Kind.CARRY)
        rules: dict[str, Rule[Fraction]] = dict.fromkeys(carries, self.carried)
        rules |= {"output": self.output, "peak": self.peak}
        inputs = [self.input(n, a) for n, a in zip(self.kernel.body.inputs, args, strict=True)]
        return results(self.kernel.body, inputs, {**outside, **rules})

    def cuts(self, node: Node) -> dict[str, dict[str, Axis]]:
        """Return by dim the axes that cut it in an input or output."""
        found: dict[str, dict[str, Axis]] = {}
        for axis, dim in zip(self.space.axes, (*node.cuts, node.loop_cut), strict=False):
            if dim is not None:
                found.setdefault(dim, {})[_at(axis)] = axis
        return found

    def input(self, node: Node, whole: Fraction) -> Fraction:
        """Return the tile of a tensor that an imap and fmap give a block in one step."""
        cuts, along = self.cuts(node), dict[str, int]()
        for dim, size in whole.along.items():
            for at, axis in cuts.get(dim, {}).items():
                size = min(axis.tile, size) if dim == axis.dim else -(-size // self.counts[at])
            along |= {dim: size, **{at: self.counts[at] for at in cuts.get(dim, {})}}

        def seen(coordinates: Coordinates) -> Coordinates:
            return coordinates | {at for c in coordinates for at in cuts.get(c, ())}

        return whole.moved(seen, along, prefix=f"{self.kernel.name}.{node.name}:")

    def output(self, node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        """Return the tensor whose tiles blocks and steps store."""
        (tile,) = args
        sizes = {**self.sizes, **{parts_of(a.dim): self.counts[_at(a)] for a in self.space.reduced}}
        whole, axes = {d: sizes[d] for d in node.out.type.names}, self.cuts(node)
        cuts = {d: frozenset(axes.get(d, ())) for d in whole}

        def left(coordinates: Coordinates) -> Coordinates:
            return frozenset(d for d in whole if d in coordinates or cuts[d] & coordinates)

        made, tied = tile.moved(left, whole), tile.top.tied
        if tied is None:
            return [made]
        within = (d for d in whole if d in tied or d not in tile.along)
        apart = frozenset(d for d in within if cuts[d] <= tied)
        return [replace(made, top=replace(made.top, tied=apart))]

    def peak(self, node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        rows = {c: n for c, n in args[0].along.items() if c != node.over}
        return [expsums.variable(rows | {_at(a): self.counts[_at(a)] for a in self.space.grid})]

    def carried(self, node: Node, args: Sequence[Fraction]) -> list[Fraction]:
        """Return a sum or maximum along the loop or the blocks' own axes, or the last value."""
        axes = tuple(a for a in self.space.reduced if a.dim == node.over)
        if not node.op.startswith("combine"):
            assert self.space.loop is not None
            axes = (self.space.loop,)
        if node.op == "last":
            return [args[0].at_one(_at(axes[0]))]
        value = args[0]
        if node.op.endswith("rescaled"):
            value = _numbers(node, args)[0].rescaled(args[1])
        if node.op in MAXIMA:
            counts = {_at(axis): self.counts[_at(axis)] for axis in axes}
            return [_largest(node, _numbers(node, args)[0], counts)]
        for axis in map(_at, axes):
            value = value.total(axis, self.counts[axis])
        return [value]


def _reduced(node: Node, args: Sequence[Fraction]) -> list[Fraction]:
    """Return a sum, a product's sum or a maximum along a dim."""
    numbers = args if node.op == "sum" else _numbers(node, args)
    product = reduce(operator.mul, numbers)
    length = product.along.get(node.over, 1)
    if node.op == "amax":
        return [_largest(node, product, {node.over: length})]
    return [product.total(node.over, length)]


def _largest(node: Node, value: Fraction, lengths: Extents) -> Fraction:
    """Return a maximum along coordinates: f'(the sum of f), where f is a random permutation."""
    value = value.called("max", f"{node.name}.0")
    for coordinate, length in lengths.items():
        value = value.total(coordinate, length)
    return value.called("max", node.name)


def _of_logarithms(op: str, args: Sequence[Fraction]) -> Fraction | None:
    """Return an op's result where it has a law for logarithms, and one of its operands is one."""
    if not any(a.logged for a in args) or not all(a.logged or a.plain for a in args):
        return None
    if op == "exp":
        return args[0].raised
    rule = _OF_LOGARITHMS.get(op)
    return replace(rule(*(a.raised for a in args)), logged=True) if rule else None


def _numbers(node: Node, args: Sequence[Fraction]) -> list[Fraction]:
    """Return operands where logarithms count as numbers: as a random function's results."""
    return [a.called("log", f"{node.name}.{i}") if a.logged else a for i, a in enumerate(args)]


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
    largest, bounds = max(sizes.values(), default=1), list[float]()
    for tied in chosen:
        found = []
        for graph in (spec, candidate):
            inputs = []
            for i, type_ in enumerate(n.out.type for n in graph.inputs):
                along = {d: sizes[d] for d in type_.names}
                drawn = expsums.variable(along, tied=i == tied)
                inputs.append(drawn if type_.dtype.is_real else expsums.number(largest, along))
            reading = degree_reading(sizes, exponents=bool(spec.of("exp")))
            found.append(results(graph, inputs, reading))
        bounds.append(max(_differing(a, b, p) for a, b in zip(*found, strict=True)))
    return min(bounds)


def _differing(a: Fraction, b: Fraction, p: int) -> float:
    """Return how likely two elements agree that differ, or calls that they depend on collide."""
    a, b = (x.called("log", "result") if x.logged else x for x in (a, b))
    collisions = 0.0
    for x, y in combinations_with_replacement([*a.calls.values(), *b.calls.values()], 2):
        pairs = x.number * (x.number - 1) // 2 if x is y else x.number * y.number
        if x.function == y.function and pairs:
            collisions += pairs * expsums.vanishing(x.argument.cross(y.argument), p)
    return min(1.0, expsums.vanishing(a.cross(b), p) + collisions)
