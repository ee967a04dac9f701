"""Attention by wgmma: many query rows, which take the M side of the warpgroup instruction.

A warpgroup has 64 of them; keys take the N side. A third warpgroup only copies. The numbers below
are those of csrc/tile/attention/wgmma/.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from mirage_kernels.generator.schedules.attention.knobs import (
    ELEMENT_BYTES,
    FLOAT_BYTES,
    AttentionKnobs,
)
from mirage_kernels.generator.schedules.attention.program import (
    AttentionProgram,
    AttentionRoles,
    Do,
    Place,
)
from mirage_kernels.generator.schedules.schedule import Schedule
from mirage_kernels.generator.target import Target

ARCHS = ("sm_90a",)  # that have the instruction
# Query rows of a tile and keys of a step, by length of a head; others have no variant. With 64
# rows, two warpgroups take different keys, with 128 different rows.
SHAPES = {64: (64, 128), 128: (128, 64)}
CONSUMERS, PRODUCERS = 8, 4  # warps
WARP_ROWS, GROUP_WARPS = 16, 4
FEWEST_STAGES, MOST_STAGES = 3, 6
STAGES_OF_A_GROUP = 2  # that warpgroups with keys of their own hold at once
LEFT_FLOATS = 8  # of a row that is left for others, beside its product
STATE_BYTES = 512
BUFFERS, BUFFER_FLOATS = 2, 16  # of a warpgroup; of a buffer, beside a number per key
OTHER_SHAPES = (*SHAPES.values(), (64, 64), (128, 128))  # candidates


@dataclass(frozen=True)
class WgmmaAttention(AttentionKnobs):
    """Template constants of attention by wgmma."""

    schedule: ClassVar[str] = "wgmma_attention"
    fewest_stages: ClassVar[int] = FEWEST_STAGES

    producers: int  # warps that only copy
    key_sums: int = 0  # 1 where it sums lines of keys, while its products go on

    @property
    def groups(self) -> int:
        """Return how many groups of warpgroups take different keys."""
        return (self.warps - self.producers) * WARP_ROWS // self.rows

    @property
    def pass_keys(self) -> int:
        """Return how many keys a block takes in one pass of its loop: a step of every group."""
        return self.keys * self.groups

    def shared_bytes(self, depth: int, more: int = 0, key_work: int = 0) -> int:
        """Return the shared memory of one block.

        The pipeline, queries, barriers, rows that are left for others, and for every
        warpgroup two buffers of a number per key. `WgmmaAttention::kBytes` is the same number.
        """
        pipeline = self.stages * 2 * self.keys * depth * ELEMENT_BYTES  # keys and values
        queries = self.rows * depth * ELEMENT_BYTES
        left = self.groups * self.rows * (depth + LEFT_FLOATS) * FLOAT_BYTES
        buffers = (self.warps - self.producers) // GROUP_WARPS * BUFFERS
        numbers = buffers * (self.keys + BUFFER_FLOATS) * FLOAT_BYTES
        return pipeline + queries + STATE_BYTES + left + numbers


def fits(program: AttentionProgram, on: Target) -> tuple[str, ...]:
    """Return what speaks against tiles of many query rows."""
    reasons = [
        (on.arch in ARCHS, f"{on.arch} has no wgmma"),
        (program.depth in SHAPES, f"there is no tile for heads of {program.depth} elements"),
        (takes_many_rows(program), "it computes what tiles of many rows do not"),
    ]
    return tuple(reason for holds, reason in reasons if not holds)


SCHEDULE = Schedule(knobs=WgmmaAttention, roles=AttentionRoles, fits=fits)


def rule(program: AttentionProgram, on: Target) -> WgmmaAttention | None:
    """Return the knobs of the variant, with the most stages; None if a program or GPU has none."""
    if fits(program, on):
        return None
    rows, keys = SHAPES[program.depth]
    sums, warps = int(any(s.do is Do.LINE_SUM for s in program.loop)), CONSUMERS + PRODUCERS
    knobs = WgmmaAttention(rows, keys, warps, MOST_STAGES, 1, producers=PRODUCERS, key_sums=sums)
    return knobs.fitting(program, on)


def candidates(
    rule: WgmmaAttention, program: AttentionProgram, on: Target
) -> Iterator[WgmmaAttention]:
    """Yield other tiles: their rows, keys and stages.

    `key_sums` is no choice: without it the keys' stage is released before its lines are summed.
    """
    shorter = replace(rule, stages=rule.stages - 1)
    shapes = (s for s in OTHER_SHAPES if s != (rule.rows, rule.keys))
    others = (replace(rule, rows=r, keys=k, stages=MOST_STAGES) for r, k in shapes)
    for knobs in (shorter, *others):
        fitting = knobs.fitting(program, on)
        if fitting and fitting.stages > STAGES_OF_A_GROUP * fitting.groups:
            yield fitting


def takes_many_rows(program: AttentionProgram) -> bool:
    """Say whether a program does with keys and weights what tiles of many rows can.

    Keys are multiplied as they lie in shared memory: nothing is computed of them but sums of lines.
    What is done with scores ends in one online-softmax step, whose mask compares key positions,
    perhaps moved by a number: it need not be computed for steps that it shows whole.
    """
    roles, step = program.roles, program.loop[-1]
    of_keys = {s.do for s in program.loop if roles.place(s.type) is Place.KEYS}
    others = roles.more or any(s.do is Do.ROW_VECTORS for s in program.before)
    if of_keys != {Do.KEYS} or step.do is not Do.SOFTMAX or others:
        return False
    made = {s.out: s for s in program.loop}
    scalars = {s.out for s in program.before if roles.place(s.type) is Place.SCALAR}
    numbers = scalars.union(program.literals, program.integers)

    def is_position(name: str) -> bool:
        s = made.get(name)
        moved = s is not None and s.op == "add" and s.args[0] in numbers and is_position(s.args[1])
        return moved or (s is not None and s.do is Do.KEY_POSITIONS)

    def compares_positions(mask: str) -> bool:
        s = made.get(mask)
        if s is not None and s.op == "both":
            return all(map(compares_positions, s.args))
        return s is not None and s.op == "less" and sum(map(is_position, s.args)) == 1

    return compares_positions(step.args[1])
