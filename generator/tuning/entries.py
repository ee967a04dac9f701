"""The C functions of a candidate's library, and how a process finds them."""

from __future__ import annotations

import ctypes
from pathlib import Path

LAUNCH, ARGS_BYTES = "mirage_candidate_launch", "mirage_candidate_args_bytes"
WORKSPACE, FEW_TILES = "mirage_candidate_workspace", "mirage_candidate_few_tiles"


class RefusedError(Exception):
    """A library that cannot be loaded, or a launch that was refused."""


def opened(path: Path, arguments: type[ctypes.Structure]) -> tuple[ctypes.CDLL, int]:
    """Load a library, and return how many bytes its arguments have: those known here, then others.

    Its CUDA runtime is the one that PyTorch has loaded.
    """
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
    workspace = getattr(loaded, WORKSPACE)
    workspace.argtypes, workspace.restype = (pointer,), ctypes.c_int64
    return loaded, own
