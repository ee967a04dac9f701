"""Extents that torch.compile may know as symbols only: what is known of them without a guard."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
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


def dense_order(value: Tensor) -> tuple[int, ...] | None:
    """Return an order of a tensor's dims, the last one last, in which it is contiguous.

    None where there is none that holds in every call.
    """
    order = [*range(value.dim())]
    if _is_dense(value, order):
        return tuple(order)
    steps = [static(stride) for stride in value.stride()]
    known = [step for step in steps if step is not None]
    if len(known) < len(steps):
        return None
    order[:-1] = sorted(order[:-1], key=known.__getitem__, reverse=True)
    return tuple(order) if _is_dense(value, order) else None


def _is_dense(value: Tensor, order: Sequence[int]) -> bool:
    step: int | torch.SymInt = 1
    for dim in reversed(order):
        if static(value.shape[dim]) == 1:
            continue
        if not equal(value.stride()[dim], step):
            return False
        step = step * value.shape[dim]
    return True
