"""Choosing by position, as comparisons of numbered dims, and by elements of boolean tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mirage_kernels.generator.frontend.positional.dims import Row, Scope, Tile
from mirage_kernels.generator.ir import Dim, DType, Node, TensorType, Value

if TYPE_CHECKING:
    from mirage_kernels.generator.frontend.positional.program import Step

Condition = tuple[tuple[int, ...], int]  # factors of a tensor's positions, and what is added: >= 0


def chosen(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    """Return the first operand where all conditions hold, the second elsewhere.

    The operands behind them are boolean tensors, whose elements hold or, as `step` says, do not.
    """
    rows, tests = scope.aligned(args[0], args[1], step.op), list[str]()
    for mask in args[2:]:
        rows = scope.aligned(Tile("", rows), mask, step.op)
    for mask, holds in zip(args[2:], step.holds, strict=True):
        tests.append(mask.name if holds else scope.emit("less", mask.name, _whole(scope, 1)))
    tests += [_held(scope, rows, condition) for condition in step.conditions]
    both, *more = tests
    for test in more:
        both = scope.emit("both", both, test)
    name = scope.emit("where", both, args[0].name, args[1].name)
    return [scope.made(name, rows, args[:2], step.op)]


def _held(scope: Scope, rows: Sequence[Row], condition: Condition) -> str:
    """Append a comparison: what is subtracted < what is added + 1."""
    factors, number = condition
    sides = []
    for sign in (-1, 1):
        pairs = zip(factors, rows, strict=True)
        terms = [term for f, row in pairs for term in _terms(scope, row, sign * f)]
        plus = max(0, sign * (number + 1))
        terms += [_whole(scope, plus)] if plus or not terms else []
        total, *more = terms
        for term in more:
            total = scope.emit("add", total, term)
        sides.append(total)
    return scope.emit("less", *sides)


def _terms(scope: Scope, row: Row, factor: int) -> Iterator[str]:
    """Yield positions along the factors of a row, times a factor that is above 0."""
    if factor <= 0:
        return
    for f in reversed(row):
        name = _position(scope, scope.factors.name(f), scope.factors.sizes[f])
        yield name if factor == 1 else scope.emit("mul", name, _whole(scope, factor))
        factor *= scope.factors.sizes[f]


def _position(scope: Scope, dim: str, size: int) -> str:
    name = f"position_{dim}"
    if name not in scope.builder.types:
        type_ = TensorType((Dim(dim, size),), DType.INT32)
        scope.builder.add(Node("iota", (), (Value(name, type_),), over=dim))
    return name


def _whole(scope: Scope, value: int) -> str:
    """Return the name of a whole number."""
    for node in scope.builder.nodes:
        if (node.op, node.value) == ("const", value) and node.out.type.dtype is DType.INT32:
            return node.name
    out = Value(scope.builder.free_name("int"), TensorType((), DType.INT32))
    return scope.builder.add(Node("const", (), (out,), value=value))
