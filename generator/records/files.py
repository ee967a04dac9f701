"""Writing a file whole or not at all, and several together or none of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from mirage_kernels.generator.errors import FileError

OUT_HINT = "choose a place that can be; for kernels: a writable folder with --out DIR"
# What the block that is being written has replaced: each file, and its earlier self if there was.
_WRITTEN: ContextVar[dict[Path, Path | None] | None] = ContextVar("written", default=None)


def write_whole(path: Path, text: str, *, hint: str = OUT_HINT) -> Path:
    """Write a file by way of a temporary one beside it; an unchanged file is left alone."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.read_bytes() == text.encode():
            return path
        unfinished.write_text(text)
        written = _WRITTEN.get()
        if written is not None and path not in written:
            earlier = path.with_name(f".{path.name}.earlier.{os.getpid()}")
            if path.is_file():
                os.link(path, earlier)
            written[path] = earlier if earlier.is_file() else None
        os.replace(unfinished, path)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}", hint) from error
    finally:
        with contextlib.suppress(OSError):  # most often it is in place already
            unfinished.unlink()
    return path


@contextlib.contextmanager
def all_or_nothing() -> Iterator[None]:
    """Take back what `write_whole` wrote inside where the block does not end well.

    New files are removed, earlier ones come back: they were kept under another name, so that a full
    disk has room for them.
    """
    written: dict[Path, Path | None] = {}
    token = _WRITTEN.set(written)
    try:
        yield
    except BaseException:  # an interrupt too
        for path, earlier in written.items():
            if earlier is None:
                path.unlink(missing_ok=True)
            else:
                os.replace(earlier, path)
        raise
    finally:
        _WRITTEN.reset(token)
        for earlier in filter(None, written.values()):
            earlier.unlink(missing_ok=True)
