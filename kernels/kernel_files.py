"""Shared objects that `mirage-kernels compile` made: opened, and their kernels added to the ops.

An op takes a loaded kernel before one that the library was built with. Files stay loaded until the
process ends; a graph that torch.compile made earlier keeps what it found then.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from functools import cache, wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

from mirage_kernels.elf import is_cut_short
from mirage_kernels.errors import no_kernel_file_sentence, no_kernels_sentence
from mirage_kernels.program_documents import document_files

PATH_VARIABLE = "MIRAGE_KERNELS_PATH"
_ROWS = "mirage_kernel_rows"  # what csrc/rows.h exports
_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")

_added: list[str] = []  # files, in the order in which they came


def path_folders() -> list[str]:
    """Return the folders that MIRAGE_KERNELS_PATH names."""
    return [*filter(None, os.environ.get(PATH_VARIABLE, "").split(os.pathsep))]


def shared_objects(folder: str | os.PathLike[str]) -> dict[Path, ctypes.CDLL]:
    """Open every shared object below a folder; raises ImportError for one that is none."""
    return {file.resolve(): opened(file.resolve()) for file in sorted(Path(folder).rglob("*.so"))}


def opened(file: Path) -> ctypes.CDLL:
    """Open a shared object; raises ImportError for a file that is none."""
    try:
        if is_cut_short(file):
            raise ImportError(no_kernel_file_sentence(file, "it was cut short"))
        return ctypes.CDLL(str(file))
    except OSError as failure:
        raise ImportError(no_kernel_file_sentence(file, str(failure))) from failure


def address_of(symbol: str, library: ctypes.CDLL) -> int | None:
    """Return where data that a shared object exports lies, None where it has none by that name."""
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(library, symbol))
    except ValueError:
        return None


def serves_op(library: ctypes.CDLL) -> bool:
    """Say whether a shared object has kernels for ops."""
    return address_of(_ROWS, library) is not None


def add_kernels(libraries: Mapping[Path, ctypes.CDLL]) -> None:
    """Add kernels of shared objects to the ops, which are there already.

    Files for other architectures than this build's are left out where there are some for it. Raises
    ImportError for a file that does not go with this build, or whose kernel another file holds too.
    """
    rows = {file: at for file in libraries if (at := address_of(_ROWS, libraries[file]))}
    own: str = torch.ops.mirage_kernels._arch()
    fitting = [file for file in rows if _arch_of(rows[file]) == own]
    for file in fitting or rows:
        complaint: str = torch.ops.mirage_kernels._add_kernels(rows[file], str(file))
        if complaint:
            raise ImportError(complaint)
        _added.append(str(file))


def _arch_of(rows: int) -> str:
    text = (ctypes.c_char_p * 2).from_address(rows)[1]  # behind the number of the abi
    return (text or b"").decode(errors="replace")


def add_from_path() -> None:
    """Add the kernels of the folders that MIRAGE_KERNELS_PATH names; raises as `load` does."""
    for folder in path_folders():
        libraries = shared_objects(folder)
        if not libraries and not document_files(folder):
            raise FileNotFoundError(no_kernels_sentence(folder))
        add_kernels(libraries)


def cached_until_load(function: Callable[_Given, _Found]) -> Callable[_Given, _Found]:
    """Keep a function's results until kernels are loaded; its arguments are hashable."""

    kept: Callable[..., _Found] = cache(lambda loaded, *args, **kwargs: function(*args, **kwargs))

    @wraps(function)
    def found(*args: _Given.args, **kwargs: _Given.kwargs) -> _Found:
        return kept(len(_added), *args, **kwargs)

    return found
