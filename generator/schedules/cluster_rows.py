"""Cluster rows: the blocks of a cluster hold a token's row together, for few tokens of long rows.

Where a block holds a whole row, few tokens leave most multiprocessors idle, and each thread waits
for many loads. With x and a residual of 8192 elements, eight blocks a row take 0.87 of the time at
one token on an H200, 0.86 at 8, and 1.04 at 16; with x alone they take as long (docs/planning.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from mirage_kernels.generator.emit.cuda import Part, lines_of
from mirage_kernels.generator.plan.arranged import Arranged
from mirage_kernels.generator.plan.layouts import WARP_LANES
from mirage_kernels.generator.plan.program import Do, Layout, Roles, TileProgram
from mirage_kernels.generator.schedules.loop import ALIGNED_ELEMENTS
from mirage_kernels.generator.schedules.row_wise import Rows, row_model, write_rows
from mirage_kernels.generator.schedules.schedule import Knobs, Model, Ranked, Variant
from mirage_kernels.generator.target import Target

BLOCKS, WARPS = (4, 8), (2, 4)  # of a cluster, of a block
MOST_TOKENS = 8
LEAST_DEPTH, LEAST_READ = 8192, 2  # elements of a row, rows of a token that are read
START_US = 1.5  # and end
ABOUT = "cluster rows: the blocks of a cluster hold a token together, each a piece in registers"


@dataclass(frozen=True)
class ClusterRows(Knobs):
    """Template constants of a kernel whose clusters hold a row each."""

    schedule: ClassVar[str] = "cluster_rows"

    warps: int
    blocks: int

    def tiles(self, roles: Roles) -> dict[str, int]:
        """Return the tile sizes of the muGraph that such a kernel runs, by dim."""
        return {roles.tokens: 1}


def fits(program: TileProgram, on: Target) -> tuple[str, ...]:
    """Return why cluster rows do not fit a program."""
    if program.loop:
        return ("it has a loop",)
    depth = program.extents[program.roles.depth]
    read = sum(s.do is Do.LOAD and s.layout is Layout.LINE for s in program.lines)
    pieces = max(BLOCKS) * ALIGNED_ELEMENTS
    reasons = {
        f"{on.arch} has no clusters": not on.has_clusters,
        "nothing is summed along a row": program.parted,
        f"it reads {read} row per token, which one block does as fast": read < LEAST_READ,
        f"its rows have {depth} elements, fewer than {LEAST_DEPTH}": depth < LEAST_DEPTH,
        f"{depth} elements a row are no multiple of {pieces}": depth % pieces != 0,
    }
    return tuple(reason for reason, holds in reasons.items() if holds)


def choose(program: TileProgram, size: int, on: Target) -> ClusterRows | None:
    """Return the knobs for few tokens."""
    return ClusterRows(warps=2, blocks=8) if size <= MOST_TOKENS else None


def candidates(program: TileProgram, size: int, on: Target) -> Iterator[ClusterRows]:
    """Yield clusters for few tokens."""
    for blocks in BLOCKS if size <= MOST_TOKENS else ():
        for warps in WARPS:
            yield ClusterRows(warps, blocks)


def predict(program: TileProgram, on: Target) -> Model:
    """Return the model of a program (`schedules/latency.py`)."""
    vectors = program.extents[program.roles.depth] / ALIGNED_ELEMENTS

    def model(knobs: ClusterRows, tokens: int) -> float:
        chunks = vectors / (knobs.blocks * knobs.warps * WARP_LANES)
        return START_US + row_model(program, on, tokens, knobs.blocks * knobs.warps, chunks)

    return model


SCHEDULE = Ranked(
    knobs=ClusterRows,
    fits=fits,
    choose=choose,
    candidates=candidates,
    predict=predict,
    arranged=lambda program, knobs: Arranged(knobs.tiles(program.roles)),
    buckets=(MOST_TOKENS,),
)


def parts(program: TileProgram, variants: Sequence[Variant]) -> list[Part]:
    """Return the form of a kernel whose clusters hold a row each."""
    piece = f"{program.roles.depth} / Config::kBlocks"
    rows = Rows(
        "ClusterRows",
        piece,
        token="blockIdx.x / Config::kBlocks",
        first=f"tile::cluster_rank() * ({piece})",
        grid="args.dims[0] * Config::kBlocks, 1, kThreads, 0, Config::kBlocks",
        cluster=True,
    )
    includes = ("tile/cluster_rows/lines.cuh", "tile/tile.cuh")
    return [Part("cluster_rows", ABOUT, includes, (), lines_of(write_rows, program, rows), True)]
