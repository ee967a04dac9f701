"""Positional programs: what a front end records, each step checked, before dims have names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.positional.ops import result_extents
from mirage_kernels.generator.frontend.positional.positions import Condition
from mirage_kernels.generator.ir import DType

Extents = tuple[int, ...]
Three = tuple[int, int, int]  # x, y, z: a grid, a block, or the dims that a grid's axes cut
NOWHERE = -1  # in maps: an axis that cuts no dim; a loop that cuts no dim
AXES = ("x", "y", "z")
MOST_DIMS = 8
LARGEST = 2**40  # elements: beyond it no tensor is meant


@dataclass(frozen=True)
class Tensor:
    """A positional tensor: its number in the program, extents, element type.

    `strides` (in elements) say how an input or a result lies in memory; none means row-major.
    """

    guid: int
    dims: Extents
    dtype: DType = DType.FP16
    strides: Extents = ()

    def __post_init__(self) -> None:
        if self.strides and len(self.strides) != len(self.dims):
            raise GraphError(
                f"{len(self.strides)} strides are given for {len(self.dims)} dims",
                "strides are in elements, one for each dim",
            )

    @property
    def num_dims(self) -> int:
        """Number of dims."""
        return len(self.dims)

    def dim(self, index: int) -> int:
        """Return the extent of one dim."""
        return self.dims[index]

    def position(self, dim: int) -> int:
        """Return the position of a dim that may be counted from the end."""
        return dim + self.num_dims if -self.num_dims <= dim < 0 else dim

    @property
    def layout(self) -> Extents:
        """Strides in elements, those of a row-major tensor where none are given."""
        return self.strides or tuple(prod(self.dims[i + 1 :]) for i in range(self.num_dims))


@dataclass(frozen=True)
class Step:
    """One operator of a kernel or block graph, applied to tensors by number.

    `dim` is the dim that a reduction shortens to `size` elements, the first one that a norm runs
    over, the one that concat joins, or the one that the loop cuts of a block's input (its fmap).
    `conditions` are those of a choice by position and by elements of further operands.
    `maps` is the imap of a block's input or the omap of its output; `kind` the kind of an
    accumulation; `numbers` the constants of clamp, mul_scalar and number; `shape` the extents that
    a reshape or an expand makes, or the order that a permute puts dims in.
    """

    op: str
    args: tuple[int, ...] = ()
    outs: tuple[Tensor, ...] = ()
    dim: int = NOWHERE
    size: int = 1
    maps: Three = (NOWHERE, NOWHERE, NOWHERE)
    kind: str = ""
    numbers: tuple[float, ...] = ()
    shape: Extents = ()
    conditions: tuple[Condition, ...] = ()
    block: Program | None = None


@dataclass(frozen=True)
class Frame:
    """Where a block graph runs: grid, threads (kept, not used), its loop, `reduction_dimx`."""

    grid: Three = (1, 1, 1)
    threads: Three = (1, 1, 1)
    loop_range: int = 1
    dimx: int = 1

    def __post_init__(self) -> None:
        if min(*self.grid, self.loop_range, self.dimx) < 1:
            raise GraphError(
                f"a block graph with grid {self.grid}, forloop_range {self.loop_range} and "
                f"reduction_dimx {self.dimx}",
                "all of them are at least 1",
            )

    def cuts(self, maps: Three, what: str) -> list[tuple[str, int, int]]:
        """Return axis, dim and number of parts of every cut that a map makes on the grid.

        An axis of one block cuts nothing. Raises GraphError when two axes cut one dim.
        """
        named = zip(AXES, maps, self.grid, strict=True)
        cuts = [(axis, dim, count) for axis, dim, count in named if count > 1 and dim != NOWHERE]
        if len({dim for _, dim, _ in cuts}) < len(cuts):
            raise GraphError(
                f"{what}: two grid axes cut the same dim, map {maps} on grid {self.grid}"
            )
        return cuts


@dataclass
class Program:
    """A kernel graph, step by step; with a `frame`, the block graph of that grid and loop.

    `results` are tensors that were chosen as results, with their strides.
    """

    frame: Frame | None = None
    steps: list[Step] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)  # by number
    results: list[Tensor] = field(default_factory=list)

    def of(self, op: str) -> list[Step]:
        """Return the steps with the given op, in order."""
        return [s for s in self.steps if s.op == op]

    @property
    def inputs(self) -> list[Tensor]:
        """The input tensors, in order."""
        return [s.outs[0] for s in self.of("input")]

    @property
    def outputs(self) -> list[Tensor]:
        """The results; where none are chosen, the computed tensors that no step takes."""
        taken = {a for s in self.steps for a in s.args}
        made = [t for s in self.steps if s.op != "input" for t in s.outs]
        return self.results or [t for t in made if t.guid not in taken]

    def add(
        self, step: Step, extents: Sequence[Extents], dtype: DType, strides: Extents = ()
    ) -> list[Tensor]:
        """Append a step and return its results; raise GraphError where no tensor has the dims."""
        for dims in extents:
            if not 1 <= len(dims) <= MOST_DIMS or min(dims) < 1 or prod(dims) > LARGEST:
                what = "an input" if step.op == "input" else f"the result of {step.op}"
                raise GraphError(
                    f"{what} has the dims {list(dims)}",
                    f"a tensor has 1 to {MOST_DIMS} dims, each of at least 1 element",
                )
        first = len(self.tensors)
        outs = [Tensor(first + i, e, dtype, strides) for i, e in enumerate(extents)]
        self.tensors += outs
        self.steps.append(replace(step, outs=tuple(outs)))
        return outs

    def input(self, extents: Extents, dtype: DType, strides: Extents = ()) -> Tensor:
        """Add an input of the program; strides (in elements) default to row-major."""
        plain = strides == Tensor(0, extents).layout
        return self.add(Step("input"), [extents], dtype, () if plain else strides)[0]

    def apply(self, step: Step, args: Sequence[Tensor]) -> list[Tensor]:
        """Add an operator; raise GraphError where its operands don't fit."""
        if self.frame and step.kind == "sum_todimx":
            step = replace(step, size=self.frame.dimx)
        in_block = self.frame is not None
        extents = result_extents(step, [a.dims for a in args], in_block=in_block)
        return self.add(replace(step, args=tuple(a.guid for a in args)), extents, args[0].dtype)

    def tile(self, whole: Tensor, maps: Three, dim: int) -> Tensor:
        """Add a block graph's input: the tile of a tensor that grid and loop cut."""
        assert self.frame is not None
        what = f"the input map {maps} of a tensor {list(whole.dims)}"
        cuts = [(at, count) for _, at, count in self.frame.cuts(maps, what)]
        if dim != NOWHERE:
            cuts.append((dim, self.frame.loop_range))
        extents = list(whole.dims)
        for at, count in cuts:
            _require_dim(extents, at, what)
            if extents[at] % count:
                raise GraphError(
                    f"{what}: dim {at} of {extents[at]} does not fall into {count} equal tiles",
                    "Mirage's programs divide evenly: choose another grid or forloop_range",
                )
            extents[at] //= count
        return self.add(Step("input", dim=dim, maps=maps), [tuple(extents)], whole.dtype)[0]

    def store(self, tile: Tensor, maps: Three) -> None:
        """Add a block graph's output: where each block's tile goes in a result."""
        step = Step("output", (tile.guid,), maps=maps)
        self._stored(step)
        self.steps.append(step)

    def _stored(self, step: Step) -> Extents:
        """Return the extents of the tensor that the blocks' tiles make together."""
        assert self.frame is not None
        extents = list(self.tensors[step.args[0]].dims)
        what = f"the output map {step.maps} of a tile {extents}"
        for _, at, count in self.frame.cuts(step.maps, what):
            _require_dim(extents, at, what)
            extents[at] *= count
        return tuple(extents)

    def customized(self, block: Program, args: Sequence[Tensor]) -> list[Tensor]:
        """Add a kernel: a finished block graph applied to tensors."""
        step = Step("customized", tuple(a.guid for a in args), block=block)
        return self.add(step, [block._stored(s) for s in block.of("output")], args[0].dtype)


def _require_dim(extents: Sequence[int], dim: int, what: str) -> None:
    if not 0 <= dim < len(extents):
        raise GraphError(f"{what} names dim {dim} of a tensor {list(extents)}")
