"""Knobs: the template constants of an emitted kernel, and which of its variants has which."""

from __future__ import annotations

from dataclasses import dataclass, fields

from mirage_kernels.generator.ir import Json
from mirage_kernels.generator.plan.held import BOXES
from mirage_kernels.generator.plan.split import BOX_DEPTH

CHUNK_DEPTH = 32  # contracted elements that a warp takes from a line at once: 4 lanes x 16 bytes


@dataclass(frozen=True)
class Knobs:
    """Template constants of the emitted kernel."""

    tokens: int  # tokens of one block
    rows: int  # rows of one block
    warps: int  # the loop is dealt out to so many
    chunks: int  # 16-byte pieces that a lane takes of a line per step: 32 elements of four lanes
    stages: int  # steps in flight; 1: lines are whole
    blocks: int = 1  # the loop is dealt out to so many, of a cluster (split.py)
    held: int = 0  # warpgroups that hold tokens in registers (held.py)
    maker_rows: int = 0  # of blocks that compute totals for all others (apart.py); 0: none do
    maker_tokens: int = 0
    maker_stages: int = 0
    maker_groups: int = 0  # warpgroups of makers that hold tokens, in pairs; 0: they have slices
    line: int = 0  # elements of a line that a block takes, where the grid cuts lines
    front: int = 0  # warps of a token's block in front, which makes tokens (front.py); 0: none
    barriers: int = 1  # of a step of held tokens: one, or one for each of its boxes

    @property
    def plan(self) -> str:
        """Name the plan: what else the emitted kernel is called, "" for that of slices."""
        return "held" if self.held else "split" if self.blocks > 1 else ""

    @property
    def plan_name(self) -> str:
        """Name all that a plan is: what becomes of the loop, and whether totals are made apart."""
        name = self.plan or ("slices" if self.rows else "lines")
        name += " in pairs" if self.held and self.blocks > 1 else ""
        name += ", tokens in front" if self.front else ""
        name += ", apart" if self.apart else ""
        return f"{name} in pairs" if self.maker_groups else name

    @property
    def apart(self) -> bool:
        """Say whether some blocks compute totals for all others."""
        return self.maker_rows > 0

    @property
    def leaves_something(self) -> bool:
        """Say whether blocks leave something for others, in a workspace."""
        return self.apart or self.front > 0

    @property
    def makers(self) -> Knobs:
        """Return the knobs of those blocks."""
        return Knobs(self.maker_tokens, self.maker_rows, self.warps, 2, self.maker_stages)

    def to_json(self) -> dict[str, Json]:
        """Return the knobs as JSON data."""
        usual = self.usual()
        return {k: v for k, v in vars(self).items() if v != usual.get(k)}

    @classmethod
    def usual(cls) -> dict[str, int]:
        """Return the values of knobs that need not be written."""
        return {f.name: f.default for f in fields(cls) if isinstance(f.default, int)}


@dataclass(frozen=True)
class Variant:
    """A kernel with fixed knobs, and the largest number of tokens it is chosen for (0 = any)."""

    bucket: int
    knobs: Knobs

    def tiles(self, rows: str, tokens: str, depth: str) -> dict[str, int]:
        """Return the tile sizes of the muGraph that this variant runs, by dim; `rows` may be ""."""
        if not rows:
            part = {depth: self.knobs.line} if self.knobs.line else {}
            return {tokens: self.knobs.tokens} | part
        step = self.knobs.chunks * CHUNK_DEPTH * self.knobs.warps
        if self.knobs.held:
            step = self.knobs.blocks * self.knobs.held * BOXES * BOX_DEPTH
        elif self.knobs.blocks > 1:
            step = self.knobs.blocks * BOX_DEPTH
        return {rows: self.knobs.rows, tokens: self.knobs.tokens, depth: step}
