"""ATen operators as steps of positional programs: what a PyTorch function may be made of.

Each operator is a composition of the positional operators, exact over the real numbers. Casts are
nothing: kernels compute in fp32 and round what they store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend import losses
from mirage_kernels.generator.frontend.chosen import Chosen
from mirage_kernels.generator.frontend.functions import FUNCTIONS, choose
from mirage_kernels.generator.frontend.masks import (
    causal,
    exponentials,
    hidden,
    triangle,
)
from mirage_kernels.generator.frontend.norms import (
    affine,
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    linalg_norm,
    rms_norm,
    variance_and_mean,
    vector_norm,
)
from mirage_kernels.generator.frontend.positional.program import Tensor
from mirage_kernels.generator.frontend.steps import Operand, Steps

LINEAR = 17.0  # softplus(x) is x from here on, in fp32
SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


def _linear(s: Steps, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if weight.num_dims == 1:
        return affine(s, s.matmul(x, weight), None, bias)
    return affine(s, s.matmul(x, s.permute(weight, (1, 0))), None, bias)


def _addmm(
    s: Steps, c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    return s("add", _scaled(s, s.matmul(a, b), alpha), _scaled(s, c, beta))


def _clamp(s: Steps, x: Tensor, low: float | None = None, high: float | None = None) -> Tensor:
    made = x if high is None else s.minimum(x, high)
    return made if low is None else s("max", made, low)


def _elu(
    s: Steps, x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Tensor:
    if input_scale != 1:
        raise GraphError(f"elu with input_scale={input_scale}")
    made = s("elu", x if alpha == 1 else s.minimum(x, 0.0))
    if alpha != 1:  # alpha below 0 alone
        made = s("add", s("relu", x), s("mul", made, alpha))
    return made if scale == 1 else s("mul", made, scale)


def _softplus(s: Steps, x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    scaled = x if beta == 1 else s("mul", x, beta)
    made = s("softplus", scaled)
    made = made if beta == 1 else s("div", made, beta)
    if threshold >= LINEAR:
        return made
    return choose(s, s("gt", scaled, threshold), x, made)


def _softmax(s: Steps, x: Tensor | Chosen, dim: int, dtype: object = None) -> Tensor:
    powers = exponentials(s, x)
    return s("div", powers, s.reduce("reduction", powers, [dim]))


def _softmax_beside(
    s: Steps, x: Tensor | Chosen, others: Sequence[Tensor | Chosen], dim: int
) -> Tensor:
    powers = exponentials(s, x)
    total = s.reduce("reduction", powers, [dim])
    for other in others:
        total = s("add", total, _sum_of_powers(s, other, dim))
    return s("div", powers, total)


def _sum_of_powers(s: Steps, x: Tensor | Chosen, dim: int) -> Operand:
    if isinstance(x, Chosen) and not x.is_masked and not x.conditions:  # a number
        return math.exp(x.inside) * x.dims[dim]
    return s.reduce("reduction", exponentials(s, x), [dim])


def _logsumexp(s: Steps, x: Tensor | Chosen, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    dims = dims if isinstance(dims, Sequence) else [dims]
    if isinstance(x, Tensor) and all(x.dims[d] == 1 for d in dims):  # log(exp(x))
        return s.reduce("reduction", x, dims, keep=keepdim)
    return s("log", s.reduce("reduction", exponentials(s, x), dims, keep=keepdim))


def _logaddexp(s: Steps, a: Tensor, b: Tensor) -> Tensor:
    """The logarithm of a sum where both are logarithms, else max(a, b) + softplus(-|a - b|).

    Equal infinities have no difference, and nothing is added to them.
    """
    powers = [p for x in (a, b) if (p := s.operand_of("log", x)) is not None]
    if len(powers) == 2:
        return s("log", s("add", *powers))
    apart = s("abs", s("sub", a, b))
    added = s("masked", s("ge", apart, 0.0), s("softplus", s("neg", apart)))
    return s("add", s("max", a, b), added)


def _log_softmax(s: Steps, x: Tensor, dim: int, dtype: object = None) -> Tensor:
    return s("sub", x, _logsumexp(s, x, [dim], keepdim=True))


def _attention(
    s: Steps,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | Chosen | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p:
        raise GraphError("scaled_dot_product_attention with dropout has no form here")
    rows = q
    if enable_gqa and q.dims[-3] != k.dims[-3]:  # heads of one group are rows of its keys' head
        group = q.dims[-3] // k.dims[-3] * q.dims[-2]
        rows = s.reshape(q, (*q.dims[:-3], k.dims[-3], group, q.dims[-1]))
    order = (*range(k.num_dims - 2), k.num_dims - 1, k.num_dims - 2)
    scale = q.dims[-1] ** -0.5 if scale is None else scale
    scores = s("mul", s.matmul(rows, s.permute(k, order)), scale)
    whole = s.reshape(scores, (*q.dims[:-1], k.dims[-2]))
    seen = whole if attn_mask is None else hidden(s, whole, attn_mask)
    weights = _softmax(s, causal(whole) if is_causal else seen, -1)
    made = s.matmul(s.reshape(weights, scores.dims), v)
    return s.reshape(made, (*q.dims[:-1], v.dims[-1]))


def _power(s: Steps, x: Operand, power: Operand) -> Tensor:
    """Return products for whole exponents, with a root for their halves; others by logarithms."""
    if isinstance(x, int | float) and x > 0 and isinstance(power, Tensor):
        return s("exp", s("mul", power, math.log(x)))
    is_number = not isinstance(power, Tensor) and power and math.isfinite(power)
    if not isinstance(x, Tensor) or isinstance(power, Tensor) or not is_number:
        said = "a tensor" if isinstance(power, Tensor) else repr(power)
        raise GraphError(f"pow with the exponent {said}", "exponents are finite, and not 0")
    known: dict[float, Callable[[Tensor], Tensor]] = {
        0.5: lambda x: s("sqrt", x),
        -0.5: lambda x: s("rsqrt", x),
        1.5: lambda x: s("mul", x, s("sqrt", x)),
    }
    if power in known:
        return known[power](x)
    if power != round(power):
        return s("exp", s("mul", s("log", x), power))
    made = _product(s, x, int(abs(power)))
    return made if power > 0 else s("div", 1.0, made)


def _product(s: Steps, x: Tensor, factors: int) -> Tensor:
    """Return a number times itself, so many factors, by squares."""
    half = s("square", _product(s, x, factors // 2)) if factors > 1 else x
    return s("mul", half, x) if factors > 1 and factors % 2 else half


def _weight_norm(s: Steps, v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    others = [d for d in range(v.num_dims) if d != dim]
    length = s("sqrt", s.reduce("reduction", s("square", v), others))
    return s("mul", v, s("div", g, length))


def _gelu(s: Steps, x: Tensor, *, approximate: str = "none") -> Tensor:
    return s("gelu" if approximate == "none" else "gelu_tanh", x)


def _reduction(op: str) -> Callable[..., Tensor]:
    def reduced(s: Steps, x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
        return s.reduce(op, x, [dim] if isinstance(dim, int) else dim or [], keep=keepdim)

    return reduced


def _binary(op: str) -> Callable[..., Tensor]:
    def applied(s: Steps, a: Operand, b: Operand, *, alpha: float = 1) -> Tensor:
        scaled = b if alpha == 1 else s("mul", b, alpha) if isinstance(b, Tensor) else b * alpha
        return s(op, a, scaled)

    return applied


def _scaled(s: Steps, x: Tensor, by: float) -> Tensor:
    return x if by == 1 else s("mul", x, by)


def _same(s: Steps, x: Tensor, *_: object, **__: object) -> Tensor:
    return x


def _dropout(s: Steps, x: Tensor, p: float, train: bool) -> Tensor:
    if train and p:
        raise GraphError(f"dropout of {p} while training", "call eval() on the module first")
    return x


def _leaky_relu(s: Steps, x: Tensor, slope: float = 0.01) -> Tensor:
    if 0 <= slope <= 1:
        return s("max", x, s("mul", x, slope))
    return s("add", s("relu", x), s("mul", s.minimum(x, 0.0), slope))


def _amax(s: Steps, x: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    over = [dim] if isinstance(dim, int) else dim
    return s.reduce("amax", x, over, keep=keepdim)


def _amin(s: Steps, x: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return s("neg", _amax(s, s("neg", x), dim, keepdim))


def _aminmax(s: Steps, x: Tensor, *, dim: Any = None, keepdim: bool = False) -> Any:
    over = () if dim is None else dim
    return _amin(s, x, over, keepdim), _amax(s, x, over, keepdim)


def _largest(amax: Callable[..., Tensor], larger: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return torch.max or min: of all elements, of two tensors, or along a dim with positions."""

    def applied(s: Steps, x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, Tensor | float):
            return larger(s, x, dim)
        return amax(s, x) if dim is None else (amax(s, x, dim, keepdim),)

    return applied


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
    *("abs", "mish", "sin", "cos"),
)
_SAME = ("to", "_to_copy", "contiguous", "clone", "detach", "alias", "type_as")
ATEN: Mapping[str, Callable[..., Any]] = {
    **FUNCTIONS,
    **{name: (lambda s, x, op=name: s(op, x)) for name in _UNARY},
    **dict.fromkeys((*_SAME, "lift_fresh_copy", "identity"), _same),
    "add": _binary("add"),
    "sub": _binary("sub"),
    "rsub": lambda s, a, b, alpha=1: s("sub", b, a if alpha == 1 else s("mul", a, alpha)),
    "mul": _binary("mul"),
    "div": _binary("div"),
    "true_divide": _binary("div"),
    "maximum": _binary("max"),
    "minimum": lambda s, a, b: s.minimum(a, b),
    "reciprocal": lambda s, x: s("div", 1.0, x),
    "pow": _power,
    "exp2": lambda s, x: s("exp", s("mul", x, math.log(2))),
    "log2": lambda s, x: s("mul", s("log", x), 1 / math.log(2)),
    "lerp": lambda s, a, b, w: s("add", a, s("mul", s("sub", b, a), w)),
    "addcmul": lambda s, x, a, b, *, value=1: s("add", x, _scaled(s, s("mul", a, b), value)),
    "addcdiv": lambda s, x, a, b, *, value=1: s("add", x, _scaled(s, s("div", a, b), value)),
    "gelu": _gelu,
    "dropout": _dropout,
    "leaky_relu": _leaky_relu,
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
    "tril": lambda s, x, diagonal=0: triangle(s, x, diagonal, upper=False),
    "triu": lambda s, x, diagonal=0: triangle(s, x, diagonal, upper=True),
    "softmax": _softmax,
    "softmax_beside": _softmax_beside,
    "log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
    "logaddexp": _logaddexp,
    "max": _largest(_amax, _binary("max")),
    "min": _largest(_amin, Steps.minimum),
    "amax": _amax,
    "aminmax": _aminmax,
    "var": lambda s, x, *a, **k: variance_and_mean(s, x, *a, **k)[0],
    "std": lambda s, x, *a, **k: s("sqrt", variance_and_mean(s, x, *a, **k)[0]),
    "var_mean": variance_and_mean,
    "amin": _amin,
    "sum": _reduction("reduction"),
    "mean": _reduction("mean"),
    "linalg_norm": linalg_norm,
    "linalg_vector_norm": vector_norm,
    "norm": vector_norm,
    "frobenius_norm": vector_norm,
    "broadcast_tensors": lambda s, tensors: tensors,
    "mse_loss": lambda s, x, y, n=1: losses.reduced(s, s("square", s("sub", x, y)), n),
    "l1_loss": lambda s, x, y, n=1: losses.reduced(s, s("abs", s("sub", x, y)), n),
    "smooth_l1_loss": losses.smooth_l1,
    "huber_loss": losses.huber,
    "kl_div": losses.divergence,
    "binary_cross_entropy_with_logits": losses.cross_entropy_of_logits,
    "soft_margin_loss": losses.soft_margin,
    "margin_ranking_loss": losses.margin_ranking,
    "triplet_margin_loss": losses.triplet,
    "cosine_similarity": losses.cosine,
    "linear": _linear,
    "einsum": _einsum,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "mm": lambda s, a, b: s.matmul(a, b),
    "mv": lambda s, a, b: s.matmul(a, b),
    "bmm": lambda s, a, b: s.matmul(a, b),
    "matmul": lambda s, a, b: s.matmul(a, b),
    "_weight_norm": _weight_norm,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "group_norm": group_norm,
    "batch_norm": batch_norm,
    "instance_norm": instance_norm,
    "scaled_dot_product_attention": _attention,
    "expand": lambda s, x, sizes, **_: s.expand(x, sizes),
    "expand_as": lambda s, x, like: s.expand(x, like.dims),
    "view": _reshape,
    "reshape": _reshape,
    "_unsafe_view": _reshape,
    "unflatten": lambda s, x, d, n: s.reshape(
        x, (*x.dims[: x.position(d)], *n, *x.dims[x.position(d) + 1 :])
    ),
    "flatten": _flatten,
    "permute": lambda s, x, order: s.permute(x, order),
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), _transpose),
    **dict.fromkeys(("mT", "mH", "adjoint"), lambda s, x: _transpose(s, x, -2, -1)),
    "t": lambda s, x: s.permute(x, [*range(x.num_dims)][::-1]),
    "numpy_T": lambda s, x: s.permute(x, [*range(x.num_dims)][::-1]),
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
}
