"""Inputs and results of a function that a kernel addresses through index tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.frontend.positional.lower import Layout, flat
from mirage_kernels.generator.ir import Dim, Indexed


@dataclass(frozen=True)
class Rows:
    """How an input or a result is addressed: `dims` of it number an index tensor's elements."""

    dims: tuple[int, ...]  # side by side
    rows: Dim
    by: str
    dtype: str
    wraps: bool

    def numbers(self, layout: Layout) -> tuple[str, ...]:
        """Return the recipe's dims that number the index tensor's elements."""
        return flat([layout[d] for d in self.dims])

    def place(self, layout: Layout) -> int:
        """Return how many of the recipe's dims are in front of them."""
        return len(flat(layout[: self.dims[0]]))

    def apart(self, layout: Layout) -> set[str]:
        """Return the recipe's dims that are no part of a longer row."""
        behind = [row[0] for row in layout[self.dims[-1] + 1 :] if row]
        return {*self.numbers(layout), *behind[:1]}


def indexed_of(ends: Iterable[tuple[str, Rows | None, Layout]]) -> tuple[Indexed, ...]:
    """Return what is addressed by index tensors, of inputs and results with their layouts.

    An index tensor has a name for each list of dims that number it.
    """
    known: dict[str, list[tuple[str, ...]]] = {}
    made = []
    for tensor, rows, layout in ends:
        if rows is None:
            continue
        numbers = rows.numbers(layout)
        seen: list[tuple[str, ...]] = known.setdefault(rows.by, [])
        seen += [] if numbers in seen else [numbers]
        by = _numbered(rows.by, seen, numbers)
        place = rows.place(layout)
        made.append(Indexed(tensor, numbers, place, rows.rows, by, rows.dtype, rows.wraps))
    return tuple(made)


def _numbered(by: str, seen: Sequence[tuple[str, ...]], numbers: tuple[str, ...]) -> str:
    at = seen.index(numbers)
    return f"{by}_{at + 1}" if at else by
