"""The variant of an attention kernel for many query rows.

Query rows take the M side of the warpgroup instruction, 64 of them to a warpgroup, and keys the N
side. A third warpgroup does nothing but copy. The numbers below are those of
csrc/tile/attention/attention.cuh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirage_kernels.generator.plan.attention import AttentionProgram, Do, Held, Step
from mirage_kernels.generator.target import Target


@dataclass(frozen=True)
class Wide:
    """Rows of a tile and keys of a step, for heads of one length."""

    rows: int  # 64: two warpgroups take different keys; 128: different rows
    keys: int


ARCHS = ("sm_90a",)  # that have the instruction
SHAPES = {64: Wide(64, 128), 128: Wide(128, 64)}  # by length of a head; others have no variant
READERS, PRODUCERS = 8, 4  # warps
WARP_ROWS = 16
FEWEST_STAGES, MOST_STAGES = 3, 6
LEFT_FLOATS = 8  # of a row that is left for others, beside its product
ONES_BYTES, STATE_BYTES = 2048, 512
ROOMS, ROOM_FLOATS = 2, 16  # of a warpgroup; of a room, beside a number per key
ELEMENT_BYTES, FLOAT_BYTES = 2, 4
GROUP_WARPS = 4


def takes_many_rows(program: AttentionProgram) -> bool:
    """Say whether a program does with keys and weights what tiles of many rows can.

    Keys are multiplied as they lie in shared memory: nothing is computed of them but sums of lines.
    What is done with scores ends in one online-softmax step, whose mask compares positions.
    """
    of_keys = {s.do for s in program.loop if program.roles.held(s.type) is Held.KEYS}
    step = program.loop[-1]
    others = program.roles.more or any(s.do is Do.ROW_VECTORS for s in program.before)
    if of_keys != {Do.KEYS} or step.do is not Do.SOFTMAX or others:
        return False
    return _compares_positions(step.args[1], program)


def _compares_positions(mask: str, program: AttentionProgram) -> bool:
    """Say whether a mask is made of comparisons with key positions, perhaps moved by a number.

    Such masks need not be computed for steps that they show whole.
    """
    made = {s.out: s for s in program.loop}
    step = made.get(mask)
    if step is None or step.op not in ("both", "less"):
        return False
    if step.op == "both":
        return all(_compares_positions(a, program) for a in step.args)
    return sum(_is_position(made.get(a), program) for a in step.args) == 1


def _is_position(step: Step | None, program: AttentionProgram) -> bool:
    """Say whether a value is the key positions, or a number plus these."""
    if step is None or step.do is Do.KEY_POSITIONS:
        return step is not None
    made = {s.out: s for s in program.loop}
    number, moved = (*step.args, "", "")[:2]
    scalars = {s.out for s in program.before if program.roles.held(s.type) is Held.SCALAR}
    known = scalars.union(program.literals, program.integers)
    return step.op == "add" and number in known and _is_position(made.get(moved), program)


def wide_knobs(program: AttentionProgram, on: Target) -> dict[str, int] | None:
    """Return the knobs of the variant, by name; None if a program or a GPU has none."""
    shape = SHAPES.get(program.depth)
    if shape is None or on.arch not in ARCHS or not takes_many_rows(program):
        return None
    fixed = {**vars(shape), "warps": READERS + PRODUCERS, "blocks": 1, "producers": PRODUCERS}
    fixed["key_sums"] = int(any(s.do is Do.LINE_SUM for s in program.loop))
    for stages in range(MOST_STAGES, FEWEST_STAGES - 1, -1):
        knobs = {**fixed, "stages": stages}
        if wide_bytes(knobs, program.depth) <= on.shared_bytes:
            return knobs
    return None


def groups(knobs: Mapping[str, int]) -> int:
    """Return how many groups of warpgroups take different keys."""
    return (knobs["warps"] - knobs["producers"]) * WARP_ROWS // knobs["rows"]


def wide_bytes(knobs: Mapping[str, int], depth: int) -> int:
    """Return the shared memory of one block.

    The ring, ones, queries, barriers, rows that are left for others, and for every warpgroup two
    rooms of a number per key.
    `WgmmaAttention::kBytes` is the same number.
    """
    ring = knobs["stages"] * 2 * knobs["keys"] * depth * ELEMENT_BYTES  # keys and values
    queries = knobs["rows"] * depth * ELEMENT_BYTES
    left = groups(knobs) * knobs["rows"] * (depth + LEFT_FLOATS) * FLOAT_BYTES
    rooms = (knobs["warps"] - knobs["producers"]) // GROUP_WARPS * ROOMS
    numbers = rooms * (knobs["keys"] + ROOM_FLOATS) * FLOAT_BYTES
    return ring + ONES_BYTES + queries + STATE_BYTES + left + numbers
