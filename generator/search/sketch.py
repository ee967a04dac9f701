"""Found programs without tile sizes or types: what the search hands on, and the store keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from mirage_kernels.generator.search.settings import Setting, View

Leaf = View | str  # an input, or a constant of the spec by its name


class Step(Struct, frozen=True, order=True):
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

    @property
    def views(self) -> list[View]:
        """The block's inputs."""
        return [leaf for leaf in self.leaves if isinstance(leaf, View)]


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
