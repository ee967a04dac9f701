"""Which knobs a kernel with register operands has for a bucket of tokens, and its predicted time.

Above 16 tokens they are faster than sliced-K, where weights are multiplied as they are loaded and
the target can; there two blocks split the depth where their rows fit. A prologue kernel makes
tokens above 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import ceil

from mirage_kernels.generator.plan.layouts import WARP_LANES
from mirage_kernels.generator.plan.program import Do, Roles, TileProgram
from mirage_kernels.generator.schedules.latency import ROW_WARP_US, Model, Streaming
from mirage_kernels.generator.schedules.loop import (
    ALIGNED_ELEMENTS,
    BOX_DEPTH,
    FEW_TOKENS,
    GROUP_ROWS,
    REGISTERS,
    ROW_TILE,
    TOKEN_TILE,
    Producers,
    lowered,
    own,
    reasons_against,
    rows_for,
)
from mirage_kernels.generator.schedules.producer_blocks import (
    PAIR,
    RECEIVERS,
    STAMP_BYTES,
    producer_tiles,
)
from mirage_kernels.generator.schedules.prologue import has_prologue, main_program
from mirage_kernels.generator.schedules.register_operand.knobs import (
    BOXES,
    MOST_ROWS,
    OCTET,
    RegisterBlock,
    RegisterOperand,
    can_run,
)
from mirage_kernels.generator.schedules.row_wise.knobs import row_wise_knobs, whole_row_blocks
from mirage_kernels.generator.schedules.schedule import Knobs, Ranked
from mirage_kernels.generator.target import Target

FEW_TO_HOLD = 16  # tokens; up to so many sliced-K is as fast
FEW_IN_EVERY_BLOCK = 8  # the same of tokens that are made (16 in a prologue 11.8 us, else 12.9)
TOKENS = 16  # what csrc/tile wants a block's tokens to be a multiple of
FEWEST_OF_SEVERAL = 48  # rows of one of several products: smaller ones read tokens too often
MOST_BYTES_IN_FLIGHT = 96 * 1024  # of weights
MOST_STAGES_RECEIVING = 6  # beside producer blocks
MOST_RING_BYTES = 144 * 1024  # 64 tokens: 18.9 us with 128 KB, 19.0 with 192
MOST_BYTES_IN_PAIRS = 64 * 1024  # the same where two blocks split the depth: 10.6 us, 10.8 with 96
FEWEST_STAGES = 2
FEWEST_STEPS = 8  # with fewer there is no loop to speak of, and ptxas orders its products
MOST_REGISTERS = 255  # of a thread

START_US = 1.5  # and end
IN_FLIGHT = 24 * 1024  # of weights, by multiprocessor: fewer bytes wait for their latency
BOX_TOKEN_BYTES = 115.0  # the same by boxes for tokens that are held in registers
STEP_CYCLES = 250.0  # per 64 elements of the depth
# Per element of the depth, where vectors along it are computed: by blocks alone, in pairs.
VECTOR_CYCLES, PAIRED_VECTOR_CYCLES = 0.5, 1.8
PAIRED_ROW_US = 0.012  # of register operands in pairs: sums cross, beside no producers
INNER_US, INNER_CYCLES = 1.0, 2.4  # what held tokens pay for totals of inner lines, per element
PROLOGUE_US = 1.3  # what a prologue kernel adds, beside its warps


def fits(program: TileProgram, on: Target) -> tuple[str, ...]:
    """Return why register operands do not fit a program."""
    runs = has_prologue(program, on) or can_run(program.streamed)
    form = () if runs else ("its loop computes with weights before it multiplies them",)
    return (*reasons_against(on), *form)


def choose(program: TileProgram, tokens: int, on: Target) -> RegisterOperand | None:
    """Return the knobs for a bucket, None where such blocks cannot serve or others are better."""
    if not has_prologue(program, on):
        return _choose(program, tokens, on, FEW_TO_HOLD)
    knobs = _choose(main_program(program), tokens, on, FEW_IN_EVERY_BLOCK)
    warps = row_wise_knobs(program.extents[program.roles.depth]).warps
    return replace(knobs, prologue_warps=warps) if knobs else None


def _choose(program: TileProgram, tokens: int, on: Target, most: int) -> RegisterOperand | None:
    """Return the knobs of blocks of more than `most` tokens, None where they cannot serve."""
    block, all_rows = RegisterBlock.of(program), program.extents[program.roles.rows]
    if tokens <= most or not can_run(program.streamed):
        return None
    if tokens <= FEW_TOKENS and block.mapped and block.row_tensors == 1:
        return None  # 10.5 us against 10.2 split (4096 -> 4096), 14.4 against 12.1 (3584 -> 4608)
    if (pair := in_pairs(program, tokens, on)) is not None:
        return pair
    few = FEW_TOKENS if program.roles.inner else most
    if tokens <= few or program.producers:  # producers of such blocks are in pairs
        return None
    waves = 1
    while (rows := rows_for(all_rows, waves * on.multiprocessors)) > MOST_ROWS:
        waves += 1
    return deepest(block, block.sized(rows, tokens), on)


def candidates(program: TileProgram, tokens: int, on: Target) -> Iterator[RegisterOperand]:
    """Yield knobs to try for a bucket: blocks alone or in pairs, with a prologue or without."""
    yield from _candidates(program, tokens, on)
    if has_prologue(program, on) and tokens > FEW_IN_EVERY_BLOCK:
        for warps, _ in whole_row_blocks(program.extents[program.roles.depth]):
            for knobs in _candidates(main_program(program), tokens, on):
                yield replace(knobs, prologue_warps=warps)


def _candidates(program: TileProgram, tokens: int, on: Target) -> Iterator[RegisterOperand]:
    block, all_rows = RegisterBlock.of(program), program.extents[program.roles.rows]
    least = TOKEN_TILE * RECEIVERS if block.received else 1  # each receives some
    if tokens % TOKENS or tokens % least or not can_run(program.streamed):
        return
    producers = paired_producers(program, tokens, on)
    if program.producers and producers is None:
        return
    for blocks, rows in product((1, PAIR), range(ROW_TILE, PAIR * MOST_ROWS + 1, ROW_TILE)):
        if (all_rows % rows or block.inner) if blocks > 1 else program.producers:
            continue  # producers of such blocks are in pairs
        knobs = replace(block.sized(rows, tokens, blocks), producers=producers)
        if (most := deepest(block, knobs, on)) is None:
            continue
        fewest = max(FEWEST_STAGES, knobs.groups * blocks)
        for stages in range(most.stages, fewest - 1, -knobs.groups):
            fitting = replace(knobs, stages=stages)
            if block.fits(fitting, on.shared_bytes):
                yield fitting
                if fitting.barriers > 1:
                    yield replace(fitting, barriers=1)


def deepest(block: RegisterBlock, knobs: RegisterOperand, on: Target) -> RegisterOperand | None:
    """Return the knobs with as many stages as pay; None where such blocks cannot serve."""
    finished = max(knobs.rows // knobs.blocks, block.inner_lines)
    turn = knobs.blocks * knobs.groups
    whole = block.depth % knobs.step_depth == 0
    steps = block.depth // (knobs.blocks * BOXES * BOX_DEPTH)
    if not whole or knobs.tokens % ROW_TILE or knobs.tokens > GROUP_ROWS or steps < FEWEST_STEPS:
        return None
    small = product_rows(knobs.rows) < min(knobs.rows, FEWEST_OF_SEVERAL)
    if finished > MOST_ROWS or small or knobs.rows % (turn * OCTET):
        return None
    if block.registers(knobs) > min(MOST_REGISTERS, REGISTERS // block.threads(knobs) // 8 * 8):
        return None
    step = BOXES * block.row_tensors * knobs.rows * BOX_DEPTH * 2
    ring = block.ring_bytes(replace(knobs, stages=1))
    most = max(FEWEST_STAGES, min(MOST_BYTES_IN_FLIGHT // step, MOST_RING_BYTES // ring))
    # 13.9 us with two stages of a pair, 11.2 with four (4096 -> 4096); of 160 rows 45.0 with two,
    # 43.9 with three (8192 -> 10240).
    fewest = max(3, 2 * knobs.groups) if knobs.blocks > 1 else 1
    if knobs.blocks > 1:
        most = max(fewest, MOST_BYTES_IN_PAIRS // step)
    elif block.received:
        most = min(most, MOST_STAGES_RECEIVING)
    tried = (replace(knobs, stages=s) for s in range(most, fewest - 1, -1) if s % knobs.groups == 0)
    return next((k for k in tried if block.fits(k, on.shared_bytes)), None)


def product_rows(rows: int) -> int:
    """Return the rows of one product: all, or equal parts of more than one takes; 0: none do."""
    parts = (rows // n for n in range(1, rows // ROW_TILE + 1) if rows % (n * ROW_TILE) == 0)
    return rows if rows <= MOST_ROWS else next((part for part in parts if part <= MOST_ROWS), 0)


def in_pairs(program: TileProgram, tokens: int, on: Target) -> RegisterOperand | None:
    """Return blocks that share rows and split the depth in pairs, None where they cannot.

    Each reads half as much of the tokens from L2: 10.6 us against 11.5 (4096 -> 4096, 64 tokens).
    With twice as many rows of weights for them that is worth no exchange: 19.1 against 18.9.
    """
    block, all_rows = RegisterBlock.of(program), program.extents[program.roles.rows]
    rows = rows_for(all_rows, on.multiprocessors // PAIR)
    last = all_rows % rows  # rows of the last cluster: each block has some
    if block.inner or block.row_tensors > 1 or 0 < last <= rows // PAIR:
        return None
    producers = paired_producers(program, tokens, on)
    if program.producers and producers is None:
        return None
    return deepest(block, replace(block.sized(rows, tokens, PAIR), producers=producers), on)


def paired_producers(program: TileProgram, tokens: int, on: Target) -> Producers | None:
    """Return the producer blocks of consumers in pairs; None where there are none that fit.

    They are in pairs themselves, and their rings as deep as fits: a ring of four steps took 12.2
    us, of six 11.8 (R 64, 64 tokens).
    """
    if (made := program.producers) is None or not can_run(made):
        return None
    block, tiles = RegisterBlock.of(made), producer_tiles(program, tokens, on, paired=True)
    steps = block.depth // (PAIR * BOXES * BOX_DEPTH)
    if not tiles or steps < FEWEST_STEPS:
        return None
    knobs = replace(block.sized(*tiles[0], PAIR), barriers=1)
    if knobs.rows % (PAIR * knobs.groups * OCTET):
        knobs = replace(knobs, groups=1)
    stages = range(2 * knobs.groups, steps + 1, knobs.groups)
    tried = (replace(knobs, stages=s) for s in reversed(stages))
    fitting = (k for k in tried if block.fits(k, on.shared_bytes - STAMP_BYTES))
    ring = next(fitting, None)
    if ring is None or block.depth % knobs.step_depth:
        return None
    return Producers(knobs.rows // PAIR, knobs.tokens, ring.stages, knobs.groups)


# -- the predicted time (schedules/latency.py) -----------------------------------------------------


def predict(program: TileProgram, on: Target) -> Model:
    """Return the model of a program."""
    alone = _model(program, on)
    if not has_prologue(program, on):
        return alone
    main, depth = _model(main_program(program), on), program.extents[program.roles.depth]

    def model(knobs: Knobs, tokens: int) -> float:
        assert isinstance(knobs, RegisterOperand)
        if not knobs.prologue_warps:
            return alone(knobs, tokens)
        chunks = ceil(depth / (knobs.prologue_warps * WARP_LANES * ALIGNED_ELEMENTS))
        prologue = PROLOGUE_US + ROW_WARP_US * (knobs.prologue_warps + chunks)
        return prologue + main(replace(knobs, prologue_warps=0), tokens)

    return model


def _model(program: TileProgram, on: Target) -> Model:
    work, block = Streaming.of(program, on), RegisterBlock.of(program)
    products = sum(s.do is Do.CONTRACT for s in work.program.loop)

    def model(knobs: Knobs, tokens: int) -> float:
        assert isinstance(knobs, RegisterOperand)
        step = work.read_bytes(knobs, rows=True) * BOXES * BOX_DEPTH * knobs.blocks / work.depth
        taken = work.weights_us(knobs, min(1.0, (knobs.stages - 1) * step / IN_FLIGHT))
        taken += work.tokens_us(knobs, BOX_TOKEN_BYTES)
        steps = work.depth / (knobs.blocks * BOX_DEPTH)
        share = knobs.rows / (4 * ROW_TILE) / knobs.groups  # of a group, in products of 64 lines
        streamed = START_US + work.warpgroups_us(
            knobs, taken, products * steps * share * STEP_CYCLES
        )
        streamed += work.vectors_us(PAIRED_VECTOR_CYCLES if knobs.blocks > 1 else VECTOR_CYCLES)
        if knobs.blocks > 1 and not knobs.producers:
            streamed += PAIRED_ROW_US * knobs.rows
        if block.inner_lines:
            streamed += INNER_US + INNER_CYCLES * block.inner_lines * knobs.tokens / work.clock
        return work.beside_producers_us(knobs, streamed)

    return model


SCHEDULE = Ranked(
    name=RegisterOperand.schedule,
    knobs=RegisterOperand,
    roles=Roles,
    lower=lowered,
    fits=fits,
    choose=choose,
    candidates=candidates,
    registers=lambda program, knobs: RegisterBlock.of(program).registers(
        own(RegisterOperand, knobs)
    ),
    shared_bytes=lambda program, knobs: RegisterBlock.of(program).shared_bytes(
        own(RegisterOperand, knobs)
    ),
    predict=predict,
)
