"""Readings over NumPy arrays: one way to align, contract and tile, any kind of numbers.

An `Array` has named axes and one or more parts (real numbers have one, the finite field's
elements two). An `Arithmetic` says how numbers add, multiply and so on; everything about dims,
blocks and loops is shared by all of them. Positions and truth values (int32, bool) are ordinary
integers in every arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import prod
from zlib import crc32

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.ir import DType, Kind, Node
from mirage_kernels.generator.meaning.blocks import Launch
from mirage_kernels.generator.meaning.walk import Reading, reading, results

Part = npt.NDArray[np.generic]
Bools = npt.NDArray[np.bool_]
Parts = tuple[Part, ...]
Places = dict[str, npt.NDArray[np.int64]]  # positions along dims, where they are not the first ones
LARGE = 2.0**500  # numbers of float64 whose squares are none


@dataclass(frozen=True)
class Array:
    """A value: names of its axes, and its parts, all of one shape."""

    dims: tuple[str, ...]
    parts: Parts
    real: bool = True

    def extent(self, dim: str) -> int:
        """Return the extent of an axis."""
        return int(self.parts[0].shape[self.dims.index(dim)])

    def cut(self, dim: str, start: int, stop: int) -> Array:
        """Return the elements `start .. stop` along an axis, as a view."""
        index = (*(slice(None),) * self.dims.index(dim), slice(start, stop))
        return Array(self.dims, tuple(p[index] for p in self.parts), self.real)

    def over(self, dims: Sequence[str]) -> Array:
        """Return the value with its axes in the order `dims`, missing ones of extent 1."""
        wanted = tuple(dims)
        if wanted == self.dims:
            return self
        order, index = _alignment(self.dims, wanted)
        return Array(wanted, tuple(p.transpose(order)[index] for p in self.parts), self.real)


@cache
def _alignment(
    have: tuple[str, ...], want: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[slice | None, ...]]:
    """Return how to transpose and index axes `have` so that they become `want`."""
    order = tuple(have.index(d) for d in want if d in have)
    return order, tuple(slice(None) if d in have else None for d in want)


@dataclass(frozen=True)
class Arithmetic:
    """How one kind of numbers computes; functions take and return parts that broadcast."""

    name: str
    elementwise: Mapping[str, Callable[..., Parts]]
    total: Callable[[Parts, int], Parts]  # sum along one axis
    largest: Callable[[Parts, int], Parts]  # maximum along one axis
    matmul: Callable[[Parts, Parts], Parts]  # [..., i, k] x [..., k, j]
    number: Callable[[Part], Parts]  # float64 or integer data -> parts
    peak: Callable[[Parts, int, int], Parts]  # bound along one axis; a seed, should it be random
    higher: Callable[[Parts, Parts], Parts]  # of a bound so far and a new one
    decay: Callable[[Parts, Parts], Parts]  # exp(old peak - new peak), 1 where they are equal
    finish: Callable[[Node, Parts], Parts] = lambda node, parts: parts  # rounding, per node
    constant: Callable[[Part], Parts] | None = None  # of a program; none: as other numbers

    def made(self, node: Node, dims: tuple[str, ...], parts: Parts) -> Array:
        """Return the result of a node, rounded as it is stored."""
        return Array(dims, self.finish(node, parts))

    def lift(self, a: Array) -> Parts:
        """Return the parts of a value as real numbers."""
        return a.parts if a.real else self.number(a.parts[0])


_INTEGER: dict[str, Callable[..., Part]] = {
    "neg": np.negative,
    "max": np.maximum,
    "less": np.less,
    "both": np.logical_and,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
}


def array_reading(
    arithmetic: Arithmetic, sizes: Mapping[str, int], places: Places | None = None
) -> Reading[Array]:
    """Return the reading that runs graphs on arrays; `sizes` are the extents of all dims.

    Positions along a dim are 0, 1, 2, ..., or those of `places`.
    """

    def reduced(node: Node, args: Sequence[Array]) -> list[Array]:
        (x,) = args
        axis, dims = x.dims.index(node.over), tuple(d for d in x.dims if d != node.over)
        if node.op == "sum":
            return [arithmetic.made(node, dims, arithmetic.total(x.parts, axis))]
        if node.op == "amax":
            return [arithmetic.made(node, dims, arithmetic.largest(arithmetic.lift(x), axis))]
        seed = crc32(node.name.encode())
        return [arithmetic.made(node, dims, arithmetic.peak(arithmetic.lift(x), axis, seed))]

    def nested(node: Node, args: Sequence[Array]) -> list[Array]:
        assert node.body is not None
        if node.body.space is None:
            return results(node.body, args, rules)
        whole = {d: a.extent(d) for a in args for d in a.dims}
        return Launch(node, rules, arithmetic, {**sizes, **whole}).run(args)

    def carried(node: Node, args: Sequence[Array]) -> list[Array]:
        raise GraphError(f"{node.name}: {node.op} has a meaning in a block graph only")

    def output(node: Node, args: Sequence[Array]) -> list[Array]:
        tile = args[0].over(node.out.type.names)
        return [replace(tile, parts=arithmetic.finish(node, tile.parts))]

    rules = reading(
        {
            Kind.SOURCE: lambda node, args: [_source(arithmetic, node, sizes, places or {})],
            Kind.ELEMENTWISE: lambda node, args: [_elementwise(arithmetic, node, args)],
            Kind.REDUCE: reduced,
            Kind.STABILISER: reduced,
            Kind.CONTRACT: lambda node, args: [_contract(arithmetic, node, *args)],
            Kind.CARRY: carried,
            Kind.GRAPH: nested,
            Kind.OUTPUT: output,
        }
    )
    return rules


def _source(arithmetic: Arithmetic, node: Node, sizes: Mapping[str, int], places: Places) -> Array:
    """Return a constant, an extent or positions along a dim."""
    if node.op != "const" and node.over not in sizes:
        raise GraphError(f"{node.name}: there is no dim {node.over!r} here")
    if node.op == "iota":
        if node.out.type.names != (node.over,):
            raise GraphError(f"{node.name}: positions along {node.over} are {node.out.type}")
        found = places.get(node.over, np.arange(sizes[node.over]))
        return Array((node.over,), (found,), real=False)
    value = node.value if node.op == "const" else sizes[node.over]
    if node.out.type.dtype is DType.INT32:
        return Array((), (np.asarray(int(value)),), real=False)
    made = arithmetic.constant if node.op == "const" else None
    return Array((), (made or arithmetic.number)(np.asarray(float(value))))


def _agreed_dims(node: Node, args: Sequence[Array]) -> tuple[str, ...]:
    """Return the dims of all operands; an extent of 1 is no licence to broadcast along a dim."""
    extents, apart = _agreed(tuple((a.dims, a.parts[0].shape) for a in args))
    for d, n in apart:
        raise GraphError(f"{node.name}: tiles of {extents[d]} and {n} along {d} meet")
    return tuple(extents)


@lru_cache(maxsize=4096)
def _agreed(
    shapes: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...],
) -> tuple[dict[str, int], list[tuple[str, int]]]:
    """Return the first extent of each dim, and others that it has beside that."""
    extents: dict[str, int] = {}
    pairs = [pair for dims, shape in shapes for pair in zip(dims, shape, strict=True)]
    return extents, [(d, n) for d, n in pairs if extents.setdefault(d, n) != n]


def _elementwise(arithmetic: Arithmetic, node: Node, args: Sequence[Array]) -> Array:
    dims = _agreed_dims(node, args)
    aligned = [a.over(dims) for a in args]
    if node.op == "where":
        condition = aligned[0].parts[0]
        choices = zip(*(arithmetic.lift(a) for a in aligned[1:]), strict=False)
        return arithmetic.made(node, dims, tuple(np.where(condition, x, y) for x, y in choices))
    if node.op in _INTEGER and not any(a.real for a in aligned):
        return Array(dims, (_INTEGER[node.op](*(a.parts[0] for a in aligned)),), real=False)
    if node.op in ("less", "both"):
        raise GraphError(f"{node.name}: {node.op} compares positions, not real numbers")
    parts = arithmetic.elementwise[node.op](*map(arithmetic.lift, aligned))
    return arithmetic.made(node, dims, parts)


def _contract(arithmetic: Arithmetic, node: Node, a: Array, b: Array) -> Array:
    _agreed_dims(node, (a, b))
    both, own_a, own_b = _contracted(a.dims, b.dims, node.over)
    left = _folded(a.over((*both, *own_a, node.over)), len(both), last=1)
    right = _folded(b.over((*both, node.over, *own_b)), len(both), last=len(own_b))
    parts = arithmetic.matmul(left, right)
    shape = [a.extent(d) for d in (*both, *own_a)] + [b.extent(d) for d in own_b]
    named = Array((*both, *own_a, *own_b), tuple(p.reshape(shape) for p in parts))
    order = tuple(d for d in node.out.type.names if d in named.dims)
    return arithmetic.made(node, order, named.over(order).parts)


@cache
def _contracted(
    a: tuple[str, ...], b: tuple[str, ...], over: str
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the dims of a contraction's operands: those of both, of `a` alone, of `b` alone."""
    both = tuple(d for d in a if d in b and d != over)
    return both, tuple(d for d in a if d not in b), tuple(d for d in b if d not in a)


def _folded(x: Array, batch: int, last: int) -> Parts:
    """Fold the axes behind `batch` into two, the last `last` ones into the second."""
    shape = x.parts[0].shape
    split = len(shape) - last
    folded = (*shape[:batch], prod(shape[batch:split]), prod(shape[split:]))
    return tuple(p.reshape(folded) for p in x.parts)


def relative_error(found: Array, exact: Array, *, at: Bools | None = None) -> float:
    """Return ||found - exact|| / ||exact||, at some places or all; 0 where both are 0.

    Infinite where a finite result became inf or nan, or 0 became another number.
    """
    places = ... if at is None else at
    a = np.asarray(found.over(exact.dims).parts[0], np.float64)[places]
    b = np.asarray(exact.parts[0], np.float64)[places]
    if not np.isfinite(a).all():
        return float("inf")
    if np.abs(b).max(initial=0.0) > LARGE:
        a, b = a / LARGE / LARGE, b / LARGE / LARGE
    off, size = float(np.linalg.norm(a - b)), float(np.linalg.norm(b))
    return off / size if size else float("inf") if off else 0.0
