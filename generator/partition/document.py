"""The document of a program: what `mirage_kernels.load` reads of it."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.ir import dumps
from mirage_kernels.generator.partition.parts import Step
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.program_documents import DOCUMENT, document_files, read_document

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Document:
    """What `mirage_kernels.load` reads of a program: JSON data (kernels/program_steps.py)."""

    name: str
    dtype: str
    arch: str
    inputs: Sequence[Step]
    returns: Step
    ways: Sequence[Step]
    constants: Sequence[Step] = ()


def bytes_of(tensor: torch.Tensor) -> dict[str, str]:
    """Return a tensor's type, and its elements as text."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    text = b64encode(bytes(flat.tolist())).decode()
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "bytes": text}


def write_program(document: Mapping[str, Any], folder: Path, origin: str = "") -> Path:
    """Write a program's document below the folder of its kernels and return its path.

    `origin` says which function of which file it is of (`origin_of`).
    """
    return write_whole(folder / document_path(document), document_text(document, origin))


def document_text(document: Mapping[str, Any], origin: str | None = None) -> str:
    """Return the text of a program's file."""
    return f"{dumps({**document, **({'origin': origin} if origin else {})})}\n"


def document_path(document: Mapping[str, Any]) -> str:
    """Return the path of a program's document below the folder of its kernels."""
    shapes = crc32(dumps(document["inputs"]).encode())
    name = f"{document['name']}_{document['dtype']}_{shapes:08x}{DOCUMENT}"
    return f"{document['arch']}/{name}"


def documents_below(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the programs of a folder, those that can be read, with their files."""
    for file in document_files(folder):
        with suppress(ImportError):
            yield file, read_document(file)


def origin_of(function: str, folder: Path) -> str:
    """Return `path/to/file.py:Name` as seen from a folder."""
    file, _, name = function.rpartition(":")
    return f"{os.path.relpath(Path(file).resolve(), folder.resolve())}:{name}"


def require_own_name(name: str, origin: str, folder: Path) -> None:
    """Raise FileError where a folder has a program of this name that is of another origin."""
    for file, document in documents_below(folder):
        other = document.get("origin", "")
        if document["name"] == name and other and not _is_of(origin, other, folder.resolve()):
            raise FileError(
                f"{origin} would take the place of {other}: {file} is its program, which has the "
                f"name {name} too",
                "give it another name, or another folder: --out DIR; remove that file if its "
                "program is not wanted any more",
            )


def _is_of(origin: str, other: str, folder: Path) -> bool:
    """Say whether both are one function; its file may have moved since, but has its name."""
    if Path(origin).name != Path(other).name:  # file.py:Name
        return False
    now, before = (folder / x.rpartition(":")[0] for x in (origin, other))
    return not before.exists() or before.samefile(now)
