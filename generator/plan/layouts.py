"""The layouts that a value may take: where its elements lie, in memory or in registers of lanes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from math import prod

WARP_LANES = 32
LINE_TILE = 8  # rows of a fragment that the lanes of a warp hold at once


class Place(Enum):
    """Which memory holds a value."""

    DEVICE = "device"
    SHARED = "shared"
    CLUSTER = "distributed shared"


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
    """A value in memory, dims from slow to fast."""

    place: Place
    order: tuple[str, ...]
    swizzle: Swizzle = Swizzle.NONE
    warp_dim: str = ""  # each warp has its own part along this dim, which it alone reads
    partial: str = ""  # each warp has stored its own partial sum over this dim
    copy: Copy | None = None  # that loads it

    def __str__(self) -> str:
        words = [f"{self.place.value} [{', '.join(self.order)}]"]
        words += [self.swizzle.value] if self.place is not Place.DEVICE else []
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
