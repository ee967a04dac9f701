"""Programs of several steps: kernels, and operators that PyTorch runs itself, in order.

A program's document lists its inputs, `called` as the function calls them where that is not their
name, and for each range of its dynamic extents, the steps. Extents are numbers, or
`{"extent": "M", "times": 4}`: four times the extent of M. That of `B*T` is the product of both.
"""

from __future__ import annotations

import operator
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from mirage_kernels import program_operators  # noqa: F401  (registers them)
from mirage_kernels.assumptions import NOTHING, WEIGHTS, assumed
from mirage_kernels.early_weights import Early, has_rows, lies_as_wanted
from mirage_kernels.padded_products import called

Values = dict[str, Any]  # tensors by name
Extents = Mapping[str, int]
# Runs a kernel by its symbol: its results, those that are given written there. The number says
# what is assumed.
Kernel = Callable[[str, Sequence[Tensor], Sequence[Tensor | None], int], Sequence[Tensor]]
Launch = Callable[[Sequence[Tensor], Sequence[Tensor | None], int], Sequence[Tensor]]


@cache
def operator_named(name: str) -> Callable[..., Any]:
    """Return an operator of ATen or of programs, `aten.mm.default`, or `getitem`."""
    if name == "getitem":
        return operator.getitem
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def extent_of(name: str, extents: Extents) -> int:
    """Return a dynamic extent, or the product of several."""
    return extents[name] if name in extents else prod(extents[dim] for dim in name.split("*"))


def decoded(argument: Any, values: Values, extents: Extents, device: torch.device | None) -> Any:
    """Return an argument of a step: a tensor, an extent, or what JSON has no word for."""
    if isinstance(argument, list):
        return [decoded(a, values, extents, device) for a in argument]
    if not isinstance(argument, dict):
        return argument
    if "value" in argument:
        return values[argument["value"]]
    if "extent" in argument:
        return argument["times"] * extent_of(argument["extent"], extents)
    return device if "device" in argument else getattr(torch, argument["torch"])


def returned(what: Mapping[str, Any], values: Values) -> Any:
    """Return what a function does: a tensor, None, or tuples, lists and dicts of them."""
    if "none" in what:
        return None
    if "value" in what:
        return values[what["value"]]
    if "dict" in what:
        return {key: returned(part, values) for key, part in what["dict"]}
    parts = [returned(part, values) for part in what.get("list", what.get("tuple"))]
    return parts if "list" in what else tuple(parts)


def tensor_of(constant: Mapping[str, Any], device: torch.device) -> Tensor:
    """Return a tensor that a document has."""
    dtype, data = getattr(torch, constant["dtype"]), bytearray(b64decode(constant["bytes"]))
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(constant["shape"]).to(device)


def call(step: Mapping[str, Any], values: Values, extents: Extents) -> None:
    """Run a step that is an operator and keep its result under its name."""
    device = next((v.device for v in values.values() if isinstance(v, Tensor)), None)
    args = decoded(step["args"], values, extents, device)
    named = {k: decoded(a, values, extents, device) for k, a in step["named"].items()}
    name = str(step["call"])
    values[step["result"]] = called(name, operator_named(name), args, named)


def _part_of(whole: Tensor, part: Mapping[str, Any]) -> Tensor:
    """Return a range of a tensor along one dim, every element or every `step`-th."""
    start, step = part["start"], part.get("step", 1)
    taken = slice(start, start + part["size"] * step, step)
    return whole[(slice(None),) * part["dim"] + (taken,)]


def join(step: Mapping[str, Any], values: Values) -> None:
    """Copy into a tensor the parts that no kernel has written there; name it as the result."""
    whole = values[step["join"]]
    for part in step["copies"]:
        to = _part_of(whole, part)
        to.copy_(values[part["piece"]].reshape(to.shape))
    values[step["result"]] = whole


def rows(step: Mapping[str, Any], values: Values) -> None:
    """Name a stand-in for rows of a tensor that an index says: views of it are views of those.

    Kernels find the rows themselves, so it has the index tensor's dims without their strides.
    """
    table, dim, index = values[step["rows"]], step["dim"], values[step["index"]]
    sizes, strides = [*table.shape], [*table.stride()]
    sizes[dim : dim + 1], strides[dim : dim + 1] = index.shape, (0,) * index.dim()
    values[step["result"]] = table.as_strided(sizes, strides)


def in_memory(seen: Tensor, at: Mapping[str, Any], values: Values) -> Tensor:
    """Return what a stand-in shows of all rows: these are in the place of the index's dims."""
    table, (first, count) = values[at["of"]], at["dims"]
    sizes, strides = [*seen.shape], [*seen.stride()]
    sizes[first : first + count] = [table.shape[at["dim"]]]
    strides[first : first + count] = [table.stride(at["dim"])]
    return seen.as_strided(sizes, strides, seen.storage_offset())


def launch(
    step: Mapping[str, Any], values: Values, extents: Extents, kernel: Launch, assume: int = NOTHING
) -> None:
    """Run a step that is a kernel and keep its results under their names.

    Nothing is assumed of a weight that may have to be copied first, by another kernel.
    """
    given = []
    for wanted in step["inputs"]:
        tensor, shape = values[wanted["value"]], decoded(wanted["shape"], {}, extents, None)
        if "rows" in wanted:
            shaped = in_memory(tensor.view(shape), wanted["rows"], values)
        else:
            shaped = tensor.expand(shape) if wanted["one"] else tensor.reshape(shape)
            if not (wanted["one"] or has_rows(wanted) or lies_as_wanted(tensor, shape)):
                assume = NOTHING
        given.append(shaped.permute(wanted["order"]) if "order" in wanted else shaped)
    into = [_place(r, given[0], values, extents) for r in step["results"]]
    made = kernel(given, into, assume)
    for tensor, result in zip(made, step["results"], strict=True):
        if result.get("into", {}).get("scattered"):
            values[result["value"]] = tensor  # nothing takes it from here
            continue
        shape = decoded(result["shape"], {}, extents, None)
        dtype = getattr(torch, result["dtype"])
        values[result["value"]] = tensor.reshape(shape).to(dtype)


def _place(
    result: Mapping[str, Any], like: Tensor, values: Values, extents: Extents
) -> Tensor | None:
    """Return where a result is written: a tensor, or a part of one that this makes.

    None for a tensor of its own.
    """
    place = result.get("into")
    if place is None:
        return None
    if place["value"] not in values:
        dtype, shape = getattr(torch, result["dtype"]), decoded(place["shape"], {}, extents, None)
        values[place["value"]] = like.new_empty(shape, dtype=dtype)
    part: Tensor = values[place["value"]]
    if "seen" in place:
        part = part.view(decoded(place["seen"], {}, extents, None))
    if "dim" in place:
        part = _part_of(part, place)
    return part.view(decoded(place["as"], {}, extents, None))


def extents_of(inputs: Sequence[Mapping[str, Any]], given: Values) -> dict[str, int]:
    """Return the dynamic extents of tensors; raises ValueError for one that does not fit."""
    found: dict[str, int] = {}
    for wanted in inputs:
        name, shape = _called(wanted), wanted["shape"]
        tensor = given.get(wanted["name"])
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} is missing; a tensor {_text(shape)} works")
        if tensor.dtype is not getattr(torch, wanted["dtype"]):
            raise ValueError(f"{name} is of {tensor.dtype}; torch.{wanted['dtype']} works")
        if tensor.dim() != len(shape):
            raise ValueError(f"{name} has {tensor.dim()} dims; {_text(shape)} works")
        for size, extent in zip(tensor.shape, shape, strict=True):
            if not _fits(size, extent, found):
                sizes = f"[{', '.join(map(str, tensor.shape))}]"
                raise ValueError(f"{name} is {sizes}; {_text(shape)} works{_known(found)}")
    return found


def _called(wanted: Mapping[str, Any]) -> str:
    """Return the function's name of an input."""
    return str(wanted.get("called", wanted["name"]))


def _fits(size: int, extent: Any, found: dict[str, int]) -> bool:
    if isinstance(extent, int):
        return size == extent
    known = found.setdefault(extent["extent"], size // extent["times"])
    return known * int(extent["times"]) == size


def _known(found: Extents) -> str:
    return "".join(f", where {dim} = {n}" for dim, n in found.items())


def _text(shape: Sequence[Any]) -> str:
    words = [
        str(e)
        if isinstance(e, int)
        else e["extent"]
        if e["times"] == 1
        else f"{e['times']}*{e['extent']}"
        for e in shape
    ]
    return f"[{', '.join(words)}]"


class SteppedProgram:
    """A PyTorch function as kernels and operators, called as the function is.

    `documents` has it for different shapes, types and architectures; `kernel` runs one by its key,
    `sm_90a/name`, and `waits_first` says of one whether the next starts behind its wait only. The
    inputs are those of the function, and a module's parameters and buffers.
    """

    def __init__(
        self,
        documents: Sequence[Mapping[str, Any]],
        kernel: Kernel,
        waits_first: Callable[[str], bool] = lambda key: False,
    ) -> None:
        self.documents, self.kernel = tuple(documents), kernel
        self.waits_first = waits_first
        self.name = documents[0]["name"]
        self.early = {id(w): Early.of(d, w) for d in documents for w in d["ways"]}
        self._kept: dict[tuple[int, torch.device], Values] = {}
        names = {_called(i): i["name"] for i in documents[0]["inputs"]}
        self.inputs, self._names = tuple(names), names
        shapes = (f"{_called(i)} {_text(i['shape'])}" for i in documents[0]["inputs"])
        self.__doc__ = f"{self.name}({', '.join(self.inputs)}): {', '.join(shapes)}"

    def __call__(self, *args: Tensor, **named: Tensor | None) -> Any:
        """Return the function's results; raises ValueError for a tensor that does not fit.

        An argument that is None is as one that is not given.
        """
        named = {n: x for n, x in named.items() if x is not None}
        if len(args) > len(self.inputs) or {*named} - {*self.inputs[len(args) :]}:
            raise TypeError(f"{self.name} takes {', '.join(self.inputs)}, each once")
        called = {**dict(zip(self.inputs, args, strict=False)), **named}
        given = {self._names[name]: tensor for name, tensor in called.items()}
        reasons = []
        for document in self.documents:
            try:
                extents = extents_of(document["inputs"], given)
            except ValueError as error:
                reasons.append(str(error))
                continue
            return self._run(document, given, extents)
        raise ValueError(f"{self.name}: {'; '.join(dict.fromkeys(reasons))}")

    def _constants(self, document: Mapping[str, Any], device: torch.device) -> Values:
        """Return the tensors that a document has, kept for the next call."""
        key = id(document), device
        if document["constants"] and key not in self._kept:
            self._kept[key] = {c["name"]: tensor_of(c, device) for c in document["constants"]}
        return self._kept.get(key, {})

    def _run(self, document: Mapping[str, Any], given: Values, extents: Extents) -> Any:
        device = next(iter(given.values())).device if given else torch.device("cpu")
        values = {**given, **self._constants(document, device)}
        assume = assumed(self.name, None)
        way = way_of(document, extents)
        early = self.early[id(way)]
        needs = early.weights and not assume & WEIGHTS
        can_settle = needs and _is_run(given) and early.can_settle(given, extents)
        for i, step in enumerate(way["steps"]):
            if "kernel" in step:
                key = f"{document['arch']}/{step['kernel']}"
                held = assume if i in early.steps else NOTHING
                launch(step, values, extents, partial(self.kernel, key), held)
                if can_settle and self.waits_first(key):  # what wrote weights has ended
                    assume |= WEIGHTS
            elif "rows" in step:
                rows(step, values)
            elif "join" in step:
                join(step, values)
            else:
                call(step, values, extents)
            for name in step["last"]:  # a value's memory serves the next ones
                del values[name]
        return returned(document["returns"], values)


def _is_run(given: Values) -> bool:
    """Say whether steps run now, one behind the other; others may run what is traced otherwise."""
    plain = all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in given.values())
    return plain and not torch.compiler.is_compiling()


def way_of(document: Mapping[str, Any], extents: Extents) -> Mapping[str, Any]:
    """Return the first way of a program that takes extents; the last one takes all."""
    return next(
        way
        for way in document["ways"]
        if all(extent_of(dim, extents) <= most for dim, most in way["most"].items())
    )
