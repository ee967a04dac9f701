"""The forms that a value may take: where its elements lie, in memory or in the lanes of warps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from math import prod

WARP_LANES = 32
LINE_TILE = 8  # lines of a fragment that its lanes hold at once


class Place(Enum):
    """Which memory holds a value."""

    DEVICE = "device"
    SHARED = "shared"
    CLUSTER = "distributed shared"


class Swizzle(Enum):
    """How a tile's 16-byte pieces are arranged in shared memory."""

    NONE = "in order"
    XOR = "swizzled"  # piece i of a 128-byte row lies at i xor (row mod 8)
    HALVES = "odd rows swap halves"  # piece i of a 128-byte row lies at i xor 4 (row mod 2)
    PADDED = "padded"  # 16 bytes behind every line


class Copy(Enum):
    """The instruction that brings a tile from device memory."""

    PLAIN = "plain loads"
    CP_ASYNC = "cp.async"
    BULK = "cp.async.bulk"
    TENSOR = "cp.async.bulk.tensor"

    @property
    def tracked(self) -> bool:
        """Whether an mbarrier tells readers of its arrival, so that no block barrier has to."""
        return self in (Copy.BULK, Copy.TENSOR)


class Lanes(Enum):
    """Which elements of rows x columns a lane holds; lane = 4 g + t.

    Both maps of a contraction's operand: contracted elements may be numbered in any way as long as
    both operands agree (csrc/tile/mma/fragments.cuh). PAIRS is what ldmatrix leaves and what an mma
    makes (PTX ISA, matrix fragments for mma.m16n8k16).
    """

    OCTETS = "octets"  # rows 8 i + g, columns 32 c + 8 t + 0..7
    PAIRS = "pairs"  # rows 8 i + g, columns 8 c + 2 t + 0..1
    SPREAD = "spread"  # neighbouring elements in neighbouring threads of the block

    @property
    def run(self) -> int:
        """Neighbouring columns that a lane holds."""
        return {"octets": 8, "pairs": 2, "spread": 1}[self.value]


@dataclass(frozen=True)
class Stored:
    """A value in memory, dims from slow to fast."""

    place: Place
    order: tuple[str, ...]
    swizzle: Swizzle = Swizzle.NONE
    slice: str = ""  # every warp has its own part along this dim, which it alone writes and reads
    parts: str = ""  # every warp has its own partial sum over this dim
    copy: Copy | None = None  # that brings it in

    def __str__(self) -> str:
        words = [f"{self.place.value} [{', '.join(self.order)}]"]
        words += [self.swizzle.value] if self.place is not Place.DEVICE else []
        words += [f"by warps along {self.slice}"] if self.slice else []
        words += [f"a sum over {self.parts} of every warp"] if self.parts else []
        words += [f"through {self.copy.value}"] if self.copy else []
        return ", ".join(words)


@dataclass(frozen=True)
class Fragment:
    """A value in registers: rows and columns dealt out to lanes, one dim to the warps.

    A value without the dealt dim is whole in every warp, or `pending`: every warp has its own
    partial sum (or its own bound) over that dim.
    """

    lanes: Lanes
    rows: tuple[str, ...]
    cols: tuple[str, ...]
    split: str = ""
    pending: str = ""

    def __str__(self) -> str:
        dims = f"{self.lanes.value} [{', '.join(self.rows)} | {', '.join(self.cols)}]"
        words = [f"registers, {dims}"]
        words += [f"by warps along {self.split}"] if self.split else []
        words += [f"a part over {self.pending} in every warp"] if self.pending else []
        return ", ".join(words)


Form = Stored | Fragment
UNIFORM = Fragment(Lanes.SPREAD, (), ())  # one number, the same in all threads


@dataclass(frozen=True)
class Frame:
    """An index space in registers; values that lack some of its dims are aligned with it."""

    lanes: Lanes
    rows: tuple[str, ...]
    cols: tuple[str, ...]
    split: str = ""

    @property
    def dims(self) -> frozenset[str]:
        """Its dims."""
        return frozenset(self.rows + self.cols)

    def of(self, dims: Iterable[str], pending: str = "") -> Fragment:
        """Return the fragment of a value with these dims, all of them the frame's."""
        wanted = set(dims)
        rows = tuple(d for d in self.rows if d in wanted)
        cols = tuple(d for d in self.cols if d in wanted)
        if not rows and not cols:
            return UNIFORM if not pending else Fragment(Lanes.SPREAD, (), (), "", pending)
        lanes = self.lanes
        if not cols and lanes is Lanes.OCTETS:
            lanes = Lanes.PAIRS  # one element per row: the maps are the same
        return Fragment(lanes, rows, cols, self.split if self.split in wanted else "", pending)


@dataclass(frozen=True)
class Tile:
    """What forms are measured against: extents of a block's tiles, and its warps."""

    extents: Mapping[str, int]
    warps: int

    def extent(self, dims: Iterable[str], dealt: str = "") -> int:
        """Return the product of extents, `dealt` divided among the warps."""
        return prod(
            -(-self.extents[d] // self.warps) if d == dealt else self.extents[d] for d in dims
        )

    def lane_elements(self, form: Fragment) -> int:
        """Return how many elements a lane holds, padding counted in."""
        if form.lanes is Lanes.SPREAD:
            elements = self.extent(form.rows + form.cols)
            return max(1, -(-elements // (self.warps * WARP_LANES)))
        rows, cols = self.extent(form.rows, form.split), self.extent(form.cols, form.split)
        lines = -(-rows // LINE_TILE) if form.rows else 1
        runs = -(-cols // (4 * form.lanes.run)) if form.cols else 1
        return lines * runs * (form.lanes.run if form.cols else 1)

    def registers(self, form: Fragment, width: int) -> int:
        """Return the registers of a thread that hold a fragment of `width`-byte elements."""
        return -(-self.lane_elements(form) * max(width, 2) // 4)

    def shared_bytes(self, form: Stored, width: int) -> int:
        """Return the bytes of shared memory that a stored tile takes."""
        elements = self.extent(form.order)
        lines = elements // self.extents[form.order[-1]] if form.order else 1
        if form.slice == (form.order or ("",))[-1]:
            lines *= self.warps
        padding = lines * 16 if form.swizzle is Swizzle.PADDED else 0
        return (elements * width + padding) * (self.warps if form.parts else 1)
