"""Which knobs a cluster split-K kernel has for a bucket of tokens, and its predicted time.

Above 32 tokens it is faster than sliced-K, above 16 where its warpgroups take turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mirage_kernels.generator.plan.program import Do, Roles, TileProgram
from mirage_kernels.generator.schedules.cluster_split_k.knobs import (
    BLOCKS,
    GROUPS,
    MOST_GROUPS,
    ClusterSplitK,
    SplitBlock,
    split,
)
from mirage_kernels.generator.schedules.latency import TOKEN_BYTES, Model, Streaming
from mirage_kernels.generator.schedules.loop import (
    BOX_DEPTH,
    FEW_TOKENS,
    GROUP_ROWS,
    ROW_TILE,
    lowered,
    own,
    reasons_against,
    rows_for,
)
from mirage_kernels.generator.schedules.schedule import Knobs, Ranked
from mirage_kernels.generator.target import Target

FEW_IN_TURNS = 16  # tokens; up to so many sliced-K is as fast where warpgroups take turns
FEWEST_STAGES = 3
MOST_BOX_LINES = 256  # of the copy engine
MOST_BYTES_IN_FLIGHT = 80 * 1024  # of weights: more was slower
TOKENS = 32  # what csrc/tile wants a block's tokens to be a multiple of

START_US = 2.0  # and end
STEP_CYCLES, COMPUTED_CYCLES = 250.0, 600.0  # per 64 elements of the depth, as tiles lie, computed
VECTOR_CYCLES = 1.8  # per element of the depth, where vectors along it are computed


def fits(program: TileProgram, on: Target) -> tuple[str, ...]:
    """Return why cluster split-K does not fit a program."""
    form = () if split(program) else ("its loop is more than products of rows with one operand",)
    return (*reasons_against(on), *form)


def choose(program: TileProgram, tokens: int, on: Target) -> ClusterSplitK | None:
    """Return the knobs for a bucket, None where such blocks cannot serve or sliced-K is better."""
    rows = rows_for(program.extents[program.roles.rows], on.multiprocessors // BLOCKS)
    turns = SplitBlock.of(program).turns(rows)
    if tokens <= (FEW_IN_TURNS if turns > 1 else FEW_TOKENS):
        return None
    return next(_by_stages(program, rows, tokens, on), None)


def candidates(program: TileProgram, tokens: int, on: Target) -> Iterator[ClusterSplitK]:
    """Yield knobs to try for a bucket."""
    if tokens % TOKENS == 0:
        for rows in range(ROW_TILE, program.extents[program.roles.rows] + ROW_TILE, ROW_TILE):
            yield from _by_stages(program, rows, tokens, on)


def _by_stages(program: TileProgram, rows: int, tokens: int, on: Target) -> Iterator[ClusterSplitK]:
    """Yield knobs whose rings fit, the deepest first; none where such blocks cannot serve.

    Three warpgroups have up to 192 rows, 44.9 us against 48.9 with two tiles each of two (8192 ->
    10240).
    """
    block, groups = SplitBlock.of(program), GROUPS
    if GROUPS < -(-rows // GROUP_ROWS) <= MOST_GROUPS:
        groups = MOST_GROUPS
    least = ClusterSplitK(tokens, rows, FEWEST_STAGES, groups)
    if block.depth % (BLOCKS * BOX_DEPTH) or rows > MOST_BOX_LINES:
        return
    if block.registers(least) > block.most_registers(least):
        return
    turns, boxes = block.turns(rows), block.boxes(rows)
    step = boxes * block.row_tensors * rows * BOX_DEPTH * 2
    deepest = max(FEWEST_STAGES * turns // boxes, MOST_BYTES_IN_FLIGHT // step)
    for stages in range(deepest // turns * turns, FEWEST_STAGES - 1, -turns):
        knobs = replace(least, stages=stages)
        if block.shared_bytes(knobs) <= on.shared_bytes:
            yield knobs


def predict(program: TileProgram, on: Target) -> Model:
    """Return the model of a program (`schedules/latency.py`)."""
    work, block = Streaming.of(program, on), SplitBlock.of(program)
    products = sum(s.do is Do.CONTRACT for s in program.loop)
    step_cycles = COMPUTED_CYCLES if block.computed_rows else STEP_CYCLES
    steps = products * block.depth / (BLOCKS * BOX_DEPTH)

    def model(knobs: Knobs, tokens: int) -> float:
        assert isinstance(knobs, ClusterSplitK)
        taken = work.weights_us(knobs) + work.tokens_us(knobs, TOKEN_BYTES)
        cycles = steps / block.turns(knobs.rows) * block.tiles(knobs) * step_cycles
        streamed = work.warpgroups_us(knobs, taken, cycles)
        return START_US + streamed + work.vectors_us(VECTOR_CYCLES)

    return model


SCHEDULE = Ranked(
    name=ClusterSplitK.schedule,
    knobs=ClusterSplitK,
    roles=Roles,
    lower=lowered,
    fits=fits,
    choose=choose,
    candidates=candidates,
    registers=lambda program, knobs: SplitBlock.of(program).registers(own(ClusterSplitK, knobs)),
    shared_bytes=lambda program, knobs: SplitBlock.of(program).shared_bytes(
        own(ClusterSplitK, knobs)
    ),
    predict=predict,
)
