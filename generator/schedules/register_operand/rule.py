"""Which knobs a kernel with register operands has for a bucket of tokens, by rule and to be tried.

Above 16 tokens they are faster than sliced-K, where weights are multiplied as they are loaded and
the target can; there two blocks split the depth where their rows fit. A prologue kernel makes
tokens above 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.loop import FEW_TOKENS, Producers
from mirage_kernels.generator.schedules.producer_blocks import (
    PAIR,
    RECEIVERS,
    ROW_TILE,
    STAMP_BYTES,
    TOKEN_TILE,
    consumer_program,
    paired_tile,
    producer_program,
    rows_for,
)
from mirage_kernels.generator.schedules.prologue import has_prologue, main_program
from mirage_kernels.generator.schedules.register_operand.block import (
    MOST_ROWS,
    OCTET,
    RegisterBlock,
    can_run,
)
from mirage_kernels.generator.schedules.register_operand.knobs import BOXES, RegisterOperand
from mirage_kernels.generator.schedules.row_wise.knobs import row_wise_knobs, whole_row_blocks
from mirage_kernels.generator.schedules.warpgroups import (
    BOX_DEPTH,
    GROUP_ROWS,
    REGISTERS,
    WITH_WARPGROUPS,
)
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


def choose(program: TileProgram, tokens: int, on: Target) -> RegisterOperand | None:
    """Return the knobs for a bucket, None where such blocks cannot serve or others are better."""
    if not has_prologue(program, on):
        return _choose(program, tokens, on, FEW_TO_HOLD)
    knobs = _choose(main_program(program), tokens, on, FEW_IN_EVERY_BLOCK)
    warps = row_wise_knobs(program.extents[program.roles.depth]).warps
    return replace(knobs, prologue_warps=warps) if knobs else None


def _choose(program: TileProgram, tokens: int, on: Target, most: int) -> RegisterOperand | None:
    """Return the knobs of blocks of more than `most` tokens, None where they cannot serve."""
    block = RegisterBlock.of(program)
    if tokens <= most or not can_run(consumer_program(program)):
        return None
    if tokens <= FEW_TOKENS and block.mapped and block.row_tensors == 1:
        return None  # 10.5 us against 10.2 split (4096 -> 4096), 14.4 against 12.1 (3584 -> 4608)
    if (pair := in_pairs(program, tokens, on)) is not None:
        return with_pairs(program, _knobs(pair, held_stages(pair, on)), on)
    few = FEW_TOKENS if program.roles.inner else most
    if tokens <= few or _only_in_pairs(program):
        return None
    all_rows, waves = program.extents[program.roles.rows], 1
    while (rows := rows_for(all_rows, waves * on.multiprocessors)) > MOST_ROWS:
        waves += 1
    block = block.sized(rows, tokens)
    stages = held_stages(block, on)
    return _knobs(block, stages) if stages else None


def _only_in_pairs(program: TileProgram) -> bool:
    """Say whether producer blocks work for such blocks, which they do for pairs only."""
    return program.producer_blocks > 0 and not program.stacked


def _knobs(block: RegisterBlock, stages: int) -> RegisterOperand:
    sizes = (block.tokens, block.rows, stages, block.groups, block.blocks)
    return RegisterOperand(*sizes, barriers=block.best_barriers)


def with_pairs(program: TileProgram, knobs: RegisterOperand, on: Target) -> RegisterOperand:
    """Return the knobs of pairs with those of producers in pairs, if the program has any."""
    if not program.producer_blocks:
        return knobs
    found = paired_producers(program, knobs.tokens, on)
    assert found is not None  # in_pairs has asked
    block, stages = found
    sizes = (block.rows // block.blocks, block.tokens, stages, block.groups)
    return replace(knobs, producers=Producers(*sizes))


def candidates(program: TileProgram, tokens: int, on: Target) -> Iterator[RegisterOperand]:
    """Yield knobs to try for a bucket: blocks alone or in pairs, with a prologue or without."""
    yield from _candidates(program, tokens, on)
    if has_prologue(program, on) and tokens > FEW_IN_EVERY_BLOCK:
        for warps, _ in whole_row_blocks(program.extents[program.roles.depth]):
            for knobs in _candidates(main_program(program), tokens, on):
                yield replace(knobs, prologue_warps=warps)


def _candidates(program: TileProgram, tokens: int, on: Target) -> Iterator[RegisterOperand]:
    consumers = consumer_program(program)
    least = TOKEN_TILE * RECEIVERS if consumers.received else 1  # each receives some
    if tokens % TOKENS or tokens % least or not can_run(consumers):
        return
    all_rows = program.extents[program.roles.rows]
    for blocks, rows in product((1, PAIR), range(ROW_TILE, PAIR * MOST_ROWS + 1, ROW_TILE)):
        block = RegisterBlock.of(program).sized(rows, tokens, blocks)
        uneven = block.inner or program.stacked or all_rows % rows
        if (blocks > 1 and uneven) or (blocks == 1 and _only_in_pairs(program)):
            continue
        if program.producer_blocks and paired_producers(program, tokens, on) is None:
            continue
        for knobs in _with_stages(block, on):
            if knobs.barriers == 1 or not program.stacked:
                yield with_pairs(program, knobs, on)


def _with_stages(block: RegisterBlock, on: Target) -> Iterator[RegisterOperand]:
    """Yield knobs of a block with every number of stages and barriers that is worth a try."""
    fewest = max(FEWEST_STAGES, block.groups * block.blocks)
    for stages in range(held_stages(block, on), fewest - 1, -block.groups):
        if block.fits(stages, on.shared_bytes):
            knobs = replace(_knobs(block, stages), barriers=1)
            if block.best_barriers > 1:
                yield replace(knobs, barriers=block.best_barriers)
            yield knobs


def held_stages(block: RegisterBlock, on: Target) -> int:
    """Return how many steps a block's ring holds; 0 where such blocks cannot serve."""
    block = replace(block, barriers=block.best_barriers)
    turn = block.blocks * block.groups
    whole = block.depth % (turn * BOXES * BOX_DEPTH) == 0
    tiles = block.tokens % ROW_TILE == 0 and block.tokens <= GROUP_ROWS
    steps = block.depth // (block.blocks * BOXES * BOX_DEPTH)
    if on.arch not in WITH_WARPGROUPS or not whole or not tiles or steps < FEWEST_STEPS:
        return 0
    own = max(block.rows // block.blocks, block.inner_lines)
    small = block.side < min(block.rows, FEWEST_OF_SEVERAL)
    if own > MOST_ROWS or small or block.rows % (turn * OCTET):
        return 0
    if block.registers > min(255, REGISTERS // block.threads // 8 * 8):
        return 0
    step = BOXES * block.row_tensors * block.rows * BOX_DEPTH * 2
    in_flight = min(MOST_BYTES_IN_FLIGHT // step, MOST_RING_BYTES // block.ring_bytes(1))
    deepest = max(FEWEST_STAGES, in_flight)
    if block.blocks > 1:
        deepest = max(_fewest_in_pairs(block), MOST_BYTES_IN_PAIRS // step)
    elif block.received:
        deepest = min(deepest, MOST_STAGES_RECEIVING)
    stages = range(block.groups, deepest + 1, block.groups)
    fewest = _fewest_in_pairs(block) if block.blocks > 1 else 1
    fitting = (s for s in stages if s >= fewest and block.fits(s, on.shared_bytes))
    return max(fitting, default=0)


def _fewest_in_pairs(block: RegisterBlock) -> int:
    """Return the steps that a ring needs.

    13.9 us with two, 11.2 with four (4096 -> 4096); of 160 rows 45.0 with two, 43.9 with three
    (8192 -> 10240).
    """
    return max(3, 2 * block.groups)


def in_pairs(program: TileProgram, tokens: int, on: Target) -> RegisterBlock | None:
    """Return blocks that share rows and split the depth in pairs, None where they cannot.

    Each reads half as much of the tokens from L2: 10.6 us against 11.5 (4096 -> 4096, 64 tokens).
    With twice as many rows of weights for them that is worth no exchange: 19.1 against 18.9.
    """
    block = RegisterBlock.of(program)
    extents = program.extents
    rows = rows_for(extents[program.roles.rows], on.multiprocessors // PAIR)
    block = block.sized(rows, tokens, PAIR)
    last = extents[program.roles.rows] % rows  # rows of the last cluster: each block has some
    uneven = block.inner or program.stacked or 0 < last <= rows // PAIR
    uneven = uneven or block.row_tensors > 1
    if block.received and not uneven:
        uneven = paired_producers(program, tokens, on) is None
    return None if uneven or not held_stages(block, on) else block


def paired_producers(
    program: TileProgram, tokens: int, on: Target
) -> tuple[RegisterBlock, int] | None:
    """Return the blocks that are producers for consumers in pairs, and the steps of their rings.

    They are in pairs themselves, and their rings as deep as fits: a ring of four steps took 12.2
    us, of six 11.8 (R 64, 64 tokens).
    """
    made = producer_program(program)
    extents = made.extents
    tile = paired_tile(extents[made.roles.rows], tokens, program.producer_blocks)
    if tile is None or not can_run(made):
        return None
    block = RegisterBlock.of(made).sized(*tile, PAIR)
    if block.rows % (PAIR * block.groups * OCTET):
        block = replace(block, groups=1)
    steps = block.depth // (PAIR * BOXES * BOX_DEPTH)
    whole = block.depth % (PAIR * block.groups * BOXES * BOX_DEPTH) == 0
    limit = on.shared_bytes - STAMP_BYTES
    stages = range(2 * block.groups, steps + 1, block.groups)
    deepest = max((s for s in stages if block.fits(s, limit)), default=0)
    return (block, deepest) if whole and deepest and steps >= FEWEST_STEPS else None
