"""A call of a recipe, as bench, tune, the sanitizer and tests need it, whatever the recipe.

A recipe family has a subclass: `TensorWorkload` for calls whose tensors are the recipe's inputs,
`CacheWorkload` for calls over a cache of keys and values, dense or in pages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from mirage_kernels.generator.bench.launch_args import Args
from mirage_kernels.generator.bench.measure import Results
from mirage_kernels.generator.ir.dtypes import DType

I = TypeVar("I")  # noqa: E741  (the tensors of a call)
Program = Callable[[I], Results]


@dataclass(frozen=True)
class Peer(Generic[I]):
    """Another way to compute a workload; `run` may return the result in any shape.

    It raises RuntimeError or ValueError for what it does not take.
    """

    name: str
    run: Program[I]
    paged: bool = False  # takes the tensors as our op does, not dense copies


@dataclass(frozen=True)
class Workload(ABC, Generic[I]):
    """One call: a recipe, an element type, and in subclasses its sizes."""

    arguments: ClassVar[type[Args]]
    recipe: str
    dtype: DType = field(default=DType.FP16, kw_only=True)
    setting: str = field(default="", kw_only=True)  # what kind of call: decode, prefill

    @property
    @abstractmethod
    def name(self) -> str:
        """How filters and progress know it."""

    @property
    @abstractmethod
    def dims(self) -> Mapping[str, int]:
        """Sizes by name."""

    @property
    @abstractmethod
    def kernel_dims(self) -> Mapping[str, int]:
        """The static extents of the kernel that serves it."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """What buckets count: tokens, or query rows of a head of keys."""

    @property
    def needs_kernel(self) -> bool:
        """Say whether a kernel of ours is meant to serve it."""
        return True

    @property
    @abstractmethod
    def bytes_read(self) -> int:
        """Bytes that a call must read."""

    @property
    def operations(self) -> int:
        """Floating-point operations of the products where they may bound the time, else 0."""
        return 0

    @abstractmethod
    def draw(self, seed: int, device: str) -> I:
        """Draw the tensors of a call."""

    @abstractmethod
    def new_outs(self, given: I) -> tuple[Tensor, ...]:
        """Return the results' tensors, which nothing has written."""

    @abstractmethod
    def ours(self, given: I, outs: Sequence[Tensor] | None = None) -> Results:
        """Call the library's op; `outs` take the results."""

    @abstractmethod
    def eager(self) -> Program[I]:
        """Return PyTorch's own unfused program, which takes dense tensors."""

    @abstractmethod
    def exact(self, given: I) -> Results:
        """Compute the results in float64, from dense tensors."""

    def dense(self, given: I) -> I:
        """Return the same inputs without pages."""
        return given

    @abstractmethod
    def error_allowed(self, given: I, exact: Results) -> float:
        """Return the largest relative error of a right result, of dense tensors."""

    def peers(self) -> Iterable[Peer[I]]:
        """Return all that may be able to compute it, beside the unfused program."""
        return ()

    def in_place(self) -> Mapping[str, Program[I]]:
        """Return what would run in a kernel's place, by the name of its time."""
        return {}

    @abstractmethod
    def fill(self, args: Args, given: I, outs: Sequence[Tensor]) -> None:
        """Write a launch's arguments as the library writes them for this call."""

    def assume(self, args: Args) -> None:
        """Say in a launch's arguments that no kernel before it writes what may be constant."""
        args.constant_weights = True


def poisoned(outs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Fill tensors with NaN, so that elements which nobody writes show."""
    return tuple(out.fill_(torch.nan) for out in outs)


@contextmanager
def promises() -> Iterator[None]:
    """Promise the library constant weights and a constant history."""
    from mirage_kernels import constant_history, constant_weights

    both = (constant_weights, constant_history)
    try:
        for promise in both:
            promise()
        yield
    finally:
        for promise in both:
            promise(False)
