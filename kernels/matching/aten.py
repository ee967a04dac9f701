"""What PyTorch's operators mean as terms; what is not in the table is a tensor of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from mirage_kernels.element_types import HALVES
from mirage_kernels.matching.shapes import alike, equal, static
from mirage_kernels.matching.terms import Term, Terms

Meaning = Term | list[Term] | None


@dataclass(frozen=True)
class Call:
    """One call of an operator, with the terms of its tensors."""

    terms: Terms
    args: tuple[object, ...]
    named: Mapping[str, object]
    of: Callable[[Tensor], Term]
    out: object

    def tensor(self, place: int) -> Tensor | None:
        """Return an argument that is a tensor."""
        given = self.args[place] if place < len(self.args) else None
        return given if isinstance(given, Tensor) else None

    def term(self, place: int) -> Term | None:
        """Return the term of an argument, a tensor or a number."""
        given = self.args[place] if place < len(self.args) else None
        if isinstance(given, Tensor):
            return self.of(given)
        if isinstance(given, int | float) and not isinstance(given, bool):
            return self.terms.const(given)
        return None

    def number(self, place: int, name: str, default: float) -> float | None:
        """Return an argument that is a plain number; None where it is something else."""
        given = self.args[place] if place < len(self.args) else self.named.get(name, default)
        return given if isinstance(given, int | float) else None

    @property
    def shape(self) -> Sequence[int]:
        """The shape of the result."""
        return self.out.shape if isinstance(self.out, Tensor) else ()

    @property
    def is_by_row(self) -> bool:
        """Say whether operands are like the result, or vectors or numbers of its rows."""
        return all(_joins(t.shape, self.shape) for t in self.args if isinstance(t, Tensor))


def _joins(shape: Sequence[int], result: Sequence[int]) -> bool:
    if len(shape) == 0 or alike(shape, result):
        return True
    if all(static(n) == 1 for n in shape[:-1]) and equal(shape[-1], result[-1]):
        return True
    return static(shape[-1]) == 1 and alike(shape[:-1], result[:-1])


def meaning(name: str, call: Call) -> Meaning:
    """Return the term, or terms, that a call makes; None where it means nothing to us."""
    made = _TABLE.get(name)
    return made(call) if made is not None else None


# -- elementwise -----------------------------------------------------------------------------------


def _binary(law: Callable[[Terms, Term, Term], Term]) -> Callable[[Call], Meaning]:
    def made(call: Call) -> Meaning:
        a, b = call.term(0), call.term(1)
        if a is None or b is None or call.named or len(call.args) != 2 or not call.is_by_row:
            return None
        return law(call.terms, a, b)

    return made


def _sum(sign: float) -> Callable[[Call], Meaning]:
    def made(call: Call) -> Meaning:
        a, b, alpha = call.term(0), call.term(1), call.number(2, "alpha", 1)
        if a is None or b is None or alpha is None or not call.is_by_row:
            return None
        return call.terms.add(a, call.terms.mul(call.terms.const(sign * alpha), b))

    return made


def _unary(law: Callable[[Terms, Term], Term]) -> Callable[[Call], Meaning]:
    def made(call: Call) -> Meaning:
        a = call.term(0)
        return None if a is None or len(call.args) != 1 or call.named else law(call.terms, a)

    return made


def _named(op: str) -> Callable[[Call], Meaning]:
    return _unary(lambda terms, a: terms.raw(op, a))


def _pow(call: Call) -> Meaning:
    a, exponent = call.term(0), call.number(1, "exponent", 0)
    return None if a is None or exponent is None else call.terms.power(a, exponent)


def _gelu(call: Call) -> Meaning:
    a, form = call.term(0), call.named.get("approximate", "none")
    return None if a is None else call.terms.raw("gelu_tanh" if form == "tanh" else "gelu", a)


def _clamp_min(call: Call) -> Meaning:
    a, least = call.term(0), call.number(1, "min", 0)
    if a is None or least is None:
        return None
    return call.terms.raw("relu", a) if least == 0 else call.terms.raw("at_least", a, _const(call))


def _const(call: Call) -> Term:
    return call.term(1) or call.terms.const(0)


def _lerp(call: Call) -> Meaning:
    a, b, weight = (call.term(place) for place in range(3))
    if a is None or b is None or weight is None or not call.is_by_row:
        return None
    return call.terms.add(a, call.terms.mul(weight, call.terms.sub(b, a)))


# -- rows ------------------------------------------------------------------------------------------


def _over_rows(call: Call, place: int = 1) -> bool:
    """Say whether a call reduces the last dim alone and keeps it."""
    x = call.tensor(0)
    dims = call.args[place] if place < len(call.args) else call.named.get("dim")
    keeps = [a for a in call.args[place + 1 :] if isinstance(a, bool)]
    keep = keeps[0] if keeps else call.named.get("keepdim", False)
    if x is None or not keep or not isinstance(dims, list | tuple) or len(dims) != 1:
        return False
    return dims[0] in (-1, x.dim() - 1)


def _extent(call: Call) -> int | None:
    x = call.tensor(0)
    return None if x is None else static(x.shape[-1])


def _mean(call: Call) -> Meaning:
    a = call.term(0)
    return call.terms.raw("mean", a) if a is not None and _over_rows(call) else None


def _total(call: Call) -> Meaning:
    a, extent = call.term(0), _extent(call)
    if a is None or extent is None or not _over_rows(call):
        return None
    return call.terms.raw("sum", a, value=extent)


def _length(call: Call) -> Meaning:
    a = call.term(0)
    if a is None or call.number(1, "ord", 2) != 2 or not _over_rows(call, 2):
        return None
    return call.terms.raw("length", a)


def _variance(call: Call) -> Meaning:
    a = call.term(0)
    correction = call.named.get("correction", 1)
    return call.terms.variance(a) if a and correction == 0 and _over_rows(call) else None


def _variance_and_mean(call: Call) -> Meaning:
    a, variance = call.term(0), _variance(call)
    return [variance, call.terms.raw("mean", a)] if a and isinstance(variance, Term) else None


def _layer_norm(call: Call) -> Meaning:
    a, extents, eps = call.term(0), call.args[1], call.number(4, "eps", 0)
    if a is None or eps is None or not isinstance(extents, list | tuple) or len(extents) != 1:
        return None
    made = call.terms.raw("layer", a, call.terms.const(eps))
    weight, bias = call.term(2), call.term(3)
    made = made if weight is None else call.terms.mul(made, weight)
    made = made if bias is None else call.terms.add(made, bias)
    return [made, call.terms.leaf(), call.terms.leaf()]


def _rms_norm(call: Call) -> Meaning:
    """PyTorch's own norm, where a GPU has a kernel for it."""
    x, a, extents, eps = call.tensor(0), call.term(0), call.args[1], call.number(3, "eps", 0)
    if x is None or a is None or not isinstance(extents, list | tuple) or len(extents) != 1:
        return None
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    made, weight = call.terms.normed(a, call.terms.const(eps)), call.term(2)
    return [made if weight is None else call.terms.mul(made, weight), call.terms.leaf()]


# -- products --------------------------------------------------------------------------------------


def _transposed(call: Call) -> Meaning:
    x, a = call.tensor(0), call.term(0)
    places = [p for p in call.args[1:] if isinstance(p, int)]
    if x is None or a is None or x.dim() != 2 or sorted(p % 2 for p in places) not in ([], [0, 1]):
        return None
    return a.args[0] if a.op == "transposed" else call.terms.raw("transposed", a)


def _product(call: Call) -> Meaning:
    a, b = call.term(0), call.term(1)
    if a is None or b is None or b.op != "transposed":
        return None
    return call.terms.linear(a, b.args[0])


def _linear(call: Call) -> Meaning:
    a, weight, bias, matrix = call.term(0), call.term(1), call.term(2), call.tensor(1)
    if a is None or weight is None or matrix is None or matrix.dim() != 2:
        return None
    made = call.terms.linear(a, weight)
    return made if bias is None else call.terms.add(made, bias)


def _product_and_sum(call: Call) -> Meaning:
    bias, a, b = (call.term(place) for place in range(3))
    if bias is None or a is None or b is None or b.op != "transposed" or call.named:
        return None
    return call.terms.add(call.terms.linear(a, b.args[0]), bias)


# -- the same numbers ------------------------------------------------------------------------------


def _unchanged(call: Call) -> Meaning:
    return call.term(0)


def _viewed(call: Call) -> Meaning:
    """Leading dims may change; a column of row numbers may be repeated along its rows."""
    x, a = call.tensor(0), call.term(0)
    if x is None or x.dim() == 0 or not call.shape:
        return None
    return a if equal(x.shape[-1], call.shape[-1]) else None


def _expanded(call: Call) -> Meaning:
    x = call.tensor(0)
    is_column = x is not None and x.dim() > 0 and static(x.shape[-1]) == 1
    return call.term(0) if is_column and call.is_by_row else None


def _cast(call: Call) -> Meaning:
    x, a = call.tensor(0), call.term(0)
    if x is None or a is None or not isinstance(call.out, Tensor):
        return None
    if call.out.dtype not in (*HALVES, torch.float32) or not x.dtype.is_floating_point:
        return None
    return call.terms.round(a) if x.dtype == torch.float32 and call.out.dtype in HALVES else a


def _sliced(call: Call) -> Meaning:
    x, dim, step = call.tensor(0), call.number(1, "dim", 0), call.number(4, "step", 1)
    if x is None or dim is None or step != 1:
        return None
    length, made = (static(y.shape[int(dim)]) for y in (x, call.out) if isinstance(y, Tensor))
    first = static(call.number(2, "start", 0) or 0)
    if length is None or made is None or first is None:
        return None
    first = max(first + length, 0) if first < 0 else first
    return _part(call, int(dim), first, first + made)


def _part(call: Call, dim: int, first: int, end: int) -> Term | None:
    x, a = call.tensor(0), call.term(0)
    if x is None or a is None:
        return None
    if first == 0 and end == static(x.shape[dim]):
        return a
    if a.op in ("leaf", "rows") and dim % x.dim() == 0 and x.dim() <= 2:
        return call.terms.rows(a, first, end)
    return call.terms.columns(a, first, end) if dim % x.dim() == x.dim() - 1 else None


def _split(call: Call) -> Meaning:
    dim = call.number(2, "dim", 0)
    if dim is None or not isinstance(call.out, list | tuple):
        return None
    sizes = [static(part.shape[int(dim)]) for part in call.out]
    ends = [0]
    for size in sizes:
        if size is None:
            return None
        ends.append(ends[-1] + size)
    parts = [_part(call, int(dim), a, b) for a, b in pairwise(ends)]
    return [part or call.terms.leaf() for part in parts]


def _listed(sizes: object) -> Sequence[object]:
    return sizes if isinstance(sizes, list | tuple) else [sizes]


_TABLE: Mapping[str, Callable[[Call], Meaning]] = {
    "add": _sum(1),
    "sub": _sum(-1),
    "rsub": lambda call: (
        call.terms.sub(b, a)
        if (a := call.term(0)) and (b := call.term(1)) and len(call.args) == 2
        else None
    ),
    "mul": _binary(Terms.mul),
    "div": _binary(Terms.div),
    "lerp": _lerp,
    "neg": _unary(lambda terms, a: terms.mul(terms.const(-1), a)),
    "reciprocal": _unary(Terms.reciprocal),
    "sqrt": _unary(Terms.sqrt),
    "rsqrt": _unary(lambda terms, a: terms.reciprocal(terms.sqrt(a))),
    "pow": _pow,
    "gelu": _gelu,
    "clamp_min": _clamp_min,
    **{name: _named(name) for name in ("silu", "relu", "sigmoid", "exp", "erf", "tanh")},
    "mean": _mean,
    "sum": _total,
    "linalg_vector_norm": _length,
    "var": _variance,
    "var_mean": _variance_and_mean,
    "native_layer_norm": _layer_norm,
    "_fused_rms_norm": _rms_norm,
    "t": _transposed,
    "transpose": _transposed,
    "permute": lambda call: (
        _transposed(call) if tuple(_listed(call.args[1])) in ((1, 0), (-1, -2)) else None
    ),
    "mm": _product,
    "linear": _linear,
    "addmm": _product_and_sum,
    **dict.fromkeys(("alias", "detach", "clone", "lift_fresh"), _unchanged),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze"), _viewed),
    "expand": _expanded,
    "_to_copy": _cast,
    "slice": _sliced,
    "split": _split,
    "split_with_sizes": _split,
}
