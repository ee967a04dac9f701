"""Where a block graph may run: grid axes, loop, and per input the imap and fmap."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

GRID_AXES = ("x", "y", "z")


@dataclass(frozen=True)
class TensorInfo:
    """A kernel-level tensor as the search sees it: its name, dims in order, and abstract term."""

    name: str
    dims: tuple[str, ...]
    term: int


@dataclass(frozen=True)
class View:
    """One block input: which tensor, which dims the grid axes cut (imap), what the loop cuts."""

    tensor: str
    cuts: tuple[str | None, ...]
    loop_cut: str | None


@dataclass(frozen=True)
class Setting:
    """Grid axes and loop by the dim they cut, and the block's inputs."""

    grid: tuple[str, ...]
    loop: str | None
    views: tuple[View, ...]


@dataclass(frozen=True)
class DimRoles:
    """What the program does with its dims: which are reduced somewhere, which come out."""

    reduced: tuple[str, ...]
    output: tuple[str, ...]


def settings(
    tensors: Sequence[TensorInfo], roles: DimRoles, must_use: frozenset[str]
) -> Iterator[Setting]:
    """Yield every setting in canonical order.

    A grid axis cuts a dim that the block's result keeps. Cutting by a tile as large as the dim is
    the same as not cutting, so a dim that the program never reduces is always cut where it can be;
    one that is reduced somewhere may be left whole.
    """
    for used in _subsets(tensors):
        if not must_use <= {t.name for t in used}:
            continue
        names = tuple(dict.fromkeys(d for t in used for d in t.dims))
        free = [d for d in names if d not in roles.reduced]
        optional = [d for d in names if d in roles.reduced and d in roles.output]
        loops = [None, *(d for d in names if d in roles.reduced)]
        for extra in _subsets_of(optional):
            grid = tuple(d for d in (*reversed(free), *extra))[: len(GRID_AXES)]
            if not grid:
                continue
            for loop in loops:
                if loop not in grid:
                    yield from _views(used, grid, loop, roles)


def _subsets(tensors: Sequence[TensorInfo]) -> Iterator[tuple[TensorInfo, ...]]:
    for size in range(len(tensors), 0, -1):
        yield from itertools.combinations(tensors, size)


def _subsets_of(dims: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for size in range(len(dims) + 1):
        yield from itertools.combinations(dims, size)


def _views(
    tensors: Sequence[TensorInfo], grid: tuple[str, ...], loop: str | None, roles: DimRoles
) -> Iterator[Setting]:
    choices = [_views_of(t, grid, loop, roles) for t in tensors]
    for views in itertools.product(*choices):
        if loop is None or any(v.loop_cut for v in views):
            yield Setting(grid, loop, views)


def _views_of(
    tensor: TensorInfo, grid: tuple[str, ...], loop: str | None, roles: DimRoles
) -> list[View]:
    """Return the ways to cut one tensor.

    A dim that is never reduced must be cut alike everywhere or the tiles could not meet; one that
    is reduced may also be replicated, whole in every block.
    """
    per_axis: list[tuple[str | None, ...]] = []
    for dim in grid:
        if dim not in tensor.dims:
            per_axis.append((None,))
        else:
            per_axis.append((dim, None) if dim in roles.reduced else (dim,))
    loops: tuple[str | None, ...] = (loop, None) if loop in tensor.dims else (None,)
    return [
        View(tensor.name, cuts, loop_cut)
        for cuts in itertools.product(*per_axis)
        for loop_cut in loops
    ]
