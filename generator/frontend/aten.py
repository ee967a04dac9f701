"""ATen operators as steps of positional programs: what a PyTorch function may be made of.

Each operator is a composition of the positional operators, exact over the real numbers. Casts are
nothing: kernels compute in fp32 and round what they store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.positional.program import Program, Step, Tensor

SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
Operand = Tensor | float


class Steps:
    """A positional program that grows by an operator at a time; dims broadcast as in PyTorch."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def step(self, step: Step, *args: Tensor) -> Tensor:
        """Add an operator and return its result."""
        return self.program.apply(step, args)[0]

    def number(self, value: float, rank: int) -> Tensor:
        """Return a constant with so many dims."""
        return self.program.add(Step("number", numbers=(value,)), [(1,) * rank], self.dtype)[0]

    @property
    def dtype(self) -> Any:
        """Element type of the program's first tensor."""
        return self.program.tensors[0].dtype

    def __call__(self, op: str, *operands: Operand) -> Tensor:
        """Apply an elementwise operator; missing leading dims and numbers broadcast."""
        tensors = [x for x in operands if isinstance(x, Tensor)]
        rank = max(t.num_dims for t in tensors)
        made = [
            self.ranked(x, rank) if isinstance(x, Tensor) else self.number(float(x), rank)
            for x in operands
        ]
        return self.step(Step(op), *made)

    def ranked(self, x: Tensor, rank: int) -> Tensor:
        """Return a tensor with leading dims of extent 1."""
        missing = rank - x.num_dims
        return self.reshape(x, (*(1,) * missing, *x.dims)) if missing else x

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Return a tensor with its elements in another shape; one extent may be -1."""
        known = math.prod(n for n in shape if n >= 0)
        whole = [n if n >= 0 else math.prod(x.dims) // known for n in shape]
        return x if x.dims == (*whole,) else self.step(Step("reshape", shape=(*whole,)), x)

    def permute(self, x: Tensor, order: Sequence[int]) -> Tensor:
        """Return a tensor with its dims in another order."""
        return self.step(Step("permute", shape=tuple(x.position(d) for d in order)), x)

    def reduce(self, op: str, x: Tensor, dims: Sequence[int], *, keep: bool = True) -> Tensor:
        """Reduce along dims (none: all), which stay with one element or go."""
        over = sorted(x.position(d) for d in dims) or [*range(x.num_dims)]
        made = x
        for d in over:
            made = self.step(Step(op, dim=d), made) if x.dims[d] > 1 else made
        left = [n for i, n in enumerate(made.dims) if i not in over]
        return made if keep else self.reshape(made, left or [1])

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """Multiply matrices as torch.matmul does."""
        if b.num_dims == 1:
            made = self.matmul(a, self.reshape(b, (*b.dims, 1)))
            return self.reshape(made, made.dims[:-1])
        if a.num_dims > 2 and b.num_dims == 2:
            rows = self.reshape(a, (-1, a.dims[-1]))
            made = self.step(Step("matmul"), rows, b)
            return self.reshape(made, (*a.dims[:-1], b.dims[-1]))
        rank = max(a.num_dims, b.num_dims)
        return self.step(Step("matmul"), self.ranked(a, rank), self.ranked(b, rank))

    def normalized(self, x: Tensor, dims: Sequence[int], eps: float) -> Tensor:
        """Return (x - mean) / sqrt(variance + eps) along dims."""
        centred = self("sub", x, self.reduce("mean", x, dims))
        variance = self.reduce("mean", self("square", centred), dims)
        return self("div", centred, self("sqrt", self("add", variance, eps)))


def _per_channel(s: Steps, x: Tensor, value: Tensor) -> Tensor:
    """Return a value of every channel, dim 1 of x, so that it broadcasts."""
    return s.reshape(value, (1, value.dims[0], *(1,) * (x.num_dims - 2)))


def _affine(s: Steps, x: Tensor, weight: Operand | None, bias: Operand | None) -> Tensor:
    made = x if weight is None else s("mul", x, weight)
    return made if bias is None else s("add", made, bias)


def _linear(s: Steps, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _affine(s, s.matmul(x, s.permute(weight, (1, 0))), None, bias)


def _addmm(
    s: Steps, c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    made = s.matmul(a, b) if alpha == 1 else s("mul", s.matmul(a, b), alpha)
    return s("add", made, c if beta == 1 else s("mul", c, beta))


def _minimum(s: Steps, a: Operand, b: Operand) -> Tensor:
    low = [s("neg", x) if isinstance(x, Tensor) else -x for x in (a, b)]
    return s("neg", s("max", *low))


def _clamp(s: Steps, x: Tensor, low: float | None = None, high: float | None = None) -> Tensor:
    made = x if high is None else _minimum(s, x, high)
    return made if low is None else s("max", made, low)


def _elu(
    s: Steps, x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Tensor:
    if input_scale != 1:
        raise GraphError(f"elu with input_scale={input_scale}")
    made = s("elu", x)
    if alpha != 1:  # alpha below 0 alone
        high = s("relu", x)
        made = s("add", high, s("mul", s("sub", made, high), alpha))
    return made if scale == 1 else s("mul", made, scale)


def _softplus(s: Steps, x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    made = s("softplus", x if beta == 1 else s("mul", x, beta))
    return made if beta == 1 else s("div", made, beta)


def _softmax(s: Steps, x: Tensor, dim: int, dtype: object = None) -> Tensor:
    powers = s("exp", x)
    return s("div", powers, s.reduce("reduction", powers, [dim]))


def _logsumexp(s: Steps, x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    dims = dims if isinstance(dims, Sequence) else [dims]
    if all(x.dims[d] == 1 for d in dims):  # log(exp(x))
        return s.reduce("reduction", x, dims, keep=keepdim)
    return s("log", s.reduce("reduction", s("exp", x), dims, keep=keepdim))


def _log_softmax(s: Steps, x: Tensor, dim: int, dtype: object = None) -> Tensor:
    return s("sub", x, _logsumexp(s, x, [dim], keepdim=True))


def _layer_norm(
    s: Steps,
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    made = s.normalized(x, range(x.num_dims - len(shape), x.num_dims), eps)
    return _affine(s, made, weight, bias)


def _rms_norm(
    s: Steps,
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    dims = range(x.num_dims - len(shape), x.num_dims)
    mean = s.reduce("mean", s("square", x), dims)
    return _affine(s, s("div", x, s("sqrt", s("add", mean, eps or 0.0))), weight, None)


def _group_norm(
    s: Steps,
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    split = (x.dims[0], groups, x.dims[1] // groups, *x.dims[2:])
    made = s.normalized(s.reshape(x, split), range(2, len(split)), eps)
    if weight is not None or bias is not None:
        of_group = (1, groups, split[2], *(1,) * (len(split) - 3))
        given = [None if v is None else s.reshape(v, of_group) for v in (weight, bias)]
        made = _affine(s, made, *given)
    return s.reshape(made, x.dims)


def _batch_norm(
    s: Steps,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    dims = [0, *range(2, x.num_dims)]
    if training or mean is None or variance is None:
        made = s.normalized(x, dims, eps)
    else:
        root = s("sqrt", s("add", _per_channel(s, x, variance), eps))
        made = s("div", s("sub", x, _per_channel(s, x, mean)), root)
    given = [None if v is None else _per_channel(s, x, v) for v in (weight, bias)]
    return _affine(s, made, *given)


def _instance_norm(
    s: Steps,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    made = s.normalized(x, range(2, x.num_dims), eps)
    given = [None if v is None else _per_channel(s, x, v) for v in (weight, bias)]
    return _affine(s, made, *given)


def _attention(
    s: Steps,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if is_causal or dropout_p:
        raise GraphError("scaled_dot_product_attention with is_causal or dropout has no form here")
    if enable_gqa and q.dims[-3] != k.dims[-3]:
        heads, group = k.dims[-3], q.dims[-3] // k.dims[-3]
        split = s.reshape(q, (*q.dims[:-3], heads, group * q.dims[-2], q.dims[-1]))
        made = _attention(s, split, k, v, attn_mask, scale=scale)
        return s.reshape(made, (*q.dims[:-1], v.dims[-1]))
    order = (*range(k.num_dims - 2), k.num_dims - 1, k.num_dims - 2)
    scores = s("mul", s.matmul(q, s.permute(k, order)), scale or q.dims[-1] ** -0.5)
    scores = scores if attn_mask is None else s("add", scores, attn_mask)
    return s.matmul(_softmax(s, scores, -1), v)


def _power(s: Steps, x: Operand, power: Operand) -> Tensor:
    known: dict[float, Callable[[Tensor], Tensor]] = {
        2.0: lambda x: s("square", x),
        3.0: lambda x: s("mul", s("square", x), x),
        0.5: lambda x: s("sqrt", x),
        -0.5: lambda x: s("rsqrt", x),
        -1.0: lambda x: s("div", 1.0, x),
    }
    if isinstance(x, Tensor) and isinstance(power, int | float) and float(power) in known:
        return known[float(power)](x)
    raise GraphError(f"pow with the exponent {power!r}", f"exponents: {', '.join(map(str, known))}")


def _gelu(s: Steps, x: Tensor, *, approximate: str = "none") -> Tensor:
    return s("gelu" if approximate == "none" else "gelu_tanh", x)


def _norm(
    s: Steps, x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, **_: Any
) -> Tensor:
    over = [dim] if isinstance(dim, int) else dim or []
    if ord == 1:
        return s.reduce("reduction", s("abs", x), over, keep=keepdim)
    if ord in (2, "fro", None):
        return s("sqrt", s.reduce("reduction", s("square", x), over, keep=keepdim))
    raise GraphError(f"a norm of order {ord!r}", "orders: 1, 2")


def _reduction(op: str) -> Callable[..., Tensor]:
    def reduced(s: Steps, x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
        return s.reduce(op, x, [dim] if isinstance(dim, int) else dim or [], keep=keepdim)

    return reduced


def _binary(op: str) -> Callable[..., Tensor]:
    def applied(s: Steps, a: Operand, b: Operand, *, alpha: float = 1) -> Tensor:
        scaled = b if alpha == 1 else s("mul", b, alpha) if isinstance(b, Tensor) else b * alpha
        return s(op, a, scaled)

    return applied


def _same(s: Steps, x: Tensor, *_: object, **__: object) -> Tensor:
    return x


def _reshape(s: Steps, x: Tensor, shape: Sequence[int]) -> Tensor:
    return s.reshape(x, shape)


def _transpose(s: Steps, x: Tensor, a: int, b: int) -> Tensor:
    order = [*range(x.num_dims)]
    order[a], order[b] = order[b], order[a]
    return s.permute(x, order)


def _squeeze(s: Steps, x: Tensor, dim: Any = None) -> Tensor:
    wanted = [dim] if isinstance(dim, int) else dim
    over = range(x.num_dims) if wanted is None else [x.position(d) for d in wanted]
    left = [n for i, n in enumerate(x.dims) if n > 1 or i not in over]
    return s.reshape(x, left or [1])


def _unsqueeze(s: Steps, x: Tensor, dim: int) -> Tensor:
    at = dim if dim >= 0 else x.num_dims + 1 + dim
    return s.reshape(x, (*x.dims[:at], 1, *x.dims[at:]))


def _flatten(s: Steps, x: Tensor, start: int = 0, end: int = -1) -> Tensor:
    a, b = x.position(start), x.position(end)
    return s.reshape(x, (*x.dims[:a], math.prod(x.dims[a : b + 1]), *x.dims[b + 1 :]))


def _einsum(s: Steps, equation: str, operands: Sequence[Tensor], path: object = None) -> Tensor:
    given, _, result = equation.replace(" ", "").partition("->")
    names = given.split(",")
    if len(names) != 2 or any(len({*n}) < len(n) for n in (*names, result)) or "." in equation:
        raise GraphError(f"einsum {equation!r}", "it has two operands, and no dim twice in one")
    a, b = names
    batch = [d for d in a if d in b and d in result]
    inner = [d for d in a if d in b and d not in result]
    mine, other = ([d for d in n if d in result and d not in m] for n, m in ((a, b), (b, a)))
    sizes = dict(zip(a + b, (*operands[0].dims, *operands[1].dims), strict=True))

    def matrix(x: Tensor, name: str, rows: Sequence[str], columns: Sequence[str]) -> Tensor:
        ordered = s.permute(x, [name.index(d) for d in (*batch, *rows, *columns)])
        extents = (math.prod(sizes[d] for d in part) for part in (rows, columns))
        return s.reshape(ordered, (*(sizes[d] for d in batch), *extents))

    made = s.matmul(matrix(operands[0], a, mine, inner), matrix(operands[1], b, inner, other))
    dims = [*batch, *mine, *other]
    whole = s.reshape(made, [sizes[d] for d in dims])
    return s.permute(whole, [dims.index(d) for d in result])


_UNARY = (
    *("exp", "log", "sqrt", "rsqrt", "sigmoid", "silu", "tanh", "relu", "neg", "square"),
    *("abs", "mish"),
)
_SAME = ("to", "_to_copy", "contiguous", "clone", "dropout", "detach", "alias", "expand", "type_as")
ATEN: Mapping[str, Callable[..., Tensor]] = {
    **{name: (lambda s, x, op=name: s(op, x)) for name in _UNARY},
    **dict.fromkeys((*_SAME, "expand_as", "lift_fresh_copy", "identity"), _same),
    "add": _binary("add"),
    "sub": _binary("sub"),
    "rsub": lambda s, a, b, alpha=1: s("sub", b, a if alpha == 1 else s("mul", a, alpha)),
    "mul": _binary("mul"),
    "div": _binary("div"),
    "true_divide": _binary("div"),
    "maximum": _binary("max"),
    "minimum": _minimum,
    "reciprocal": lambda s, x: s("div", 1.0, x),
    "pow": _power,
    "gelu": _gelu,
    "leaky_relu": lambda s, x, slope=0.01: s("max", x, s("mul", x, slope)),
    "elu": _elu,
    "selu": lambda s, x: _elu(s, x, SELU_ALPHA, SELU_SCALE),
    "softplus": _softplus,
    "softsign": lambda s, x: s("div", x, s("add", s("abs", x), 1.0)),
    "log_sigmoid": lambda s, x: s("neg", _softplus(s, s("neg", x))),
    "clamp": _clamp,
    "clamp_min": lambda s, x, low: _clamp(s, x, low),
    "clamp_max": lambda s, x, high: _clamp(s, x, None, high),
    "hardtanh": lambda s, x, low=-1.0, high=1.0: _clamp(s, x, low, high),
    "hardsigmoid": lambda s, x: _clamp(s, s("add", s("mul", x, 1 / 6), 0.5), 0.0, 1.0),
    "hardswish": lambda s, x: s("mul", x, ATEN["hardsigmoid"](s, x)),
    "relu6": lambda s, x: _clamp(s, x, 0.0, 6.0),
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
    "sum": _reduction("reduction"),
    "mean": _reduction("mean"),
    "linalg_vector_norm": _norm,
    "norm": _norm,
    "frobenius_norm": _norm,
    "linear": _linear,
    "einsum": _einsum,
    "addmm": _addmm,
    "mm": lambda s, a, b: s.matmul(a, b),
    "mv": lambda s, a, b: s.matmul(a, b),
    "bmm": lambda s, a, b: s.matmul(a, b),
    "matmul": lambda s, a, b: s.matmul(a, b),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "instance_norm": _instance_norm,
    "scaled_dot_product_attention": _attention,
    "view": _reshape,
    "reshape": _reshape,
    "_unsafe_view": _reshape,
    "unflatten": lambda s, x, d, n: s.reshape(
        x, (*x.dims[: x.position(d)], *n, *x.dims[x.position(d) + 1 :])
    ),
    "flatten": _flatten,
    "permute": lambda s, x, order: s.permute(x, order),
    "transpose": _transpose,
    "t": lambda s, x: s.permute(x, [*range(x.num_dims)][::-1]),
    "numpy_T": lambda s, x: s.permute(x, [*range(x.num_dims)][::-1]),
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
}
