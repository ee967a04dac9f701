"""Where a block graph may run: grid axes, loop, and every way a tensor can be cut for them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.ir import DType, parts_of

GRID_AXES = ("x", "y", "z", "u", "v")

# How a value has a dim: whole, cut by a grid axis, by the loop, by both, or as one block's part of
# a sum over it (then the name is that of the parts dim).
FULL, GRID, LOOP, BOTH, PART = "full", "grid", "loop", "grid and loop", "part"
Dims = frozenset[tuple[str, str]]  # (dim, how a value has it)


@dataclass(frozen=True)
class TensorInfo:
    """A kernel-level tensor as the search sees it: name, dims in order, term, element type."""

    name: str
    dims: tuple[str, ...]
    term: int
    dtype: DType = DType.FP16


@dataclass(frozen=True)
class View:
    """One block input: which tensor, which dims the grid axes cut (imap), what the loop cuts."""

    tensor: str
    cuts: tuple[str | None, ...]
    loop_cut: str | None

    def dims(self, names: Sequence[str]) -> Dims:
        """Return how this view has each dim of its tensor."""
        ways = {(True, True): BOTH, (True, False): GRID, (False, True): LOOP}
        return frozenset((d, ways.get((d in self.cuts, d == self.loop_cut), FULL)) for d in names)


@dataclass(frozen=True)
class DimRoles:
    """What the program does with its dims: which are reduced somewhere, which come out.

    Of the reduced dims only `long` ones may be cut. No block can hold even one line of a dim that
    is `endless`: it is always cut.
    """

    reduced: tuple[str, ...]
    output: tuple[str, ...]
    long: frozenset[str]
    endless: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Setting:
    """Grid axes by the dim they cut, the dim that the loop cuts, the dim that is split.

    `split` names the dim of the reduced grid axis, the last one; its blocks make partial sums.
    """

    grid: tuple[str, ...]
    loop: str | None
    split: str | None = None

    def views(self, tensor: TensorInfo, roles: DimRoles) -> list[View]:
        """Return the ways to cut one tensor; none if it has a dim that this kernel's result lacks.

        A dim that is never reduced must be cut alike everywhere or the tiles could not meet, and a
        split dim is cut wherever it occurs; one that is reduced may also be replicated, unless it
        is too long for that.
        """
        kept = {d for d in tensor.dims if d not in roles.reduced and not d.endswith(parts_of(""))}
        if not kept <= set(self.grid):
            return []
        per_axis: list[tuple[str | None, ...]] = []
        for dim in self.grid:
            if dim not in tensor.dims:
                per_axis.append((None,))
            elif dim in roles.reduced and dim != self.split:
                per_axis.append((dim, None))
            else:
                per_axis.append((dim,))
        loops = (self.loop, None) if self.loop in tensor.dims else (None,)
        return [
            View(tensor.name, cuts, loop_cut)
            for cuts in itertools.product(*per_axis)
            for loop_cut in loops
            if (loop_cut is None or loop_cut == self.split or loop_cut not in cuts)
            and {*cuts, loop_cut} >= {d for d in tensor.dims if d in roles.endless}
        ]


def settings(
    tensors: Sequence[TensorInfo], roles: DimRoles, *, first: bool = False
) -> Iterator[Setting]:
    """Yield every setting of a kernel that has the program's result, in canonical order.

    A grid axis cuts a dim that the result keeps, or splits one that is summed along. Cutting by a
    tile as large as the dim is the same as not cutting, so a dim that the program never reduces is
    always cut; of those that it reduces only long ones may be cut, by the grid or by the loop. The
    result of a `first` kernel has some of the program's dims, and its blocks split no sum.
    """
    names = list(dict.fromkeys(d for t in tensors for d in t.dims))
    free = [d for d in reversed(names) if d not in roles.reduced]
    reduced = [d for d in names if d in roles.reduced and d in roles.long]
    kept = [d for d in reduced if d in roles.output]
    grids = [(*free, *extra) for extra in _subsets_of(kept)]
    if first:
        grids = [*_subsets_of(free[: len(GRID_AXES)])]
    for grid in (cut[: len(GRID_AXES)] for cut in grids if cut):
        loops = [d for d in reduced if d not in grid]
        yield from (Setting(grid, loop) for loop in (None, *loops))
        for split in loops if not first and len(grid) < len(GRID_AXES) else ():
            yield Setting((*grid, split), None, split)
            yield Setting((*grid, split), split, split)


def _subsets_of(dims: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for size in range(len(dims) + 1):
        yield from itertools.combinations(dims, size)
