"""Tuning's files: read as dataclasses, or a sentence about what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.ir.codec import from_data

T = TypeVar("T")


def loaded(path: Path, kind: type[T], *, what: str, hint: str) -> T:
    """Read a JSON file; raises FileError naming the file and what is wrong with it."""
    try:
        return from_data(kind, json.loads(path.read_text()))
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}", hint) from error
    except ValueError as error:
        raise FileError(f"{path} is not {what}: {error}", hint) from error
