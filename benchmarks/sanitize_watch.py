"""What a tool asks of the calls that it watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Watch:
    """What is `around` each call of an op, and whether attention may have clusters as crews."""

    around: Callable[[], AbstractContextManager[None]] = nullcontext
    crews: bool = True


WATCH = Watch()


@contextmanager
def filled_workspaces() -> Iterator[None]:
    """Have PyTorch fill what it allocates: of an op that is given its results, the workspace."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
