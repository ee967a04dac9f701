"""The language recipes are written in: tensors with named dims and the mathematics over them.

A recipe is a Python function; calling it on these symbolic tensors records its spec graph.
Everything here is either one node of the graph or a plain composition of nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mirage_kernels.generator.errors import RecipeError, UnknownOperatorError
from mirage_kernels.generator.ir import OPS, Builder, Dim, DType, Kind, Node, TensorType, Value
from mirage_kernels.generator.ir.infer import SCALAR
from mirage_kernels.generator.naming import name_of

Operand = "Tensor | int | float"


@dataclass(frozen=True)
class Tensor:
    """A value of the spec graph under construction; dims go by name, so shapes never reshape."""

    builder: Builder
    name: str

    @property
    def type(self) -> TensorType:
        """Dims and element type."""
        return self.builder.types[self.name]

    def __add__(self, other: Tensor | float) -> Tensor:
        return apply("add", self, other)

    def __radd__(self, other: float) -> Tensor:
        return apply("add", self, other)

    def __sub__(self, other: Tensor | float) -> Tensor:
        return apply("sub", self, other)

    def __rsub__(self, other: float) -> Tensor:
        return apply("sub", _constant(self.builder, other), self)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return apply("mul", self, other)

    def __rmul__(self, other: float) -> Tensor:
        return apply("mul", self, other)

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return apply("div", self, other)

    def __rtruediv__(self, other: float) -> Tensor:
        return apply("div", _constant(self.builder, other), self)

    def __neg__(self) -> Tensor:
        return apply("neg", self)

    def __lt__(self, other: Tensor) -> Tensor:
        return apply("less", self, other)

    def __and__(self, other: Tensor) -> Tensor:
        return apply("both", self, other)

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
        f"operators: {', '.join(LANGUAGE)}, and + - * / < &",
    )


def apply(op: str, first: Tensor, *others: Tensor | float, over: str = "") -> Tensor:
    """Record one node and return its value; numbers become constants.

    Raises RecipeError for an unknown op, GraphError for operands whose dims don't fit.
    """
    if op not in OPS or OPS[op].kind in (Kind.GRAPH, Kind.OUTPUT, Kind.CARRY):
        raise unknown_operator(op)
    builder = first.builder
    operands = [first, *(_constant(builder, o) for o in others)]
    args = tuple(o.name for o in operands)
    name = builder.free_name(name_of(op, args, builder.types))
    return Tensor(builder, builder.add(Node(op, args, (Value(name, SCALAR),), over=over)))


def _constant(builder: Builder, value: Tensor | float) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise RecipeError(f"a recipe's operands are tensors and finite numbers, not {value!r}")
    for node in builder.nodes:
        if node.op == "const" and node.value == value:
            return Tensor(builder, node.name)
    digits = f"{value:g}".replace(".", "_").replace("-", "m").replace("+", "")
    name = builder.free_name(f"const_{digits}")  # 1 and 1.0000001 have the same few digits
    node = Node("const", (), (Value(name, SCALAR),), value=float(value))
    return Tensor(builder, builder.add(node))


def _dim(like: Tensor, dim: str) -> Dim:
    if dim not in like.type.names:
        raise RecipeError(f"{like.name} has no dim {dim!r}, its type is {like.type}")
    return like.type.dim(dim)


def extent(like: Tensor, dim: str) -> Tensor:
    """Return the extent of a dim of `like` as a scalar."""
    builder, name = like.builder, f"size_{_dim(like, dim).name}"
    if name not in builder.types:
        builder.add(Node("size", (), (Value(name, SCALAR),), over=dim))
    return Tensor(builder, name)


def positions(like: Tensor, dim: str) -> Tensor:
    """Return 0, 1, 2, ... along the dim `dim` of `like` (int32)."""
    builder, name = like.builder, f"position_{dim}"
    if name not in builder.types:
        type_ = TensorType((_dim(like, dim),), DType.INT32)
        builder.add(Node("iota", (), (Value(name, type_),), over=dim))
    return Tensor(builder, name)


def sum(x: Tensor, over: str) -> Tensor:
    """Sum along a dim, which disappears."""
    return apply("sum", x, over=over)


def mean(x: Tensor, over: str) -> Tensor:
    """Mean along a dim, which disappears."""
    return sum(x, over) / extent(x, over)


def contract(a: Tensor, b: Tensor, over: str) -> Tensor:
    """Multiply and sum along a shared dim: a matrix product; all other dims stay, by name."""
    return apply("contract", a, b, over=over)


def where(condition: Tensor, a: Tensor | float, b: Tensor | float) -> Tensor:
    """Choose elementwise between `a` and `b`."""
    return apply("where", condition, a, b)


def exp(x: Tensor) -> Tensor:
    """e to the power x."""
    return apply("exp", x)


def log(x: Tensor) -> Tensor:
    """Natural logarithm."""
    return apply("log", x)


def sqrt(x: Tensor) -> Tensor:
    """Square root."""
    return apply("sqrt", x)


def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    return apply("rsqrt", x)


def square(x: Tensor) -> Tensor:
    """x * x."""
    return apply("mul", x, x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return apply("sigmoid", x)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return apply("silu", x)


def gelu(x: Tensor) -> Tensor:
    """x times the normal distribution function of x (the exact, erf form)."""
    return apply("gelu", x)


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return apply("tanh", x)


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return apply("relu", x)


def rms_norm(x: Tensor, weight: Tensor, eps: Tensor, over: str) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight."""
    return x / sqrt(mean(square(x), over) + eps) * weight


LANGUAGE = (
    *("contract", "sum", "mean", "where", "exp", "log", "sqrt", "rsqrt", "square", "sigmoid"),
    *("silu", "gelu", "tanh", "relu", "rms_norm", "extent", "positions"),
)
