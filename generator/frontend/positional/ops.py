"""The positional operators: what each takes, what it gives, what it becomes in named dims.

Elementwise operators are those of the one op table (`ir/ops.py`). Every other one becomes a
composition of that table's ops. The accumulations of a block graph sum over the iterations of its
loop; dims that they add up along (the last one, or all but `reduction_dimx` columns of it) are
summed in the tile first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.positional.dims import (
    LOOP,
    Cut,
    Scope,
    Tile,
    only_values,
)
from mirage_kernels.generator.frontend.positional.steps import (
    Extents,
    Frame,
    ShapeRule,
    Step,
    accum,
    check_extents,
    concat,
    elementwise,
    matmul,
    reduction,
)
from mirage_kernels.generator.ir import OPS, Kind

Lowering = Callable[[Scope, Step, Sequence[Tile]], list[Tile]]


@dataclass(frozen=True)
class Op:
    """An operator of positional programs.

    `over_dim`: `Step.dim` is a dim of its first operand. `numbers`: how many constants it has.
    `block`: only block graphs have it. `special`: it takes a concat, or the growth of a maximum.
    """

    arity: int
    extents: ShapeRule
    lower: Lowering
    numbers: int = 0
    results: int = 1
    over_dim: bool = False
    block: bool = False
    special: bool = False


def result_extents(step: Step, args: Sequence[Extents], frame: Frame | None) -> list[Extents]:
    """Return the extents of a step's results; raise GraphError where its operands don't fit.

    `frame` is that of the block graph around it, None at kernel level.
    """
    level, known = "block", POSITIONAL
    if frame is None:
        level, known = "kernel", {name: op for name, op in POSITIONAL.items() if not op.block}
    op = known.get(step.op)
    if op is None:
        raise GraphError(f"a {level} graph has no operator {step.op!r}", f"there are {[*known]}")
    if op.arity != len(args):
        raise GraphError(f"{step.op} takes {op.arity} operands, not {len(args)}")
    if op.numbers != len(step.numbers):
        raise GraphError(f"{step.op} takes {op.numbers} numbers, not {len(step.numbers)}")
    if op.over_dim and not 0 <= step.dim < len(args[0]):
        raise GraphError(f"{step.op} over dim {step.dim}: the tensor has the dims {list(args[0])}")
    found = check_extents(op.extents(step, args, frame), f"the result of {step.op}")
    return [found] * op.results


def lowered(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    """Append the nodes of one step and return its results."""
    op = POSITIONAL[step.op]
    if not op.special:
        only_values(args, step.op)
    return op.lower(scope, step, args)


def _elementwise(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    rows = args[0].rows if len(args) == 1 else scope.aligned(args[0], args[1], step.op)
    name = scope.emit(step.op, *(a.name for a in args))
    return [scope.made(name, rows, args, step.op)]


def _exp(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    if args[0].role == "growth":
        return [replace(args[0], role="factor")]
    only_values(args, step.op)
    return _elementwise(scope, step, args)


def _mul_scalar(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    product = scope.emit("mul", args[0].name, scope.number(step.numbers[0]))
    return [scope.made(product, args[0].rows, args, step.op)]


def _clamp(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    """max(min(x, high), low); min(a, b) = -max(-a, -b)."""
    low, high = step.numbers
    minus = scope.emit("neg", args[0].name)
    below = scope.emit("neg", scope.emit("max", minus, scope.number(-high)))
    name = scope.emit("max", below, scope.number(low))
    return [scope.made(name, args[0].rows, args, step.op)]


def _matmul(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    a, b = args
    if a.parts and b.parts and (a.joint, b.joint) == (len(a.rows) - 1, len(b.rows) - 2):
        # (a1 | a2) @ (b1 / b2)  ->  a1 @ b1 + a2 @ b2
        products = [_matmul(scope, step, pair)[0] for pair in zip(a.parts, b.parts, strict=True)]
        return _elementwise(scope, Step("add"), products)
    only_values(args, step.op)
    leading = [replace(t, rows=t.rows[:-2]) for t in args]
    batch = scope.aligned(leading[0], leading[1], f"{step.op}, leading dims")
    inner, other = a.rows[-1], b.rows[-2]
    if inner and other:
        scope.meet((a, inner), (b, other), f"{step.op}, inner dims")
    elif inner or other:
        scope.factors.drop(inner or other)
    for tile in (a, b):
        scope.uncut(tile, inner, f"{step.op}, inner dim")
    rows = (*batch, a.rows[-2], b.rows[-1])
    row = (*a.rows[-2], *inner, *b.rows[-1])
    if len(set(row)) < len(row):
        raise GraphError(
            f"matmul over a dim of {scope.factors.extent(row[:1])} elements that is also a row or "
            "a column of the operands",
            "a product of a tensor with itself has no named form yet",
        )
    if not inner:
        return [scope.made(scope.emit("mul", a.name, b.name), rows, args, step.op)]
    name = scope.emit("contract", a.name, b.name, over=inner[-1])
    return [scope.made(scope.summed(name, inner[:-1]), rows, args, step.op)]


def _concat(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    looped = any(a.looped for a in args)
    return [Tile("", args[0].rows, looped=looped, parts=tuple(args), joint=step.dim)]


def _shortened(scope: Scope, a: Tile, position: int, size: int) -> Tile:
    """Sum along a dim until `size` elements are left, those `size` apart."""
    row = a.rows[position]
    why = f"a reduction to {size}"
    at = len(row)
    while size > 1:
        at -= 1
        scope.stand_apart(a.cut(row[at]), why)
        extent = scope.factors.sizes[row[at]]
        if size % extent:
            scope.factors.split(row[at], extent // size if extent % size == 0 else size, why)
        size //= extent
    scope.uncut(a, row[:at], why)
    return replace(a, name=scope.summed(a.name, row[:at]), rows=a.with_row(position, row[at:]))


def _reduction(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    short = _shortened(scope, args[0], step.dim, step.size)
    return [scope.made(short.name, short.rows, args, step.op)]


def _rms_norm(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    """x / sqrt(mean(x^2)) over the dims from `dim` on."""
    (a,) = args
    row = tuple(factor for r in a.rows[step.dim :] for factor in r)
    for factor in row:
        scope.stand_apart(a.cut(factor), step.op)
    mean = scope.summed(scope.emit("square", a.name), row)
    if row:
        mean = scope.emit("div", mean, scope.product([scope.size(f) for f in row]))
    return [scope.made(scope.emit("div", a.name, scope.emit("sqrt", mean)), a.rows, args, step.op)]


def _reduction_max(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    """Return the running maximum along a dim, and a mark for how much it grew."""
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
    for factor in over:
        name = scope.emit("peak", name, over=factor)
    peak = scope.made(name, a.with_row(step.dim, ()), args, step.op)
    peak = replace(peak, role="peak", peak=name)
    return [peak, replace(peak, role="growth")]


def _accum(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    (a,) = args
    last = len(a.rows) - 1
    if step.kind == "rms":
        a = replace(a, name=scope.emit("square", a.name))
    size = step.outs[0].extents[last] if step.kind == "sum_todimx" else 1
    total = _total(scope, _shortened(scope, a, last, size) if step.kind else a)
    if step.kind in ("mean", "rms"):
        row = a.rows[last]
        sizes = [scope.product([scope.size(f) for f in row])] if row else []
        if scope.loop_range > 1 and not any(c.factor in row for c in a.along(LOOP)):
            sizes.append(_iterations(scope))
        count = scope.product(sizes)  # of what the mean is of; "" for one
        mean = scope.emit("div", total.name, count) if count else total.name
        total = replace(total, name=scope.emit("sqrt", mean) if step.kind == "rms" else mean)
    return [total]


def _after_loop(cuts: Sequence[Cut]) -> tuple[Cut, ...]:
    return tuple(c for c in cuts if c.axis != LOOP)


def _in_tile(scope: Scope, a: Tile, why: str) -> str:
    """Sum along what is left of the loop's dim in a tile; return the name of the sum."""
    for factor in (factor for row in a.rows for factor in row):
        cut = a.cut(factor)
        if cut is not None and cut.axis == LOOP:
            scope.stand_apart(cut, why)
    return scope.summed(a.name, scope.hidden(a, LOOP))


def _total(scope: Scope, a: Tile) -> Tile:
    """Return the sum of a tile over the loop's iterations."""
    kept = _after_loop(a.cuts)
    if scope.loop_range == 1:
        return replace(a, cuts=kept, looped=False)
    if not a.looped:  # the same in every iteration
        return replace(a, name=scope.emit("mul", a.name, _iterations(scope)), cuts=kept)
    name = scope.emit("accum", _in_tile(scope, a, "an accumulation"))
    return replace(a, name=name, cuts=kept, looped=False, role="", peak="")


def _iterations(scope: Scope) -> str:
    """Return the number of the loop's iterations as a scalar."""
    for cut in scope.loop_cuts:
        scope.stand_apart(cut, "an accumulation of what no iteration changes")
        return scope.size(cut.factor)
    return scope.number(scope.loop_range)


def _accum_rescale(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    a, factor = args
    only_values([a], step.op)
    if factor.role != "factor":
        raise GraphError(
            f"{step.op} takes a value and exp of the growth of a running maximum",
            "maximum, growth = reduction_max(x, dim); then exp(growth)",
        )
    if step.kind == "sum":
        a = _shortened(scope, a, len(a.rows) - 1, 1)
    cuts = _after_loop(scope.merged(a, factor, step.op))
    if scope.loop_range > 1:
        summed = _in_tile(scope, a, step.op)
        a = replace(a, name=scope.emit("accum_rescaled", summed, factor.peak))
    return [replace(a, cuts=cuts, looped=False)]


def _accum_max(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    (a,) = args
    if a.role != "peak":
        raise GraphError(f"{step.op} takes a running maximum", "the first result of reduction_max")
    name = scope.emit("last", a.name) if scope.loop_range > 1 else a.name
    return [Tile(name, a.rows, _after_loop(a.cuts))]


_MASKING = ("less", "both", "where")  # positions and truth values: no positional form yet
ELEMENTWISE = {
    op.name: op.arity
    for op in OPS.values()
    if op.kind is Kind.ELEMENTWISE and op.name not in _MASKING
}
POSITIONAL: dict[str, Op] = {
    **{name: Op(n, elementwise, _elementwise) for name, n in ELEMENTWISE.items()},
    "exp": Op(1, elementwise, _exp, special=True),
    "mul_scalar": Op(1, elementwise, _mul_scalar, numbers=1),
    "clamp": Op(1, elementwise, _clamp, numbers=2),
    "matmul": Op(2, matmul, _matmul, special=True),
    "reduction": Op(1, reduction, _reduction, over_dim=True),
    "rms_norm": Op(1, elementwise, _rms_norm, over_dim=True),
    "reduction_max": Op(1, reduction, _reduction_max, results=2, over_dim=True, block=True),
    "accum": Op(1, accum, _accum, block=True),
    "accum_rescale": Op(2, accum, _accum_rescale, block=True, special=True),
    "accum_max": Op(1, elementwise, _accum_max, block=True, special=True),
    "concat": Op(2, concat, _concat, over_dim=True, block=True),
}
