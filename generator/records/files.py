"""Writing files whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from mirage_kernels.generator.errors import FileError

OUT_HINT = "choose a place that can be; for kernels: a writable folder with --out DIR"


def write_whole(path: Path, text: str, *, hint: str = OUT_HINT) -> Path:
    """Write a file by way of a temporary one beside it; an unchanged file is left alone."""
    return write_together({path: text}, hint=hint)[0]


def write_together(texts: Mapping[Path, str], *, hint: str = OUT_HINT) -> list[Path]:
    """Write files beside where they belong, then put all in place: on a full disk none is."""
    unfinished = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in texts}
    path = Path()
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file() and path.read_bytes() == text.encode():
                continue
            unfinished[path].write_text(text)
        for path, written in unfinished.items():
            if written.is_file():
                os.replace(written, path)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}", hint) from error
    finally:
        for written in unfinished.values():
            with contextlib.suppress(OSError):  # most often it is in place already
                written.unlink()
    return list(texts)
