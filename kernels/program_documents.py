"""The files that say what programs of several steps are: found, read, without running anything."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mirage_kernels.document_form import require_document
from mirage_kernels.errors import (
    damaged_document_sentence,
    other_document_sentence,
    unreadable_document_sentence,
)

DOCUMENT = ".program.json"  # what their names end in
DIGEST = "mirage_kernel_digest"  # a shared object's text that says what its kernel computes
_NEWER = frozenset(("inputs", "ways", "constants", "returns"))  # the first versions lack some


def document_files(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the files of programs below a folder, in order."""
    found = sorted(Path(folder).rglob(f"*{DOCUMENT}"))
    return [file.parent.resolve() / file.name for file in found]  # a link has its own name


def read_document(file: Path) -> dict[str, Any]:
    """Return what a file says of a program.

    Raises ImportError for one of another version, and for one that is damaged or cannot be read.
    """
    try:
        document: dict[str, Any] = json.loads(file.read_text())
        if isinstance(document, dict) and (lost := sorted(_NEWER - {*document})):
            raise ImportError(other_document_sentence(file, ", ".join(lost)))
        require_document(document)
    except OSError as failure:
        reason = failure.strerror or str(failure)
        raise ImportError(unreadable_document_sentence(file, reason)) from failure
    except (ValueError, RecursionError) as failure:  # no JSON, no text, or no program
        raise ImportError(damaged_document_sentence(file, str(failure))) from failure
    return document


def wrong_kernels(
    document: Mapping[str, Any], digests: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Return the kernels of a program that are not there, and those that are others by now.

    `digests` has those that are there, by architecture and symbol. A program of an earlier version
    does not say what its kernels are.
    """
    wanted = dict.fromkeys(kernels_of(document), "") | document.get("kernels", {})
    found = {symbol: digests.get(f"{document['arch']}/{symbol}") for symbol in wanted}
    others = [
        s for s, digest in found.items() if digest is not None and wanted[s] not in ("", digest)
    ]
    return [s for s, digest in found.items() if digest is None], others


def kernels_of(document: Mapping[str, Any]) -> list[str]:
    """Return the symbols of the kernels that a program runs."""
    steps = [step for way in document["ways"] for step in way["steps"]]
    return list(dict.fromkeys(step["kernel"] for step in steps if "kernel" in step))
