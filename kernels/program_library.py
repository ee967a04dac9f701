"""Compiled kernels of a folder: those of your own recipes and PyTorch functions, called by name.

    mirage-kernels generate path/to/file.py:name --out DIR
    mirage-kernels compile DIR

    mirage_kernels.load("DIR")
    y = mirage_kernels.program("name")(x, weight)

Within `constant_weights()` a program's kernels read their weights early, as those of ops do. Behind
its first kernel they need no promise: `early_weights.py` says why, and where it does not hold.
Kernels of the library's own recipes serve its ops. `MIRAGE_KERNELS_PATH=DIR:DIR` names folders that
are loaded without a call: kernels of ops at import, programs at the first use of one.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mirage_kernels.assumptions import assumed
from mirage_kernels.errors import (
    empty_path_sentence,
    no_kernel_file_sentence,
    no_kernels_sentence,
    other_kernels_sentence,
    replaced_kernels_sentence,
    type_sentence,
    uncompiled_sentence,
)
from mirage_kernels.kernel_files import (
    add_kernels,
    address_of,
    opened,
    path_folders,
    serves_op,
    shared_objects,
)
from mirage_kernels.program_checks import arch_number, types_of
from mirage_kernels.program_documents import (
    DIGEST,
    document_files,
    kernels_of,
    read_document,
    wrong_kernels,
)
from mirage_kernels.program_kernel import ProgramKernel as ProgramKernel
from mirage_kernels.program_steps import SteppedProgram

_Documents = dict[str, dict[str, Any]]  # of programs of several steps, by file

_kernels: dict[str, ProgramKernel] = {}
_documents: _Documents = {}


def load(folder: str | os.PathLike[str]) -> list[str]:
    """Add the compiled kernels below a folder to the ops, and its programs to what `program` finds.

    A kernel of a recipe that the library has an op for serves the op's calls of its type and shape,
    before one of this build; `kernel_table()` and `supports()` show it. Returns the names of all
    kernels for ops, `rms_norm_linear/K5120_N7168_fp16`, and of all programs. A folder may be loaded
    again. Raises FileNotFoundError for a folder without any, saying how to compile them, and for an
    empty path; ImportError for a shared object that is none, that was compiled for another version
    of the library or another architecture than its build's, or that holds a kernel of an earlier
    file, for a program that another version generated or whose file is damaged, and for one whose
    kernels are not compiled, or were generated anew since.
    """
    if os.fspath(folder) == "":
        raise FileNotFoundError(empty_path_sentence())
    libraries = shared_objects(folder)
    documents = document_files(folder)
    if not libraries and not documents:
        raise FileNotFoundError(no_kernels_sentence(folder))
    found = [kernel for file, library in libraries.items() for kernel in _read(file, library)]
    read = {str(file): read_document(file) for file in documents}
    own = Path(folder).resolve()
    others = {f: d for f, d in _documents.items() if own not in Path(f).parents}
    _require_kernels(own, found, read, others)
    names = _added_to_ops({f: lib for f, lib in libraries.items() if serves_op(lib)})
    _kernels.update({kernel.key: kernel for kernel in found})
    _documents.clear()
    _documents.update({**others, **read})
    parts = {symbol for document in read.values() for symbol in kernels_of(document)}
    alone = [kernel.name for kernel in found if kernel.symbol not in parts]
    return list(dict.fromkeys([*names, *(d["name"] for d in read.values()), *alone]))


def _require_kernels(
    folder: Path, found: Sequence[ProgramKernel], read: _Documents, others: _Documents
) -> None:
    """Raise ImportError where a program would run other kernels than those it was generated with.

    Of the programs that are `read` of a folder, and of `others`, which are loaded: kernels that are
    `found` in the folder take the place of those of their names.
    """
    digests = {key: kernel.digest for key, kernel in _kernels.items()}
    digests |= {kernel.key: kernel.digest for kernel in found}
    for file, document in read.items():
        lost, other = (", ".join(names) for names in wrong_kernels(document, digests))
        if lost:
            raise ImportError(uncompiled_sentence(file, folder, lost))
        if other:
            raise ImportError(other_kernels_sentence(file, folder, other))
    for file, document in others.items():
        if names := ", ".join(wrong_kernels(document, digests)[1]):
            raise ImportError(replaced_kernels_sentence(file, folder, names))


def _added_to_ops(libraries: Mapping[Path, ctypes.CDLL]) -> list[str]:
    """Add kernels to the ops, whose extension is loaded where there are some."""
    if not libraries:
        return []
    from mirage_kernels.dispatch import kernel_table

    files = {str(file) for file in libraries}
    add_kernels(libraries)
    return [entry.name for entry in kernel_table() if entry.file in files]


def _read(file: Path, library: ctypes.CDLL) -> list[ProgramKernel]:
    """Return the program of a shared object; none where it has kernels for ops alone."""
    symbol = f"{file.parent.name}_{file.stem}"
    if serves_op(library) and address_of(f"{symbol}_signature", library) is None:
        return []
    return [_kernel(file, symbol, library)]


def read_kernel(file: Path, symbol: str) -> ProgramKernel:
    """Return the kernel of a shared object by its name; raises ImportError where it has none."""
    return _kernel(file, symbol, opened(file))


def _kernel(file: Path, symbol: str, library: ctypes.CDLL) -> ProgramKernel:
    at = address_of(f"{symbol}_signature", library)
    if at is None:
        raise ImportError(no_kernel_file_sentence(file, f"it has no {symbol}_signature"))
    launch, workspace = getattr(library, symbol), getattr(library, f"{symbol}_workspace")
    workspace.restype = ctypes.c_int64
    early = getattr(library, f"{symbol}_early", None)
    told = address_of(DIGEST, library)
    digest = "" if told is None else ctypes.string_at(told).decode(errors="replace")
    signature = json.loads(ctypes.string_at(at))
    return ProgramKernel(symbol, signature, launch, workspace, early, digest)


@cache
def _load_path() -> None:
    for folder in path_folders():
        load(folder)


def programs() -> list[str]:
    """Return the names of the programs that are loaded."""
    _load_path()
    parts = {symbol for document in _documents.values() for symbol in kernels_of(document)}
    own = {kernel.name for kernel in _kernels.values() if kernel.symbol not in parts}
    return sorted(own | {document["name"] for document in _documents.values()})


class Program:
    """A loaded program: called with its recipe's inputs, by position or name.

    It returns a tensor, or a tuple of them, with the dims that the recipe gives.
    """

    def __init__(self, kernels: Sequence[ProgramKernel]) -> None:
        nearest = sorted(kernels, key=lambda k: arch_number(k.signature["arch"]), reverse=True)
        self.kernels, self.name = tuple(nearest), nearest[0].name
        self.inputs = tuple(dict.fromkeys(n for k in kernels for n in k.signature["inputs"]))
        self.__doc__ = f"{self.name}({', '.join(self.inputs)}): " + "; ".join(
            kernel.text for kernel in self.kernels
        )

    def __call__(
        self,
        *args: Tensor | float | None,
        into: Sequence[Tensor | None] = (),
        **named: Tensor | float | None,
    ) -> Any:
        """Run the kernel of the tensors' types and extents; raises ValueError if none fits.

        It writes results `into` tensors that are given for them, such as a cache, and makes others.
        """
        if len(args) > len(self.inputs) or {*named} - {*self.inputs[len(args) :]}:
            raise TypeError(f"{self.name} takes {', '.join(self.inputs)}, each once")
        given = {**dict(zip(self.inputs, args, strict=False)), **named}
        reasons = []
        for kernel in self.kernels:
            own = kernel.signature["inputs"]
            over = [n for n in given if given[n] is not None and n not in own]
            if over:
                reasons.append(f"{kernel.text}: it has no {', '.join(over)}")
                continue
            tensors, scalars = self._split(kernel, given)
            reason = kernel.misfit(tensors, into)
            if not reason:
                made = _results(kernel.key, (tensors, scalars), into, assumed(self.name, None))
                return made[0] if len(made) == 1 else tuple(made)
            reasons.append(f"{kernel.text}: {reason}")
        raise ValueError(f"{self.name}: no loaded kernel fits. " + "; ".join(reasons))

    def _split(
        self, kernel: ProgramKernel, given: dict[str, Tensor | float | None]
    ) -> tuple[list[Tensor | None], list[float]]:
        tensors: list[Tensor | None] = []
        for wanted in kernel.signature["tensors"]:
            tensor = given.get(wanted["name"])
            if tensor is not None and not isinstance(tensor, Tensor):
                raise TypeError(type_sentence(self.name, wanted["name"], tensor, "a tensor"))
            tensors.append(tensor)
        scalars = []
        for wanted in kernel.signature["scalars"]:
            value = given.get(wanted["name"])
            if not isinstance(value, int | float):
                raise TypeError(type_sentence(self.name, wanted["name"], value, "a number"))
            scalars.append(float(value))
        return tensors, scalars


def program(name: str) -> Program | SteppedProgram:
    """Return a loaded program by name; raises KeyError with the names that there are.

    The program of a PyTorch function takes and returns tensors as the function does.
    """
    _load_path()
    documents = [document for document in _documents.values() if document["name"] == name]
    if documents:
        return SteppedProgram(documents, _launched, lambda key: _kernels[key].waits_first)
    found = [kernel for kernel in _kernels.values() if kernel.name == name]
    if not found:
        there = ", ".join(programs()) or "none is loaded: mirage_kernels.load(DIR)"
        raise KeyError(f"there is no program {name!r}; programs: {there}")
    return Program(found)


def _launched(
    key: str, tensors: Sequence[Tensor], into: Sequence[Tensor | None], assume: int
) -> Sequence[Tensor]:
    """Run a kernel of a program of several steps; raises KeyError where it is not loaded.

    What `into` has is written in place, the other results are made.
    """
    if key not in _kernels:
        raise KeyError(f"the kernel {key} of this program is not loaded: was it compiled?")
    for wanted, tensor in zip(_kernels[key].signature["tensors"], tensors, strict=True):
        if tensor.dtype not in types_of(wanted):
            of = f"{_kernels[key].name}: {wanted['name']} is of {tensor.dtype}"
            raise ValueError(f"{of}; {types_of(wanted)[0]} works: generate the program anew")
    return _results(key, (tensors, ()), into, assume)


def _results(
    key: str,
    given: tuple[Sequence[Tensor | None], Sequence[float]],
    into: Sequence[Tensor | None],
    assume: int,
) -> Sequence[Tensor]:
    """Run a loaded kernel on tensors and numbers; return its results, those of `into` in place."""
    tensors, scalars = given
    if not any(place is not None for place in into):
        made: list[Tensor] = torch.ops.mirage_kernels.run_program(key, tensors, scalars, assume)
        return made
    results = _kernels[key].results(tensors, into)
    torch.ops.mirage_kernels.run_program_into(key, tensors, scalars, results, assume)
    return results


@torch.library.custom_op("mirage_kernels::run_program", mutates_args=())
def run_program(
    key: str, tensors: Sequence[Tensor | None], scalars: Sequence[float], assume: int
) -> list[Tensor]:
    """Run a loaded kernel; `program` checks what it is given."""
    made = _kernels[key].results(tensors)
    _run(key, tensors, scalars, made, assume)
    return made


def _run(
    key: str,
    tensors: Sequence[Tensor | None],
    scalars: Sequence[float],
    made: Sequence[Tensor],
    assume: int,
) -> None:
    first = next(t for t in tensors if t is not None)
    if first.device.type != "cuda":
        raise ValueError(f"{_kernels[key].name}: tensors are on {first.device}; cuda works")
    _kernels[key].run(tensors, scalars, made, assume)


@run_program.register_fake
def _(
    key: str, tensors: Sequence[Tensor | None], scalars: Sequence[float], assume: int
) -> list[Tensor]:
    return _kernels[key].results(tensors)


@torch.library.custom_op("mirage_kernels::run_program_into", mutates_args=("results",))
def run_program_into(
    key: str,
    tensors: Sequence[Tensor | None],
    scalars: Sequence[float],
    results: Sequence[Tensor],
    assume: int,
) -> None:
    """Run a loaded kernel, which writes its results where these tensors lie."""
    _run(key, tensors, scalars, results, assume)


@run_program_into.register_fake
def _(
    key: str,
    tensors: Sequence[Tensor | None],
    scalars: Sequence[float],
    results: Sequence[Tensor],
    assume: int,
) -> None:
    return None
