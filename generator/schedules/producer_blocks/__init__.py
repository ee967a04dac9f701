"""Producer blocks and consumer blocks of an intermediate that every block of a launch needs.

Rows that the grid does not cut (`Roles.inner`: the rank of an adapter) would be multiplied by every
block with its tokens, and all of them be read from L2. Where the grid leaves multiprocessors free,
its first blocks, the producers, share these rows and the tokens among them
(csrc/tile/producer_blocks).
The program falls into two then: that of the producers, whose rows are the inner ones, and that of
the consumers, which receives their results and is a plain one otherwise. The muGraph stays as it
is.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from mirage_kernels.generator.plan.program import (
    IN_WORKSPACE,
    Do,
    Operand,
    Roles,
    Statement,
    TileProgram,
    needed,
)
from mirage_kernels.generator.schedules.loop import ROW_TILE, TOKEN_TILE, rows_for
from mirage_kernels.generator.target import Target

WHERE_MEASURED = ("sm_90a",)
# Results have to be there before a consumer needs them: with a loop of 256 elements consumers
# waited (3.6 us against 2.3), with as many rows as a producer has they would, too.
FEWEST_DEPTH, FEWEST_ROWS = 2048, 2 * ROW_TILE
MOST_PRODUCERS = 32  # of a tile of tokens: a lane waits for each
PAIR = 2  # producers that share a tile and split the depth, each of which finishes half of its rows
TAG_BYTES = 16  # of a producer, behind its ring (csrc/tile/producer_blocks/intermediate.cuh)
MOST_PAIRED_ROWS = 112  # the N side of the vocabulary's largest product
RECEIVERS = 4  # warps of a consumer that receive what such producers leave


def spare_blocks(program: TileProgram, on: Target) -> int:
    """Return how many blocks may be producers; 0: every block computes all itself."""
    if on.arch not in WHERE_MEASURED or program.lines or len(program.kept) != 1:
        return 0
    extents = program.extents
    (inner,) = (extents[dim] for dim in program.roles.inner)
    rows = rows_for(extents[program.roles.rows], on.multiprocessors)
    spare = on.multiprocessors - -(-extents[program.roles.rows] // rows)
    if rows < FEWEST_ROWS or extents[program.roles.depth] < FEWEST_DEPTH or inner % TOKEN_TILE:
        return 0
    return min(spare, MOST_PRODUCERS) if -(-inner // ROW_TILE) <= spare else 0


def with_producer_blocks(program: TileProgram, on: Target) -> TileProgram:
    """Return the program with producer blocks where it may have some; else the same."""
    return divided(program) if spare_blocks(program, on) else program


def producer_tiles(
    program: TileProgram, tokens: int, on: Target, *, paired: bool = False
) -> list[tuple[int, int]]:
    """Return the inner rows and the tokens that a producer may have, the fewest lines first.

    As many tiles as there are cover all: one for each of the blocks that are left, or for each pair
    of them that shares one and has register operands. Of tiles with as many lines the first by
    rows; of pairs the one with most, whose producers end sooner (64 x 32: 6.9 us, 32 x 64: 7.5).
    """
    (dim,) = program.roles.inner
    inner, spare = program.extents[dim], spare_blocks(program, on) // (PAIR if paired else 1)
    least = ROW_TILE if paired else TOKEN_TILE
    rows = [
        r
        for r in range(ROW_TILE, inner + ROW_TILE, ROW_TILE)
        if not paired or (inner % r == 0 and r <= MOST_PAIRED_ROWS)
    ]
    halves = [t for t in (tokens >> i for i in range(tokens.bit_length())) if t % least == 0]
    fitting = [(r, t) for r, t in product(rows, halves) if -(-inner // r) * (tokens // t) <= spare]
    return sorted(fitting, key=lambda tile: (sum(tile), -tile[0] if paired else tile[0]))


def divided(program: TileProgram) -> TileProgram:
    """Return the program with those of its producer blocks and of its consumer blocks."""
    loop, meetings = _summed(program, program.epilogue)
    program = replace(program, producers=_producers(program))
    consumers = replace(
        program,
        inputs=program.read_by(*loop, *program.fetches, *program.epilogue),
        loop=loop,
        meetings=meetings,
        stages=(),
        products=tuple(replace(p, barrier=False) for p in program.products),
        received=program.kept,
    )
    return replace(program, consumers=consumers)


def _producers(program: TileProgram) -> TileProgram:
    """Return the program of the producer blocks: a plain one, of the inner rows."""
    (stage,) = program.stages
    (kept,) = program.kept
    (total,) = kept.args
    roles = Roles(program.roles.tokens, program.roles.depth, stage.dim)

    def placed(s: Statement) -> Statement:
        layout = roles.layout(s.type.names)
        assert layout is not None
        return replace(s, layout=layout)

    store = Statement(Do.STORE, kept.out, (total,), kept.type, kept.layout)
    epilogue = (*(s for s in stage.statements if s.do is not Do.KEEP), store)
    loop, meetings = _summed(program, epilogue)
    return replace(
        program,
        roles=roles,
        inputs=program.read_by(*loop, *epilogue),
        output=Operand(kept.out, IN_WORKSPACE, kept.type),
        loop=tuple(map(placed, loop)),
        meetings=tuple(map(placed, meetings)),
        epilogue=tuple(map(placed, epilogue)),
        fetches=(),
        stages=(),
        products=(),
    )


def _summed(
    program: TileProgram, epilogue: tuple[Statement, ...]
) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
    """Return what of the loop an epilogue has totals of, and where these sums meet."""
    wanted = {s.args[0] for s in epilogue if s.do is Do.TOTAL}
    meetings = [m for m in program.meetings if m.out in wanted]
    barrier = any(m.barrier for m in program.meetings)
    met = tuple(replace(m, barrier=barrier and m is meetings[0]) for m in meetings)
    return needed(program.loop, wanted), met
