"""Which knobs a cluster split-K kernel has for a bucket of tokens, by rule and to be tried.

Above 32 tokens it is faster than sliced-K, above 16 where its warpgroups take turns.
"""

from __future__ import annotations

from collections.abc import Iterator

from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.cluster_split_k.block import SplitBlock, split
from mirage_kernels.generator.schedules.cluster_split_k.knobs import BLOCKS, ClusterSplitK
from mirage_kernels.generator.schedules.loop import FEW_TOKENS
from mirage_kernels.generator.schedules.producer_blocks import ROW_TILE, rows_for
from mirage_kernels.generator.schedules.warpgroups import BOX_DEPTH, WITH_WARPGROUPS
from mirage_kernels.generator.target import Target

FEW_IN_TURNS = 16  # tokens; up to so many sliced-K is as fast where warpgroups take turns
FEWEST_STAGES = 3
MOST_BOX_LINES = 256  # of the copy engine
MOST_BYTES_IN_FLIGHT = 80 * 1024  # of weights: more was slower
TOKENS = 32  # what csrc/tile wants a block's tokens to be a multiple of


def choose(program: TileProgram, tokens: int, on: Target) -> ClusterSplitK | None:
    """Return the knobs for a bucket, None where such blocks cannot serve or sliced-K is better."""
    extents = program.extents
    rows = rows_for(extents[program.roles.rows], on.multiprocessors // BLOCKS)
    block = SplitBlock.of(program).sized(rows, tokens)
    if tokens <= (FEW_IN_TURNS if block.turns > 1 else FEW_TOKENS):
        return None
    stages = split_stages(program, block, on)
    return ClusterSplitK(tokens, rows, stages, block.groups) if stages else None


def candidates(program: TileProgram, tokens: int, on: Target) -> Iterator[ClusterSplitK]:
    """Yield knobs to try for a bucket."""
    if tokens % TOKENS or split(program) is None:
        return
    all_rows = program.extents[program.roles.rows]
    for rows in range(ROW_TILE, all_rows + ROW_TILE, ROW_TILE):
        block = SplitBlock.of(program).sized(rows, tokens)
        deepest = split_stages(program, block, on)
        for stages in range(deepest, FEWEST_STAGES - 1, -block.turns):
            yield ClusterSplitK(tokens, rows, stages, block.groups)


def split_stages(program: TileProgram, block: SplitBlock, on: Target) -> int:
    """Return how many steps a block's ring holds; 0 where such blocks cannot serve."""
    made = split(program)
    if made is None or on.arch not in WITH_WARPGROUPS or block.depth % (BLOCKS * BOX_DEPTH):
        return 0
    if block.registers > block.most_registers or block.rows > MOST_BOX_LINES:
        return 0
    step = block.boxes * block.row_tensors * block.rows * BOX_DEPTH * 2
    deepest = max(FEWEST_STAGES * block.turns // block.boxes, MOST_BYTES_IN_FLIGHT // step)
    stages = range(FEWEST_STAGES, deepest + 1)
    whole = [s for s in stages if s % block.turns == 0]
    return max((s for s in whole if block.shared_bytes(s) <= on.shared_bytes), default=0)
