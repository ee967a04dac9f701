"""Extents that dynamic dims give: its sizes in two traces say which multiple of which one is."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# A number, or {"extent": "M", "times": 4}: a multiple of a dynamic extent, or of a product: "B*T".
Size = int | dict[str, Any]
STEP = 7  # the second trace's first dynamic extent is longer by it, others by about as much more


def dynamic_extents(
    given: Mapping[str, torch.Tensor], dynamic: Mapping[str, Mapping[int, str]]
) -> dict[str, int]:
    """Return the extents of tensors' dynamic dims."""
    return {
        dim: int(given[name].shape[at])
        for name, dims in dynamic.items()
        for at, dim in dims.items()
    }


def more_of(extents: Mapping[str, int]) -> dict[str, int]:
    """Return by how much dynamic extents are longer in the second trace.

    No two products of some of them grow alike, so that two sizes say what an extent is.
    """
    known, found = {Fraction(1)}, dict[str, int]()
    for i, (dim, n) in enumerate(extents.items(), start=1):
        more = STEP * i
        while known & {k * Fraction(n + more, n) for k in known}:
            more += 1
        known |= {k * Fraction(n + more, n) for k in known}
        found[dim] = more
    return found


def size_of(a: int, b: int, extents: Mapping[str, tuple[int, int]]) -> Size | None:
    """Return an extent that is so large in the two traces, or None, with those of dynamic dims."""
    if a == b:
        return int(a)
    for count in range(1, len(extents) + 1):
        for dims in combinations(extents, count):
            mine, other = (prod(extents[d][i] for d in dims) for i in (0, 1))
            if a % mine == 0 and a // mine * other == b:
                return {"extent": "*".join(dims), "times": int(a // mine)}
    return None
