"""Writing a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from mirage_kernels.generator.errors import FileError

OUT_HINT = "choose a place that can be; for kernels: a writable folder with --out DIR"


def write_whole(path: Path, text: str, *, hint: str = OUT_HINT) -> Path:
    """Write a file by way of a temporary one beside it; an unchanged file is left alone."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.read_bytes() == text.encode():
            return path
        unfinished.write_text(text)
        os.replace(unfinished, path)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}", hint) from error
    finally:
        with contextlib.suppress(OSError):  # most often it is in place already
            unfinished.unlink()
    return path
