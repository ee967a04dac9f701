"""Choosing by position and by elements of tensors, as comparisons of whole numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, NamedTuple

from mirage_kernels.generator.frontend.positional.dims import Row, Scope, Tile
from mirage_kernels.generator.ir import Dim, DType, Node, TensorType, Value

if TYPE_CHECKING:
    from mirage_kernels.generator.frontend.positional.program import Step


class Condition(NamedTuple):
    """Positions times factors, plus elements of operands times theirs, plus a number: >= 0."""

    factors: tuple[int, ...]
    number: int
    of_operands: tuple[int, ...]


def chosen(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    """Return the first operand where all conditions hold, the second elsewhere.

    The operands behind them are tensors of whole numbers or truth values.
    """
    rows = scope.aligned(args[0], args[1], step.op)
    for tensor in args[2:]:
        rows = scope.aligned(Tile("", rows), tensor, step.op)
    both, *more = (_held(scope, rows, condition, args[2:]) for condition in step.conditions)
    for test in more:
        both = scope.emit("both", both, test)
    name = scope.emit("where", both, args[0].name, args[1].name)
    return [scope.made(name, rows, args[:2], step.op)]


def counted(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    """Return whole numbers divided by the first operand, 1: they are real then."""
    rows, (own,) = args[0].rows, step.conditions
    for tensor in args[1:]:
        rows = scope.aligned(Tile("", rows), tensor, step.op)
    less, more = (_side(scope, rows, own, args[1:], sign) for sign in (-1, 1))
    plus = [_whole(scope, own.number)] if own.number or not (less or more) else []
    total = _sum(scope, [*more, *plus] or [_whole(scope, 0)])
    total = scope.emit("sub", total, _sum(scope, less)) if less else total
    name = scope.emit("div", total, args[0].name)
    return [scope.made(name, rows, args[:1], step.op)]


def _held(scope: Scope, rows: Sequence[Row], own: Condition, operands: Sequence[Tile]) -> str:
    """Append a comparison: what is subtracted < what is added + 1; a truth value is one."""
    weighed = [(x, f) for x, f in zip(operands, own.of_operands, strict=True) if f]
    if not any(own.factors) and own.number == -1 and [f for _, f in weighed] == [1]:
        ((only, _),) = weighed
        if scope.builder.types[only.name].dtype is DType.BOOL:
            return only.name
    sides = []
    for sign in (-1, 1):
        terms, plus = _side(scope, rows, own, operands, sign), max(0, sign * (own.number + 1))
        sides.append(_sum(scope, [*terms, *([_whole(scope, plus)] if plus or not terms else [])]))
    return scope.emit("less", *sides)


def _side(
    scope: Scope, rows: Sequence[Row], own: Condition, operands: Sequence[Tile], sign: int
) -> list[str]:
    """Return the names of positions and elements of operands whose factors have a sign."""
    pairs = zip(own.factors, rows, strict=True)
    places = [term for f, row in pairs for term in _terms(scope, row, sign * f)]
    elements = zip(operands, own.of_operands, strict=True)
    return places + [_times(scope, x.name, sign * f) for x, f in elements if sign * f > 0]


def _sum(scope: Scope, terms: Sequence[str]) -> str:
    return reduce(partial(scope.emit, "add"), terms)


def _times(scope: Scope, name: str, factor: int) -> str:
    """Return the name of whole numbers times a factor."""
    return name if factor == 1 else scope.emit("mul", name, _whole(scope, factor))


def _terms(scope: Scope, row: Row, factor: int) -> Iterator[str]:
    """Yield positions along the factors of a row, times a factor that is above 0."""
    if factor <= 0:
        return
    for f in reversed(row):
        name = _position(scope, scope.factors.name(f), scope.factors.sizes[f])
        yield _times(scope, name, factor)
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
