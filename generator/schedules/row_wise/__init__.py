"""Row-wise kernels: a block holds a row, or a tile of one where nothing is summed.

Their knobs, which serve any number of tokens, and their predicted time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from mirage_kernels.generator.plan.layouts import WARP_LANES
from mirage_kernels.generator.plan.program import Do, Roles, TileProgram
from mirage_kernels.generator.schedules.latency import ELEMENT_BYTES, ROW_WARP_US
from mirage_kernels.generator.schedules.loop import ALIGNED_ELEMENTS
from mirage_kernels.generator.schedules.schedule import Knobs, Model, Ranked
from mirage_kernels.generator.target import Target

WARPS, CHUNKS = (1, 2, 4, 8, 16), 4  # of a block that holds a row; of its threads
TILE_WARPS, TILE_CHUNKS = 4, 1  # of a row tile; two pieces a thread were 3 to 9 % slower
MOST_CHUNKS = 8  # 16-byte pieces of a row that a thread holds
START_US = 1.9  # and end
COMPARED_AT = 64  # tokens: one variant serves any number


@dataclass(frozen=True)
class RowWise(Knobs):
    """Template constants of a row-wise or an elementwise kernel."""

    schedule: ClassVar[str] = "row_wise"

    warps: int
    chunks: int  # 16-byte pieces that a thread takes
    elements: int = 0  # of a row that a block takes; 0: all of them

    @property
    def template(self) -> str:
        """Name the C++ template of its configs, for which the form overloads `launch`."""
        return "Elementwise" if self.elements else "RowWise"

    @property
    def preference(self) -> tuple[int, ...]:
        """Order knobs that are predicted to be equally fast."""
        return (-self.warps, -self.chunks)

    def config(self, program: TileProgram) -> dict[str, int]:
        """Return the constants of an emitted kernel's config, by name."""
        return {"warps": self.warps} | ({"line": self.elements} if self.elements else {})

    def tiles(self, roles: Roles) -> dict[str, int]:
        """Return the tile sizes of the muGraph that such a kernel runs, by dim."""
        return {roles.tokens: 1} | ({roles.depth: self.elements} if self.elements else {})


def row_wise_knobs(depth: int) -> RowWise:
    """Return the knobs of a block per token: few elements per thread."""
    octets = -(-depth // ALIGNED_ELEMENTS)
    warps = next((w for w in WARPS if octets <= w * WARP_LANES * CHUNKS), max(WARPS))
    return RowWise(warps, -(-octets // (warps * WARP_LANES)))


def elementwise_knobs(depth: int) -> RowWise:
    """Return the knobs of row tiles: the longest that divides a row evenly.

    A few elements per thread; the depth is a multiple of 8.
    """
    octets, most = depth // ALIGNED_ELEMENTS, TILE_WARPS * WARP_LANES * TILE_CHUNKS
    tile = max(n for n in range(1, min(octets, most) + 1) if octets % n == 0)
    warps = min(TILE_WARPS, -(-tile // WARP_LANES))
    return RowWise(warps, -(-tile // (warps * WARP_LANES)), tile * ALIGNED_ELEMENTS)


def whole_row_blocks(depth: int) -> Iterator[tuple[int, int]]:
    """Yield warps of a row's block, all of which have work, and the pieces of a thread."""
    octets = ceil(depth / ALIGNED_ELEMENTS)
    for warps in WARPS:
        chunks = ceil(octets / (warps * WARP_LANES))
        idle = warps > 1 and (warps - 1) * WARP_LANES * chunks >= octets
        if chunks <= MOST_CHUNKS and not idle:
            yield warps, chunks


def fits(program: TileProgram, on: Target) -> tuple[str, ...]:
    """Return why a row-wise kernel does not fit a program."""
    return ("it has a loop",) if program.loop else ()


def choose(program: TileProgram, size: int, on: Target) -> RowWise:
    """Return the knobs, the same for any number of tokens."""
    depth = program.extents[program.roles.depth]
    return elementwise_knobs(depth) if program.parted else row_wise_knobs(depth)


def candidates(program: TileProgram, size: int, on: Target) -> Iterator[RowWise]:
    """Yield blocks that hold a row each; a tile of one as the rule has it."""
    if program.parted:
        yield choose(program, size, on)
        return
    for warps, chunks in whole_row_blocks(program.extents[program.roles.depth]):
        yield RowWise(warps, chunks)


def row_model(program: TileProgram, on: Target, tokens: int, warps: int, chunks: float) -> float:
    """Return the predicted time of rows, of so many warps and pieces of a thread: microseconds."""
    statements = [s for s in program.lines if s.do in (Do.LOAD, Do.STORE)]
    rows = sum(program.roles.tokens in s.type.names for s in statements)
    row_us = rows * program.extents[program.roles.depth] * ELEMENT_BYTES / on.memory_bytes_per_us
    crowded = ROW_WARP_US * warps * max(1.0, tokens / on.multiprocessors)
    return row_us * tokens + crowded + chunks * ROW_WARP_US


def predict(program: TileProgram, on: Target) -> Model:
    """Return the model of a program (`schedules/latency.py`)."""

    def model(knobs: RowWise, tokens: int) -> float:
        return START_US + row_model(program, on, tokens, knobs.warps, knobs.chunks)

    return model


SCHEDULE = Ranked(
    knobs=RowWise,
    fits=fits,
    choose=choose,
    candidates=candidates,
    predict=predict,
    buckets=(COMPARED_AT,),
)
