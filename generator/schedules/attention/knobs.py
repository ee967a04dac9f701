"""What the knobs of both attention schedules have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace

from typing_extensions import Self

from mirage_kernels.generator.ir import parts_of
from mirage_kernels.generator.schedules.attention.program import AttentionProgram, AttentionRoles
from mirage_kernels.generator.schedules.loop import RESERVED_BYTES
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.target import Target

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
    def template(self) -> str:
        """Name the C++ template of its configs: both schedules have the same."""
        return "FlashAttention"

    @property
    def fewest_stages(self) -> int:
        """Return the stages of the shortest pipeline."""
        raise NotImplementedError

    @property
    def pass_keys(self) -> int:
        """Return how many keys a block takes in one pass of its loop."""
        raise NotImplementedError

    def shared_bytes(self, depth: int, more: int = 0, key_work: int = 0) -> int:
        """Return the shared memory of one block; see `AttentionProgram.sizes`."""
        raise NotImplementedError

    def fitting(self, program: AttentionProgram, on: Target) -> Self | None:
        """Return the knobs, with fewer stages if there is no room; None if too few have it."""
        share = (on.shared_bytes + RESERVED_BYTES) // self.blocks - RESERVED_BYTES
        fewer = (replace(self, stages=n) for n in range(self.stages, self.fewest_stages - 1, -1))
        return next((k for k in fewer if k.shared_bytes(*program.sizes) <= share), None)

    def config(self, program: AttentionProgram) -> dict[str, int]:
        """Return the knobs by name; those that are optional and 0 are left away."""
        optional = ("dynamic", "key_sums", "parts")
        return {name: n for name, n in vars(self).items() if n or name not in optional}

    def tiles(self, roles: AttentionRoles) -> dict[str, int]:
        """Return the tile sizes of the muGraph that such a kernel runs, by `Axis.tile_key`.

        Blocks split the keys into whole passes of the loop. With several tokens a tile's rows are
        those of two tokens here: rows do not know of each other.
        """
        keys, tokens = self.pass_keys, min(2, self.rows) if roles.tokens else 1
        tiles = {roles.sequences: 1, roles.group: self.rows // tokens}
        tiles |= {roles.heads: 1, roles.tokens: tokens, roles.keys: keys}
        tiles[parts_of(roles.keys)] = PASSES_OF_A_SPLIT * keys
        return {dim: size for dim, size in tiles.items() if dim}
