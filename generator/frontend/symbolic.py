"""Symbolic tensors: what a recipe computes with, so that calling it records its spec graph.

Values are real numbers, positions and lengths (int32), or masks (bool). A number takes the type of
what it meets, and so does an extent: int32 among positions and lengths, real elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.errors import RecipeError, UnknownOperatorError
from mirage_kernels.generator.ir import OPS, Builder, DType, Graph, Kind, Node, TensorType, Value
from mirage_kernels.generator.ir.naming import name_of

_RECORDED = (Kind.ELEMENTWISE, Kind.REDUCE, Kind.CONTRACT)  # kinds of ops that recipes speak of
_COUNTING = ("add", "sub", "mul", "max", "neg")  # ops that are closed under int32
_ARITHMETIC = (*_COUNTING, "div")  # with a real operand these take an int32 one too


def _operator(op: str, *, swapped: bool = False) -> Callable[[Tensor, Tensor | float], Tensor]:
    """Return the method of an operator on two operands, of which the second may be a number."""

    def method(self: Tensor, other: Tensor | float) -> Tensor:
        return apply(op, other, self) if swapped else apply(op, self, other)

    return method


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value of the spec graph under construction; dims go by name, so shapes never reshape."""

    builder: Builder
    name: str

    @property
    def type(self) -> TensorType:
        """Dims and element type."""
        return self.builder.types[self.name]

    @property
    def node(self) -> Node:
        """The node that makes it."""
        return next(n for n in self.builder.nodes if n.name == self.name)

    __add__ = __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("sub"), _operator("sub", swapped=True)
    __mul__ = __rmul__ = _operator("mul")
    __rtruediv__ = _operator("div", swapped=True)
    __lt__, __gt__ = _operator("less"), _operator("less", swapped=True)
    __and__ = _operator("both")

    def __truediv__(self, other: Tensor | float) -> Tensor:
        if not isinstance(other, Tensor) and other == 0:
            raise RecipeError(
                f"a recipe divides {self.name} by 0", "divide by what is not zero: x + eps"
            )
        return apply("div", self, other)

    def __neg__(self) -> Tensor:
        return apply("neg", self)

    def __le__(self, other: Tensor | float) -> Tensor:
        return self < other + 1  # int32 only, so it is the same

    def __ge__(self, other: Tensor | float) -> Tensor:
        return self > other - 1

    def __eq__(self, other: object) -> bool:
        raise RecipeError("recipes have no == and !=", "positions compare with < <= > >=")

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise RecipeError(
            "a recipe cannot branch on a tensor: if, and, or, a < b < c need one truth value",
            "choose elementwise with where(condition, a, b), join conditions with &",
        )

    def __getattr__(self, attribute: str) -> Tensor:
        raise unknown_operator(attribute)


def unknown_operator(operator: str) -> UnknownOperatorError:
    """Return the error for a name that is no operator, with the list of those there are."""
    return UnknownOperatorError(
        f"recipes have no operator {operator!r}",
        f"operators: {', '.join(operators())}, and + - * / < <= > >= &",
    )


def operators() -> list[str]:
    """Return the names of what `language` defines."""
    from mirage_kernels.generator import language

    own = ((name, getattr(f, "__module__", "")) for name, f in vars(language).items())
    return [name for name, home in own if home == language.__name__ and not name.startswith("_")]


def spec_of(result: Tensor, *also: Tensor) -> Graph:
    """Return the spec graph that computes results: all inputs, else only what they are made of."""
    outputs = (result.name, *(r.name for r in also))
    needed = {*outputs}
    for node in reversed(result.builder.nodes):
        if node.name in needed:
            needed.update(node.args)
    kept = [n for n in result.builder.nodes if n.op == "input" or n.name in needed]
    return Graph(result.builder.level, tuple(kept), outputs)


def apply(op: str, *operands: Tensor | float, over: str = "") -> Tensor:
    """Record one node and return its value; numbers become constants of the type they meet.

    Raises RecipeError for an unknown op and for operands of types that it does not take,
    GraphError for operands whose dims don't fit.
    """
    if op not in OPS or OPS[op].kind not in _RECORDED:
        raise unknown_operator(op)
    tensors = _typed(op, operands)
    builder, args = tensors[0].builder, tuple(t.name for t in tensors)
    name = builder.free_name(name_of(op, args, builder.types))
    return Tensor(builder, builder.add(Node(op, args, (_scalar(name),), over)))


def _scalar(name: str, dtype: DType = DType.FP32) -> Value:
    return Value(name, TensorType((), dtype))


def _typed(op: str, operands: Sequence[Tensor | float]) -> list[Tensor]:
    """Return the operands of `op` as tensors of one kind: real numbers, int32 or masks.

    It is done in int32 where it compares positions, or where no operand needs to be real.
    """
    tensors = [o for o in operands if isinstance(o, Tensor)]
    if not tensors:
        raise RecipeError(
            f"{op} takes a tensor, not {operands[0]!r}",
            "compute with numbers alone in plain Python",
        )
    masks = {"both": 2, "where": 1}.get(op, 0)
    counting = op in _COUNTING and any(map(_is_int32, tensors)) and all(map(_is_whole, tensors))
    lifted = op in _ARITHMETIC and not all(map(_is_int32, operands))
    wanted = "position" if op == "less" else "number" if counting or lifted else "real"
    for i, operand in enumerate(operands):
        _require(op, operand, "mask" if i < masks else wanted)
    dtype = DType.INT32 if counting or op == "less" else DType.FP32
    chosen = [o for o in operands[:masks] if isinstance(o, Tensor)]
    return chosen + [_as_type(tensors[0].builder, o, dtype) for o in operands[masks:]]


def _require(op: str, operand: Tensor | float, wanted: str) -> None:
    """Refuse an operand of another kind: a mask, a position, any number or a real one is wanted."""
    said = f"{operand.name}: {operand.type}" if isinstance(operand, Tensor) else repr(operand)
    is_mask = isinstance(operand, Tensor) and operand.type.dtype is DType.BOOL
    if is_mask and op == "less":  # of 0 and 1
        return
    if wanted == "mask" and not is_mask:
        raise RecipeError(
            f"{op} takes a mask, and {said} is none",
            'compare positions: positions(k, "L") < lengths; join masks with &',
        )
    if wanted == "position" and isinstance(operand, Tensor) and not _is_whole(operand):
        raise RecipeError(
            f"only positions and lengths compare, and {said} is not int32",
            "of real numbers take maximum(a, b) or relu(x)",
        )
    if wanted != "mask" and is_mask:
        raise RecipeError(
            f"{op} takes numbers, and {said} is a mask",
            "choose with where(mask, a, b), join masks with &",
        )
    if wanted == "real" and _is_int32(operand):
        raise RecipeError(
            f"{op} takes real numbers, and {said} is int32",
            "positions and lengths take + - * < & and maximum; divided by 1 they are real",
        )


def _is_int32(operand: Tensor | float) -> bool:
    return isinstance(operand, Tensor) and operand.type.dtype is DType.INT32


def _is_whole(x: Tensor) -> bool:
    """Say whether a value is int32, or can be: made of extents and whole numbers alone."""
    node = x.node
    if node.op == "const" and not _is_int32(x):
        return node.value == round(node.value)
    if node.op in _COUNTING and not _is_int32(x):
        return all(_is_whole(Tensor(x.builder, a)) for a in node.args)
    return _is_int32(x) or node.op == "size"


def _as_type(builder: Builder, x: Tensor | float, dtype: DType) -> Tensor:
    """Return an operand as a tensor; a value that `_is_whole` can be had as int32."""
    if not isinstance(x, Tensor):
        return _constant(builder, x, dtype)
    if dtype is not DType.INT32 or x.type.dtype in (dtype, DType.BOOL):
        return x
    node = x.node
    if node.op == "const":
        return _constant(builder, node.value, dtype)
    if node.op == "size":
        return size(builder, node.over, dtype)
    return apply(node.op, *(_as_type(builder, Tensor(builder, a), dtype) for a in node.args))


def _constant(builder: Builder, value: float, dtype: DType) -> Tensor:
    """Return a number as a tensor, the same one for the same number."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
        hint = "to leave out what a mask hides: where(mask, exp(x), 0), or softmax(x, over, mask)"
        raise RecipeError(
            f"a recipe's operands are tensors and finite numbers, not {value!r}",
            hint if number else "tensors are the recipe's inputs and what is computed from them",
        )
    if dtype is DType.INT32 and (value != round(value) or abs(value) >= 2**31):
        raise RecipeError(
            f"{value!r} meets positions or lengths, and is no int32 itself",
            "give them whole numbers; divided by 1 they are real",
        )
    for node in builder.nodes:
        if node.op == "const" and node.value == value and node.out.type.dtype is dtype:
            return Tensor(builder, node.name)
    digits = f"{value:g}".replace(".", "_").replace("-", "m").replace("+", "")
    # 1 and 1.0000001 have the same few digits: names are made free
    name = builder.free_name(f"{'int' if dtype is DType.INT32 else 'const'}_{digits}")
    node = Node("const", (), (_scalar(name, dtype),), value=float(value))
    return Tensor(builder, builder.add(node))


def size(builder: Builder, dim: str, dtype: DType) -> Tensor:
    """Return the extent of a dim as a scalar, the same one for the same dim and type."""
    name = f"int_size_{dim}" if dtype is DType.INT32 else f"size_{dim}"
    if name not in builder.types:
        builder.add(Node("size", (), (_scalar(name, dtype),), over=dim))
    return Tensor(builder, name)
