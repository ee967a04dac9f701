"""What a tool asks of the calls that it watches: what is around each call of an op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

Around = Callable[[], AbstractContextManager[None]]


@contextmanager
def filled_workspaces() -> Iterator[None]:
    """Have PyTorch fill what it allocates: of an op that is given its results, the workspace."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
