"""How a schedule runs a program's blocks: the slices of its loop, and what lies where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirage_kernels.generator.plan.program import Do, Layout, Roles, Statement, TileProgram

RING = "steps"  # the pipeline's name among the values in shared memory
SLICE = "slice"  # the dim of partial sums
LINE_TILE, ROW_TILE = 8, 16  # lines that a warp reads at once; rows of a tensor-core instruction
ELEMENT, SUM, VECTOR = 2, 4, 8  # bytes in storage types and of sums; elements of 16 bytes
PITCH = 4  # sums behind the rows of a token (csrc/tile/epilogue.cuh)


@dataclass(frozen=True)
class Arranged:
    """A block with a schedule's knobs; where nothing loops, its tiles are all there is to it."""

    tiles: Mapping[str, int]  # of the dims that the grid cuts
    slices: int = 1  # of the depth, each with partial sums and stages of its own
    warps: int = 1  # of a slice
    depth: int = 0  # of a slice's step
    stages: int = 1  # of a slice: copies run one less ahead
    step_bytes: int = 0  # of a stage
    slice_bytes: int = 0  # of a slice's stages
    bytes: int = 0  # of shared memory
    offsets: Mapping[str, int] = field(default_factory=dict)  # of what lies there, in bytes
    roles: tuple[tuple[Statement, ...], ...] = ()  # who runs what of a step; (): all run all of it
    waits: bool = True  # for all stages to be read before sums are left for others
    rewritten: str = ""  # by the first role, in place of the loaded tokens, for the others

    def lines(self, s: Statement, roles: Roles) -> int:
        """Return the lines of a loaded tile."""
        inner = roles.inner_of(s.type)
        if inner is not None:
            return -(-inner.size // ROW_TILE) * ROW_TILE
        own = {Layout.ROWS: roles.rows, Layout.TOKENS: roles.tokens}
        return self.tiles[own[s.layout]] if s.layout in own else LINE_TILE

    def strides(self, s: Statement, roles: Roles, *, partial: bool) -> dict[str, int]:
        """Return the bytes from index to index of each dim of what a statement leaves.

        `partial`: every slice leaves its own. Kept tiles have storage types.
        """
        rows, tokens = self.tiles[roles.rows], self.tiles[roles.tokens]
        if s.layout is Layout.TOKEN_SUMS and not partial:
            return {roles.tokens: SUM}
        if s.layout in (Layout.TOKEN_SUMS, Layout.ROW_SUMS):
            line = roles.tokens if s.layout is Layout.TOKEN_SUMS else roles.rows
            return {line: self.slices * SUM, SLICE: SUM}
        inner = roles.inner_of(s.type)
        if inner is not None and not partial:
            line = roles.rows if s.layout is Layout.FACTORS else roles.tokens
            return {line: (inner.size // VECTOR | 1) * VECTOR * ELEMENT, inner.name: ELEMENT}
        fast = inner.name if inner is not None else roles.rows
        pitch = (self.lines(s, roles) if inner is not None else rows) + PITCH
        found = {fast: SUM, roles.tokens: pitch * SUM}
        return found | ({SLICE: tokens * pitch * SUM} if partial else {})

    def with_ring(self, program: TileProgram) -> Arranged:
        """Return the block with a pipeline at the start of its shared memory."""
        lines = sum(self.lines(s, program.roles) for s in program.loads)
        step = lines * self.depth * ELEMENT
        own, offsets = self.stages * step, {RING: 0}
        sized = replace(self, step_bytes=step, slice_bytes=own, bytes=self.slices * own)
        return replace(sized, offsets=offsets)

    def with_values(
        self, values: Iterable[Statement], program: TileProgram, *, at: int
    ) -> Arranged:
        """Return the block with values in shared memory, one behind another."""
        offsets = dict(self.offsets)
        for s in values:
            partial = s.do is Do.REDUCE
            strides = self.strides(s, program.roles, partial=partial)
            inner = program.roles.inner_of(s.type)
            sizes = {**self.tiles, SLICE: self.slices}
            sizes |= {inner.name: self.lines(s, program.roles)} if inner is not None else {}
            offsets[s.out], length = at, max(strides[d] * sizes[d] for d in strides)
            at += -(-length // (VECTOR * ELEMENT)) * VECTOR * ELEMENT
        return replace(self, offsets=offsets, bytes=max(self.bytes, at))


Kernels = Sequence[tuple[TileProgram, Arranged]]  # in the order of their launches
