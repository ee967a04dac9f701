"""Attention by wgmma: many query rows, which take the M side of the warpgroup instruction.

A warpgroup has 64 of them; keys take the N side. A third warpgroup only copies. Over latents, which
are keys and values alike, both warpgroups have the same rows, and a part of the values' elements
each. The numbers below are those of csrc/tile/attention/wgmma/.
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
LATENT_SHAPES = {256: (64, 64), 512: (64, 64)}  # the same of latents
PARTS = 2  # of a latent's elements, for the warpgroups
MORE_DEPTH = 64  # what keys have beside latents is a multiple of so many elements
CONSUMERS, PRODUCERS = 8, 4  # warps
WARP_ROWS, GROUP_WARPS = 16, 4
FEWEST_STAGES, MOST_STAGES = 3, 6
FEWEST_OF_LATENTS = 2
STAGES_OF_A_GROUP = 2  # that warpgroups with keys of their own hold at once
LEFT_FLOATS = 8  # of a row that is left for others, beside its product
STATE_BYTES = 512
BUFFERS, BUFFER_FLOATS = 2, 16  # of a warpgroup; of a buffer, beside a number per key
OTHER_SHAPES = (*SHAPES.values(), (64, 64), (128, 128))  # candidates


@dataclass(frozen=True)
class WgmmaAttention(AttentionKnobs):
    """Template constants of attention by wgmma."""

    schedule: ClassVar[str] = "wgmma_attention"

    producers: int  # warps that only copy
    key_sums: int = 0  # 1 where it sums lines of keys, while its products go on
    parts: int = 0  # of the values' elements, for warpgroups with the same rows; 0: one

    @property
    def fewest_stages(self) -> int:
        """Return the stages of the shortest pipeline."""
        return FEWEST_OF_LATENTS if self.parts else FEWEST_STAGES

    @property
    def groups(self) -> int:
        """Return how many groups of warpgroups take different keys."""
        return (self.warps - self.producers) * WARP_ROWS // self.rows // max(1, self.parts)

    @property
    def pass_keys(self) -> int:
        """Return how many keys a block takes in one pass of its loop: a step of every group."""
        return self.keys * self.groups

    def shared_bytes(self, depth: int, more: int = 0, key_work: int = 0) -> int:
        """Return the shared memory of one block.

        The pipeline, queries, barriers, rows that are left for others, and for every
        warpgroup two buffers of a number per key; over latents, the first three, and for every
        warp its weights and a number per row. `WgmmaAttention::kBytes` and `WgmmaLatents::kBytes`
        are the same numbers.
        """
        consumers = self.warps - self.producers
        if self.parts:
            lines = self.stages * self.keys + self.rows
            of_row = self.keys // self.parts * ELEMENT_BYTES + FLOAT_BYTES
            told = consumers * WARP_ROWS * of_row
            return lines * (depth + more) * ELEMENT_BYTES + STATE_BYTES + told
        pipeline = self.stages * 2 * self.keys * depth * ELEMENT_BYTES  # keys and values
        queries = self.rows * depth * ELEMENT_BYTES
        left = self.groups * self.rows * (depth + LEFT_FLOATS) * FLOAT_BYTES
        buffers = consumers // GROUP_WARPS * BUFFERS
        numbers = buffers * (self.keys + BUFFER_FLOATS) * FLOAT_BYTES
        return pipeline + queries + STATE_BYTES + left + numbers


def fits(program: AttentionProgram, on: Target) -> tuple[str, ...]:
    """Return what speaks against tiles of many query rows."""
    shapes = LATENT_SHAPES if program.roles.more else SHAPES
    whole = program.more_depth % MORE_DEPTH == 0
    reasons = [
        (on.arch in ARCHS, f"{on.arch} has no wgmma"),
        (program.depth in shapes, f"there is no tile for heads of {program.depth} elements"),
        (whole, f"{program.more_depth} more elements of keys are no multiple of {MORE_DEPTH}"),
        (takes_many_rows(program), "it computes what tiles of many rows do not"),
    ]
    return tuple(reason for holds, reason in reasons if not holds)


SCHEDULE = Schedule(knobs=WgmmaAttention, roles=AttentionRoles, fits=fits)


def rule(program: AttentionProgram, on: Target) -> WgmmaAttention | None:
    """Return the knobs of the variant, with the most stages; None if a program or GPU has none."""
    if fits(program, on):
        return None
    latent = bool(program.roles.more)
    rows, keys = (LATENT_SHAPES if latent else SHAPES)[program.depth]
    sums, warps = int(any(s.do is Do.LINE_SUM for s in program.loop)), CONSUMERS + PRODUCERS
    knobs = WgmmaAttention(rows, keys, warps, MOST_STAGES, 1, producers=PRODUCERS, key_sums=sums)
    return replace(knobs, parts=PARTS if latent else 0).fitting(program, on)


def candidates(
    rule: WgmmaAttention, program: AttentionProgram, on: Target
) -> Iterator[WgmmaAttention]:
    """Yield other tiles: their rows, keys and stages; none over latents.

    `key_sums` is no choice: without it the keys' stage is released before its lines are summed.
    """
    if rule.parts:
        return
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
    Over latents, queries are multiplied as they are, too, and the two products are only added.
    What is done with scores ends in one online-softmax step, whose mask compares key positions,
    perhaps moved by a number: it need not be computed for steps that it shows whole.
    """
    roles, step = program.roles, program.loop[-1]
    of_keys = {s.do for s in program.loop if roles.place(s.type) is Place.KEYS}
    others = any(s.do is Do.ROW_VECTORS for s in program.before)
    if step.do is not Do.SOFTMAX or others:
        return False
    if not _adds_products(program) if roles.more else of_keys != {Do.KEYS}:
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


def _adds_products(program: AttentionProgram) -> bool:
    """Say whether nothing is done with queries, keys and the scores of both but their sum."""
    given = {Do.QUERIES, Do.KEYS, Do.LENGTH, Do.MORE_QUERIES, Do.MORE_KEYS}
    scores = {s.out for s in program.loop if s.do in (Do.SCORES, Do.MORE_SCORES)}
    users = [s for s in program.loop if scores & {*s.args}]
    alone = all(s.do in given for s in program.before) and len(users) == 1
    tiles = {s.do for s in program.loop if program.roles.place(s.type) is Place.KEYS}
    return alone and users[0].op == "add" and {*users[0].args} == scores and tiles <= given
