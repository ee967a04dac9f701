"""Extents that torch.compile may know as symbols only: what is known of them without a guard."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true


def static(size: object) -> int | None:
    """Return an extent that is the same in every call; None for others."""
    if isinstance(size, torch.SymInt):
        known: int | None = size.node.maybe_as_int()
        return known
    return size if isinstance(size, int) and not isinstance(size, bool) else None


def equal(one: int | torch.SymInt, other: int | torch.SymInt) -> bool:
    """Say whether two extents are the same in every call."""
    return bool(statically_known_true(one == other))


def alike(one: Sequence[int], other: Sequence[int]) -> bool:
    """Say whether two shapes are the same in every call."""
    return len(one) == len(other) and all(map(equal, one, other))
