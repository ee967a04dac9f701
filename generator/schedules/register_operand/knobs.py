"""Knobs of register-operand wgmma."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mirage_kernels.generator.schedules.loop import LoopKnobs, Producers
from mirage_kernels.generator.schedules.warpgroups import BOX_DEPTH, GROUP_WARPS

BOXES = 2  # of a step: 128 contracted elements; one box was 5 % slower, four no faster


@dataclass(frozen=True)
class RegisterOperand(LoopKnobs):
    """Template constants of a kernel with tokens as register operands."""

    schedule: ClassVar[str] = "register_operand"

    tokens: int  # of one block
    rows: int  # of one block, or of the pair that shares them
    stages: int
    groups: int = 1  # warpgroups that take turns at steps
    blocks: int = 1  # of a cluster, which split the depth
    barriers: int = 1  # of a step: one, or one for each of its boxes
    prologue_warps: int = 0  # of a token's block in a prologue kernel, which makes tokens; 0: none
    producers: Producers | None = None

    @property
    def label(self) -> str:
        """Name the schedule, whether blocks are in pairs, and what other blocks do for them."""
        pairs = " in pairs" if self.blocks > 1 else ""
        prologue = ", prologue" if self.prologue_warps else ""
        producers = self.producers.label if self.producers else ""
        return f"{self.schedule}{pairs}{prologue}{producers}"

    @property
    def has_workspace(self) -> bool:
        """Say whether blocks leave something for others, in a workspace."""
        return self.producers is not None or self.prologue_warps > 0

    @property
    def warps(self) -> int:
        """Return how many warps of a block multiply."""
        return self.groups * GROUP_WARPS

    @property
    def preference(self) -> tuple[int, ...]:
        """Order knobs that are predicted to be equally fast."""
        return (-self.warps, self.rows, self.blocks, -self.stages)

    @property
    def step_depth(self) -> int:
        """Return how much of the contracted dim one pass of the loop takes."""
        return self.blocks * self.groups * BOXES * BOX_DEPTH
