"""The layouts that a value may take: where its elements lie, in memory or in registers of lanes.

Bank conflicts are counted: a warp reads or writes a fragment one instruction at a time. The byte
addresses of the lanes follow from the fragment's lane map and the tile's strides; an instruction
takes as many wavefronts as the fullest bank has words to serve. Sources: `hardware.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod

from mirage_kernels.generator.plan.hardware import WAVEFRONT_BYTES

WARP_LANES = 32
LINE_TILE = 8  # rows of a fragment that the lanes of a warp hold at once
BANKS, BANK_BYTES = 32, 4
VECTOR_BYTES = 16  # what swizzles move and what the widest access takes
MATRIX = 8  # rows and columns of an ldmatrix matrix, 2-byte elements (PTX ISA, ldmatrix)


class Swizzle(Enum):
    """How a tile's 16-byte vectors are arranged in shared memory."""

    NONE = "in order"
    XOR = "swizzled"  # vector i of a 128-byte row lies at i xor (row mod 8)
    HALVES = "odd rows swap halves"  # vector i of a 128-byte row lies at i xor 4 (row mod 2)
    PADDED = "padded"  # 16 bytes behind every row


class Copy(Enum):
    """The instruction that brings a tile from device memory into shared memory."""

    PLAIN = "plain loads"
    CP_ASYNC = "cp.async"
    BULK = "cp.async.bulk"
    TENSOR = "cp.async.bulk.tensor"


class Lanes(Enum):
    """Which elements of rows x columns a lane holds; lane = 4 g + t.

    Both operands of a contraction may number the contracted elements in any way if they agree
    (csrc/tile/mma/fragments.cuh). MMA is what ldmatrix leaves and what an mma makes (PTX ISA,
    matrix fragments for mma.m16n8k16).
    """

    VECTORS = "16-byte vectors"  # rows 8 i + g, columns 32 c + 8 t + 0..7
    MMA = "mma fragment"  # rows 8 i + g, columns 8 c + 2 t + 0..1
    STRIPED = "striped"  # neighbouring elements in neighbouring threads of the block

    @property
    def run(self) -> int:
        """Neighbouring columns that a lane holds."""
        return {Lanes.VECTORS: 8, Lanes.MMA: 2, Lanes.STRIPED: 1}[self]


@dataclass(frozen=True)
class Stored:
    """A value in shared memory, dims from slow to fast."""

    order: tuple[str, ...]
    swizzle: Swizzle = Swizzle.NONE
    warp_dim: str = ""  # each warp has its own part along this dim, which it alone reads
    partial: str = ""  # each warp has stored its own partial sum over this dim
    copy: Copy | None = None  # that loads it

    def __str__(self) -> str:
        words = [f"shared [{', '.join(self.order)}]", self.swizzle.value]
        words += [f"through {self.copy.value}"] if self.copy else []
        return ", ".join(words + _warps(self))


@dataclass(frozen=True)
class Fragment:
    """A value in registers: rows and columns partitioned over lanes, one dim over the warps.

    A value without `warp_dim` is whole in every warp, or `partial`: each warp has its own partial
    sum (or its own maximum) over that dim.
    """

    lanes: Lanes
    rows: tuple[str, ...]
    cols: tuple[str, ...]
    warp_dim: str = ""
    partial: str = ""

    def __str__(self) -> str:
        dims = f"[{', '.join(self.rows)} | {', '.join(self.cols)}]"
        return ", ".join([f"registers, {self.lanes.value} {dims}", *_warps(self)])

    @property
    def dims(self) -> tuple[str, ...]:
        """Its dims, rows first."""
        return self.rows + self.cols

    def of(self, dims: Iterable[str], partial: str = "") -> Fragment:
        """Return the layout, aligned with this one, of a value that has only these of its dims."""
        wanted = set(dims)
        rows = tuple(d for d in self.rows if d in wanted)
        cols = tuple(d for d in self.cols if d in wanted)
        if not rows and not cols:
            return Fragment(Lanes.STRIPED, (), (), "", partial)
        one_element_per_row = not cols and self.lanes is Lanes.VECTORS
        lanes = Lanes.MMA if one_element_per_row else self.lanes  # the maps are the same there
        return Fragment(
            lanes, rows, cols, self.warp_dim if self.warp_dim in wanted else "", partial
        )


ValueLayout = Stored | Fragment
UNIFORM = Fragment(Lanes.STRIPED, (), ())  # one number, the same in all threads


def _warps(layout: ValueLayout) -> list[str]:
    words = [f"partitioned over warps along {layout.warp_dim}"] if layout.warp_dim else []
    return words + ([f"each warp with its own over {layout.partial}"] if layout.partial else [])


@dataclass(frozen=True)
class Tile:
    """What sizes of layouts follow from: extents of a block's tiles, and its warps."""

    extents: Mapping[str, int]
    warps: int

    def extent(self, dims: Iterable[str], warp_dim: str = "") -> int:
        """Return the product of extents; that of `warp_dim` is divided among the warps."""
        return prod(
            -(-self.extents[d] // self.warps) if d == warp_dim else self.extents[d] for d in dims
        )

    def lane_elements(self, layout: Fragment) -> int:
        """Return how many elements a lane holds, padding counted in."""
        if layout.lanes is Lanes.STRIPED:
            return max(1, -(-self.extent(layout.dims) // (self.warps * WARP_LANES)))
        rows, cols = (self.extent(d, layout.warp_dim) for d in (layout.rows, layout.cols))
        lines = -(-rows // LINE_TILE) if layout.rows else 1
        runs = -(-cols // (4 * layout.lanes.run)) if layout.cols else 1
        return lines * runs * (layout.lanes.run if layout.cols else 1)

    def registers(self, layout: Fragment, width: int) -> int:
        """Return the registers of a thread that hold elements of `width` bytes."""
        return -(-self.lane_elements(layout) * max(width, 2) // 4)

    def shared_bytes(self, layout: Stored, width: int) -> int:
        """Return the bytes of shared memory that a stored tile takes."""
        elements = self.extent(layout.order)
        rows = elements // self.extents[layout.order[-1]] if layout.order else 1
        rows *= self.warps if layout.warp_dim in layout.order[-1:] else 1
        padding = rows * 16 if layout.swizzle is Swizzle.PADDED else 0
        return (elements * width + padding) * (self.warps if layout.partial else 1)


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
    group, passes = WAVEFRONT_BYTES // max(width, BANK_BYTES), 0
    for i in range(0, len(addresses), group):
        offsets = range(0, width, min(width, BANK_BYTES))
        words = {(at + byte) // BANK_BYTES for at in addresses[i : i + group] for byte in offsets}
        passes += max(Counter(word % BANKS for word in words).values())
    return passes


def access(fragment: Fragment, stored: Stored, tile: Tile, width: int) -> Access:
    """Return how a warp reads or writes a fragment of a tile in shared memory.

    `width` is the size of an element in bytes.
    """
    elements = tile.lane_elements(fragment)
    if fragment.lanes is Lanes.STRIPED:
        moved = elements * width
        return Access(-(-moved // VECTOR_BYTES), -(-moved * WARP_LANES // WAVEFRONT_BYTES))
    strides = _strides(stored, tile, width)
    row_stride, col_stride = (
        min((strides[d] for d in dims), default=0) for dims in (fragment.rows, fragment.cols)
    )
    rows, cols = (tile.extent(d, fragment.warp_dim) for d in (fragment.rows, fragment.cols))

    def address(row: int, col: int) -> int:
        at = min(row, rows - 1) * row_stride + min(col, cols - 1) * col_stride
        line = at // WAVEFRONT_BYTES
        swapped = {Swizzle.XOR: line % 8, Swizzle.HALVES: line % 2 * 4}
        return at ^ swapped.get(stored.swizzle, 0) * VECTOR_BYTES

    # The widest aligned vectors of neighbouring elements of a lane.
    run, wide = fragment.lanes.run if fragment.cols else 1, width
    while col_stride == width and wide < min(run * width, 16) and row_stride % (2 * wide) == 0:
        wide *= 2
    starts = range(0, run, max(1, wide // width))
    lanes = [(row, t * run) for row in range(8) for t in range(4)]
    passes = sum(wavefronts([address(g, t + j) for g, t in lanes], wide) for j in starts)
    vectors = Access(elements // run * len(starts), elements // run * passes)
    # ldmatrix (stmatrix), transposing where the rows lie together: it takes 8 x 8 matrices of
    # 2-byte elements whose lines are 16 contiguous, aligned bytes.
    along_rows = col_stride == width
    pitch = row_stride if along_rows else col_stride
    two_dims = fragment.lanes is Lanes.MMA and fragment.rows and fragment.cols
    if not two_dims or width != 2 or width not in (col_stride, row_stride) or pitch % VECTOR_BYTES:
        return vectors
    lines = [address(i, 0) if along_rows else address(0, i) for i in range(MATRIX)]
    passes = elements // 2 * wavefronts(lines, VECTOR_BYTES)
    matrices = Access(-(-elements // 8), passes, matrices=True)
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
            stride = min(stride, WAVEFRONT_BYTES)
    return strides
