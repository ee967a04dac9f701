"""What all schedules share that stream weights in a loop over the contracted dim."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property

from mirage_kernels.generator.plan.program import Layout, Roles, Statement, TileProgram
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.target import Target

ALIGNED_ELEMENTS = 8  # of two bytes, in 16
BUCKETS = (8, 16, 32, 64)
MANY_TOKENS = 128  # of one bucket more, which a kernel has where it was measured to be faster
FEW_TOKENS = 32  # up to so many, two chunks per step are worth more than one wave
RESERVED_BYTES = 1024  # of shared memory, per block, by the system
ROW_TILE, TOKEN_TILE = 16, 8  # of one tensor-core instruction
REGISTERS_LEFT = 250  # for a step and its accumulators: 264 spill, 240 do not
REGISTERS_BESIDE_PRODUCERS = 210  # the same beside one warp more
KEPT_ALIGNMENT = 128  # bytes: what lies behind begins where banks do

# Of warpgroup products (wgmma), whose operands come as TMA tiles.
TMA_DEPTH = 64  # contracted elements of one TMA tile: 128 bytes, which the swizzle covers
BARRIER_BYTES = 8  # of one that counts what arrives
GROUP_WARPS = 4
GROUP_ROWS = 64  # rows of one instruction: a tile for each of its warps
REGISTERS = 65536  # of a multiprocessor
REGISTERS_BESIDE = 40  # sums and operands: addresses, vectors along the depth (ptxas)
ALONE_BYTES = 116 * 1024  # a block asks for so many, to be alone on its multiprocessor
WITH_WARPGROUPS = ("sm_90a",)  # architectures that have the vocabulary's wgmma
# Knobs that a config leaves away at these values.
UNSTATED = {"barriers": 1, "tma_tiles": 2, "prologue_warps": 0}


@dataclass(frozen=True)
class Producers:
    """Knobs of producer blocks, which compute a product for all other blocks of their launch."""

    rows: int  # of the product, of one block
    tokens: int
    stages: int
    groups: int = 0  # warpgroups, in pairs of blocks that split the depth; 0: sliced-K


class LoopKnobs(Knobs):
    """Knobs of a block with rows and tokens whose loop streams weights in stages."""

    tokens: int  # of one block
    rows: int  # of one block, or of the blocks that share them
    stages: int
    blocks: int = 1  # of a cluster, which split the loop
    producers: Producers | None = None  # knobs of producer blocks, where a launch has some
    prologue_warps: int = 0  # of a block of the prologue kernel; 0: there is none

    @property
    def finished_rows(self) -> int:
        """Return how many rows a block finishes, of those that it shares."""
        return self.rows

    @property
    def producer_knobs(self) -> LoopKnobs:
        """Return what producer blocks are as blocks of their own."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """Name the schedule, how many blocks share rows, and what other blocks do for them."""
        pairs = {1: "", 2: " in pairs"}.get(self.blocks, f" in clusters of {self.blocks}")
        prologue = ", prologue" if self.prologue_warps else ""
        producers = ", producer blocks" if self.producers else ""
        in_pairs = " in pairs" if self.producers and self.producers.groups else ""
        return f"{self.schedule}{pairs}{prologue}{producers}{in_pairs}"

    @property
    def template(self) -> str:
        """Name the C++ template of its configs, for which the form overloads `launch`."""
        return "AfterPrologue" if self.prologue_warps else super().template

    @property
    def has_workspace(self) -> bool:
        """Say whether blocks leave something for others, in a workspace."""
        return self.producers is not None or self.prologue_warps > 0

    def config(self, program: TileProgram) -> dict[str, int]:
        """Return the constants of an emitted kernel's config, by name."""
        assert is_dataclass(self)
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "producers"}
        own = {name: value for name, value in own.items() if UNSTATED.get(name) != value}
        if (made := self.producers) is None:
            return own
        own |= {"producer_rows": made.rows, "producer_tokens": made.tokens}
        own |= {"producer_groups": made.groups} if made.groups else {"producer_warps": own["warps"]}
        return own | {"producer_stages": made.stages}

    @property
    def step_depth(self) -> int:
        """Return how much of the contracted dim one pass of the loop takes."""
        raise NotImplementedError

    def tiles(self, roles: Roles) -> dict[str, int]:
        """Return the tile sizes of the muGraph that such a kernel runs, by dim."""
        return {**self.block_tiles(roles), roles.depth: self.step_depth}

    def block_tiles(self, roles: Roles) -> dict[str, int]:
        """Return the tile sizes of a block, or of blocks that share one."""
        return {roles.rows: self.rows, roles.tokens: self.tokens}


@dataclass(frozen=True)
class Block:
    """What a block of a program that streams rows loads and adds up, counted by layout."""

    program: TileProgram

    @cached_property
    def depth(self) -> int:
        """The contracted extent."""
        return self.program.extents[self.program.roles.depth]

    @cached_property
    def rows(self) -> int:
        """Rows of the streamed weights."""
        return self.program.extents[self.program.roles.rows]

    @cached_property
    def inner(self) -> int:
        """Rows of a weight that the grid does not cut."""
        return sum(self.program.extents[dim] for dim in self.program.roles.inner)

    @cached_property
    def loads(self) -> Counter[Layout]:
        """Tiles of the streamed operands."""
        return Counter(s.layout for s in self.program.loads)

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of one element of each of the streamed operands."""
        return sum(s.dtype.bytes for s in self.program.loads if s.layout is Layout.ROWS)

    def group_bytes(self, read: Statement) -> int:
        """Return the bytes of a row's elements of which several neighbours have one."""
        of = dict(self.program.operand(read).grouped)
        return self.depth // of[self.program.roles.depth] * read.dtype.bytes

    @cached_property
    def sums(self) -> Counter[Layout]:
        """Values that are added up in the loop, and meet after it."""
        return Counter(s.layout for s in self.program.reductions)


class WarpgroupKnobs(LoopKnobs):
    """Knobs of a block whose warpgroups multiply what comes as TMA tiles."""

    groups: int  # warpgroups that multiply

    @property
    def warps(self) -> int:
        """Return how many warps of a block multiply."""
        return self.groups * GROUP_WARPS

    @property
    def preference(self) -> tuple[int, ...]:
        """Order knobs that are predicted to be equally fast."""
        return (-self.warps, self.rows, self.blocks, -self.stages)


def producers_of(knobs: Knobs) -> Producers | None:
    """Return the knobs of producer blocks, None where a launch has none."""
    return knobs.producers if isinstance(knobs, LoopKnobs) else None


def prologue_warps(knobs: Knobs) -> int:
    """Return the warps of a block of the prologue kernel; 0: there is none."""
    return knobs.prologue_warps if isinstance(knobs, LoopKnobs) else 0


def columns_reason(program: TileProgram) -> tuple[str, ...]:
    """Return why a schedule whose copies take lines of rows does not fit a program."""
    return ("rows of its weights lie side by side",) if program.columns else ()


def bytes_reason(program: TileProgram) -> tuple[str, ...]:
    """Return why a schedule that multiplies weights as they lie does not fit a program."""
    return ("its weights have 8 bits",) if program.byte_rows else ()


def reasons_against(on: Target) -> tuple[str, ...]:
    """Return why a target runs no schedule of warpgroup products."""
    return () if on.arch in WITH_WARPGROUPS else (f"{on.arch} has no wgmma",)


def rows_for(rows: int, blocks: int, tile: int = ROW_TILE) -> int:
    """Return the fewest rows per block, in whole row tiles, of which `blocks` cover all rows."""
    return -(-rows // (tile * blocks)) * tile


def row_tiles(lines: int) -> int:
    """Return a number of lines in whole row tiles."""
    return -(-lines // ROW_TILE) * ROW_TILE


def aligned(size: int) -> int:
    """Return bytes with those up to what lies behind them."""
    return -(-size // KEPT_ALIGNMENT) * KEPT_ALIGNMENT


def kept_bytes(lines: int, inner: int) -> int:
    """Return what lines of the inner dim take (csrc/tile/mma/resident.cuh)."""
    pitch = (inner // ALIGNED_ELEMENTS | 1) * ALIGNED_ELEMENTS
    return aligned(lines * pitch * 2)
