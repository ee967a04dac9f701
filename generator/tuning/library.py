"""A candidate's library in the process that measures: its arguments and C functions."""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from mirage_kernels.generator.tuning.sources import ARGS_BYTES, FEW_TILES, LAUNCH, WORKSPACE

ALIGNMENT = 64  # of the launch's arguments, which may hold maps of tensors


class RefusedError(Exception):
    """A library that cannot be loaded, or a launch that was refused."""


class LaunchArgs(ctypes.Structure):
    """`mirage::LaunchArgs` of csrc/launch.h, as far as candidates need it: zeros may follow."""

    _fields_ = (
        ("inputs", ctypes.c_void_p * 8),
        ("outputs", ctypes.c_void_p * 4),
        ("row_strides", ctypes.c_int64 * 8),
        ("dims", ctypes.c_int64 * 4),
        ("scalars", ctypes.c_float * 4),
        ("constant_weights", ctypes.c_bool),
        ("workspace", ctypes.c_void_p),
        ("nonce", ctypes.c_uint64),
    )


class Lines(ctypes.Structure):
    """`mirage::Lines` of csrc/launch.h."""

    _fields_ = (("at", ctypes.c_void_p), ("token", ctypes.c_int64), ("head", ctypes.c_int64))


class Cache(ctypes.Structure):
    """`mirage::Cache` of csrc/launch.h."""

    _fields_ = (
        ("at", ctypes.c_void_p),
        ("page", ctypes.c_int64),
        ("token", ctypes.c_int64),
        ("head", ctypes.c_int64),
    )


class AttentionArgs(ctypes.Structure):
    """`mirage::AttentionArgs` of csrc/launch.h, but for what the launch fills in."""

    _fields_ = (
        ("q", Lines),
        ("more_q", Lines),
        ("k", Cache),
        ("v", Cache),
        ("block_table", ctypes.c_void_p),
        ("table_row", ctypes.c_int64),
        ("page_size", ctypes.c_int32),
        ("pages", ctypes.c_uint32),
        ("seq_lens", ctypes.c_void_p),
        ("first_tokens", ctypes.c_void_p),
        ("vectors", ctypes.c_void_p * 4),
        ("vector_heads", ctypes.c_int64 * 4),
        ("scalars", ctypes.c_float * 8),
        ("integers", ctypes.c_int32 * 2),
        ("sinks", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_token", ctypes.c_int64),
        ("out_head", ctypes.c_int64),
        ("lse", ctypes.c_void_p),
        ("B", ctypes.c_int32),
        ("Hkv", ctypes.c_int32),
        ("G", ctypes.c_int32),
        ("q_len", ctypes.c_int32),
        ("max_len", ctypes.c_int32),
        ("first_window", ctypes.c_int32),
        ("multiprocessors", ctypes.c_int32),
        ("workspace", ctypes.c_void_p),
        ("nonce", ctypes.c_uint64),
        ("constant_weights", ctypes.c_bool),
        ("constant_history", ctypes.c_bool),
    )


Args = TypeVar("Args", LaunchArgs, AttentionArgs)


@dataclass(frozen=True)
class Library(Generic[Args]):
    """One candidate's library; its arguments are those known here, then others, all zeros."""

    loaded: ctypes.CDLL
    arguments: type[Args]
    args_bytes: int

    @staticmethod
    def load(path: Path, arguments: type[Args]) -> Library[Args]:
        """Load a library; its CUDA runtime is the one that PyTorch has loaded."""
        try:
            loaded = ctypes.CDLL(str(path))
        except OSError as error:
            raise RefusedError(f"the library does not load: {error}") from error
        expected, own = ctypes.sizeof(arguments), int(getattr(loaded, ARGS_BYTES)())
        if own < expected:
            name = arguments.__name__
            raise RefusedError(f"its {name} have {own} bytes, the worker's {expected}")
        pointer = ctypes.POINTER(arguments)
        getattr(loaded, LAUNCH).argtypes = (pointer, ctypes.c_void_p)
        getattr(loaded, FEW_TILES).argtypes = (pointer,)
        workspace = getattr(loaded, WORKSPACE)
        workspace.argtypes, workspace.restype = (pointer,), ctypes.c_int64
        return Library(loaded, arguments, own)

    def asked(self, name: str, args: Args, *more: object) -> int:
        """Call one of its functions."""
        return int(getattr(self.loaded, name)(ctypes.byref(args), *more))

    def args(self) -> Args:
        """Return arguments at a place that is aligned as the kernel's are, all zeros."""
        space = bytearray(self.args_bytes + ALIGNMENT)
        start = ctypes.addressof(ctypes.c_char.from_buffer(space))
        return self.arguments.from_buffer(space, -start % ALIGNMENT)

    def call(self, args: Args, out: Tensor) -> Callable[[], None]:
        """Return a launch on fixed buffers, with a workspace of its own."""
        space = out.new_empty(self.asked(WORKSPACE, args), dtype=torch.uint8)

        def launch() -> None:
            args.workspace, args.nonce = space.data_ptr(), secrets.randbits(64)
            stream = torch.cuda.current_stream().cuda_stream if out.is_cuda else None
            status = self.asked(LAUNCH, args, stream)
            if status:
                raise RefusedError(f"the launch failed with CUDA error {status}")

        return launch
