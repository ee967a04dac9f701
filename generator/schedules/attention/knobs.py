"""What the knobs of both attention schedules have in common."""

from __future__ import annotations

from dataclasses import dataclass

from mirage_kernels.generator.ir import Json, parts_of
from mirage_kernels.generator.schedules.attention.program import AttentionRoles
from mirage_kernels.generator.schedules.schedule import Knobs

ELEMENT_BYTES, FLOAT_BYTES = 2, 4
PASSES_OF_A_SPLIT = 3  # in proofs: passes of the loop that a block makes


@dataclass(frozen=True)
class AttentionKnobs(Knobs):
    """Template constants of an emitted attention kernel."""

    rows: int  # query rows of one tile
    keys: int  # of one step
    warps: int  # of a block
    stages: int  # of the pipeline
    blocks: int  # of a multiprocessor

    @property
    def pass_keys(self) -> int:
        """Return how many keys a block takes in one pass of its loop."""
        raise NotImplementedError

    def shared_bytes(self, depth: int, more: int = 0, key_work: int = 0) -> int:
        """Return the shared memory of one block; see `AttentionProgram.sizes`."""
        raise NotImplementedError

    def tiles(self, roles: AttentionRoles) -> dict[str, int]:
        """Return the tile sizes of the muGraph that such a kernel runs, by `Axis.tile_key`.

        Blocks split the keys into whole passes of the loop. With several tokens a tile's rows are
        those of two tokens here: rows do not know of each other.
        """
        keys = self.pass_keys
        tokens = min(2, self.rows) if roles.tokens else 1
        tiles = {roles.sequences: 1, roles.group: self.rows // tokens}
        if roles.heads:
            tiles[roles.heads] = 1
        if roles.tokens:
            tiles[roles.tokens] = tokens
        return tiles | {roles.keys: keys, parts_of(roles.keys): PASSES_OF_A_SPLIT * keys}

    @property
    def constants(self) -> dict[str, Json]:
        """Return the knobs by name; those that are optional and 0 are left away."""
        return {name: value for name, value in self.to_json().items() if name != "schedule"}
