"""What all schedules share that stream weights in a loop over the contracted dim."""

from __future__ import annotations

from dataclasses import dataclass

from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import Roles, TileProgram
from mirage_kernels.generator.schedules.schedule import Knobs, Subject

ALIGNED_ELEMENTS = 8  # of two bytes, in 16
BUCKETS = (8, 16, 32, 64)
FEW_TOKENS = 32  # up to so many, two chunks per step are worth more than one wave
RESERVED_BYTES = 1024  # of shared memory, per block, by the system
REGISTERS_LEFT = 250  # for a step and its accumulators: 264 spill, 240 do not
REGISTERS_BESIDE_PRODUCERS = 210  # the same beside one warp more


def lowered(subject: Subject) -> TileProgram:
    """Return the tile program of a muGraph; raises PlanError for one that streams no weights."""
    return tile_program(subject.recipe, subject.graph, subject.on.arch)


@dataclass(frozen=True)
class Producers:
    """Knobs of producer blocks, which compute a product for all other blocks of their launch."""

    rows: int  # of the product, of one block
    tokens: int
    stages: int
    groups: int = 0  # warpgroups, in pairs of blocks that split the depth; 0: sliced-K

    @property
    def label(self) -> str:
        """Name them behind the name of a schedule."""
        return ", producer blocks in pairs" if self.groups else ", producer blocks"


class LoopKnobs(Knobs):
    """Knobs of a block with rows and tokens whose loop streams weights in stages."""

    tokens: int
    rows: int
    stages: int

    @property
    def blocks(self) -> int:
        """Return how many blocks, of a cluster, split the loop."""
        return 1

    @property
    def step_depth(self) -> int:
        """Return how much of the contracted dim one pass of the loop takes."""
        raise NotImplementedError

    def tiles(self, roles: Roles) -> dict[str, int]:
        """Return the tile sizes of the muGraph that such a kernel runs, by dim."""
        return {roles.rows: self.rows, roles.tokens: self.tokens, roles.depth: self.step_depth}
