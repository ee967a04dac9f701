"""Load the compiled extension, whose static initialisers register the ops with PyTorch."""

from __future__ import annotations

import importlib

import torch  # before the extension: it loads libtorch, which the extension names without a path

from mirage_kernels import kernel_files
from mirage_kernels.errors import (
    ExtensionMissingError,
    TorchTooOldError,
    missing_extension_sentence,
    old_torch_sentence,
)

# The oldest torch that the extension is compiled for (TORCH_TARGET_VERSION).
OLDEST_TORCH = (2, 10)


def load_extension() -> None:
    """Make torch.ops.mirage_kernels callable, with the kernels that MIRAGE_KERNELS_PATH names.

    Does no CUDA work, so that a later fork is safe.
    """
    if _release(torch.__version__) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise TorchTooOldError(old_torch_sentence(torch.__version__, oldest))
    try:
        importlib.import_module("mirage_kernels._C")
    except ImportError as failure:
        raise ExtensionMissingError(missing_extension_sentence(str(failure))) from failure
    kernel_files.add_from_path()


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
