"""Positions, masks and what is chosen by them.

What `arange`, `ones` and `tril` make is a whole number or one of two numbers for each element, by
conditions: sums of positions times factors, of elements of tensors, lengths say, and of a number,
that are at least 0. A mask is where all of some conditions hold. Of booleans elements are 1 or 0.
`masked_fill(x, mask, -inf)` is a tensor with a mask that softmax and the like take: what is hidden
counts 0 there. No kernel stores a mask; of boolean tensors it reads the bytes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.chosen import (
    Chosen,
    Counted,
    Positional,
    Whole,
    expanded,
    permuted,
    reshaped,
    sliced,
    transposed,
    unsqueezed,
)
from mirage_kernels.generator.frontend.counted import (
    COMPARED,
    COUNTED,
    arange,
    broadcast,
    compared,
    is_whole,
    over,
    scaled,
)
from mirage_kernels.generator.frontend.positional.program import Tensor
from mirage_kernels.generator.frontend.steps import Steps

_STORAGE = ("dtype", "layout", "device", "pin_memory", "memory_format", "implicit")


def causal(x: Tensor) -> Chosen:
    """Return scores of which each row sees the columns up to its own."""
    return _triangle(Chosen(x.dims, (), x, -math.inf), 0, upper=False)


def triangle(s: Steps, x: Tensor, diagonal: int, *, upper: bool) -> Tensor:
    """Return a tensor with 0 on one side of a diagonal."""
    made = _triangle(Chosen(x.dims, (), x, 0.0), diagonal, upper=upper)
    return s.where(made.conditions, x, 0.0)


def is_positional(args: Sequence[Any]) -> bool:
    """Say whether one of some arguments is made of positions."""
    return any(isinstance(a, Counted | Chosen) for a in args)


def is_mask(x: Any) -> bool:
    """Say whether a value is one of two numbers or truth values for each element."""
    return isinstance(x, Chosen) and not x.is_masked


def reals(s: Steps, args: Sequence[Any]) -> list[Any]:
    """Return arguments with real numbers for whole ones."""
    return [s.real(x) if isinstance(x, Counted) else x for x in args]


def shown(s: Steps, x: Any) -> Any:
    """Return a tensor of which some elements are hidden as one that a kernel stores."""
    masked = isinstance(x, Chosen) and x.is_masked
    return s.where(x.conditions, x.inside, x.outside) if masked else x


def exponentials(s: Steps, x: Tensor | Chosen) -> Tensor:
    """Return exp(x), 0 where x is hidden."""
    if isinstance(x, Tensor):
        return s("exp", x)
    if x.is_masked and x.outside == -math.inf:
        return s.where(x.conditions, s("exp", x.inside), 0.0)
    raise GraphError("exponentials of numbers that no input makes")


def applied(s: Steps, op: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Apply an operator to positions and masks, or one that makes them.

    Raises GraphError for one that takes tensors alone.
    """
    if op not in MASKED:
        hint = "softmax takes hidden scores"
        raise GraphError(f"{op} of positions, masks or constant tensors has no form", hint)
    kept = {k: v for k, v in named.items() if k not in _STORAGE}
    made = MASKED[op](s, *args, **kept)
    if op in SOURCES:
        made = _cast(made, named.get("dtype"))
    if isinstance(made, Chosen) and not made.is_masked and made.inside != made.inside:
        raise GraphError(f"{op} makes numbers that are none")
    return made


# -- what makes positions --------------------------------------------------------------------------


def _cast(x: Positional, *args: Any, **named: Any) -> Positional:
    """Return truth values as such, and numbers as such; no kernel rounds them."""
    import torch

    types = [t for t in (*args, *named.values()) if isinstance(t, torch.dtype)]
    if not types or not isinstance(x, Chosen) or x.is_masked:
        return x
    kind = bool if torch.bool in types else float
    return replace(x, inside=kind(x.inside), outside=kind(x.outside))


def _full(value: float | None = None) -> Callable[..., Chosen]:
    def made(like: Any, number: Any = value, **_: Any) -> Chosen:
        return Chosen((*getattr(like, "dims", like),), (), number, 0.0)

    return made


def _triangle(x: Chosen, diagonal: int, *, upper: bool) -> Chosen:
    """Keep what lies on one side of a diagonal of the last two dims."""
    if x.conditions:
        raise GraphError("a triangle of what is chosen already")
    sign = -1 if upper else 1  # row - column + diagonal >= 0
    factors = (*(0,) * (len(x.dims) - 2), sign, -sign)
    return replace(x, conditions=(Whole(factors, sign * diagonal),))


# -- arithmetic ------------------------------------------------------------------------------------


_NUMBERS: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "rsub": lambda a, b: b - a,
    "mul": operator.mul,
    "div": lambda a, b: a / b if b else math.nan,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def _equal(a: Any, b: Any) -> Chosen:
    return _both(*(compared(*pair, strictly=False) for pair in ((a, b), (b, a))))


def _negated(x: Chosen) -> Chosen:
    """Return a truth value the other way round."""
    return replace(x, inside=not x.inside, outside=not x.outside)


def _as_mask(x: Any) -> Chosen:
    """Return truth values that hold where all conditions do; raises GraphError for others."""
    if not isinstance(x, Chosen) or x.is_masked or bool(x.inside) == bool(x.outside):
        raise GraphError("it takes a mask")
    if x.inside:
        return replace(x, inside=True, outside=False)
    if len(x.conditions) != 1:
        raise GraphError("a mask where one of several conditions does not hold")
    conditions = (x.conditions[0].opposite(),)
    return replace(x, conditions=conditions, inside=True, outside=False)


def _both(a: Any, b: Any) -> Chosen:
    masks = [_as_mask(x) for x in (a, b)]
    dims = broadcast(*(m.dims for m in masks))
    conditions = (over(dims, m.dims, c) for m in masks for c in m.conditions)
    return Chosen(dims, tuple(dict.fromkeys(conditions)), True, False)


def _either(a: Any, b: Any) -> Chosen:
    """Return where one of two masks holds: not where both do not."""
    masks = [_as_mask(x) for x in (a, b)]
    return _negated(_both(*map(_negated, masks)))


_EQUAL: Mapping[str, Callable[[Any, Any], Chosen]] = {
    "eq": _equal,
    "ne": lambda a, b: _negated(_equal(a, b)),
}


def _seen_by(x: Chosen) -> Chosen | None:
    """Return where 0 and not -inf is added to scores, None for other numbers."""
    adds = x.conditions and not x.is_masked and {x.inside, x.outside} == {0, -math.inf}
    return _as_mask(replace(x, inside=not x.inside, outside=not x.outside)) if adds else None


def _binary(s: Steps, op: str, a: Any, b: Any) -> Any:
    """Compute with positions, masks, numbers and tensors."""
    if isinstance(a, Counted) or isinstance(b, Counted):
        return _of_whole(s, op, a, b)
    chosen, other = (a, b) if isinstance(a, Chosen) else (b, a)
    if isinstance(other, Chosen):
        seen = [m for x in (chosen, other) if op == "add" and (m := _seen_by(x))]
        if len(seen) == 2:
            return replace(_both(*seen), inside=0.0, outside=-math.inf)
        if chosen.conditions and other.conditions:
            raise GraphError(f"{op} of two masks", "join masks with &")
        a, b = (a, _number(b)) if a.conditions else (_number(a), b)
        return _binary(s, op, a, b)
    sides = (
        _element(s, op, *((own, other) if chosen is a else (other, own)))
        for own in (chosen.inside, chosen.outside)
    )
    return _chosen(s, chosen, *sides)


def _of_whole(s: Steps, op: str, a: Any, b: Any) -> Any:
    """Compute with whole numbers: as such with each other, in real numbers with others."""
    known = {**COMPARED, **COUNTED, **_EQUAL}
    if op in known and all(isinstance(x, Counted) or is_whole(x) for x in (a, b)):
        return known[op](a, b)
    if op not in (*COUNTED, "div") or isinstance(a, Chosen) or isinstance(b, Chosen):
        raise GraphError(f"{op} of positions")
    sides = reals(s, (b, a) if op == "rsub" else (a, b))
    return s("sub" if op == "rsub" else op, *sides)


def _chosen(s: Steps, mask: Chosen, inside: Any, outside: Any) -> Chosen | Tensor:
    """Return one of two numbers or tensors by the conditions of a mask."""
    tensor = inside if isinstance(inside, Tensor) else outside
    if not isinstance(tensor, Tensor):
        return replace(mask, inside=inside, outside=outside)
    dims = broadcast(*(x.dims for x in (inside, outside) if isinstance(x, Tensor)))
    if (whole := broadcast(mask.dims, dims)) != dims:
        sides = (s.expand(x, whole) if isinstance(x, Tensor) else x for x in (inside, outside))
        return _chosen(s, mask, *sides)
    hidden = [x for x in (inside, outside) if not isinstance(x, Tensor) and not math.isfinite(x)]
    if not isinstance(inside, Tensor) and (hidden or len(mask.conditions) < 2):
        mask = _as_mask(replace(mask, inside=False, outside=True))
        inside, outside = outside, inside
    conditions = tuple(over(dims, mask.dims, c) for c in mask.conditions)
    if hidden:
        return Chosen(tensor.dims, conditions, inside, outside)
    return s.where(conditions, inside, outside)


def _element(s: Steps, op: str, a: Any, b: Any) -> Any:
    """Compute one side: with numbers, or with a tensor, of which nothing is hidden but by -inf."""
    tensors = [x for x in (a, b) if isinstance(x, Tensor)]
    if not tensors:
        return _NUMBERS[op](a, b)
    numbers = [x for x in (a, b) if not isinstance(x, Tensor)]
    if numbers and not math.isfinite(numbers[0]):
        if op == "add" and numbers[0] == -math.inf:
            return -math.inf
        raise GraphError(f"{op} of a tensor and {numbers[0]}", "-inf is added, or filled in")
    if (op, numbers) in (("add", [0]), ("mul", [1])):
        return tensors[0]
    if (op, numbers) == ("mul", [0]):
        return 0.0
    if op not in ("add", "sub", "mul", "div"):
        raise GraphError(f"{op} of a tensor and a mask")
    return s(op, a, b)


def _filled(s: Steps, x: Any, mask: Any, value: Any) -> Chosen | Tensor:
    """Return x where a mask does not hold, a number where it does."""
    return _where(s, mask, value, x)


def _where(s: Steps, mask: Any, a: Any, b: Any) -> Chosen | Tensor:
    """Return a where a mask holds, b elsewhere."""
    if not isinstance(mask, Chosen) or mask.is_masked:
        raise GraphError("it takes a mask")
    inside, outside = ((a, b)[not truth] for truth in (mask.inside, mask.outside))
    return _chosen(s, mask, _number(inside), _number(outside))


def _number(x: Any) -> Any:
    """Return a number that a tensor of one value stands for, others as they are."""
    return x.inside if isinstance(x, Chosen) and not x.conditions else x


def with_numbers(args: Sequence[Any]) -> Sequence[Any]:
    """Return arguments with numbers for constant tensors that broadcast to the others."""
    tensors = [x.dims for x in args if isinstance(x, Tensor)]
    if not tensors:
        return args
    dims = broadcast(*tensors)
    fits = (is_mask(x) and not x.conditions and broadcast(dims, x.dims) == dims for x in args)
    return [float(x.inside) if fit else x for fit, x in zip(fits, args, strict=True)]


def hidden(s: Steps, x: Tensor, mask: Any) -> Tensor | Chosen:
    """Return scores with a mask: a tensor or numbers that are added, or where scores are seen."""
    if isinstance(mask, Chosen) and isinstance(mask.inside, bool):
        return _where(s, mask, x, -math.inf)
    if is_positional([mask]):
        return _binary(s, "add", x, mask)  # type: ignore[no-any-return]
    return s("add", x, mask)


# -- tables ----------------------------------------------------------------------------------------

SOURCES: Mapping[str, Callable[..., Positional]] = {
    "arange": arange,
    "ones": _full(1),
    "zeros": _full(0),
    "full": _full(),
    "ones_like": _full(1),
    "zeros_like": _full(0),
    "full_like": _full(),
    "scalar_tensor": lambda value, **_: Chosen((1,), (), value, 0.0),
}
_VIEWS: Mapping[str, Callable[..., Positional]] = {
    "view": reshaped,
    "reshape": reshaped,
    "_unsafe_view": reshaped,
    "unsqueeze": unsqueezed,
    "permute": permuted,
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), transposed),
    **dict.fromkeys(("mT", "mH", "adjoint"), lambda x: transposed(x, -2, -1)),
    "t": transposed,
    "numpy_T": transposed,
    "expand": expanded,
    "expand_as": lambda x, like: expanded(x, like.dims),
    "squeeze": lambda x, *_: reshaped(x, [n for n in x.dims if n > 1] or [1]),
    "slice": sliced,
    "neg": lambda x: scaled(x, -1),
    "tril": lambda x, diagonal=0: _triangle(x, diagonal, upper=False),
    "triu": lambda x, diagonal=0: _triangle(x, diagonal, upper=True),
    "logical_not": _negated,
    "bitwise_not": _negated,
    "logical_and": _both,
    "bitwise_and": _both,
    "__and__": _both,
    "logical_or": _either,
    "bitwise_or": _either,
    "__or__": _either,
}
_HIDDEN = "softmax _softmax softmax_beside logsumexp scaled_dot_product_attention"
HIDDEN = frozenset(_HIDDEN.split())
_NUMBERED = "max min maximum minimum clamp pow remainder fmod floor_divide true_divide"
NUMBERED = frozenset(_NUMBERED.split())  # that take a number in a tensor's place
_CASTS = ("to", "_to_copy", "type_as", "contiguous", "clone", "lift_fresh_copy", "detach", "alias")
MASKED: Mapping[str, Callable[..., Any]] = {
    **{op: (lambda s, a, b, op=op: _binary(s, op, a, b)) for op in _NUMBERS},
    **{op: (lambda s, *a, f=f, **k: f(*a, **k)) for op, f in {**SOURCES, **_VIEWS}.items()},
    **{op: (lambda s, *a, **k: _cast(*a, **k)) for op in _CASTS},
    "exp": exponentials,
    "masked_fill": _filled,
    "where": _where,
}
