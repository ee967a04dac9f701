"""A candidate's library in the process that measures: its arguments and C functions."""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mirage_kernels.generator.bench.launch_args import Args
from mirage_kernels.generator.tuning.sources import ARGS_BYTES, FEW_TILES, LAUNCH, WORKSPACE

ALIGNMENT = 64  # of the launch's arguments, which may hold maps of tensors


class RefusedError(Exception):
    """A library that cannot be loaded, or a launch that was refused."""


@dataclass(frozen=True)
class Library:
    """One candidate's library; its arguments are those known here, then others, all zeros."""

    loaded: ctypes.CDLL
    arguments: type[Args]
    args_bytes: int

    @staticmethod
    def load(path: Path, arguments: type[Args]) -> Library:
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

    def launch(self, args: Args, out: Tensor) -> Callable[[], None]:
        """Return a launch on fixed buffers, with a workspace of its own."""
        space = out.new_empty(self.asked(WORKSPACE, args), dtype=torch.uint8)

        def launch() -> None:
            args.workspace, args.nonce = space.data_ptr(), secrets.randbits(64)
            stream = torch.cuda.current_stream().cuda_stream if out.is_cuda else None
            status = self.asked(LAUNCH, args, stream)
            if status:
                raise RefusedError(f"the launch failed with CUDA error {status}")

        return launch
