"""Runs tests of emitted Triton programs in the process that has Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable

from mirage_kernels.generator.bench.demonstrate import interpreter, loaded

__all__ = ["interpreted", "loaded"]


def interpreted(run: Callable[..., None], *given: str) -> None:
    """Call a function there, which loads programs; its errors are raised here."""
    interpreter().submit(run, *given).result()
