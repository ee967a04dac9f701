"""Register-operand wgmma (RS): tokens are stationary in registers, weights stream past them.

Where weights are multiplied as they are loaded, tokens can take the M side of a warpgroup's
product, from registers, and weights the N side, as they lie in shared memory: each byte is read
from there once (csrc/tile/register_operand). What the loop computes of tokens alone it computes in
those registers. Weights that the loop computes with would have to be written back to shared memory,
so they stay with sliced-K and cluster split-K.
Above 16 tokens register operands are faster than sliced-K; there two blocks split the depth where
their rows fit, or four where rows are few. A prologue kernel makes tokens above 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, product
from math import ceil

from mirage_kernels.generator.plan.layouts import WARP_LANES
from mirage_kernels.generator.plan.program import Do, Layout, Statement, TileProgram
from mirage_kernels.generator.schedules import loop
from mirage_kernels.generator.schedules.latency import ROW_WARP_US, Streaming
from mirage_kernels.generator.schedules.producer_blocks import (
    PAIR,
    RECEIVERS,
    TAG_BYTES,
    producer_tiles,
)
from mirage_kernels.generator.schedules.prologue import has_prologue, main_program
from mirage_kernels.generator.schedules.register_operand.areas import arranged
from mirage_kernels.generator.schedules.register_operand.block import (
    BLOCK_ROWS,
    COLUMN_TILE,
    STEP_DEPTH,
    STEP_TILES,
    STORED,
    RegisterBlock,
    RegisterOperand,
)
from mirage_kernels.generator.schedules.row_wise import row_wise_knobs, whole_row_blocks
from mirage_kernels.generator.schedules.schedule import Model, Ranked
from mirage_kernels.generator.target import Target

MOST_ROWS = 112  # of one product: the N side of the vocabulary's largest
MOST_FINISHED = 256  # that a block finishes
MOST_BLOCKS = 4  # of a cluster: of four an H200 runs 30 at once, of eight 15

FEWEST_COLUMNS = 32  # such tiles; with fewer most multiprocessors are idle
FEW_FOR_SLICED_K = 16  # tokens; up to so many sliced-K is as fast
FEW_IN_EVERY_BLOCK = 8  # the same of tokens that are made (16 in a prologue 11.8 us, else 12.9)
FEWEST_OF_SEVERAL = 48  # rows of one of several products: smaller ones read tokens too often
MOST_BYTES_IN_FLIGHT = 96 * 1024  # of weights
MOST_STAGES_RECEIVING = 6  # beside producer blocks
MOST_RING_BYTES = 144 * 1024  # 64 tokens: 18.9 us with 128 KB, 19.0 with 192
MOST_BYTES_IN_PAIRS = 64 * 1024  # the same where two blocks split the depth: 10.6 us, 10.8 with 96
FEWEST_STAGES = 2
FEW_STAGES = 4  # of a warpgroup; with fewer steps of one TMA tile are tried too
FEWEST_STEPS = 8  # with fewer there is no loop to speak of, and ptxas orders its products
START_US = 1.5  # and end
IN_FLIGHT = 24 * 1024  # of weights, by multiprocessor: fewer bytes wait for their latency
TMA_TOKEN_BYTES = 115.0  # the same by TMA tiles for tokens that are held in registers
STEP_CYCLES = 250.0  # per 64 elements of the depth
# Per element of the depth, where vectors along it are computed: by blocks alone, in pairs.
VECTOR_CYCLES, PAIRED_VECTOR_CYCLES = 0.5, 1.8
PAIRED_ROW_US = 0.012  # of register operands in pairs: sums cross, beside no producers
INNER_US, INNER_CYCLES = (
    1.0,
    2.4,
)  # of totals of inner lines, per element
PROLOGUE_US = 1.3  # what a prologue kernel adds, beside its warps


def can_run(program: TileProgram) -> bool:
    """Say whether a program's loop multiplies weights as it loads them."""
    if program.lines or not program.loop or len(program.roles.inner) > 1:
        return False
    loaded = {s.out: s.layout for s in program.loads}
    layouts = list(loaded.values())
    if layouts.count(Layout.TOKENS) != 1 or layouts.count(Layout.INNER) > 1:
        return False
    computed = [s for s in program.loop if s.do is not Do.LOAD]
    if any(s.do is not Do.CONTRACT for s in computed) and Layout.INNER in layouts:
        return False
    tokens = {s.out for s in program.loop if s.layout is Layout.TOKENS and s.dtype in STORED}
    alone = (Layout.TOKENS, Layout.TOKEN_SUMS, Layout.DEPTH)  # computed of tokens, or of the depth

    def can(s: Statement) -> bool:
        if s.do is not Do.CONTRACT:
            return s.do in (Do.MAP, Do.SUM) and s.layout in alone
        return loaded.get(s.args[0]) in (Layout.ROWS, Layout.INNER) and s.args[1] in tokens

    return all(map(can, computed))


# -- the rule, and what is tried -------------------------------------------------------------------


def fits(program: TileProgram, on: Target) -> tuple[str, ...]:
    """Return why register operands do not fit a program."""
    runs = has_prologue(program, on) or can_run(program.streamed)
    form = () if runs else ("its loop computes with weights before it multiplies them",)
    lines = (*_reasons_of_columns(program), *loop.bytes_reason(program))
    return (*loop.reasons_against(on), *form, *lines)


def _reasons_of_columns(program: TileProgram) -> tuple[str, ...]:
    """Return why weights whose rows lie side by side do not fit."""
    if not program.columns:
        return ()
    rows = program.extents[program.roles.rows]
    reasons = {
        f"lines of {rows} elements are not 16-byte aligned": rows % loop.ALIGNED_ELEMENTS,
        f"{rows} rows are too few for blocks of {COLUMN_TILE}": rows < FEWEST_COLUMNS * COLUMN_TILE,
        "it has inner rows beside such whose lines are the depth's": program.roles.inner,
        "it stores several results": program.also,
        "its weights come in parts": program.row_parts,
    }
    return tuple(reason for reason, holds in reasons.items() if holds)


def choose(program: TileProgram, tokens: int, on: Target) -> RegisterOperand | None:
    """Return the knobs for a bucket, None where such blocks cannot serve or others are better."""
    most, prologue = 0 if program.columns else FEW_FOR_SLICED_K, has_prologue(program, on)
    if prologue:
        most, program = FEW_IN_EVERY_BLOCK, main_program(program)
    block = RegisterBlock.of(program)
    if tokens <= most or not can_run(program.streamed):
        return None
    one_wave = block.rows <= MOST_ROWS * on.multiprocessors and not program.columns
    if tokens <= loop.FEW_TOKENS and block.mapped and block.loads[Layout.ROWS] == 1 and one_wave:
        return None  # 10.5 us against 10.2 split (4096 -> 4096), 14.4 against 12.1 (3584 -> 4608)
    if tokens > loop.GROUP_ROWS:
        time = predict(program, on)
        made = ((time(knobs, tokens), knobs) for knobs in _candidates(program, tokens, on))
        knobs = min(made, key=lambda one: one[0], default=(0.0, None))[1]
    else:
        knobs = in_pairs(program, tokens, on)
        few = loop.FEW_TOKENS if program.roles.inner else most
        if knobs is None and tokens > few and not program.producers:  # those need blocks in pairs
            knobs = by_waves(block, tokens, on)
    if knobs is None or not prologue:
        return knobs
    return replace(knobs, prologue_warps=row_wise_knobs(block.depth).warps)


def by_waves(block: RegisterBlock, tokens: int, on: Target) -> RegisterOperand | None:
    """Return blocks of as many rows as they can have, which fill as few waves as they can.

    Each wave costs its start and its end: 64 tokens, 4096 -> 128256, take 306 us with 112 rows and
    264 with 256; 32768 -> 32768 614 with 96, 512 with 256.
    """
    for n in count(1):
        rows = loop.rows_for(block.rows, n * on.multiprocessors, block.row_tile)
        knobs = deepest(block, block.sized(rows, tokens), on) if rows <= MOST_FINISHED else None
        if knobs is not None or rows <= MOST_ROWS:
            return knobs
    return None


def candidates(program: TileProgram, tokens: int, on: Target) -> Iterator[RegisterOperand]:
    """Yield knobs to try for a bucket: blocks alone or in pairs, with a prologue or without."""
    yield from _candidates(program, tokens, on)
    if has_prologue(program, on) and tokens > FEW_IN_EVERY_BLOCK:
        warps = [warps for warps, _ in whole_row_blocks(program.extents[program.roles.depth])]
        behind = product(warps, _candidates(main_program(program), tokens, on))
        yield from (replace(knobs, prologue_warps=warps) for warps, knobs in behind)


def _candidates(program: TileProgram, tokens: int, on: Target) -> Iterator[RegisterOperand]:
    block = RegisterBlock.of(program)
    for most in _deepest_rings(program, block, tokens, on):
        fewest = max(FEWEST_STAGES, most.turns * min(most.blocks, PAIR))
        for stages in range(most.stages, fewest - 1, -most.turns):
            fitting = replace(most, stages=stages)
            if block.fits(fitting, on.shared_bytes):
                yield fitting
                if fitting.barriers > 1:
                    yield replace(fitting, barriers=1)


def _deepest_rings(
    program: TileProgram, block: RegisterBlock, tokens: int, on: Target
) -> Iterator[RegisterOperand]:
    """Yield knobs with as many stages as pay: rows, blocks that share them, tiles of a step."""
    least = loop.TOKEN_TILE * RECEIVERS if block.program.received else 1  # each receives some
    if tokens % least or not can_run(program.streamed):
        return
    if tokens > loop.GROUP_ROWS and block.inner:
        return  # totals of inner rows are of 64 tokens
    producers = paired_producers(program, tokens, on)
    if program.producers and producers is None:
        return
    rows = range(block.row_tile, MOST_FINISHED + 1, block.row_tile)
    for blocks, lines in product((1, PAIR, MOST_BLOCKS), rows):
        for tiles in (STEP_TILES, 1) if _can_share(program, block, blocks, lines) else ():
            knobs = replace(block.sized(lines, tokens, blocks, tiles), producers=producers)
            most = deepest(block, knobs, on)
            if most is not None:
                yield most
            if not knobs.fills_shared or (most and most.stages >= FEW_STAGES * most.turns):
                break


def _can_share(program: TileProgram, block: RegisterBlock, blocks: int, rows: int) -> bool:
    """Say whether so many blocks can share rows; producers of such blocks are in pairs."""
    if blocks == 1:
        return not program.producers
    if blocks == PAIR:
        return block.rows % rows == 0 and not block.inner_lines
    return not program.producers and not block.inner


def deepest(block: RegisterBlock, knobs: RegisterOperand, on: Target) -> RegisterOperand | None:
    """Return the knobs with as many stages as pay; None where such blocks cannot serve."""
    finished = max(knobs.finished_rows, block.inner_lines)
    whole = block.depth % knobs.step_depth == 0
    steps = block.depth // (knobs.blocks * knobs.slice_depth)
    if not whole or knobs.tokens % loop.ROW_TILE or knobs.turns < 1 or steps < FEWEST_STEPS:
        return None
    small = product_rows(knobs.rows) < min(knobs.rows, FEWEST_OF_SEVERAL)
    if knobs.rows % block.row_tile:
        return None
    uneven = not knobs.by_tokens and knobs.rows % (knobs.blocks * knobs.turns * BLOCK_ROWS)
    if finished > MOST_FINISHED or small or uneven:
        return None
    if block.registers(knobs) > block.most_registers(knobs):
        return None
    step = block.loads[Layout.ROWS] * knobs.rows * knobs.slice_depth * 2
    ring = block.ring_bytes(replace(knobs, stages=1))
    most = max(FEWEST_STAGES, min(MOST_BYTES_IN_FLIGHT // step, MOST_RING_BYTES // ring))
    # 13.9 us with two stages of a pair, 11.2 with four (4096 -> 4096); of 160 rows 45.0 with two,
    # 43.9 with three (8192 -> 10240).
    fewest = max(3, 2 * knobs.turns) if knobs.blocks > 1 else 1
    if knobs.by_tokens:
        fewest = FEWEST_STAGES * knobs.turns
    if knobs.blocks > 1:
        most = max(fewest, MOST_BYTES_IN_PAIRS // step)
    elif block.program.received:
        most = min(most, MOST_STAGES_RECEIVING)
    if knobs.fills_shared:
        most = on.shared_bytes // ring
    tried = (replace(knobs, stages=s) for s in range(most, fewest - 1, -1) if s % knobs.turns == 0)
    return next((k for k in tried if block.fits(k, on.shared_bytes)), None)


def product_rows(rows: int) -> int:
    """Return the rows of one product: all, or equal parts of more than one takes; 0: none do."""
    parts = (
        rows // n for n in range(1, rows // loop.ROW_TILE + 1) if rows % (n * loop.ROW_TILE) == 0
    )
    return rows if rows <= MOST_ROWS else next((part for part in parts if part <= MOST_ROWS), 0)


def in_pairs(program: TileProgram, tokens: int, on: Target) -> RegisterOperand | None:
    """Return blocks that share rows and split the depth in pairs, None where they cannot.

    Each reads half as much of the tokens from L2: 10.6 us against 11.5 (4096 -> 4096, 64 tokens).
    With twice as many rows of weights for them that is worth no exchange: 19.1 against 18.9.
    """
    block = RegisterBlock.of(program)
    rows = loop.rows_for(block.rows, on.multiprocessors // PAIR, block.row_tile)
    last = block.rows % rows  # rows of the last cluster: each block has some
    if block.inner_lines or block.loads[Layout.ROWS] > 1 or 0 < last <= rows // PAIR:
        return None
    producers = paired_producers(program, tokens, on)
    if program.producers and producers is None:
        return None
    return deepest(block, replace(block.sized(rows, tokens, PAIR), producers=producers), on)


def paired_producers(program: TileProgram, tokens: int, on: Target) -> loop.Producers | None:
    """Return the producer blocks of consumers in pairs; None where there are none that fit.

    They are in pairs themselves, and their rings as deep as fits: a ring of four steps took 12.2
    us, of six 11.8 (R 64, 64 tokens).
    """
    if (made := program.producers) is None or not can_run(made):
        return None
    block, tiles = RegisterBlock.of(made), producer_tiles(program, tokens, on, paired=True)
    steps = block.depth // (PAIR * STEP_DEPTH)
    if not tiles or steps < FEWEST_STEPS:
        return None
    knobs = replace(block.sized(*tiles[0], PAIR), barriers=1)
    if knobs.rows % (PAIR * knobs.groups * BLOCK_ROWS):
        knobs = replace(knobs, groups=1)
    stages = range(2 * knobs.groups, steps + 1, knobs.groups)
    tried = (replace(knobs, stages=s) for s in reversed(stages))
    ring = next((k for k in tried if block.fits(k, on.shared_bytes - TAG_BYTES)), None)
    if ring is None or block.depth % knobs.step_depth:
        return None
    return loop.Producers(knobs.rows // PAIR, knobs.tokens, ring.stages, knobs.groups)


def predict(program: TileProgram, on: Target) -> Model:
    """Return the model of a program (`schedules/latency.py`), perhaps behind a prologue."""
    alone, main = _model(program, on), _model(main_program(program), on)
    depth = program.extents[program.roles.depth]

    def model(knobs: RegisterOperand, tokens: int) -> float:
        if not (warps := knobs.prologue_warps):
            return alone(knobs, tokens)
        chunks = ceil(depth / (warps * WARP_LANES * loop.ALIGNED_ELEMENTS))
        return main(knobs, tokens) + PROLOGUE_US + ROW_WARP_US * (warps + chunks)

    return model


def _model(program: TileProgram, on: Target) -> Model:
    work, block = Streaming(program.streamed, on), RegisterBlock.of(program)
    products = sum(s.do is Do.CONTRACT for s in work.program.loop)

    def model(knobs: RegisterOperand, tokens: int) -> float:
        step = work.read_bytes(knobs, rows=True) * knobs.slice_depth * knobs.blocks / work.depth
        taken = work.weights_us(knobs, min(1.0, (knobs.stages - 1) * step / IN_FLIGHT))
        taken += work.tokens_us(knobs, TMA_TOKEN_BYTES)
        steps = work.depth / (knobs.blocks * loop.TMA_DEPTH)
        lines = max(1.0, knobs.rows / (4 * loop.ROW_TILE))  # products of 64, full or not
        share = lines / knobs.turns
        cycles = products * steps * share * STEP_CYCLES
        streamed = START_US + work.warpgroups_us(knobs, taken, cycles)
        streamed += work.vectors_us(PAIRED_VECTOR_CYCLES if knobs.blocks > 1 else VECTOR_CYCLES)
        if knobs.blocks > 1 and not knobs.producers:
            streamed += PAIRED_ROW_US * knobs.rows
        if block.inner_lines:
            streamed += INNER_US + INNER_CYCLES * block.inner_lines * knobs.tokens / work.clock
        return work.beside_producers_us(knobs, streamed)

    return model


SCHEDULE = Ranked(
    knobs=RegisterOperand,
    fits=fits,
    choose=choose,
    candidates=candidates,
    registers=lambda program, knobs: RegisterBlock.of(program).registers(knobs),
    shared_bytes=lambda program, knobs: RegisterBlock.of(program).shared_bytes(knobs),
    predict=predict,
    arranged=lambda program, knobs: arranged(RegisterBlock.of(program).program, knobs),
    many=True,
)
