"""Whether a node of a graph computes a pattern, and from which nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor, fx

from mirage_kernels.element_types import HALVES
from mirage_kernels.matching.patterns import Pattern
from mirage_kernels.matching.shapes import alike, dense_order, static
from mirage_kernels.matching.terms import COMMUTATIVE, Term, bare, close, same
from mirage_kernels.matching.trace import Traced

Bound = Mapping[str, Term]


@dataclass(frozen=True)
class Rows:
    """A node's tensor, or some rows of it: a weight that is packed with others."""

    node: fx.Node
    first: int = 0
    end: int = -1  # all


@dataclass(frozen=True, eq=False)
class Match:
    """A node that a pattern computes."""

    pattern: Pattern
    root: fx.Node
    total: fx.Node | None  # the sum that is returned beside it
    tensors: Mapping[str, Rows]
    numbers: Mapping[str, float]
    sizes: Mapping[str, int]  # of the recipe's static dims
    inner: frozenset[fx.Node]  # that are computed on the way
    order: tuple[int, ...]  # of the root's dims, in which its results are contiguous

    @property
    def inputs(self) -> frozenset[fx.Node]:
        """The nodes that it reads."""
        return frozenset(rows.node for rows in self.tensors.values())

    @property
    def is_contiguous(self) -> bool:
        """Say whether its results are contiguous as they are."""
        return self.order == tuple(range(len(self.order)))


@dataclass(frozen=True, eq=False)
class Refused:
    """A node that computes a pattern, and why no op can take its place."""

    pattern: Pattern
    root: fx.Node
    reason: str


def match(pattern: Pattern, root: fx.Node, traced: Traced) -> Match | Refused | None:
    """Return the match of a pattern with a node; None where it computes something else."""
    term = traced.terms.get(root)
    if term is None or bare(term).op != pattern.roots[0].op:
        return None
    for bound in _bindings(pattern.roots[0], term, pattern, {}):
        made = _Binder(pattern, root, traced).match(bound)
        if made is not None:
            return made
    return None


def _bindings(wanted: Term, term: Term, pattern: Pattern, bound: Bound) -> Iterator[Bound]:
    """Return the ways of reading a formula as the wanted one."""
    name = pattern.tensors.get(wanted)
    if name is not None:
        if name not in bound:
            yield {**bound, name: term}
        elif same(bound[name], term):
            yield bound
        return
    if wanted.is_const:
        yield from _numbers(wanted, term, pattern, bound)
        return
    term, wanted = bare(term), bare(wanted)
    if term.op != wanted.op or len(term.args) != len(wanted.args):
        return
    orders = [term.args]
    if term.op in COMMUTATIVE and term.args[0] is not term.args[1]:
        orders.append(term.args[::-1])
    for args in orders:
        yield from _each(wanted.args, args, pattern, bound)


def _numbers(wanted: Term, term: Term, pattern: Pattern, bound: Bound) -> Iterator[Bound]:
    if not term.is_const:
        return
    near = (n for value, n in pattern.numbers.items() if close(value, wanted.value, 1e-6))
    name = next(near, None)
    if name is None:
        if close(wanted.value, term.value, 1e-6):
            yield bound
    elif name not in bound or bound[name].value == term.value:
        yield {**bound, name: term}


def _each(
    wanted: tuple[Term, ...], args: tuple[Term, ...], pattern: Pattern, bound: Bound
) -> Iterator[Bound]:
    if not wanted:
        yield bound
        return
    for first in _bindings(wanted[0], args[0], pattern, bound):
        yield from _each(wanted[1:], args[1:], pattern, first)


class _Binder:
    """Finds the nodes that hold what a reading has bound, and checks their shapes and types."""

    def __init__(self, pattern: Pattern, root: fx.Node, traced: Traced) -> None:
        self.pattern, self.root, self.traced = pattern, root, traced
        self.value = traced.values[root]

    def match(self, bound: Bound) -> Match | Refused | None:
        total = self._total(bound)
        if len(self.pattern.roots) > 1 and total is None:
            return None
        found: dict[str, Rows] = {}
        for name in self.pattern.tensors.values():
            rows = self._rows(bound[name], name)
            if rows is None:
                return self._refusal(bound[name], name)
            found[name] = rows
        sizes = self._sizes(found)
        if sizes is None:
            return None
        inner = self._inner({r.node for r in found.values()})
        reason, order = self._reason(found, inner), self._order(total)
        if reason or order is None:
            return Refused(self.pattern, self.root, reason or "its result is not contiguous")
        names = self.pattern.numbers.values()
        numbers = {n: bound[n].value for n in names}
        return Match(self.pattern, self.root, total, found, numbers, sizes, inner, order)

    def _total(self, bound: Bound) -> fx.Node | None:
        for root in self.pattern.roots[1:]:
            parts = {id(bare(bound[self.pattern.tensors[a]])) for a in root.args}
            for term, nodes in self.traced.owners.items():
                inner = bare(term)
                if inner.op == root.op and {id(bare(a)) for a in inner.args} == parts:
                    alike = [n for n in nodes if self._is_like_root(n)]
                    if alike:
                        return alike[0]
        return None

    def _is_like_root(self, node: fx.Node) -> bool:
        value = self.traced.values[node]
        return value.dtype == self.value.dtype and self._has_rows(value)

    def _has_rows(self, value: Tensor) -> bool:
        return alike(value.shape[:-1], self.value.shape[:-1])

    def _rows(self, term: Term, name: str) -> Rows | None:
        """Return the node of a term, or that of the weight which it is rows of."""
        node = next(filter(partial(self._fits, name), self.traced.owners.get(term, [])), None)
        if node is not None:
            return Rows(node)
        if term.op != "rows" or self.pattern.is_by_token(name):
            return None
        whole, first, end = term.args
        made = self._rows(whole, name)
        return made and Rows(made.node, int(first.value), int(end.value))

    def _fits(self, name: str, node: fx.Node) -> bool:
        """Say whether a node has the type and the leading dims that the op takes."""
        value = self.traced.values[node]
        if value.dtype not in HALVES:
            return False
        if self.pattern.is_by_token(name):
            return self._has_rows(value)
        return value.dim() == len(self.pattern.dims[name]) and value.is_contiguous()

    def _refusal(self, term: Term, name: str) -> Refused | None:
        """Say why an input does not fit, where that is its type."""
        if term.op == "rows":
            term = term.args[0]
        nodes = self.traced.owners.get(term, [])
        types = {str(self.traced.values[n].dtype).removeprefix("torch.") for n in nodes}
        if not types or any(self.traced.values[n].dtype in HALVES for n in nodes):
            return None
        reason = f"{name} is {' and '.join(sorted(types))}; float16 and bfloat16 work"
        return Refused(self.pattern, self.root, reason)

    def _sizes(self, found: Mapping[str, Rows]) -> dict[str, int] | None:
        """Return the static dims; None where tensors differ in them."""
        sizes: dict[str, int] = {}
        for name, rows in found.items():
            value = self.traced.values[rows.node]
            dims = self.pattern.dims[name]
            if value.dim() == 0:
                return None
            shape = [*value.shape[-len(dims) :]]
            if rows.end >= 0:
                shape[0] = rows.end - rows.first
            # One token may come without leading dims.
            for dim, size in zip(dims[-len(shape) :], shape, strict=True):
                if dim not in self.pattern.static:
                    continue
                known = static(size)
                if known is None or sizes.setdefault(dim, known) != known:
                    return None
        return sizes

    def _reason(self, found: Mapping[str, Rows], inner: frozenset[fx.Node]) -> str:
        """Return why an op cannot take the place of the nodes; empty where one can."""
        values: dict[str, Tensor] = {n: self.traced.values[r.node] for n, r in found.items()}
        types = {v.dtype for v in (*values.values(), self.value)}
        if len(types) > 1:
            words = sorted(str(t).removeprefix("torch.") for t in types)
            return f"its tensors are {' and '.join(words)}; one of float16 and bfloat16 works"
        if any(n in self.traced.unstable for n in (self.root, *inner, *map(_node, found.values()))):
            return "a tensor of it is written in place"
        if any(v.device != self.value.device for v in values.values()):
            return "its tensors are on several devices"
        return ""

    def _order(self, total: fx.Node | None) -> tuple[int, ...] | None:
        """Return an order of dims in which the results are contiguous, as an op makes them."""
        made = [self.value] if total is None else [self.value, self.traced.values[total]]
        orders = {dense_order(value) for value in made}
        return orders.pop() if len(orders) == 1 else None

    def _inner(self, leaves: set[fx.Node]) -> frozenset[fx.Node]:
        """Return the nodes that compute the root from the leaves."""
        found: set[fx.Node] = set()
        waiting = [self.root]
        while waiting:
            for node in waiting.pop().all_input_nodes:
                if node not in leaves | found and node in self.traced.computed:
                    found.add(node)
                    waiting.append(node)
        return frozenset(found)


def _node(rows: Rows) -> fx.Node:
    return rows.node
