"""The words of the search: its limits, where block graphs run, how tensors are cut, what is found.

Found programs have no tile sizes and no types: they are what the search hands on and the store
keeps.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec import Struct, field

from mirage_kernels.generator.ir import DType, parts_of

GRID_AXES = ("x", "y", "z", "u", "v", "w")

# How a value has a dim: whole, cut by a grid axis, by the loop, by both, or as one block's part of
# a sum over it (then the name is that of the parts dim).
FULL, GRID, LOOP, BOTH, PART = "full", "grid", "loop", "grid and loop", "part"
Dims = frozenset[tuple[str, str]]  # (dim, how a value has it)


@dataclass(frozen=True)
class Limits:
    """Bounds of the search and whether to prune by abstract expression."""

    block_ops: int = 32  # of all kernels together
    kernels: int = 2
    kept: int | None = 48  # programs kept of one task, cheapest first; None keeps all
    kept_spec_products: int | None = 4  # of those with a loop whose products are the spec's own
    kept_loop_inputs: int | None = 8  # of those with a loop that read in it all that it cuts
    kept_of_two: int | None = 6  # the same where there are two kernels
    firsts: int | None = 8  # results of first kernels that are tried, of those with the same dims
    verified: int = 400  # programs of the whole search, cheapest first
    values: int = 1000  # of one setting; what lies beyond is counted as pruned by budget
    prune_abstract: bool = True


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
    is `endless`: it is always cut. The blocks of a cluster hold a row together along a dim that is
    `shared`.
    """

    reduced: tuple[str, ...]
    output: tuple[str, ...]
    long: frozenset[str]
    endless: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Setting:
    """Grid axes by the dim they cut, the dim that the loop cuts, the dim that is split.

    `split` names the dim of the reduced grid axis, the last one; its blocks make partial sums. Each
    of them has its part of the dim still when they have combined them, and stores it, if they are
    `holding` it.
    """

    grid: tuple[str, ...]
    loop: str | None
    split: str | None = None
    holding: bool = False

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
            free = dim in roles.reduced and dim != self.split
            per_axis.append(((dim, None) if free else (dim,)) if dim in tensor.dims else (None,))
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
    always cut; of those that it reduces only long ones may be cut, by the grid or by the loop.
    Blocks that split a sum loop over its dim, or over one without end; or they hold their part of a
    row. The result of a `first` kernel has some of the program's dims, and its blocks split no sum.
    """
    names = list(dict.fromkeys(d for t in tensors for d in t.dims))
    free = [d for d in reversed(names) if d not in roles.reduced]
    reduced = [d for d in names if d in roles.reduced and d in roles.long]
    kept = [d for d in reduced if d in roles.output]
    some = free[: len(GRID_AXES)] if first else kept
    subsets = (c for size in range(len(some) + 1) for c in itertools.combinations(some, size))
    grids = subsets if first else ((*free, *extra) for extra in subsets)
    for grid in (cut[: len(GRID_AXES)] for cut in grids if cut or not first):
        loops = [d for d in reduced if d not in grid]
        yield from (Setting(grid, loop) for loop in (None, *loops))
        for split in loops if not first and len(grid) < len(GRID_AXES) else ():
            yield Setting((*grid, split), None, split)
            yield Setting((*grid, split), split, split)
            yield from (
                Setting((*grid, split), d, split) for d in loops if d in roles.endless - {split}
            )
    if not first and len(free) < len(GRID_AXES):
        yield from (Setting((*free, d), None, d, holding=True) for d in kept if d in roles.shared)


Leaf = View | str  # an input, or a constant of the spec by its name


class Step(Struct, frozen=True, order=True, gc=False):
    """One op on values, by their numbers."""

    op: str
    args: tuple[int, ...]
    over: str = ""


class BlockSketch(Struct, frozen=True, tag=True):
    """A block graph: its setting, leaves (inputs in order, then constants), steps and results.

    Steps and results number leaves, then steps. `results` gives the dims of each, parts dims
    included.
    """

    setting: Setting
    leaves: tuple[Leaf, ...]
    steps: tuple[Step, ...]
    results: tuple[tuple[int, tuple[str, ...]], ...]


class LibrarySketch(Struct, frozen=True, tag=True):
    """A library operator as a kernel: the matrix product of two tensors over a dim."""

    args: tuple[str, str]
    over: str
    dims: tuple[str, ...]


Kernel = BlockSketch | LibrarySketch


class ProgramSketch(Struct, frozen=True):
    """A kernel graph: kernels in order; the results of all but the last go by `middle_name`."""

    kernels: tuple[Kernel, ...]
    cost: float = 0.0  # nominal microseconds


class Counts(Struct):
    """What a search did: values kept, values pruned by reason, programs found and refused."""

    states: int = 0
    pruned: dict[str, int] = {}
    candidates: int = 0
    rejected: int = 0


class Found(Struct, frozen=True):
    """Programs, cheapest first, and what finding them took."""

    programs: tuple[ProgramSketch, ...] = ()
    counts: Counts = field(default_factory=Counts)


def counts_of(found: Sequence[Found]) -> Counts:
    """Return what several searches did together."""
    return Counts(
        states=sum(one.counts.states for one in found),
        pruned=dict(sum((Counter(one.counts.pruned) for one in found), Counter[str]())),
        candidates=sum(one.counts.candidates for one in found),
        rejected=sum(one.counts.rejected for one in found),
    )


def middle_name(result: int) -> str:
    """Return the name of a tensor between two kernels: the first kernel's result number so."""
    return f"middle_{result}"


def in_order(leaves: Iterable[Leaf], tensors: Sequence[str]) -> tuple[Leaf, ...]:
    """Return leaves in the order of tensors, then what a first kernel made, then constants."""

    def place(leaf: Leaf) -> int:
        if isinstance(leaf, str):
            return len(tensors) + 1
        return tensors.index(leaf.tensor) if leaf.tensor in tensors else len(tensors)

    return tuple(sorted(leaves, key=place))
