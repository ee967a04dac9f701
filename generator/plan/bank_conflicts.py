"""Bank conflicts, counted: the addresses of a warp's lanes, mapped to the banks.

A warp reads or writes a fragment one instruction at a time. The byte addresses of the lanes follow
from the fragment's lane map and the tile's strides; an instruction takes as many wavefronts as the
fullest bank has words to serve. Sources of the rules: `hardware.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_kernels.generator.plan.layouts import Fragment, Lanes, Stored, Swizzle, Tile

BANKS, BANK_BYTES = 32, 4
VECTOR_BYTES = 16  # what swizzles move and what the widest access takes
MATRIX = 8  # rows and columns of an ldmatrix matrix, 2-byte elements (PTX ISA, ldmatrix)


@dataclass(frozen=True)
class Access:
    """How one warp reads or writes a fragment: instructions, and wavefronts of all of them."""

    instructions: int
    wavefronts: int
    matrices: bool = False  # by ldmatrix


def wavefronts(addresses: Sequence[int], width: int) -> int:
    """Return the passes that one instruction takes whose lanes access `width` bytes each.

    Lanes are served in groups that take 128 bytes together; equal words are read once.
    """
    group = max(1, BANKS * BANK_BYTES // max(width, BANK_BYTES))
    return sum(
        _fullest_bank(addresses[i : i + group], width) for i in range(0, len(addresses), group)
    )


def _fullest_bank(addresses: Sequence[int], width: int) -> int:
    step = min(width, BANK_BYTES)
    words = {(at + byte) // BANK_BYTES for at in addresses for byte in range(0, width, step)}
    banks = [word % BANKS for word in words]
    return max(banks.count(bank) for bank in set(banks))


def access(fragment: Fragment, stored: Stored, tile: Tile, width: int) -> Access:
    """Return how a warp reads or writes a fragment of a tile in shared memory.

    `width` is the size of an element in bytes.
    """
    elements = tile.lane_elements(fragment)
    if fragment.lanes is Lanes.STRIPED:
        moved = elements * width
        return Access(-(-moved // VECTOR_BYTES), -(-moved * 32 // (BANKS * BANK_BYTES)))
    strides = _strides(stored, tile, width)
    row_stride = min((strides[d] for d in fragment.rows), default=0)
    col_stride = min((strides[d] for d in fragment.cols), default=0)
    rows = tile.extent(fragment.rows, fragment.warp_dim)
    cols = tile.extent(fragment.cols, fragment.warp_dim)

    def address(row: int, col: int) -> int:
        at = min(row, rows - 1) * row_stride + min(col, cols - 1) * col_stride
        line = at // (BANKS * BANK_BYTES)
        swapped = {Swizzle.XOR: line % 8, Swizzle.HALVES: line % 2 * 4}
        return at ^ swapped.get(stored.swizzle, 0) * VECTOR_BYTES

    # The widest aligned vectors of neighbouring elements of a lane.
    run = fragment.lanes.run if fragment.cols else 1
    wide = width
    while col_stride == width and wide < min(run * width, 16) and row_stride % (2 * wide) == 0:
        wide *= 2
    step = max(1, wide // width)
    passes = sum(
        wavefronts([address(g, t * run + j) for g in range(8) for t in range(4)], wide)
        for j in range(0, run, step)
    )
    runs = elements // run
    vectors = Access(runs * -(-run // step), runs * passes)
    # ldmatrix (stmatrix), transposing where the rows lie together: it takes 8 x 8 matrices of
    # 2-byte elements whose lines are 16 contiguous, aligned bytes.
    along_rows = col_stride == width
    pitch = row_stride if along_rows else col_stride
    two_dims = fragment.lanes is Lanes.MMA and fragment.rows and fragment.cols
    if not two_dims or width != 2 or width not in (col_stride, row_stride) or pitch % VECTOR_BYTES:
        return vectors
    lines = [address(i, 0) if along_rows else address(0, i) for i in range(MATRIX)]
    matrices = Access(
        -(-elements // 8), elements // 2 * wavefronts(lines, VECTOR_BYTES), matrices=True
    )
    return min(matrices, vectors, key=lambda a: a.wavefronts)


def _strides(stored: Stored, tile: Tile, width: int) -> dict[str, int]:
    """Return bytes from element to element of each dim.

    Swizzled tiles lie in panels of 128 bytes, as the copy engine's do.
    """
    strides: dict[str, int] = {}
    stride = width
    for i, dim in enumerate(reversed(stored.order)):
        strides[dim] = stride
        stride *= tile.extent((dim,), stored.warp_dim)
        if i == 0 and stored.swizzle is Swizzle.PADDED:
            stride += VECTOR_BYTES
        elif i == 0 and stored.swizzle is not Swizzle.NONE:
            stride = min(stride, BANKS * BANK_BYTES)
    return strides
