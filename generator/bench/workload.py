"""What every workload has: a call of a recipe, as bench, tune, the sanitizer and tests need it.

`Workload` (workloads/lists.py) is one of two kinds with the same methods: `TensorWorkload` for
calls whose tensors are the recipe's inputs, `CacheWorkload` for calls over a cache of keys and
values, dense or in pages.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import c_bool, c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mirage_kernels.generator.ir.dtypes import DType

TORCH_DTYPES = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}
Inputs = dict[str, Tensor]  # the tensors of a call by name
Results = Tensor | tuple[Tensor, ...]  # one, or several
Program = Callable[[Inputs], Results]


@dataclass(frozen=True)
class Peer:
    """Another way to compute a workload; `run` may return the result in any shape.

    It raises RuntimeError or ValueError for what it does not take.
    """

    name: str
    run: Program
    paged: bool = False  # takes the tensors as our op does, not dense copies


@dataclass(frozen=True)
class BaseWorkload:
    """A recipe and an element type; each kind adds its sizes, its tensors and its programs."""

    recipe: str
    dtype: DType = field(default=DType.FP16, kw_only=True)
    setting: str = field(default="", kw_only=True)  # what kind of call: decode, prefill

    @property
    def needs_kernel(self) -> bool:
        """Say whether a kernel of ours is meant to serve it."""
        return True

    @property
    def operations(self) -> int:
        """Floating-point operations of the products where they may bound the time, else 0."""
        return 0

    def dense(self, given: Inputs) -> Inputs:
        """Return the same inputs without pages."""
        return given

    def peers(self) -> Iterable[Peer]:
        """Return all that may be able to compute it, beside the unfused program."""
        return ()

    def in_place(self) -> Mapping[str, Program]:
        """Return what would run in a kernel's place, by the name of its time."""
        return {}


# -- results ---------------------------------------------------------------------------------------


def poisoned(outs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Fill tensors with NaN, so that elements which nobody writes show."""
    return tuple(out.fill_(torch.nan) for out in outs)


def relative_error(value: Tensor, oracle: Tensor) -> float:
    """Return ||value - oracle|| / ||oracle|| (Frobenius, float64); NaN stays NaN."""
    difference = value.double() - oracle.double()
    return float(difference.norm() / oracle.double().norm())


def largest_error(made: Results, oracle: Results) -> float:
    """Return the largest relative error of several results of any shape; NaN if one has it."""
    sides = (x if isinstance(x, tuple) else (x,) for x in (made, oracle))
    pairs = zip(*sides, strict=True)
    return max((relative_error(a.reshape(b.shape), b) for a, b in pairs), key=lambda e: (e != e, e))


def in_float64(given: Inputs) -> Inputs:
    """Return copies of inputs in float64, but for positions and lengths."""
    return {n: t.double() if t.is_floating_point() else t for n, t in given.items()}


@contextmanager
def promises() -> Iterator[None]:
    """Promise the library constant weights and a constant history."""
    from mirage_kernels import constant_history, constant_weights

    try:
        constant_weights()
        constant_history()
        yield
    finally:
        constant_weights(False)
        constant_history(False)


# -- arguments of a launch, as csrc/launch.h has them ----------------------------------------------


class LaunchArgs(ctypes.Structure):
    """`mirage::LaunchArgs`, as far as candidates need it: zeros may follow."""

    _fields_ = (
        ("inputs", c_void_p * 8),
        ("outputs", c_void_p * 4),
        ("row_strides", c_int64 * 8),
        ("dims", c_int64 * 4),
        ("scalars", c_float * 4),
        ("constant_weights", c_bool),
        ("workspace", c_void_p),
        ("nonce", c_uint64),
    )


class Lines(ctypes.Structure):
    """`mirage::Lines`."""

    _fields_ = (("at", c_void_p), ("token", c_int64), ("head", c_int64))


class Cache(ctypes.Structure):
    """`mirage::Cache`."""

    _fields_ = (("at", c_void_p), ("page", c_int64), ("token", c_int64), ("head", c_int64))


class AttentionArgs(ctypes.Structure):
    """`mirage::AttentionArgs`, but for what the launch fills in."""

    _fields_ = (
        *(("q", Lines), ("more_q", Lines), ("k", Cache), ("v", Cache)),
        *(("block_table", c_void_p), ("table_row", c_int64)),
        *(("page_size", c_int32), ("pages", c_uint32)),
        *(("seq_lens", c_void_p), ("first_tokens", c_void_p)),
        *(("vectors", c_void_p * 4), ("vector_heads", c_int64 * 4)),
        *(("scalars", c_float * 8), ("integers", c_int32 * 2), ("sinks", c_void_p)),
        *(("out", c_void_p), ("out_token", c_int64), ("out_head", c_int64), ("lse", c_void_p)),
        *(("B", c_int32), ("Hkv", c_int32), ("G", c_int32), ("q_len", c_int32)),
        *(("max_len", c_int32), ("first_window", c_int32), ("multiprocessors", c_int32)),
        *(("workspace", c_void_p), ("nonce", c_uint64)),
        *(("constant_weights", c_bool), ("constant_history", c_bool)),
    )


Args = LaunchArgs | AttentionArgs
