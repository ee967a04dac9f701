"""What the knobs of both attention schedules have in common."""

from __future__ import annotations

from dataclasses import dataclass

from mirage_kernels.generator.ir import Json
from mirage_kernels.generator.ir.codec import to_data
from mirage_kernels.generator.schedules.schedule import Knobs

ELEMENT_BYTES, FLOAT_BYTES = 2, 4


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

    @property
    def constants(self) -> dict[str, Json]:
        """Return the knobs by name; those that are optional and 0 are left away."""
        made = to_data(self)
        assert isinstance(made, dict)
        return made

    def to_json(self) -> dict[str, Json]:
        """Return schedule and knobs as one JSON object."""
        return {"schedule": self.schedule, **self.constants}
