"""The memory of one block as the interpreter sees it: tiles, and what threads may rely on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.ir import Dim
from mirage_kernels.generator.tiles.program import BlockProgram, Tile

Array = npt.NDArray[np.float64]
Index = Mapping[str, npt.NDArray[np.int64]]  # dim -> local coordinates, broadcastable


class TileError(MirageError):
    """A tile program whose threads do not agree on what memory holds."""


@dataclass
class Block:
    """One block: its place in the grid, its memory, and what its threads have not agreed on."""

    program: BlockProgram
    at: Mapping[str, int]  # axis -> index
    extents: Mapping[str, int]
    memory: dict[str, Array] = field(default_factory=dict)
    sums: dict[str, Array] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    copied: set[str] = field(default_factory=set)
    step: int = 0
    loading: int = 0  # the step that loads are for

    def __post_init__(self) -> None:
        for tile in self.program.tiles.values():
            self.memory[tile.name] = np.full(tile.elements * tile.stages, np.nan)

    # -- memory ----------------------------------------------------------------------------------

    def address(self, tile: Tile, index: Index, step: int) -> npt.NDArray[np.int64]:
        terms = (index[d.name] * tile.strides[d.name] for d in tile.dims)
        place = np.asarray(sum(terms, np.int64(0)))
        if np.any((place < 0) | (place >= tile.elements)):
            raise TileError(f"{tile.name} is addressed beyond its {tile.elements} elements")
        return np.asarray(place + step % tile.stages * tile.elements)

    def get(self, name: str, index: Index) -> Array:
        """Read a tile; raises TileError for what other threads may not have written yet."""
        if name in self.written or name in self.copied:
            raise TileError(f"{name} is read without a barrier behind what writes it")
        self.read.add(name)
        return self.memory[name][self.address(self.program.tiles[name], index, self.step)]

    def put(self, name: str, index: Index, values: Array, step: int | None = None) -> None:
        """Write a tile; raises TileError for what other threads may still read."""
        if name in self.read and step is None:
            raise TileError(f"{name} is written without a barrier behind what reads it")
        place = self.address(self.program.tiles[name], index, self.step if step is None else step)
        self.memory[name][place] = np.broadcast_to(values, place.shape)

    def agree(self, *, copies: bool) -> None:
        """Pass a barrier."""
        self.written.clear()
        self.read.clear()
        if copies:
            self.copied.clear()

    # -- places ----------------------------------------------------------------------------------

    def whole(self, value: str, index: Index) -> dict[str, npt.NDArray[np.int64]]:
        """Return coordinates in whole tensors for local ones."""
        found = dict[str, npt.NDArray[np.int64]]()
        for dim, local in index.items():
            offset = 0
            for name in self.program.offsets[value].get(dim, ()):
                axis = next(a for a in self.program.space.axes if a.name == name)
                size = axis.tile if axis.dim == dim else self.program.type(value).dim(dim).size
                offset += size * (self.loading if name == "loop" else self.at[name])
            found[dim] = local + offset
        return found

    def end(self, value: str, dim: str) -> int:
        """Return where a value ends along a dim."""
        found = self.extents[dim]
        axes = self.program.offsets[value].get(dim, ())
        for axis in self.program.space.reduced:
            if axis.name in axes and "loop" in axes:
                found = min(found, (self.at[axis.name] + 1) * axis.tile)
        return found

    def within(self, value: str, index: Index, dims: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Say which places lie within the tensors along dims."""
        whole = self.whole(value, index)
        tests = [whole[d] < self.end(value, d) for d in dims]
        return np.asarray(np.logical_and.reduce(np.broadcast_arrays(True, *tests)))


def indices(dims: Sequence[Dim]) -> Index:
    """Return the coordinates of every element, an array axis per dim."""
    grids = np.indices([d.size for d in dims])
    return {d.name: grids[i] for i, d in enumerate(dims)}
