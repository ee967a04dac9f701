"""One compiled kernel that is called by name: what fits it, and its launch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from operator import is_
from typing import Any

import torch
from torch import Tensor

from mirage_kernels.assumptions import NOTHING, WEIGHTS
from mirage_kernels.early_weights import AFTER_WAIT, LETS_NEXT_START
from mirage_kernels.element_types import TYPES
from mirage_kernels.program_checks import ANY_INDICES, runs_on, tensor_misfit


@dataclass(frozen=True)
class ProgramKernel:
    """A compiled kernel: what its signature says, and the functions of its shared object."""

    symbol: str
    signature: dict[str, Any]
    launch: Any
    workspace: Any
    early: Any = None  # launches it so that it reads weights while the kernel before still runs
    digest: str = ""  # of what it computes

    @property
    def name(self) -> str:
        """Name of the program."""
        return str(self.signature["name"])

    @property
    def waits_first(self) -> bool:
        """Say whether the next kernel starts only when those before this one have ended."""
        return str(self.signature.get(LETS_NEXT_START)) == AFTER_WAIT

    @cached_property
    def summed(self) -> tuple[str, ...]:
        """Dynamic dims that no result has."""
        kept = {dim for result in self.signature["results"] for dim in result["dims"]}
        return tuple(dim for dim in self.signature["dynamic"] if dim not in kept)

    @property
    def text(self) -> str:
        """Say in one line what the kernel serves."""
        s = self.signature
        static = ", ".join(f"{dim}={size}" for dim, size in s["static"].items())
        return f"{s['dtype']} {static or 'any extents'} on {s['arch']}"

    @property
    def key(self) -> str:
        """What the op finds the kernel by: an architecture's kernels have their own."""
        return f"{self.signature['arch']}/{self.symbol}"

    def misfit(self, given: Sequence[Tensor | None], into: Sequence[Tensor | None] = ()) -> str:
        """Return why tensors do not fit, naming the first that does not; empty if they do.

        Results are written `into` tensors that are given for them.
        """
        if len(into) > len(self.signature["results"]):
            return f"it has {len(self.signature['results'])} results, not {len(into)}"
        sizes: dict[str, int] = dict(self.signature["static"])
        device = next((t.device for t in given if t is not None), None)
        if device is not None and not runs_on(self.signature["arch"], device):
            return f"{device} is of another architecture"
        for wanted, tensor in zip(self.signature["tensors"], given, strict=True):
            if tensor is not None:
                reason = tensor_misfit(wanted, tensor, device, sizes)
            else:
                dims = f"[{', '.join(wanted['dims'])}]"
                reason = "" if wanted["optional"] else f"is missing; a tensor {dims} works"
            if reason:
                return f"{wanted['name']} {reason}"
        if device is None:
            return "no tensor is given"
        for wanted, tensor in zip(self.signature["results"], into, strict=False):
            reason = tensor_misfit(wanted, tensor, device, sizes) if tensor is not None else ""
            if reason:
                return f"the result {wanted['name']} {reason}"
        lost = [dim for dim in self.signature["dynamic"] if dim not in sizes]
        return f"{', '.join(lost)} is known from no tensor that is given" if lost else ""

    def sizes(self, given: Sequence[Tensor | None]) -> dict[str, int]:
        """Return the extent of every dim."""
        found: dict[str, int] = dict(self.signature["static"])
        for wanted, tensor in zip(self.signature["tensors"], given, strict=True):
            if tensor is not None:
                found.update(zip(wanted["dims"], tensor.shape, strict=True))
        return found

    def results(
        self, given: Sequence[Tensor | None], into: Sequence[Tensor | None] = ()
    ) -> list[Tensor]:
        """Return tensors for the results, not yet computed: those of `into`, and new ones."""
        sizes, like = self.sizes(given), next(t for t in given if t is not None)
        wanted = self.signature["results"]
        return [
            like.new_empty([sizes[d] for d in made["dims"]], dtype=TYPES[made["dtype"]])
            if there is None
            else there
            for made, there in zip_longest(wanted, into)
        ]

    def side_by_side(self, given: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return tensors as fast schedules take them: copies of those that lie otherwise.

        Vectors that are read by their strides stay as they are: one element may stand for all.
        """
        wanted, counted = self.signature["tensors"], self.signature["dynamic"][:1]
        return [
            t if t is None or w.get("broadcast") else _rows(t, apart=[*w["dims"][:-1]] == counted)
            for t, w in zip(given, wanted, strict=True)
        ]

    def run(
        self,
        given: Sequence[Tensor | None],
        scalars: Sequence[float],
        made: Sequence[Tensor],
        assume: int = NOTHING,
    ) -> None:
        """Launch the kernel on the current stream; it writes its results, which may lie apart.

        Raises ValueError where results have nothing to be summed of.
        """
        sizes, wanted_at = self.sizes(given), made
        for wanted, tensor in zip(self.signature["results"], made, strict=True):
            sizes.update(zip(wanted["dims"], tensor.shape, strict=True))
        for dim in self.summed:
            if sizes[dim] == 0 and any(t.numel() for t in made):
                raise ValueError(f"{self.name}: {dim} is 0, no terms to sum; 1 or more works")
        if self.signature.get("layout") == "rows":  # these write side by side
            made = [
                t if _is_row(t) else torch.empty_like(t, memory_format=torch.contiguous_format)
                for t in made
            ]
            given, called = self.side_by_side(given), given  # a copy may not have ended
            assume = assume if all(map(is_, given, called)) else NOTHING
        launch = self.early if assume & WEIGHTS and self.early is not None else self.launch
        tensors, strides = [*given, *made], list[int]()
        for told, t in zip(self.signature["tensors"], given, strict=True):
            strides += _strides(told, t)
        strides += [n for t in made for n in t.stride()]
        dims = _array(ctypes.c_int64, [sizes[d] for d in self.signature["dynamic"]])
        with torch.cuda.device(made[0].device):
            space = torch.empty(self.workspace(dims), dtype=torch.uint8, device=made[0].device)
            status = launch(
                _array(ctypes.c_void_p, [t.data_ptr() if t is not None else None for t in tensors]),
                _array(ctypes.c_int64, strides),
                dims,
                _array(ctypes.c_double, list(scalars)),
                ctypes.c_void_p(space.data_ptr()),
                ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
            )
        if status:
            raise RuntimeError(f"{self.name}: the launch failed with CUDA error {status}")
        for place, tensor in zip(wanted_at, made, strict=True):
            if place is not tensor:
                place.copy_(tensor)


def _rows(tensor: Tensor, *, apart: bool) -> Tensor:
    """Return a tensor whose rows begin at multiples of 16 bytes, side by side or `apart`."""
    rows = apart and tensor.stride(1) == 1 and tensor.stride(0) * tensor.element_size() % 16 == 0
    if rows and tensor.data_ptr() % 16 == 0:
        return tensor
    made = tensor.contiguous()
    return made if _is_row(made) else made.clone()


def _strides(told: dict[str, Any], tensor: Tensor | None) -> tuple[int, ...]:
    """Return the strides of a tensor that a launch takes, as it is told of it.

    int64 numbers are read where int32 ones are wanted: the lower half of each. Behind the strides
    of an index tensor of either type come the bytes of a number.
    """
    if tensor is None:
        return (0,) * len(told["dims"])
    own = tuple(tensor.stride())
    if told["dtype"] == ANY_INDICES:
        return (*own, tensor.element_size())
    halves = told["dtype"] == "int32" and tensor.dtype is torch.int64
    return tuple(2 * n for n in own) if halves else own


def _is_row(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.data_ptr() % 16 == 0


def _array(kind: Any, values: Sequence[Any]) -> Any:
    return (kind * max(1, len(values)))(*values)
