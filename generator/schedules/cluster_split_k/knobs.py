"""Knobs of cluster split-K."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mirage_kernels.generator.schedules.loop import LoopKnobs
from mirage_kernels.generator.schedules.warpgroups import BOX_DEPTH, GROUP_WARPS

BLOCKS = 2  # of a cluster: all SMs hold pairs, not all larger clusters (docs/measurements.md)
GROUPS, MOST_GROUPS = 2, 3  # warpgroups that multiply


@dataclass(frozen=True)
class ClusterSplitK(LoopKnobs):
    """Template constants of a cluster split-K kernel."""

    schedule: ClassVar[str] = "cluster_split_k"

    tokens: int  # of one block
    rows: int  # of a cluster
    stages: int
    groups: int = GROUPS  # warpgroups that multiply

    @property
    def blocks(self) -> int:
        """Return how many blocks, of a cluster, split the loop."""
        return BLOCKS

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
        return BLOCKS * BOX_DEPTH
