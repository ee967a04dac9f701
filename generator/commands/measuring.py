"""What `bench` keeps when it is stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mirage_kernels.generator.terminal import Terminal


@contextmanager
def rows_kept(rows: Sequence[object], wanted: int, terminal: Terminal) -> Iterator[None]:
    """End the block at Ctrl-C instead of raising, if there are rows: they are the result."""
    try:
        yield
    except KeyboardInterrupt:
        if not rows:
            raise
        terminal.line(f"stopped: {len(rows)} of {wanted} workloads measured")
