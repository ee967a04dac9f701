"""Checks of a call's arguments in Python, where the compiled op would not come to say a sentence.

The compiled ops check their arguments. Before them PyTorch's dispatcher looks at types, and what it
says of a wrong one is a page long; gradients it drops without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from mirage_kernels.errors import (
    InferenceOnlyError,
    cache_layout_sentence,
    dims_sentence,
    plain_tensor_sentence,
    requires_grad_sentence,
    tangent_sentence,
    type_sentence,
)

_Taken = ParamSpec("_Taken")
_Result = TypeVar("_Result")


def given_tensor(op: str, name: str, given: object) -> Tensor:
    """Return a tensor that Python looks at, before the compiled op can say that it is none."""
    if isinstance(given, Tensor):
        return given
    raise RuntimeError(type_sentence(op, name, given, "a tensor"))


def given_integer(op: str, name: str, given: object) -> None:
    """Refuse what is no integer, before Python calculates with it."""
    if not _is_integer(given):
        raise RuntimeError(type_sentence(op, name, given, "an integer"))


def given_flag(op: str, name: str, given: object) -> bool:
    """Return what is True or False; nothing else is, not even 1."""
    if isinstance(given, bool):
        return given
    raise RuntimeError(type_sentence(op, name, given, "True or False"))


_LAYOUTS = {"NHD": "[pages, page size, Hkv, D]", "HND": "[pages, Hkv, page size, D]"}


def nhd(op: str, name: str, cache: object, kv_layout: str) -> Tensor:
    """View a cache of either layout as `[pages, page size, Hkv, D]`."""
    cache = given_tensor(op, name, cache)
    if not isinstance(kv_layout, str) or kv_layout not in _LAYOUTS:
        raise RuntimeError(cache_layout_sentence(op, kv_layout))
    if cache.dim() != 4:
        raise RuntimeError(dims_sentence(op, name, cache.dim(), _LAYOUTS[kv_layout]))
    return cache if kv_layout == "NHD" else cache.transpose(1, 2)


def watches_grad() -> bool:
    """Say whether gradients are recorded or, which no_grad leaves on, forward-mode ones are."""
    return torch.is_grad_enabled() or getattr(forward_ad, "_current_level", -1) >= 0


def asks_for_grad(*given: object) -> bool:
    """Say whether some tensor asks for gradients of either kind here."""
    if not watches_grad():
        return False
    tensors = [t for t in given if isinstance(t, Tensor)]
    return any(_is_recorded(t) or _has_tangent(t) for t in tensors)


def refuse_grad(op: str, **given: object) -> None:
    """Raise InferenceOnlyError, naming the op and the tensor, where one asks for gradients."""
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            continue
        if _is_recorded(tensor):
            raise InferenceOnlyError(requires_grad_sentence(op, name))
        if _has_tangent(tensor):
            raise InferenceOnlyError(tangent_sentence(op, name))


def _is_recorded(tensor: Tensor) -> bool:
    return torch.is_grad_enabled() and tensor.requires_grad


def _has_tangent(tensor: Tensor) -> bool:
    """Say whether forward-mode differentiation follows a tensor, which does not require grad."""
    if getattr(forward_ad, "_current_level", -1) < 0:  # at once for most calls
        return False
    parts: tuple[Tensor, Tensor | None] = forward_ad.unpack_dual(tensor)  # type: ignore[no-untyped-call]
    return parts[1] is not None


def compiled(op: str, call: Callable[_Taken, _Result]) -> Callable[_Taken, _Result]:
    """Return a compiled op that refuses arguments of a wrong type in one sentence."""
    arguments = getattr(call, "_schema").arguments  # noqa: B009
    types = {argument.name: str(argument.type) for argument in arguments}

    def run(*args: _Taken.args, **kwargs: _Taken.kwargs) -> _Result:
        try:
            return call(*args, **kwargs)
        except RuntimeError:
            _refuse_types(op, types, {**dict(zip(types, args, strict=False)), **kwargs})
            raise

    return run


def _refuse_types(op: str, types: Mapping[str, str], given: Mapping[str, object]) -> None:
    for name, value in given.items():
        works, fits = _TYPES[types[name]]
        if not fits(value):
            raise RuntimeError(type_sentence(op, name, value, works)) from None
        what = _unreadable(value) if isinstance(value, Tensor) else ""
        if what:
            raise RuntimeError(plain_tensor_sentence(op, name, what)) from None


def _unreadable(tensor: Tensor) -> str:
    """Say why neither the CPU's nor the GPU's program can read a tensor; empty where one can."""
    if tensor.is_nested:
        return "is nested"
    if tensor.layout is not torch.strided:
        return f"has layout {tensor.layout}"
    if tensor.is_quantized:
        return "is quantized"
    known = tensor.device.type in ("cpu", "cuda", "meta")
    return "" if known else f"is on {tensor.device}"


def _is_tensor(given: object) -> bool:
    return isinstance(given, Tensor)


def _is_number(given: object) -> bool:
    if isinstance(given, int):
        return abs(given) < 2**1000
    return _is_item(given) or (hasattr(given, "__float__") and not hasattr(given, "__len__"))


def _is_integer(given: object) -> bool:
    if isinstance(given, int):
        return abs(given) < 2**63
    return _is_item(given) or (hasattr(given, "__index__") and not hasattr(given, "__len__"))


def _is_item(given: object) -> bool:
    return isinstance(given, Tensor) and given.numel() == 1


# By the type in a schema: what works, and whether something does.
_TYPES: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    "Tensor": ("a tensor", _is_tensor),
    "Optional[Tensor]": ("a tensor or None", lambda given: given is None or _is_tensor(given)),
    "float": ("a number", _is_number),
    "int": ("an integer of 64 bits", _is_integer),
    "bool": ("True or False", lambda given: given is None or _is_integer(given)),
    "str": ("a string", lambda given: isinstance(given, str)),
}
