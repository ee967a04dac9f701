"""Stacked weights: the same program where each token has slices of its own, or none (adapters).

Which slices a token has is addressing, as pages of a cache are. The muGraph stays that of one
token's; its kernel's second form finds the slices by the tokens' numbers (csrc/tile/adapters.cuh).
It is the plan of totals computed apart (`apart.py`) in two launches: the makers' is one of its own,
for there may be as many slices as tokens. Users have the tiles that the record is proved for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirage_kernels.generator.plan.apart import ROW_TILE, WHERE_MEASURED, makers_of
from mirage_kernels.generator.plan.areas import kept_bytes
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.plan.variants import CHUNK_DEPTH, Footprint, Knobs, Variant
from mirage_kernels.generator.target import Target

ENDING = "_batched"  # of the overload that such a kernel serves
MAKER_TOKENS = 8  # of one slice: the N side of one product
MAKER_WARPS, MAKER_BLOCKS, MAKER_CHUNKS = 4, 8, 2  # blocks of a cluster share the depth
MAKER_STAGES = 2  # steps that a warp has on their way
MOST_SLICES_AHEAD = 8  # of a block's second slices
FEWEST_SLICES_AHEAD = 2
TASKS_BYTES = 1024  # of a block: which tokens go together
# In tiles of 64: 128 tokens with four adapters in use took 27 us (rank 16) and 32 (rank 64),
# PyTorch's program 35 and 40 with a stack of eight, 47 and 94 with one of 64.
MOST_STACKED_TOKENS = 128
MOST_TOGETHER = 64  # tokens whose numbers are looked at together


@dataclass(frozen=True)
class Makers:
    """Knobs of the first launch."""

    rows: int
    stages: int
    warps: int = MAKER_WARPS
    blocks: int = MAKER_BLOCKS


def stacked_program(
    program: TileProgram, stacked: tuple[str, ...], on: Target
) -> TileProgram | None:
    """Return the program whose inputs `stacked` are slices of stacks; None where there is no plan.

    The slices are the rows that the grid does not cut, and what their totals are multiplied with.
    """
    if not stacked or on.arch not in WHERE_MEASURED or program.lines or program.also:
        return None
    if len(program.kept) != 1 or len(program.fetches) != 1 or len(program.products) != 1:
        return None
    name = program.recipe.removesuffix("_full") + ENDING
    made = replace(program, recipe=name, apart=1, stacked=stacked)
    inner = [s.args[0] for s in makers_of(made).loads if s.args[0] in stacked]
    return made if {*inner, program.fetches[0].args[0]} == {*stacked} else None


def makers_for(program: TileProgram) -> Makers:
    """Return the knobs of the first launch: tiles of as few rows as a product has."""
    made = makers_of(program)
    depth = made.extents[made.roles.depth]
    steps = -(-depth // (MAKER_BLOCKS * MAKER_WARPS * MAKER_CHUNKS * CHUNK_DEPTH))
    return Makers(ROW_TILE, min(MAKER_STAGES, steps))


def slices_ahead(program: TileProgram, knobs: Knobs, on: Target) -> int:
    """Return how many second slices a block has places for; 0 where it has too little memory."""
    (fetched,) = program.fetches
    inner = program.roles.inner_of(fetched.type)
    assert inner is not None
    one = kept_bytes(knobs.rows // knobs.blocks, inner.size)
    left = on.shared_bytes - TASKS_BYTES - Footprint.of(program).shared_bytes(knobs)
    ahead = min(MOST_SLICES_AHEAD, 1 + left // one)
    return ahead if ahead >= FEWEST_SLICES_AHEAD else 0


def stacked_variants(
    program: TileProgram, chosen: tuple[Variant, ...], on: Target
) -> tuple[Variant, ...]:
    """Return the variants of the second launch: of the record's tiles those that have room.

    The last takes any number of tokens. Plans that split the depth have no place for slices.
    """
    fitting = [
        replace(v, knobs=knobs)
        for v in chosen
        if v.knobs.plan != "split"
        and v.knobs.tokens <= MOST_TOGETHER
        and v.knobs.rows // v.knobs.blocks % ROW_TILE == 0
        for knobs in _fitting(program, v.knobs, on)
    ]
    return (*fitting[:-1], replace(fitting[-1], bucket=0)) if fitting else ()


def _fitting(program: TileProgram, knobs: Knobs, on: Target) -> list[Knobs]:
    """Return the knobs without makers, and with as many stages as leave room; none if none do."""
    plain = replace(knobs, maker_rows=0, maker_tokens=0, maker_stages=0, maker_groups=0, barriers=1)
    stages = range(knobs.stages, 1, -max(1, knobs.held))
    found = (replace(plain, stages=n) for n in stages)
    return [k for k in found if slices_ahead(program, k, on)][:1]
