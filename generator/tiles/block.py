"""One block as the interpreter sees it: where its tiles lie, and where it stands in the grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.ir import Axis, Dim
from mirage_kernels.generator.tiles.machine import Inside, within
from mirage_kernels.generator.tiles.memory import (
    ANY,
    CELL_BYTES,
    COPIES,
    Array,
    Memory,
    Places,
    TileError,
)
from mirage_kernels.generator.tiles.program import BlockProgram, Tile

END = ""  # the name of what lies behind all tiles
Index = Mapping[str, npt.NDArray[np.int64]]  # dim -> local coordinates, broadcastable


@dataclass
class Block:
    """One block: its place in the grid, its shared memory, its sums in registers."""

    program: BlockProgram
    at: Mapping[str, int]  # axis -> index
    extents: Mapping[str, int]
    sums: dict[str, Array] = field(default_factory=dict)
    step: int = 0
    loading: int = 0  # the step that loads are for
    fresh: set[str] = field(default_factory=set)  # tiles written since the cluster last met
    lent: set[str] = field(default_factory=set)  # those that others have read since then
    has_arrived: bool = False  # where the cluster meets for the last time

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Where tiles begin, one behind another, each element a cell."""
        sizes = [CELL_BYTES * t.bytes // t.dtype.bytes for t in self.program.tiles.values()]
        return dict(zip((*self.program.tiles, END), accumulate(sizes, initial=0), strict=True))

    @cached_property
    def memory(self) -> Memory:
        """The shared memory."""
        return Memory(self.offsets[END])

    # -- memory ----------------------------------------------------------------------------------

    def address(self, tile: Tile, index: Index, step: int) -> Places:
        """Return where elements lie, in bytes."""
        terms = (index[d.name] * tile.strides[d.name] for d in tile.dims)
        place = np.asarray(sum(terms, np.int64(0)))
        if place.min() < 0 or place.max() >= tile.elements:
            raise TileError(f"{tile.name} is addressed beyond its {tile.elements} elements")
        stage = tile.bytes // tile.stages // tile.dtype.bytes
        place = place + step % tile.stages * stage
        return np.asarray(self.offsets[tile.name] + place * CELL_BYTES)

    def get(self, name: str, index: Index) -> Array:
        """Read a tile; raises TileError for what other threads may not have written yet."""
        at = self.address(self.program.tiles[name], index, self.step)
        return self.memory.read(name, at, CELL_BYTES, ANY)

    def own(self, name: str, index: Index) -> Array:
        """Read what the same threads wrote."""
        return self.memory.own(self.address(self.program.tiles[name], index, self.step))

    def put(self, name: str, index: Index, values: Array) -> None:
        """Write a tile; raises TileError for what other threads may still read."""
        self._write(name, index, values, self.step, ANY)

    def copy(self, name: str, index: Index, values: Array, group: int) -> None:
        """Let a group of copies bring a tile; those of a step of the loop are one behind it."""
        self._write(name, index, values, max(0, group - 1), COPIES + group)

    def lend(self, name: str, index: Index) -> Array:
        """Let another block read a tile; raises TileError for what it may not see yet."""
        if name in self.fresh:
            raise TileError(f"{name} of another block is read without a barrier of the cluster")
        self.lent.add(name)
        return self.own(name, index)

    def meet(self) -> None:
        """Let the blocks of a cluster agree."""
        self.fresh.clear()
        self.lent.clear()

    def _write(self, name: str, index: Index, values: Array, step: int, who: int) -> None:
        if name in self.lent:
            raise TileError(f"{name} is written while other blocks may still read it")
        self.fresh.add(name)
        at = self.address(self.program.tiles[name], index, step)
        self.memory.write(name, at, CELL_BYTES, np.broadcast_to(values, at.shape), who)

    # -- places ----------------------------------------------------------------------------------

    def whole(self, value: str, index: Index) -> dict[str, npt.NDArray[np.int64]]:
        """Return coordinates in whole tensors for local ones."""
        found = dict[str, npt.NDArray[np.int64]]()
        for dim, local in index.items():
            offset = 0
            for name in self.program.offsets[value].get(dim, ()):
                axis = next(a for a in self.program.space.axes if a.name == name)
                size = self.hop(axis) if axis.dim == dim else self.program.type(value).dim(dim).size
                offset += size * (self.loading if name == "loop" else self.at[name])
            found[dim] = local + offset
        return found

    def hop(self, axis: Axis) -> int:
        """Return how many places lie between neighbouring tiles of an axis in this block."""
        turns, loop = self.program.turns, self.program.space.loop
        if turns is None or loop is None or axis not in (turns, loop):
            return axis.tile
        return loop.tile if axis == turns else loop.tile * self.parts

    @property
    def parts(self) -> int:
        """How many blocks share the steps of a loop, by turns."""
        turns = self.program.turns
        return -(-self.extents[turns.dim] // turns.tile) if turns else 1

    def end(self, value: str, dim: str) -> int:
        """Return where a value ends along a dim."""
        ends = ((self.at[a.name] + 1) * a.tile for a in self.program.parts(value, dim))
        return min((self.extents[dim], *ends))

    def within(self, value: str, index: Index, dims: Sequence[str]) -> Inside:
        """Say which places lie within the tensors along dims."""
        return within(self.whole(value, index), {d: self.end(value, d) for d in dims})

    def tested(self, value: str, index: Index) -> Inside:
        """Say which places the kernel's tests find to lie within a tensor.

        Raises TileError where it has none and others lie beyond: those are not the tensor's.
        """
        dims = [d for d, x in index.items() if self.program.is_uneven(value, d, x.size)]
        inside, lie = self.within(value, index, dims), self.within(value, index, [*index])
        if bool((inside & ~lie).any()):
            raise TileError(f"nothing tells where {value} ends")
        return lie


def indices(dims: Sequence[Dim]) -> Index:
    """Return the coordinates of every element, an array axis per dim, as far as they differ."""
    grids = np.indices([d.size for d in dims], sparse=True)
    return {d.name: at for d, at in zip(dims, grids, strict=True)}
