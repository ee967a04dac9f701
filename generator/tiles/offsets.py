"""Where a block's tiles lie in whole tensors, as CUDA: numbers, or formulas of run time."""

from __future__ import annotations

from mirage_kernels.generator.ir import Axis, parts_of
from mirage_kernels.generator.tiles.program import BlockProgram


class Offsets:
    """Offsets, ends and steps of the blocks of one program."""

    def __init__(self, program: BlockProgram) -> None:
        self.program = program

    def extent(self, dim: str) -> str:
        """Return the extent of a dim of whole tensors."""
        d = self.program.extents[dim]
        return f"args.{dim}" if d.dynamic else str(d.size)

    def tile_of(self, axis: Axis) -> str:
        """Return the elements of a block along an axis: known at run time where clusters split."""
        return f"args.{axis.name}_tile" if axis in self.program.splits else str(axis.tile)

    def blocks(self, axis: Axis) -> str:
        """Return how many blocks an axis has."""
        extent, tile = self.extent(axis.dim), self.tile_of(axis)
        if extent.isdigit():
            return str(-(-int(extent) // axis.tile))
        return f"(({extent} + {tile} - 1) / {tile})"

    def steps(self, loop: Axis) -> str:
        """Return how many steps a block's loop takes where no condition ends it earlier."""
        limit, turns = self.extent(loop.dim), self.program.turns
        if turns:
            return f"steps_to({self.blocks(loop)} - {turns.name}_index, {self.blocks(turns)})"
        for axis in self.program.space.reduced:
            if axis.dim == loop.dim:
                tile = self.tile_of(axis)
                limit = f"min({tile}, {limit} - {axis.name}_index * {tile})"
        if limit.isdigit():
            return str(-(-int(limit) // loop.tile))
        return f"max(0, {limit} + {loop.tile - 1}) / {loop.tile}"

    def hop(self, axis: Axis) -> str:
        """Return how many places lie between neighbouring tiles of an axis in one block."""
        turns, loop = self.program.turns, self.program.space.loop
        if turns is None or loop is None or axis not in (turns, loop):
            return self.tile_of(axis)
        if axis == turns:
            return str(loop.tile)
        count = self.blocks(turns)
        return str(int(count) * loop.tile) if count.isdigit() else f"{count} * {loop.tile}"

    def offset(self, value: str, dim: str) -> list[str]:
        """Return what is added to a local coordinate to make it one of the whole tensor."""
        p, found = self.program, []
        for name in p.offsets[value].get(dim, ()):
            axis = next(a for a in p.space.axes if a.name == name)
            if dim == parts_of(axis.dim):
                found.append(f"{name}_index")
                continue
            tile = self.hop(axis) if axis.dim == dim else p.type(value).dim(dim).size
            found.append(f"{'step' if name == 'loop' else f'{name}_index'} * {tile}")
        return found

    def globally(self, value: str, dim: str, local: str) -> str:
        """Return a coordinate of the whole tensor."""
        return " + ".join((*self.offset(value, dim), local))

    def limit(self, value: str, dim: str) -> str:
        """Return where a value ends along a dim: with the tensor, or the block's part of it."""
        extent = self.extent(dim)
        for axis in self.program.parts(value, dim):
            extent = f"min({extent}, ({axis.name}_index + 1) * {self.tile_of(axis)})"
        return extent

    def is_wide(self, value: str, dim: str, width: int) -> bool:
        """Say whether the tiles of a tensor begin at multiples of a vector along a dim."""
        axes = [
            a for a in self.program.space.axes if a.name in self.program.offsets[value].get(dim, ())
        ]
        return all(a.tile % width == 0 for a in axes if a.dim == dim)
