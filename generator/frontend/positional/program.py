"""Positional programs: what a front end records before dims have names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mirage_kernels.generator.ir import DType

Extents = tuple[int, ...]
Three = tuple[int, int, int]  # x, y, z: a grid, a block, or the dims that a grid's axes cut
NOWHERE = -1  # in maps: an axis that cuts no dim; a loop that cuts no dim
AXES = ("x", "y", "z")


@dataclass(frozen=True)
class Tensor:
    """A positional tensor: its number in the program, extents, element type.

    `strides` (in elements) say how an input lies in memory; none means row-major.
    """

    number: int
    extents: Extents
    dtype: DType = DType.FP16
    strides: Extents = ()

    @property
    def guid(self) -> int:
        """The number, as Mirage calls it."""
        return self.number

    @property
    def dims(self) -> Extents:
        """Extents of all dims."""
        return self.extents

    @property
    def num_dims(self) -> int:
        """Number of dims."""
        return len(self.extents)

    def dim(self, index: int) -> int:
        """Return the extent of one dim."""
        return self.extents[index]

    def position(self, dim: int) -> int:
        """Return the position of a dim that may be counted from the end."""
        return dim + self.num_dims if -self.num_dims <= dim < 0 else dim


@dataclass(frozen=True)
class Step:
    """One operator of a kernel or block graph, applied to tensors by number.

    `dim` is the dim that a reduction shortens to `size` elements, the first one that a norm runs
    over, the one that concat joins, or the one that the loop cuts of a block's input (its fmap).
    `maps` is the imap of a block's input or the omap of its output; `kind` the kind of an
    accumulation; `numbers` the constants of clamp and mul_scalar.
    """

    op: str
    args: tuple[int, ...] = ()
    outs: tuple[Tensor, ...] = ()
    dim: int = NOWHERE
    size: int = 1
    maps: Three = (NOWHERE, NOWHERE, NOWHERE)
    kind: str = ""
    numbers: tuple[float, ...] = ()
    block: Block | None = None


@dataclass(frozen=True)
class Block:
    """A block graph: grid, threads (kept, not used), iterations of its loop, `reduction_dimx`."""

    grid: Three
    threads: Three
    loop_range: int
    dimx: int
    steps: tuple[Step, ...]

    def of(self, op: str) -> tuple[Step, ...]:
        """Return the steps with the given op, in order."""
        return tuple(s for s in self.steps if s.op == op)


@dataclass(frozen=True)
class Program:
    """A kernel graph: steps in topological order, and the numbers of its results."""

    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The program's input tensors, in order."""
        return tuple(s.outs[0] for s in self.steps if s.op == "input")

    def tensor(self, number: int) -> Tensor:
        """Return a tensor of the kernel graph by its number."""
        return next(t for t in self.tensors() if t.number == number)

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor of the kernel graph."""
        return (t for s in self.steps for t in s.outs)


def unused(steps: tuple[Step, ...]) -> tuple[int, ...]:
    """Return the computed tensors that no step takes: the results where none is named."""
    taken = {a for s in steps for a in s.args}
    made = [t.number for s in steps if s.op != "input" for t in s.outs]
    return tuple(n for n in made if n not in taken)


def row_major(extents: Extents) -> Extents:
    """Return the strides of a contiguous tensor."""
    strides = [1]
    for n in reversed(extents[1:]):
        strides.append(strides[-1] * n)
    return tuple(reversed(strides))
