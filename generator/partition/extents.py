"""Extents that dynamic dims give: its sizes in two traces say which multiple of which one is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain, combinations, repeat
from math import prod
from typing import TYPE_CHECKING, Any

from mirage_kernels.generator.frontend.merging import behind
from mirage_kernels.generator.frontend.positional.lower import sizes_of

if TYPE_CHECKING:
    import torch

    from mirage_kernels.generator.frontend.portions import Traced

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


def without_implied(most: Mapping[str, int]) -> dict[str, int]:
    """Return limits of extents without those that the limit of a product implies."""
    products = [(p.split("*"), n) for p, n in most.items() if "*" in p]
    implied = {d for dims, n in products for d in dims if d in most and n <= most[d]}
    return {dim: n for dim, n in most.items() if dim not in implied}


def dim_name(size: Mapping[str, Any]) -> str:
    """Return the name of a dim that is a multiple of a dynamic extent, or of a product of some."""
    name = size["extent"].replace("*", "_")
    return name if size["times"] == 1 else f"{name}_{size['times']}"


def singly(extents: Mapping[str, int]) -> dict[str, int]:
    """Return dynamic extents by dim: where only a product is known, all but its first are 1."""
    found = {name: n for name, n in extents.items() if "*" not in name}
    for product, n in extents.items():
        new = [dim for dim in product.split("*") if dim not in found]
        left = n // max(1, prod(found.get(dim, 1) for dim in product.split("*")))
        found |= dict(zip(new, chain([left], repeat(1)), strict=False))
    return found


def kernel_extents(
    layout: Sequence[tuple[str, ...]],
    shape: Sequence[Size],
    traced: Traced,
    groups: Mapping[str, int] | None = None,
) -> Iterator[Size]:
    """Yield the extents of an input with the dims that its recipe gives it.

    A dynamic dim may be one with dims behind it, or with parts of them. There is one element for
    `groups` of neighbours.
    """
    own, sizes = shape or [1] * len(layout), sizes_of(traced.graph)
    for i, (row, size) in enumerate(zip(layout, own, strict=True)):
        if isinstance(size, int) or not row:
            yield from (sizes[dim] // (groups or {}).get(dim, 1) for dim in row)
            continue
        inner = behind(tuple(layout), i, traced.dynamic)
        several = [size, *(own[j] for j in inner)]
        names = [n["extent"] for n in several if isinstance(n, dict)]
        whole = prod(n["times"] if isinstance(n, dict) else n for n in several)
        parts = prod(sizes[d] for j in inner for d in layout[j])
        yield {"extent": "*".join(names), "times": whole // parts}
