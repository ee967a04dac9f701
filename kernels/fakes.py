"""The ops without data: for tracing, each result's shape from the shapes of the arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import cast

import torch
from torch import Tensor

from mirage_kernels.element_types import HALVES, INDICES
from mirage_kernels.signatures import TOKENS, Parameter, Signature

# Unlike an `if`, it also serves sizes that are not known while tracing.
_torch_check: Callable[[bool, Callable[[], str]], None] = torch._check

# Arguments of attention beside q that hold lines of it, and how many dims they have.
_ATTENTION_DIMS = {"q_rope": 3, "k": 4, "k_rope": 4, "v": 4}


class Dims:
    """The arguments of one call, checked, and the sizes of the dims that they have."""

    def __init__(self, signature: Signature, given: Mapping[str, object]) -> None:
        self.signature = signature
        self.given = given
        self.sizes: dict[str, int] = {}
        self.check_arguments()

    @property
    def x(self) -> Tensor:
        """The first argument, whose dtype and device results have."""
        x = self.given[self.signature.parameters[0].name]
        assert isinstance(x, Tensor)
        return x

    def check_arguments(self) -> None:
        """Refuse wrong arguments and note the sizes of the results' dims."""
        raise NotImplementedError

    def check_result(self, result: Parameter, tensor: Tensor) -> None:
        """Refuse a result of another shape, dtype or device."""
        raise NotImplementedError

    def shape(self, parameter: Parameter) -> list[int]:
        """Return the shape that a result needs."""
        return [self.sizes[axis.letter] for axis in parameter.axes]

    def new_result(self, result: Parameter) -> Tensor:
        """Return a result; the log-sum-exp is fp32."""
        dtype = torch.float32 if result.name == "lse" else self.x.dtype
        return self.x.new_empty(self.shape(result), dtype=dtype)

    def tensor(self, name: str) -> Tensor:
        """Return an argument that every call has."""
        tensor = self.given[name]
        assert isinstance(tensor, Tensor)
        return tensor

    def check(self, holds: bool, sentence: str) -> None:
        """Raise the sentence where it does not hold."""
        _torch_check(holds, partial(self.said, sentence))

    def check_device(self, label: str, tensor: Tensor) -> None:
        """Refuse a tensor that is not on x's device."""
        first = self.signature.parameters[0].label
        sentence = f"{label} is on {tensor.device}, but {first} is on {self.x.device}"
        self.check(tensor.device == self.x.device, f"{sentence}; move both to one device")

    def check_devices(self) -> None:
        """Refuse the first tensor that is not on x's device."""
        for parameter in self.signature.parameters:
            tensor = self.given.get(parameter.name)
            if isinstance(tensor, Tensor):
                self.check_device(parameter.label, tensor)

    def said(self, sentence: str) -> str:
        """Return the sentence with the op's name."""
        return f"mirage_kernels::{self.signature.op}: {sentence}"


class NamedDims(Dims):
    """Dims of the same letter are alike; `M` are all leading dims of x."""

    def check_arguments(self) -> None:
        for name in _required(self.signature):
            self.check(isinstance(self.given.get(name), Tensor), f"{name} is None; a tensor works")
        first = self.signature.parameters[0].name
        self.check(self.x.dim() >= 1, f"{first} has no dims; a tensor [..., K] works")
        for parameter in self.signature.parameters:
            tensor = self.given.get(parameter.name)
            if isinstance(tensor, Tensor):
                self.check_result(parameter, tensor)

    def check_result(self, result: Parameter, tensor: Tensor) -> None:
        """Check dtype and shape; a dim that is new gets its size from this tensor."""
        name, x = result.name, self.x
        allowed = INDICES if result.kind == "indices" else (x.dtype,)
        if tensor is x:
            allowed = HALVES
        words = " and ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        sentence = f"{name} has dtype {tensor.dtype}; {words} work{'s' * (len(allowed) == 1)}"
        self.check(tensor.dtype in allowed, sentence)
        self.check_device(name, tensor)
        rank = sum(x.dim() - 1 if axis.letter == TOKENS else 1 for axis in result.axes)
        self.check(tensor.dim() == rank, f"{name} has {tensor.dim()} dims, but {rank} are needed")
        given = list(tensor.shape)
        wanted = self.shape(result, given)
        for size, needed in zip(given, wanted, strict=True):
            _torch_check(size == needed, partial(self.differ, name, given, wanted))

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
        """Say which shape is needed; called where it is not that, as sizes may be symbols."""
        return self.said(f"{name} has shape {given}, but {wanted} is needed")


class AttentionDims(Dims):
    """T query tokens of H heads over caches `[.., .., Hkv, D]`."""

    def check_arguments(self) -> None:
        self.check_devices()
        q = self.x
        self.check(q.dtype in HALVES, f"q has dtype {q.dtype}; float16 and bfloat16 work")
        self.check(q.dim() == 3, f"q has {q.dim()} dims; [tokens, Hq, D] works")
        for parameter in self.signature.parameters:
            if parameter.name in _ATTENTION_DIMS:
                self.check_lines(parameter, self.tensor(parameter.name))
        self.sizes = dict(zip("THD", q.shape, strict=True))

    def check_lines(self, parameter: Parameter, tensor: Tensor) -> None:
        """Refuse keys, values, and what else queries and keys have, that do not go with q."""
        q, label, wanted = self.x, parameter.label, _ATTENTION_DIMS[parameter.name]
        self.check(tensor.dtype == q.dtype, f"{label} has dtype {tensor.dtype}, q {q.dtype}")
        dims = f"{label} has {tensor.dim()} dims, but {wanted} are needed"
        self.check(tensor.dim() == wanted, dims)
        if parameter.name in ("k", "v"):
            self.check(tensor.shape[3] == q.shape[2], f"{label} and q differ in D")
        if parameter.name == "k" and "k_rope" in self.given:
            heads = f"{label} has {tensor.shape[2]} heads, but all heads of q share one; 1 works"
            self.check(tensor.shape[2] == 1, heads)

    def check_result(self, result: Parameter, tensor: Tensor) -> None:
        if result.name == "lse":
            return
        sentence = "out needs the shape of q"
        self.check(tensor.dim() == 3, sentence)
        for size, needed in zip(tensor.shape, self.x.shape, strict=True):
            self.check(size == needed, sentence)


class AppendDims(Dims):
    """T tokens with `num_heads` query heads each, over caches `[.., .., Hkv, D]`."""

    def check_arguments(self) -> None:
        self.check_devices()
        heads = cast("int", self.given["num_heads"])  # while tracing it may be a symbol
        self.sizes = {"T": self.x.shape[0], "H": heads, "D": self.tensor("k_cache").shape[3]}


@cache
def _required(signature: Signature) -> tuple[str, ...]:
    """Return the names of the tensors that no call leaves out."""
    overloads = getattr(torch.ops.mirage_kernels, signature.op)
    schema = getattr(overloads, signature.overload or "default")._schema
    return tuple(a.name for a in schema.arguments if str(a.type) == "Tensor")


def functional(
    signature: Signature, dims: type[Dims]
) -> Callable[..., Tensor | tuple[Tensor, ...]]:
    """Return the op on tensors that have no data."""

    def fake(*args: object, **kwargs: object) -> Tensor | tuple[Tensor, ...]:
        call = dims(signature, _by_name(signature, args, kwargs))
        made = tuple(call.new_result(result) for result in signature.results)
        return made if len(made) > 1 else made[0]

    return fake


def into(signature: Signature, dims: type[Dims]) -> Callable[..., None]:
    """Return the op that writes its results into given tensors."""

    def fake(*args: object, **kwargs: object) -> None:
        call = dims(signature, _by_name(signature, args, kwargs))
        for result in signature.results:
            call.check_result(result, call.tensor(result.name))

    return fake


def checks(signature: Signature, dims: type[Dims]) -> Callable[..., None]:
    """Return the checks of the arguments alone."""

    def fake(*args: object, **_: object) -> None:
        dims(signature, _by_name(signature, args, {}))

    return fake


def _by_name(
    signature: Signature, args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[str, object]:
    names = (parameter.name for parameter in signature.parameters)
    return {**dict(zip(names, args, strict=False)), **kwargs}
