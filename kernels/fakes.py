"""The ops without data: for tracing, each result's shape from the shapes of the arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from mirage_kernels.signatures import TOKENS, Parameter, Signature

# Unlike an `if`, it also serves sizes that are not known while tracing.
_check: Callable[[bool, Callable[[], str]], None] = torch._check

_INDICES = (torch.int32, torch.int64)
_HALVES = (torch.float16, torch.bfloat16)


class Call:
    """The tensors of one call by name, checked, and the sizes of the dims that they have."""

    def __init__(self, signature: Signature, tensors: Mapping[str, Tensor]) -> None:
        self.signature = signature
        first = signature.parameters[0]
        for name in _required(signature):
            _check(name in tensors, partial(self.said, f"{name} is None; a tensor works"))
        self.x = tensors[first.name]
        self.sizes: dict[str, int] = {}
        dims = self.x.dim()
        _check(dims >= 1, lambda: self.said(f"{first.name} has no dims; a tensor [..., K] works"))
        for parameter in signature.parameters:
            if parameter.name in tensors:
                self.check(parameter, tensors[parameter.name])

    def check(self, parameter: Parameter, tensor: Tensor) -> None:
        """Check dtype and shape; a dim that is new gets its size from this tensor."""
        name, x = parameter.name, self.x
        allowed = _INDICES if parameter.kind == "indices" else (x.dtype,)
        if tensor is x:
            allowed = _HALVES
        words = " and ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        sentence = f"{name} has dtype {tensor.dtype}; {words} work{'s' * (len(allowed) == 1)}"
        _check(tensor.dtype in allowed, partial(self.said, sentence))
        sentence = f"{name} is on {tensor.device}, another on {x.device}; one device works"
        _check(tensor.device == x.device, partial(self.said, sentence))
        rank = sum(x.dim() - 1 if axis.letter == TOKENS else 1 for axis in parameter.axes)
        sentence = f"{name} has {tensor.dim()} dims, but {rank} are needed"
        _check(tensor.dim() == rank, partial(self.said, sentence))
        given = list(tensor.shape)
        wanted = self.shape(parameter, given)
        for size, needed in zip(given, wanted, strict=True):
            _check(size == needed, partial(self.differ, name, given, wanted))

    def shape(self, parameter: Parameter, given: Sequence[int] = ()) -> list[int]:
        """Return the shape that a tensor needs; dims that are new take their size from `given`."""
        wanted: list[int] = []
        for axis in parameter.axes:
            if axis.letter == TOKENS:
                wanted += self.x.shape[:-1]
                continue
            if axis.letter not in self.sizes:
                self.sizes[axis.letter] = given[len(wanted)] // axis.factor
            wanted.append(self.sizes[axis.letter] * axis.factor)
        return wanted

    def differ(self, name: str, given: Sequence[int], wanted: Sequence[int]) -> str:
        return self.said(f"{name} has shape {given}, but {wanted} is needed")

    def said(self, sentence: str) -> str:
        return f"mirage_kernels::{self.signature.op}: {sentence}"


@cache
def _required(signature: Signature) -> tuple[str, ...]:
    """Return the names of the tensors that no call leaves out."""
    overloads = getattr(torch.ops.mirage_kernels, signature.op)
    schema = getattr(overloads, signature.overload or "default")._schema
    return tuple(a.name for a in schema.arguments if str(a.type) == "Tensor")


def functional(signature: Signature) -> Callable[..., Tensor | tuple[Tensor, ...]]:
    """Return the op on tensors that have no data."""

    def fake(*args: object, **kwargs: object) -> Tensor | tuple[Tensor, ...]:
        call = Call(signature, _tensors(signature, args, kwargs))
        made = tuple(call.x.new_empty(call.shape(result)) for result in signature.results)
        return made if len(made) > 1 else made[0]

    return fake


def into(signature: Signature) -> Callable[..., None]:
    """Return the op that writes its results into given tensors."""

    def fake(*args: object, **kwargs: object) -> None:
        tensors = _tensors(signature, args, kwargs)
        call = Call(signature, tensors)
        for result in signature.results:
            call.check(result, tensors[result.name])

    return fake


def _tensors(
    signature: Signature, args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[str, Tensor]:
    names = (parameter.name for parameter in signature.parameters)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return {name: value for name, value in given.items() if isinstance(value, Tensor)}
