"""Bank conflicts, counted: the addresses of a warp's lanes, laid out over the banks.

A fragment is read or written one instruction at a time. For each instruction the lanes' byte
addresses follow from the fragment's map and the tile's strides; the wavefronts are what the fullest
bank has to serve. Sources of the rules: `hardware.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_kernels.generator.plan.forms import Fragment, Lanes, Stored, Swizzle, Tile

BANKS, BANK_BYTES = 32, 4
PIECE_BYTES = 16  # what swizzles move and what the widest access takes
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
    words = {
        (at + byte) // BANK_BYTES
        for at in addresses
        for byte in range(0, max(width, 1), min(width, BANK_BYTES))
    }
    banks = [word % BANKS for word in words]
    return max(banks.count(bank) for bank in set(banks))


@dataclass(frozen=True)
class _Grid:
    """Byte strides of a fragment's rows and columns in a stored tile, and their extents."""

    row_stride: int
    col_stride: int
    rows: int
    cols: int
    swizzle: Swizzle

    def address(self, row: int, col: int) -> int:
        at = min(row, self.rows - 1) * self.row_stride + min(col, self.cols - 1) * self.col_stride
        line = at // (BANKS * BANK_BYTES)
        if self.swizzle is Swizzle.XOR:
            return at ^ line % 8 * PIECE_BYTES
        if self.swizzle is Swizzle.HALVES:
            return at ^ line % 2 * 4 * PIECE_BYTES
        return at


def _grid(form: Fragment, stored: Stored, tile: Tile, width: int) -> _Grid:
    """Return the strides; swizzled tiles lie in panels of 128 bytes, as the copy engine's do."""
    strides: dict[str, int] = {}
    stride = width
    for i, dim in enumerate(reversed(stored.order)):
        strides[dim] = stride
        stride *= tile.extent((dim,), stored.slice)
        if i == 0 and stored.swizzle is Swizzle.PADDED:
            stride += PIECE_BYTES
        elif i == 0 and stored.swizzle is not Swizzle.NONE:
            stride = min(stride, BANKS * BANK_BYTES)
    return _Grid(
        min((strides[d] for d in form.rows), default=0),
        min((strides[d] for d in form.cols), default=0),
        tile.extent(form.rows, form.split),
        tile.extent(form.cols, form.split),
        stored.swizzle,
    )


def access(form: Fragment, stored: Stored, tile: Tile, width: int) -> Access:
    """Return how a warp reads or writes a fragment of a tile in shared memory.

    `width` is the size of an element in bytes.
    """
    if form.lanes is Lanes.SPREAD:
        held = tile.lane_elements(form) * width
        instructions = -(-held // PIECE_BYTES)
        return Access(instructions, -(-held * 32 // (BANKS * BANK_BYTES)))
    grid = _grid(form, stored, tile, width)
    matrix = _by_matrices(form, grid, tile, width)
    vectors = _by_vectors(form, grid, tile, width)
    if matrix is not None and matrix.wavefronts <= vectors.wavefronts:
        return matrix
    return vectors


def _by_vectors(form: Fragment, grid: _Grid, tile: Tile, width: int) -> Access:
    """Return the accesses in the widest pieces of a lane's run that lie together and aligned."""
    run = form.lanes.run if form.cols else 1
    wide = width
    while (
        grid.col_stride == width
        and wide < min(run * width, PIECE_BYTES)
        and grid.row_stride % (2 * wide) == 0
    ):
        wide *= 2
    step = max(1, wide // width)
    passes = sum(
        wavefronts([grid.address(g, t * run + j) for g in range(8) for t in range(4)], wide)
        for j in range(0, run, step)
    )
    runs = tile.lane_elements(form) // run
    return Access(runs * -(-run // step), runs * passes)


def _by_matrices(form: Fragment, grid: _Grid, tile: Tile, width: int) -> Access | None:
    """Return the accesses by ldmatrix (stmatrix), transposing where the rows lie together.

    It takes 8 x 8 matrices of 2-byte elements whose lines are 16 contiguous, aligned bytes.
    """
    if form.lanes is not Lanes.PAIRS or width != 2 or not (form.rows and form.cols):
        return None
    lines, pitch = (
        (MATRIX, grid.row_stride) if grid.col_stride == width else (MATRIX, grid.col_stride)
    )
    if width not in (grid.col_stride, grid.row_stride) or pitch % PIECE_BYTES:
        return None
    along_rows = grid.col_stride == width
    addresses = [grid.address(i, 0) if along_rows else grid.address(0, i) for i in range(lines)]
    matrices = tile.lane_elements(form) // 2
    return Access(-(-matrices // 4), matrices * wavefronts(addresses, PIECE_BYTES), True)
