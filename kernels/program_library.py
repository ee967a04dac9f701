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
from dataclasses import dataclass
from functools import cache
from operator import is_
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mirage_kernels.assumptions import NOTHING, WEIGHTS, assumed
from mirage_kernels.early_weights import AFTER_WAIT, LETS_NEXT_START
from mirage_kernels.errors import no_kernel_file_sentence, no_kernels_sentence, type_sentence
from mirage_kernels.kernel_files import (
    add_kernels,
    address_of,
    opened,
    path_folders,
    serves_op,
    shared_objects,
)
from mirage_kernels.program_checks import TYPES, arch_number, runs_on, tensor_misfit
from mirage_kernels.program_documents import document_files, kernels_of, read_document
from mirage_kernels.program_steps import SteppedProgram


@dataclass(frozen=True)
class ProgramKernel:
    """A compiled kernel: what its signature says, and the functions of its shared object."""

    symbol: str
    signature: dict[str, Any]
    launch: Any
    workspace: Any
    early: Any = None  # launches it so that it reads weights while the kernel before still runs

    @property
    def name(self) -> str:
        """Name of the program."""
        return str(self.signature["name"])

    @property
    def waits_first(self) -> bool:
        """Say whether the next kernel starts only when those before this one have ended."""
        return str(self.signature.get(LETS_NEXT_START)) == AFTER_WAIT

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

    def misfit(self, given: Sequence[Tensor | None]) -> str:
        """Return why tensors do not fit, naming the first that does not; empty if they do."""
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
            for made, there in zip(wanted, into or [None] * len(wanted), strict=True)
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
        """Launch the kernel on the current stream; it writes its results, which may lie apart."""
        sizes, wanted_at = self.sizes(given), made
        for wanted, tensor in zip(self.signature["results"], made, strict=True):
            sizes.update(zip(wanted["dims"], tensor.shape, strict=True))
        if self.signature.get("layout") == "rows":  # these write side by side
            made = [
                t if _is_row(t) else torch.empty_like(t, memory_format=torch.contiguous_format)
                for t in made
            ]
            given, called = self.side_by_side(given), given  # a copy may not have ended
            assume = assume if all(map(is_, given, called)) else NOTHING
        launch = self.early if assume & WEIGHTS and self.early is not None else self.launch
        tensors = [*given, *made]
        ranks = [len(t["dims"]) for t in self.signature["tensors"]] + [t.dim() for t in made]
        strides = [
            n
            for t, r in zip(tensors, ranks, strict=True)
            for n in (t.stride() if t is not None else (0,) * r)
        ]
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


def _is_row(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.data_ptr() % 16 == 0


def _array(kind: Any, values: Sequence[Any]) -> Any:
    return (kind * max(1, len(values)))(*values)


_kernels: dict[str, ProgramKernel] = {}
_documents: dict[str, dict[str, Any]] = {}  # of programs of several steps, by file


def load(folder: str | os.PathLike[str]) -> list[str]:
    """Add the compiled kernels below a folder to the ops, and its programs to what `program` finds.

    A kernel of a recipe that the library has an op for serves the op's calls of its type and shape,
    before one of this build; `kernel_table()` and `supports()` show it. Returns the names of all
    kernels for ops, `rms_norm_linear/K5120_N7168_fp16`, and of all programs. A folder may be loaded
    again. Raises FileNotFoundError for a folder without any, saying how to compile them, and
    ImportError for a shared object that is none, that was compiled for another version of the
    library or another architecture than its build's, or that holds a kernel of an earlier file, and
    for a program that another version generated.
    """
    libraries = shared_objects(folder)
    documents = document_files(folder)
    if not libraries and not documents:
        raise FileNotFoundError(no_kernels_sentence(folder))
    found = [kernel for file, library in libraries.items() for kernel in _read(file, library)]
    read = {str(file): read_document(file) for file in documents}
    names = _added_to_ops({f: lib for f, lib in libraries.items() if serves_op(lib)})
    _kernels.update({kernel.key: kernel for kernel in found})
    _documents.update(read)
    parts = {symbol for document in read.values() for symbol in kernels_of(document)}
    own = [kernel.name for kernel in found if kernel.symbol not in parts]
    return list(dict.fromkeys([*names, *(d["name"] for d in read.values()), *own]))


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
    return ProgramKernel(symbol, json.loads(ctypes.string_at(at)), launch, workspace, early)


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

    def __call__(self, *args: Tensor | float | None, **named: Tensor | float | None) -> Any:
        """Run the kernel of the tensors' types and extents; raises ValueError if none fits."""
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
            reason = kernel.misfit(tensors)
            if not reason:
                made: list[Tensor] = torch.ops.mirage_kernels.run_program(
                    kernel.key, tensors, scalars, assumed(self.name, None)
                )
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
        if tensor.dtype is not TYPES[wanted["dtype"]]:
            of = f"{_kernels[key].name}: {wanted['name']} is of {tensor.dtype}"
            raise ValueError(f"{of}; {TYPES[wanted['dtype']]} works: generate the program anew")
    if not any(place is not None for place in into):
        made: list[Tensor] = torch.ops.mirage_kernels.run_program(key, tensors, [], assume)
        return made
    results = _kernels[key].results(tensors, into)
    torch.ops.mirage_kernels.run_program_into(key, tensors, results, assume)
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
    key: str, tensors: Sequence[Tensor], results: Sequence[Tensor], assume: int
) -> None:
    """Run a loaded kernel, which writes its results where these tensors lie."""
    _run(key, tensors, [], results, assume)


@run_program_into.register_fake
def _(key: str, tensors: Sequence[Tensor], results: Sequence[Tensor], assume: int) -> None:
    return None
