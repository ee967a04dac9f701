"""What each positional operator becomes: one rule per operator, in nodes of our graphs.

Everything is a composition of our elementary ops. The accumulations of Mirage sum over the loop's
iterations; dims that they add up along (the last one, or all but `reduction_dimx` columns of it)
are summed in the tile first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.mirage.atoms import Row
from mirage_kernels.generator.frontend.mirage.program import Step
from mirage_kernels.generator.frontend.mirage.shapes import BINARY, UNARY
from mirage_kernels.generator.frontend.mirage.tiles import LOOP, Scope, Tile, only_values

Rule = Callable[[Scope, Step, Sequence[Tile]], list[Tile]]


def _unary(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    (a,) = args
    if step.op == "exp" and a.role == "growth":
        return [replace(a, role="factor")]
    only_values(args, step.op)
    return [scope.made(scope.emit(step.op, a.name), a.rows, [a], step.op)]


def _binary(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    only_values(args, step.op)
    a, b = args
    rows = scope.aligned(a, b, step.op)
    return [scope.made(scope.emit(step.op, a.name, b.name), rows, args, step.op)]


def _mul_scalar(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    only_values(args, step.op)
    (a,) = args
    product = scope.emit("mul", a.name, scope.number(step.numbers[0]))
    return [scope.made(product, a.rows, args, step.op)]


def _clamp(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    """max(min(x, high), low); min(a, b) = -max(-a, -b)."""
    only_values(args, step.op)
    (a,) = args
    low, high = step.numbers
    below = scope.emit("neg", scope.emit("max", scope.emit("neg", a.name), scope.number(-high)))
    return [scope.made(scope.emit("max", below, scope.number(low)), a.rows, args, step.op)]


def _matmul(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    a, b = args
    if a.parts and b.parts and (a.joint, b.joint) == (len(a.rows) - 1, len(b.rows) - 2):
        return _matmul_of_concats(scope, step, a, b)
    only_values(args, step.op)
    batch = scope.aligned(
        replace(a, rows=a.rows[:-2]), replace(b, rows=b.rows[:-2]), f"{step.op}, leading dims"
    )
    inner, other = a.rows[-1], b.rows[-2]
    if inner and other:
        scope.meet((a, inner), (b, other), f"{step.op}, inner dims")
    for atom in inner if not other else other if not inner else ():
        scope.atoms.drop(atom)
    for tile in args:
        scope.uncut(tile, inner, f"{step.op}, inner dim")
    rows = (*batch, a.rows[-2], b.rows[-1])
    _apart(scope, (*a.rows[-2], *inner, *b.rows[-1]))
    if not inner:
        return [scope.made(scope.emit("mul", a.name, b.name), rows, args, step.op)]
    name = scope.emit("contract", a.name, b.name, over=inner[-1])
    return [scope.made(_summed(scope, name, inner[:-1]), rows, args, step.op)]


def _apart(scope: Scope, row: Row) -> None:
    if len(set(row)) < len(row):
        raise GraphError(
            f"matmul over a dim of {scope.atoms.extent(row[:1])} elements that is also a row or a "
            "column of the operands",
            "a product of a tensor with itself has no named form yet",
        )


def _matmul_of_concats(scope: Scope, step: Step, a: Tile, b: Tile) -> list[Tile]:
    """(a1 | a2) @ (b1 / b2)  ->  a1 @ b1 + a2 @ b2."""
    products = [_matmul(scope, step, pair)[0] for pair in zip(a.parts, b.parts, strict=True)]
    return _binary(scope, Step("add"), products)


def _concat(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    only_values(args, step.op)
    looped = any(a.looped for a in args)
    return [Tile("", args[0].rows, looped=looped, parts=tuple(args), joint=step.dim)]


def _summed(scope: Scope, name: str, row: Sequence[int]) -> str:
    for atom in reversed(row):
        name = scope.emit("sum", name, over=atom)
    return name


def _shortened(scope: Scope, a: Tile, position: int, size: int) -> tuple[str, tuple[Row, ...]]:
    """Sum along a dim until `size` elements are left, those `size` apart; return name and rows."""
    row = a.rows[position]
    why = f"a reduction to {size}"
    at = len(row)
    while size > 1:
        at -= 1
        scope.stand_apart(a.cut(row[at]), why)
        extent = scope.atoms.sizes[row[at]]
        if size % extent:
            scope.atoms.split(row[at], extent // size if extent % size == 0 else size, why)
        size //= extent
    scope.uncut(a, row[:at], why)
    rows = (*a.rows[:position], row[at:], *a.rows[position + 1 :])
    return _summed(scope, a.name, row[:at]), rows


def _reduction(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    only_values(args, step.op)
    name, rows = _shortened(scope, args[0], step.dim, step.size)
    return [scope.made(name, rows, args, step.op)]


def _rms_norm(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    """x / sqrt(mean(x^2)) over the dims from `dim` on."""
    only_values(args, step.op)
    (a,) = args
    row = tuple(atom for r in a.rows[step.dim :] for atom in r)
    for atom in row:
        scope.stand_apart(a.cut(atom), step.op)
    squares = _summed(scope, scope.emit("square", a.name), row)
    mean = scope.emit("div", squares, _product(scope, row)) if row else squares
    return [scope.made(scope.emit("div", a.name, scope.emit("sqrt", mean)), a.rows, args, step.op)]


def _product(scope: Scope, row: Sequence[int]) -> str:
    """Return the number of elements along a row of atoms as a scalar."""
    first, *rest = (scope.size(atom) for atom in row)
    for size in rest:
        first = scope.emit("mul", first, size)
    return first


def _reduction_max(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    """Return the running maximum along a dim, and a mark for how much it grew."""
    only_values(args, step.op)
    (a,) = args
    row = a.rows[step.dim]
    scope.uncut(a, row, step.op)
    over = (*row, *scope.hidden(a, LOOP))
    if not over:
        raise GraphError(
            "reduction_max along a dim of one element that no loop cuts",
            "a maximum of one element is the element",
        )
    name = a.name
    for atom in over:
        name = scope.emit("peak", name, over=atom)
    rows = (*a.rows[: step.dim], (), *a.rows[step.dim + 1 :])
    peak = replace(scope.made(name, rows, args, step.op), role="peak", peak=name)
    return [peak, replace(peak, role="growth")]


def _accum(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    only_values(args, step.op)
    (a,) = args
    last = len(a.rows) - 1
    if step.kind == "rms":
        a = replace(a, name=scope.emit("square", a.name))
    row = a.rows[last]
    name, rows = a.name, a.rows
    if step.kind:
        size = scope.atoms.extent(()) if step.kind != "sum_todimx" else step.outs[0].extents[last]
        name, rows = _shortened(scope, a, last, size)
    total = _total(scope, replace(a, name=name, rows=rows))
    if step.kind in ("mean", "rms"):
        count = _iterated_product(scope, a, row)
        mean = scope.emit("div", total.name, count) if count else total.name
        total = replace(total, name=scope.emit("sqrt", mean) if step.kind == "rms" else mean)
    return [total]


def _in_tile(scope: Scope, a: Tile, why: str) -> str:
    """Sum along what is left of the loop's dim in a tile; return the name of the sum."""
    for row in a.rows:
        for atom in row:
            cut = a.cut(atom)
            if cut is not None and cut.axis == LOOP:
                scope.stand_apart(cut, why)
    return _summed(scope, a.name, scope.hidden(a, LOOP))


def _total(scope: Scope, a: Tile) -> Tile:
    """Return the sum of a tile over the loop's iterations."""
    kept = tuple(c for c in a.cuts if c.axis != LOOP)
    if scope.loop_range == 1:
        return replace(a, cuts=kept, looped=False)
    if not a.looped:  # the same in every iteration
        name = scope.emit("mul", a.name, _iterations(scope))
        return replace(a, name=name, cuts=kept)
    name = scope.emit("accum", _in_tile(scope, a, "an accumulation"))
    return replace(a, name=name, cuts=kept, looped=False, role="", peak="")


def _iterations(scope: Scope) -> str:
    """Return the number of the loop's iterations as a scalar."""
    for cut in scope.loop_cuts:
        scope.stand_apart(cut, "an accumulation of what no iteration changes")
        return scope.size(cut.atom)
    return scope.number(scope.loop_range)


def _iterated_product(scope: Scope, a: Tile, row: Row) -> str:
    """Return how many elements a mean over a row and all iterations is made of; "" for one."""
    cut_here = any(c.axis == LOOP and c.atom in row for c in a.cuts)
    sizes = [_product(scope, row)] if row else []
    if scope.loop_range > 1 and not cut_here:
        sizes.append(_iterations(scope))
    if not sizes:
        return ""
    return sizes[0] if len(sizes) == 1 else scope.emit("mul", *sizes)


def _accum_rescale(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    a, factor = args
    only_values([a], step.op)
    if factor.role != "factor":
        raise GraphError(
            f"{step.op} takes a value and exp of the growth of a running maximum",
            "maximum, growth = reduction_max(x, dim); then exp(growth)",
        )
    if step.kind == "sum":
        name, rows = _shortened(scope, a, len(a.rows) - 1, 1)
        a = replace(a, name=name, rows=rows)
    cuts = tuple(c for c in scope.merged(a, factor, step.op) if c.axis != LOOP)
    if scope.loop_range == 1:
        return [replace(a, cuts=cuts, looped=False)]
    name = scope.emit("accum_rescaled", _in_tile(scope, a, step.op), factor.peak)
    return [replace(a, name=name, cuts=cuts, looped=False)]


def _accum_max(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    (a,) = args
    if a.role != "peak":
        raise GraphError(f"{step.op} takes a running maximum", "the first result of reduction_max")
    name = scope.emit("last", a.name) if scope.loop_range > 1 else a.name
    cuts = tuple(c for c in a.cuts if c.axis != LOOP)
    return [Tile(name, a.rows, cuts)]


RULES: dict[str, Rule] = {
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BINARY, _binary),
    "mul_scalar": _mul_scalar,
    "clamp": _clamp,
    "matmul": _matmul,
    "reduction": _reduction,
    "rms_norm": _rms_norm,
    "reduction_max": _reduction_max,
    "accum": _accum,
    "accum_rescale": _accum_rescale,
    "accum_max": _accum_max,
    "concat": _concat,
}
