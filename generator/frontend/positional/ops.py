"""The positional operators: what each takes, what it gives, what it becomes in named dims.

Elementwise operators are those of the one op table (`ir/ops.py`). Every other one becomes a
composition of that table's ops. The accumulations of a block graph sum over the iterations of its
loop; dims that they add up along (the last one, or all but `reduction_dimx` columns of it) are
summed in the tile first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mirage_kernels.generator.errors import GraphError, OneDimError
from mirage_kernels.generator.frontend.positional.dims import LOOP, Scope, Tile
from mirage_kernels.generator.frontend.positional.positions import chosen, counted
from mirage_kernels.generator.frontend.positional.views import (
    expand,
    expanded,
    permute,
    permuted,
    reshape,
    reshaped,
)
from mirage_kernels.generator.ir import OPS, Kind

if TYPE_CHECKING:
    from mirage_kernels.generator.frontend.positional.program import Extents, Step


@dataclass(frozen=True)
class Op:
    """An operator of positional programs.

    `extents` gives its result's from those of its operands, None where they don't fit: `takes` says
    what would. `over_dim`: `Step.dim` is a dim of its first operand. `numbers`: how many constants
    it has; `kinds` those of an accumulation. `block`: only block graphs have it. `special`: it
    takes a concat, or the growth of a maximum. `more`: further operands may follow.
    """

    arity: int
    extents: Callable[[Step, Sequence[Extents]], Extents | None]
    lower: Callable[[Scope, Step, Sequence[Tile]], list[Tile]]
    takes: str = "operands have equally many dims; each pair is equal, or one of them is 1"
    numbers: int = 0
    results: int = 1
    kinds: tuple[str, ...] = ("",)
    over_dim: bool = False
    block: bool = False
    special: bool = False
    more: bool = False


def result_extents(step: Step, args: Sequence[Extents], *, in_block: bool) -> list[Extents]:
    """Return the extents of a step's results; raise GraphError where its operands don't fit."""
    known = {name: op for name, op in POSITIONAL.items() if in_block or not op.block}
    op, level = known.get(step.op), "block" if in_block else "kernel"
    if op is None:
        raise GraphError(f"a {level} graph has no operator {step.op!r}", f"there are {[*known]}")
    fewer = len(args) < op.arity if op.more else len(args) != op.arity
    if fewer or len(step.numbers) != op.numbers:
        raise GraphError(
            f"{step.op} takes {op.arity} operands and {op.numbers} numbers, "
            f"not {len(args)} and {len(step.numbers)}"
        )
    if op.over_dim and not 0 <= step.dim < len(args[0]):
        raise GraphError(f"{step.op} over dim {step.dim}: the tensor has the dims {list(args[0])}")
    if step.kind not in op.kinds:
        hint = f"kinds: None, {', '.join(filter(None, op.kinds))}"
        raise GraphError(f"there is no {step.op} of the kind {step.kind!r}", hint)
    found = op.extents(step, args)
    if found is None:
        what = f"{step.op} of {' and '.join(str(list(a)) for a in args)}"
        what += f" to {step.size} elements" if step.size != 1 else ""
        raise GraphError(f"{what}: the dims don't fit", op.takes)
    return [found] * op.results


def lowered(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    """Append the nodes of one step and return its results."""
    op = POSITIONAL[step.op]
    if not op.special:
        only_values(args, step.op)
    return op.lower(scope, step, args)


def only_values(tiles: Sequence[Tile], op: str) -> None:
    """Raise GraphError for an operand that is no ordinary value."""
    for tile in tiles:
        if tile.parts:
            hint = "only a matmul of two concats along its inner dim can"
            raise GraphError(f"{op} takes a concat", hint)
        if tile.role in ("growth", "factor"):
            hint = "take exp of it and give that to forloop_accum_rescale"
            raise GraphError(f"{op} takes the growth of a running maximum", hint)


def _broadcast(step: Step, args: Sequence[Extents]) -> Extents | None:
    sides = [*zip(*args, strict=False)]
    fits = len({*map(len, args)}) == 1 and all({*side} <= {1, max(side)} for side in sides)
    return tuple(map(max, sides)) if fits else None


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
    """A number, but sum(x) * (1 / extent)  ->  sum(x) / extent: a mean at any extents.

    So it stays a mean where a proof or the search takes other extents.
    """
    (a,), (number,) = args, step.numbers
    over = scope.mean_over(a.name, number)
    if over:
        scaled = scope.emit("div", a.name, scope.product(over))
    else:
        scaled = scope.emit("mul", a.name, scope.number(number))
    return [scope.made(scaled, a.rows, args, step.op)]


def _clamp(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    # max(min(x, high), low), where min(a, b) = -max(-a, -b)
    low, high = step.numbers
    minus = scope.emit("max", scope.emit("neg", args[0].name), scope.number(-high))
    name = scope.emit("max", scope.emit("neg", minus), scope.number(low))
    return [scope.made(name, args[0].rows, args, step.op)]


def _product(step: Step, args: Sequence[Extents]) -> Extents | None:
    a, b = args
    if not (len(a) == len(b) >= 2 and a[-1] == b[-2]):
        return None
    batch = _broadcast(step, [a[:-2], b[:-2]])
    return None if batch is None else (*batch, a[-2], b[-1])


def _matmul(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    a, b = args
    if a.parts and b.parts and (a.joint, b.joint) == (len(a.rows) - 1, len(b.rows) - 2):
        # (a1 | a2) @ (b1 / b2)  ->  a1 @ b1 + a2 @ b2
        products = [_matmul(scope, step, pair)[0] for pair in zip(a.parts, b.parts, strict=True)]
        return _elementwise(scope, replace(step, op="add"), products)
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
        raise OneDimError(
            f"matmul over a dim of {scope.factors.extent(row[:1])} elements that is also a row or "
            "a column of the operands",
            "a product of a tensor with itself has no named form yet",
        )
    if not inner:
        return [scope.made(scope.emit("mul", a.name, b.name), rows, args, step.op)]
    name = scope.emit("contract", a.name, b.name, over=inner[-1])
    return [scope.made(scope.summed(name, inner[:-1]), rows, args, step.op)]


def _side_by_side(step: Step, args: Sequence[Extents]) -> Extents | None:
    (a, b), at = args, step.dim
    if (*a[:at], *a[at + 1 :]) != (*b[:at], *b[at + 1 :]):
        return None
    return (*a[:at], a[at] + b[at], *a[at + 1 :])


def _concat(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    looped = any(a.looped for a in args)
    return [Tile("", args[0].rows, looped=looped, parts=tuple(args), joint=step.dim)]


def _shorter(step: Step, args: Sequence[Extents]) -> Extents | None:
    """Return the extents with `step.size` elements left of a dim, or of the last one."""
    a, size = args[0], step.size
    at = len(a) - 1 if step.dim < 0 else step.dim
    return (*a[:at], size, *a[at + 1 :]) if size >= 1 and a[at] % size == 0 else None


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
    rows = (*a.rows[:position], row[at:], *a.rows[position + 1 :])
    return replace(a, name=scope.summed(a.name, row[:at]), rows=rows)


def _reduction(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    short = _shortened(scope, args[0], step.dim, step.size)
    return [scope.made(short.name, short.rows, args, step.op)]


def _amax(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    (a,) = args
    name, rows = a.name, (*a.rows[: step.dim], (), *a.rows[step.dim + 1 :])
    for factor in scope.held(name, a.rows[step.dim]):
        name = scope.emit("amax", name, over=factor)
    return [scope.made(name, rows, args, step.op)]


def _rms_norm(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    """x / sqrt(mean(x^2)) over the dims from `dim` on."""
    (a,) = args
    row = tuple(factor for r in a.rows[step.dim :] for factor in r)
    for factor in row:
        scope.stand_apart(a.cut(factor), step.op)
    mean = scope.summed(scope.emit("square", a.name), row)
    if row:
        mean = scope.emit("div", mean, scope.product(row))
    return [scope.made(scope.emit("div", a.name, scope.emit("sqrt", mean)), a.rows, args, step.op)]


def _reduction_max(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    """Return the running maximum along a dim, and a mark for how much it grew."""
    (a,) = args
    row = a.rows[step.dim]
    scope.uncut(a, row, step.op)
    over = (*row, *_stepped(scope, a))
    if not over:
        raise GraphError(
            "reduction_max along a dim of one element that no loop cuts",
            "a maximum of one element is the element",
        )
    name = a.name
    for factor in over:
        name = scope.emit("peak", name, over=factor)
    rows = (*a.rows[: step.dim], (), *a.rows[step.dim + 1 :])
    peak = replace(scope.made(name, rows, args, step.op), role="peak", peak=name)
    return [peak, replace(peak, role="growth")]


def _total(step: Step, args: Sequence[Extents]) -> Extents | None:
    return _shorter(step, args) if step.kind else args[0]


def _accum(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    (a,) = args
    last = len(a.rows) - 1
    row = a.rows[last]
    looped = a.looped and scope.loop_range > 1
    inside = any(c.factor in row for c in a.along(LOOP))  # the loop cuts what is summed
    if step.kind == "rms":
        a = replace(a, name=scope.emit("square", a.name))
    if step.kind:
        a = _shortened(scope, a, last, step.size)
    if looped:
        a = replace(a, name=scope.emit("accum", _in_tile(scope, a, "an accumulation")))
        a = replace(a, role="", peak="")
    elif scope.loop_range > 1:  # the same in every iteration
        a = replace(a, name=scope.emit("mul", a.name, _iterations(scope)))
    if step.kind in ("mean", "rms"):
        count = scope.product(row)  # of what the mean is of; "" for one
        if scope.loop_range > 1 and not inside:
            iterations = _iterations(scope)
            count = scope.emit("mul", count, iterations) if count else iterations
        mean = scope.emit("div", a.name, count) if count else a.name
        a = replace(a, name=scope.emit("sqrt", mean) if step.kind == "rms" else mean)
    return [replace(a, cuts=a.after_loop(), looped=False)]


def _in_tile(scope: Scope, a: Tile, why: str) -> str:
    """Sum along what is left of the loop's dim in a tile; return the name of the sum."""
    for cut in a.along(LOOP):
        if any(cut.factor in row for row in a.rows):
            scope.stand_apart(cut, why)
    return scope.summed(a.name, _stepped(scope, a))


def _stepped(scope: Scope, a: Tile) -> list[int]:
    """Return the factors along which a tile has one element because of the loop."""
    return [c.factor for c in a.along(LOOP) if scope.is_whole(c)]


def _iterations(scope: Scope) -> str:
    """Return the number of the loop's iterations as a scalar."""
    for cut in scope.loop_cuts:
        scope.stand_apart(cut, "an accumulation of what no iteration changes")
        return scope.product([cut.factor])
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
    made = replace(a, cuts=scope.merged(a, factor, step.op))
    if scope.loop_range > 1:
        name = scope.emit("accum_rescaled", _in_tile(scope, a, step.op), factor.peak)
        made = replace(made, name=name)
    return [replace(made, cuts=made.after_loop(), looped=False)]


def _accum_max(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    (a,) = args
    if a.role != "peak":
        raise GraphError(f"{step.op} takes a running maximum", "the first result of reduction_max")
    name = scope.emit("last", a.name) if scope.loop_range > 1 else a.name
    return [Tile(name, a.rows, a.after_loop())]


def _alike(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    scope.aligned(args[0], args[1], step.op)
    return [args[0]]


def _number(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    (made,) = step.outs
    return [Tile(scope.number(step.numbers[0]), ((),) * made.num_dims)]


def _mean(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    (total,) = _reduction(scope, step, args)
    count = scope.product(args[0].rows[step.dim])
    name = scope.emit("div", total.name, count) if count else total.name
    return [scope.made(name, total.rows, args, step.op)]


_MASKING = ("less", "both", "where")  # positions and truth values: no positional form yet
ELEMENTWISE = {
    op.name: op.arity
    for op in OPS.values()
    if op.kind is Kind.ELEMENTWISE and op.name not in _MASKING
}
_SIZE = "the number of elements that are left divides the dim"
_INNER = "operands are [..., M, K] and [..., K, N] with the same leading dims"
_KINDS = ("", "sum", "mean", "rms", "sum_todimx")
POSITIONAL: dict[str, Op] = {
    **{name: Op(n, _broadcast, _elementwise) for name, n in ELEMENTWISE.items()},
    "exp": Op(1, _broadcast, _exp, special=True),
    "mul_scalar": Op(1, _broadcast, _mul_scalar, numbers=1),
    "clamp": Op(1, _broadcast, _clamp, numbers=2),
    "matmul": Op(2, _product, _matmul, _INNER, special=True),
    "reduction": Op(1, _shorter, _reduction, _SIZE, over_dim=True),
    "mean": Op(1, _shorter, _mean, _SIZE, over_dim=True),
    "amax": Op(1, _shorter, _amax, over_dim=True),
    "number": Op(0, lambda step, args: None, _number, numbers=1),
    "reshape": Op(1, reshaped, reshape, "the number of elements stays"),
    "expand": Op(1, expanded, expand, "dims of one element become longer"),
    "permute": Op(1, permuted, permute, "each dim has one place"),
    "where": Op(2, _broadcast, chosen, more=True),
    "counted": Op(1, _broadcast, counted, more=True),
    "alike": Op(2, _broadcast, _alike),  # its first operand; dims are those of the second
    "rms_norm": Op(1, _broadcast, _rms_norm, over_dim=True),
    "reduction_max": Op(1, _shorter, _reduction_max, results=2, over_dim=True, block=True),
    "accum": Op(1, _total, _accum, _SIZE, kinds=_KINDS, block=True),
    "accum_rescale": Op(2, _total, _accum_rescale, kinds=_KINDS[:2], block=True, special=True),
    "accum_max": Op(1, _broadcast, _accum_max, block=True, special=True),
    "concat": Op(2, _side_by_side, _concat, "the other dims are equal", over_dim=True, block=True),
}
