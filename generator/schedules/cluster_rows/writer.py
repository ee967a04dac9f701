"""Cluster rows as CUDA: the statements of row-wise kernels, of a piece of a row."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_kernels.generator.emit.cuda import Part, lines_of
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.row_wise.writer import Rows, write_rows
from mirage_kernels.generator.schedules.schedule import Variant

ABOUT = "cluster rows: the blocks of a cluster hold a token together, each a piece in registers"


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
