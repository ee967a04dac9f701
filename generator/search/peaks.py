"""The rewrite of `stabilise.py`, value by value: which peaks each is relative to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from mirage_kernels.generator.ir import Builder, Graph, Node, Value, held_dims, parts_of
from mirage_kernels.generator.ir.infer import SCALAR
from mirage_kernels.generator.search.exponentials import summed_along

Degree = Mapping[str, int]  # peak -> power of exp(-peak) in the value
NO_MASK = "minus_infinity"


class UnstableError(Exception):
    """A degree that nothing cancels or that a function has no law for."""


def require(stable: bool) -> None:
    """Raise UnstableError unless a value can be made stable."""
    if not stable:
        raise UnstableError


@dataclass
class Rewrite:
    """A graph being rebuilt: its new nodes, and the degree of every value."""

    graph: Graph
    builder: Builder
    plain: frozenset[tuple[int, str]]  # exps that stay: a graph's identity and their name
    degrees: dict[str, Degree] = field(default_factory=dict)
    added: dict[tuple[str, ...], str] = field(default_factory=dict)
    raised: dict[tuple[str, str], str] = field(default_factory=dict)  # lower, higher peak: factor
    split: dict[str, tuple[str, str]] = field(default_factory=dict)  # common peak: own peak, dim

    @cached_property
    def held(self) -> frozenset[str]:
        """Dims of which each block of a cluster stores its part."""
        return held_dims(self.graph)

    def add(self, op: str, args: tuple[str, ...], name: str, over: str = "") -> str:
        """Append a node under a free name, the same one for the same op on the same values."""
        key = (op, over, *args)
        if key not in self.added:
            free = self.builder.free_name(name)
            self.added[key] = self.builder.add(Node(op, args, (Value(free, SCALAR),), over=over))
        return self.added[key]

    def need(self, name: str) -> None:
        """Append a value of the graph, and first what it is made of, if that is not done yet."""
        if name in self.degrees:
            return
        node = self.graph.producers[name]
        for arg in node.args:
            self.need(arg)
        rules = {"exp": self.exp, "log": self.log, "div": self.divided, "add": self.added_up}
        rules |= dict.fromkeys(("sum", "contract"), self.total)
        rules |= dict.fromkeys(("accum", "combine"), self.carry)
        rules.get(node.op, self.keep)(node)

    def keep(self, node: Node) -> None:
        """Append a node as it is."""
        self.builder.add(node)
        self.degrees[node.name] = self.degree_of(node)

    def exp(self, node: Node) -> None:
        """Take exp relative to the peak of its argument along the dims that it is summed along.

        One that divides, a sum of one element say, is relative to its argument: exp(0).
        """
        (argument,) = node.args
        dims = summed_along(self.graph, node.name) & {*self.builder.types[argument].names}
        if not (dims or self.divides(node.name)) or self.stays(node.name):
            self.keep(node)
            return
        peak, space = self.seen(node, argument), self.graph.space
        loop = space.loop.dim if space is not None and space.loop is not None else ""
        for dim in sorted(dims, key=lambda d: (parts_of(d) != parts_of(loop), d)):  # that one runs
            peak = self.add("peak", (peak,), "peak", over=dim)
            if dim in self.held:  # all blocks of a cluster agree before they go on
                peak = self.add("combine_max", (peak,), "common_peak", over=dim)
        lowered = self.add("sub", (argument, peak), f"lowered_{argument}")
        self.builder.add(replace(node, args=(lowered,)))
        self.degrees[node.name] = {peak: 1}

    def stays(self, name: str) -> bool:
        """Say whether an exp is one of those that stay as they are."""
        return (id(self.graph), name) in self.plain

    def divides(self, name: str) -> bool:
        """Say whether something is divided by a value."""
        return any(u.op == "div" and u.args[1] == name for u in self.graph.users(name))

    def seen(self, node: Node, argument: str) -> str:
        """Return exp's argument where the program looks at it, minus infinity where it masks it."""
        users = self.graph.users(node.name)
        masks = {u.args[0] for u in users if u.op == "where" and self.is_zero(u.args[2])}
        if len(masks) != 1 or any(u.op != "where" for u in users):
            return argument
        if NO_MASK not in self.builder.types:
            infinity = Node("const", (), (Value(NO_MASK, SCALAR),), value=float("-inf"))
            self.builder.add(infinity)
        (mask,) = masks
        self.need(mask)
        return self.add("where", (mask, argument, NO_MASK), f"seen_{argument}")

    def is_zero(self, name: str) -> bool:
        """Return whether a value is the constant 0."""
        node = self.graph.producers[name]
        return node.op == "const" and node.value == 0

    def total(self, node: Node) -> None:
        """Sum along a dim; terms that are relative to peaks of their own are made comparable.

        They become relative to the common peak along that dim.
        """
        args, types = list(node.args), self.builder.types
        for i, arg in enumerate(args):
            for peak, power in self.degrees[arg].items():
                if peak not in types or node.over not in types[peak].names:
                    continue
                require(power == 1)
                common, factor = f"{peak}_common", f"{peak}_decay"
                if common not in types:
                    self.add("peak", (peak,), common, over=node.over)
                    self.add("exp", (self.add("sub", (peak, common), f"{peak}_lowered"),), factor)
                args[i] = self.add("mul", (arg, factor), f"{arg}_rescaled")
                rest = {p: n for p, n in self.degrees[arg].items() if p != peak}
                self.degrees[args[i]] = _plus(rest, {common: 1})
        self.builder.add(replace(node, args=tuple(args)))
        self.degrees[node.name] = _plus(*(self.degrees[a] for a in args))

    def carry(self, node: Node) -> None:
        """Sum across the loop, or over a split's blocks, relative to the largest of their peaks."""
        degree = self.degrees[node.args[0]]
        if not degree or (node.op == "combine" and node.over in self.held):
            self.keep(node)
            return
        require(list(degree.values()) == [1])
        (peak,) = degree
        if node.op == "accum":
            after = self.add("last", (peak,), f"{peak}_last")
        else:
            after = f"{peak}_of_all_blocks"
            self.split[after] = (peak, node.over)
        self.builder.add(replace(node, op=f"{node.op}_rescaled", args=(node.args[0], peak)))
        self.degrees[node.name] = {after: 1}

    def divided(self, node: Node) -> None:
        """Divide; the dividend is taken relative to the divisor's peak."""
        a, b = node.args
        degree = self.degrees[b]
        if list(degree.values()) == [1]:
            a = (self.lifted if self.degrees[a] else self.relative)(a, *degree) or a
        self.keep(replace(node, args=(a, b)))

    def added_up(self, node: Node) -> None:
        """Add; both are taken relative to the larger of their peaks, for an exp its exponent."""
        a, b = node.args
        tops = [self.top(a), self.top(b)]
        is_divisor = all(tops) and self.divides(node.name)
        if self.degrees[a] == self.degrees[b] and (self.degrees[a] or not is_divisor):
            self.keep(node)
        elif all(tops):
            for top in tops:
                self.combined(top)
            common = self.add("max", tuple(tops), f"larger_{tops[0]}")
            args = (self.under(x, top, common) for x, top in zip((a, b), tops, strict=True))
            self.keep(replace(node, args=tuple(args)))
        else:
            args = (self.beside(x, y) for x, y in ((a, b), (b, a)))
            self.keep(replace(node, args=tuple(args)))

    def top(self, name: str) -> str:
        """Return the peak that a value is relative to, or what it is exp of, "" for neither."""
        degree, node = self.degrees[name], self.graph.producers[name]
        if degree:
            (peak, power), *more = degree.items()
            return peak if power == 1 and not more else ""
        if node.op == "const" and node.value > 0:
            return self.number(math.log(node.value))
        return node.args[0] if node.op == "exp" and not self.stays(name) else ""

    def combined(self, peak: str) -> None:
        """Compute a peak, if it is one of all blocks of a split; raises where it is not known."""
        if peak in self.split and peak not in self.builder.types:
            own, dim = self.split[peak]
            self.add("combine_max", (own,), peak, over=dim)
        require(peak in self.builder.types)

    def under(self, name: str, top: str, common: str) -> str:
        """Return a value relative to a peak that is at least its own, or its exponent."""
        lowered = self.add("sub", (top, common), f"lowered_{top}")
        factor = self.add("exp", (lowered,), f"decay_{top}")
        if not self.degrees[name]:
            self.degrees[factor] = {common: 1}
            return factor
        self.raised[top, common] = factor
        return self.lifted(name, common)

    def lifted(self, name: str, peak: str) -> str:
        """Return a value relative to a peak that its own one went into, "" where it did not."""
        own = self.degrees[name]
        if peak in own:
            return name
        for (lower, higher), factor in [*self.raised.items()]:
            if own == {lower: 1}:
                made = self.add("mul", (name, factor), f"lifted_{name}")
                self.degrees[made] = {higher: 1}
                if found := self.lifted(made, peak):
                    return found
        return ""

    def beside(self, name: str, other: str) -> str:
        """Return an addend relative to the other's peak, itself where it has one or cannot be."""
        degree = self.degrees[other]
        if self.degrees[name] or list(degree.values()) != [1]:
            return name
        return self.relative(name, *degree) or name

    def number(self, value: float) -> str:
        """Return the name of a constant."""
        for node in self.builder.nodes:
            if (node.op, node.value) == ("const", value) and node.out.type.dtype.is_real:
                return node.name
        made = Value(self.builder.free_name("number"), SCALAR)
        return self.builder.add(Node("const", (), (made,), value=value))

    def relative(self, name: str, peak: str) -> str:
        """Return a value times exp(-peak), made of an exp of less; "" where there is none.

        Raises where the peak is known to other blocks only.
        """
        node = self.graph.producers[name]
        masks = node.op == "where" and self.is_zero(node.args[2])
        if node.op == "exp":
            require(peak in self.builder.types)
            lowered = self.add("sub", (node.args[0], peak), f"lowered_{node.args[0]}")
            made = self.add("exp", (lowered,), f"lowered_{name}")
        elif node.op in ("mul", "div", "neg") or masks:
            args, at = [*node.args], 1 if masks else 0
            for i in range(at, len(args) if node.op == "mul" else at + 1):
                changed = self.relative(args[i], peak)
                if changed:
                    args[i] = changed
                    break
            else:
                return ""
            made = self.add(node.op, tuple(args), f"lowered_{name}")
        else:
            return ""
        self.degrees[made] = {peak: 1}
        return made

    def log(self, node: Node) -> None:
        """Take the logarithm, and add what the value is relative to."""
        degree = self.degrees[node.args[0]]
        if not degree:
            self.keep(node)
            return
        require(list(degree.values()) == [1])
        (peak,) = degree
        self.combined(peak)
        lowered = self.add("log", node.args, f"lowered_{node.name}")
        self.builder.add(replace(node, op="add", args=(lowered, peak)))
        self.degrees[node.name] = {}

    def degree_of(self, node: Node) -> Degree:
        """Return the degree of an op's result."""
        args = [self.degrees[a] for a in node.args]
        if node.op == "mul":
            return _plus(*args)
        if node.op == "div":
            return _plus(args[0], {peak: -n for peak, n in args[1].items()})
        if node.op == "where" and self.is_zero(node.args[2]):
            return args[1]
        same = node.op in ("add", "sub") and args[0] == args[1]
        if node.op in ("neg", "output", "combine") or same:
            return args[0]
        require(not any(args))
        return {}


def _plus(*degrees: Degree) -> Degree:
    total: dict[str, int] = {}
    for peak, power in (item for d in degrees for item in d.items()):
        total[peak] = total.get(peak, 0) + power
    return {peak: power for peak, power in total.items() if power}
