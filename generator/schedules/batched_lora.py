"""Batched LoRA: the same program where each token has slices of stacked weights, or none.

Which slices a token has is addressing, as pages of a cache are. The muGraph stays that of one
token's; its kernel's second form finds the slices by the tokens' numbers
(csrc/tile/batched_lora).
It has producer blocks (`producer_blocks`) in a launch of their own, for there may be as many slices
as tokens. Consumers have the tiles that the record is proved for.
"""

from __future__ import annotations

from dataclasses import replace

from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.choose import shared_bytes
from mirage_kernels.generator.schedules.loop import ROW_TILE, LoopKnobs, kept_bytes
from mirage_kernels.generator.schedules.producer_blocks import WHERE_MEASURED, divided
from mirage_kernels.generator.schedules.register_operand.block import RegisterOperand
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.schedules.sliced_k import CHUNK_DEPTH, SlicedK
from mirage_kernels.generator.target import Target

ENDING = "_batched"  # of the overload that such a kernel serves
PRODUCER_TOKENS = 8  # of one slice: the N side of one product
PRODUCER_WARPS, PRODUCER_BLOCKS, PRODUCER_CHUNKS = 4, 8, 2  # blocks of a cluster share the depth
PRODUCER_STAGES = 2  # steps that a warp has on their way
FEWEST_SLICES_AHEAD, MOST_SLICES_AHEAD = 2, 8  # a block's second slices
TASKS_BYTES = 1024  # of a block: which tokens go together
# In tiles of 64: 128 tokens with four adapters in use took 27 us (rank 16) and 32 (rank 64),
# PyTorch's program 35 and 40 with a stack of eight, 47 and 94 with one of 64.
MOST_STACKED_TOKENS = 128
MOST_TOGETHER = 64  # tokens whose numbers are looked at together


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
    inputs = tuple(replace(o, stacked=o.name in stacked) for o in program.inputs)
    made = divided(replace(program, recipe=name, inputs=inputs))
    (fetched,) = program.fetches
    assert made.producers is not None
    factors = {*made.producers.stacked, fetched.args[0]}
    return made if factors == {*stacked} else None


def first_launch(program: TileProgram) -> SlicedK:
    """Return the knobs of the first launch: tiles of as few rows as a product has."""
    depth = program.extents[program.roles.depth]
    steps = -(-depth // (PRODUCER_BLOCKS * PRODUCER_WARPS * PRODUCER_CHUNKS * CHUNK_DEPTH))
    stages = min(PRODUCER_STAGES, steps)
    return SlicedK(PRODUCER_TOKENS, ROW_TILE, PRODUCER_WARPS, PRODUCER_CHUNKS, stages)


def slices_ahead(program: TileProgram, knobs: LoopKnobs, on: Target) -> int:
    """Return how many second slices a block has places for; 0 where it has too little memory."""
    (dim,) = program.roles.inner
    slice_bytes = kept_bytes(knobs.rows // knobs.blocks, program.extents[dim])
    left = on.shared_bytes - TASKS_BYTES - shared_bytes(program, knobs)
    ahead = min(MOST_SLICES_AHEAD, 1 + left // slice_bytes)
    return ahead if ahead >= FEWEST_SLICES_AHEAD else 0


def stacked_variants(
    program: TileProgram, chosen: tuple[Variant, ...], on: Target
) -> tuple[Variant, ...]:
    """Return the variants of the second launch: of the record's tiles those that have room.

    They have no producers, and as many stages as leave room for slices. The last takes any number
    of tokens. Plans that split the depth have no place for slices.
    """
    fitting: list[Variant] = []
    for variant in chosen:
        knobs, turns = variant.knobs, 1
        if not isinstance(knobs, SlicedK | RegisterOperand) or knobs.tokens > MOST_TOGETHER:
            continue
        if knobs.rows // knobs.blocks % ROW_TILE:
            continue
        plain: SlicedK | RegisterOperand = replace(knobs, producers=None)
        if isinstance(plain, RegisterOperand):
            plain, turns = replace(plain, barriers=1), plain.groups
        found = (replace(plain, stages=n) for n in range(knobs.stages, 1, -turns))
        most = next((k for k in found if slices_ahead(program, k, on)), None)
        fitting += [replace(variant, knobs=most)] if most else []
    return (*fitting[:-1], replace(fitting[-1], bucket=0)) if fitting else ()
