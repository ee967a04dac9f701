"""The document of a program: what `mirage_kernels.load` reads of it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from mirage_kernels.generator.ir import dumps
from mirage_kernels.generator.partition.parts import Step
from mirage_kernels.generator.records.documents import digests_below
from mirage_kernels.generator.records.files import write_whole
from mirage_kernels.program_documents import DOCUMENT, kernels_of

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
    """Write a program's document below the folder of its kernels, which are there already.

    `origin` says which function of which file it is of (`origin_of`). Returns the path.
    """
    return write_whole(folder / document_path(document), document_text(document, folder, origin))


def document_text(document: Mapping[str, Any], folder: Path, origin: str | None = None) -> str:
    """Return the text of a program's file: the document, its origin, digests of its kernels."""
    told: dict[str, Any] = {"origin": origin} if origin else {}
    told["kernels"] = digests_below(folder, document["arch"], kernels_of(document))
    return f"{dumps({**document, **told})}\n"


def document_path(document: Mapping[str, Any]) -> str:
    """Return the path of a program's document below the folder of its kernels."""
    shapes = crc32(dumps(document["inputs"]).encode())
    name = f"{document['name']}_{document['dtype']}_{shapes:08x}{DOCUMENT}"
    return f"{document['arch']}/{name}"
