"""The language recipes are written in: tensors with named dims and the mathematics over them.

A recipe is a Python function; calling it on symbolic tensors records its spec graph. Everything
here is either one node of the graph or a plain composition of nodes.
"""

from __future__ import annotations

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.symbolic import Tensor as Tensor
from mirage_kernels.generator.frontend.symbolic import apply, size
from mirage_kernels.generator.ir import Dim, DType, Node, TensorType, Value


def _dim(like: Tensor, dim: str) -> Dim:
    if dim not in like.type.names:
        raise RecipeError(f"{like.name} has no dim {dim!r}, its type is {like.type}")
    return like.type.dim(dim)


def _names(over: str) -> list[str]:
    if not over.split():
        raise RecipeError("over= names no dim", 'write over="K", or over="G C" for several dims')
    return over.split()


def extent(like: Tensor, dim: str) -> Tensor:
    """Return the extent of a dim of `like` as a scalar; it is int32 where it meets positions."""
    return size(like.builder, _dim(like, dim).name, DType.FP32)


def positions(like: Tensor, dim: str) -> Tensor:
    """Return 0, 1, 2, ... along the dim `dim` of `like` (int32)."""
    builder, name = like.builder, f"position_{dim}"
    if name not in builder.types:
        type_ = TensorType((_dim(like, dim),), DType.INT32)
        builder.add(Node("iota", (), (Value(name, type_),), over=dim))
    return Tensor(builder, name)


def sum(x: Tensor, over: str) -> Tensor:
    """Sum along a dim (or several, `"G C"`), which disappears."""
    for dim in _names(over):
        x = apply("sum", x, over=dim)
    return x


def amax(x: Tensor, over: str) -> Tensor:
    """Maximum along a dim (or several, `"G C"`), which disappears."""
    for dim in _names(over):
        x = apply("amax", x, over=dim)
    return x


def amin(x: Tensor, over: str) -> Tensor:
    """Minimum along a dim (or several), which disappears: -max(-x)."""
    return -amax(-x, over)


def mean(x: Tensor, over: str) -> Tensor:
    """Mean along a dim (or several, `"G C"`), which disappears."""
    for dim in _names(over):
        x = sum(x, dim) / extent(x, dim)
    return x


def contract(a: Tensor, b: Tensor, over: str) -> Tensor:
    """Multiply and sum along a shared dim (or several): a matrix product; other dims stay."""
    first, *rest = _names(over)
    product = apply("contract", a, b, over=first)
    return sum(product, " ".join(rest)) if rest else product


def where(condition: Tensor, a: Tensor | float, b: Tensor | float) -> Tensor:
    """Choose elementwise between `a` and `b`."""
    return apply("where", condition, a, b)


def maximum(a: Tensor | float, b: Tensor | float) -> Tensor:
    """Choose elementwise the larger of `a` and `b`."""
    return apply("max", a, b)


def exp(x: Tensor) -> Tensor:
    """e to the power x."""
    return apply("exp", x)


def log(x: Tensor) -> Tensor:
    """Natural logarithm."""
    return apply("log", x)


def log1p(x: Tensor) -> Tensor:
    """log(1 + x), exact near 0."""
    return apply("log1p", x)


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
    """x times the normal distribution function of x: x * (1 + erf(x / sqrt(2))) / 2."""
    return apply("gelu", x)


def gelu_tanh(x: Tensor) -> Tensor:
    """x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2."""
    return apply("gelu_tanh", x)


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return apply("tanh", x)


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return apply("relu", x)


def absolute(x: Tensor) -> Tensor:
    """|x|."""
    return apply("abs", x)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x))."""
    return apply("softplus", x)


def mish(x: Tensor) -> Tensor:
    """x * tanh(softplus(x))."""
    return apply("mish", x)


def sin(x: Tensor) -> Tensor:
    """The sine of x."""
    return apply("sin", x)


def cos(x: Tensor) -> Tensor:
    """The cosine of x."""
    return apply("cos", x)


def elu(x: Tensor) -> Tensor:
    """x where it is positive, exp(x) - 1 elsewhere."""
    return apply("elu", x)


def erf(x: Tensor) -> Tensor:
    """2 / sqrt(pi) times the integral of exp(-t^2) for t from 0 to x."""
    return apply("erf", x)


def floor(x: Tensor) -> Tensor:
    """The largest whole number that is not above x."""
    return apply("floor", x)


def round_half_even(x: Tensor) -> Tensor:
    """The nearest whole number, of two the even one, as torch.round."""
    return apply("round", x)


def greater(a: Tensor | float, b: Tensor | float) -> Tensor:
    """1 where a > b, 0 elsewhere: a number, where `a < b` of positions is a truth value."""
    return apply("gt", a, b)


def greater_equal(a: Tensor | float, b: Tensor | float) -> Tensor:
    """1 where a >= b, 0 elsewhere."""
    return apply("ge", a, b)


def masked(condition: Tensor, x: Tensor) -> Tensor:
    """x where a number is not 0, 0 elsewhere, whatever x is there."""
    return apply("masked", condition, x)


def soft_cap(x: Tensor, cap: Tensor | float) -> Tensor:
    """cap * tanh(x / cap)."""
    return tanh(x / cap) * cap


def softmax(x: Tensor, over: str, mask: Tensor | None = None) -> Tensor:
    """exp(x) / sum(exp(x)), with 0 for exp(x) where the mask is false."""
    weights = exp(x) if mask is None else where(mask, exp(x), 0)
    return weights / sum(weights, over)


def rms_norm(x: Tensor, weight: Tensor, eps: Tensor, over: str) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight."""
    return x / sqrt(mean(square(x), over) + eps) * weight


def layer_norm(x: Tensor, eps: Tensor, over: str) -> Tensor:
    """(x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps), before any weight and bias."""
    centred = x - mean(x, over)
    return centred / sqrt(mean(square(centred), over) + eps)


def group_norm(x: Tensor, eps: Tensor, over: str) -> Tensor:
    """layer_norm(x, eps, over) of each group: the groups are a dim of x that `over` leaves out."""
    return layer_norm(x, eps, over)


def l2_norm(x: Tensor, over: str) -> Tensor:
    """x / sqrt(sum(x^2))."""
    return x / sqrt(sum(square(x), over))
