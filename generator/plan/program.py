"""The tile program: what one block does, statement by statement, with each value's place.

It is the planner's product and the only thing the writers (`emit/`) read. The plan is that of
weight streaming: the operand with the most bytes (`rows`) takes the M side of the tensor-core
instruction and streams through a ring of steps, the one with few lines (`tokens`) takes the N
side, the loop over the contracted dim (`depth`) is dealt out to the warps of the block, and their
partial sums meet in shared memory after the loop. The epilogue then runs once per result element.
Which operand takes which side and how the ring is swizzled is the layouts' choice (`layouts.py`),
where barriers stand the schedule's (`schedule.py`), and what shares bytes `memory.py`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mirage_kernels.generator.ir import DType, TensorType


class Layout(Enum):
    """Where a value lives during the loop, by which of the three dims it has."""

    ROWS = "rows x depth"  # fragment of the M-side operand
    TOKENS = "tokens x depth"  # fragment of the N-side operand
    DEPTH = "depth"  # one vector along the contracted dim, the same for all lines
    ACCUM = "rows x tokens"  # fp32 accumulators
    TOKEN_SUMS = "tokens"  # fp32 partial sums, one per token
    ROW_SUMS = "rows"  # fp32 partial sums, one per row
    SCALAR = "scalar"


@dataclass(frozen=True)
class Roles:
    """Which dim of the program plays which part."""

    rows: str
    tokens: str
    depth: str

    def layout(self, dims: tuple[str, ...]) -> Layout | None:
        """Return the place of a value with these dims, None if the plan has none."""
        letters = {self.rows: "r", self.tokens: "t", self.depth: "d"}
        if not set(dims) <= set(letters):
            return None
        return _LAYOUTS.get(frozenset(letters[d] for d in dims))


_LAYOUTS = {
    frozenset("rd"): Layout.ROWS,
    frozenset("td"): Layout.TOKENS,
    frozenset("d"): Layout.DEPTH,
    frozenset("rt"): Layout.ACCUM,
    frozenset("t"): Layout.TOKEN_SUMS,
    frozenset("r"): Layout.ROW_SUMS,
    frozenset(): Layout.SCALAR,
}


class Do(Enum):
    """What a statement does."""

    LOAD = "load"  # one step's tile of an input, through the ring
    MAP = "map"  # elementwise, on fragments in the loop or on numbers in the epilogue
    CONTRACT = "contract"  # accumulator += rows x tokens on the tensor cores
    SUM = "sum"  # partial += sum of a fragment along depth
    MEET = "meet"  # every warp's partial sums, side by side in shared memory
    TOTAL = "total"  # their sum, in fixed order, for one result element
    READ = "read"  # one element of an input that the loop does not cut
    STORE = "store"  # one result element


@dataclass(frozen=True)
class Statement:
    """One line of a tile program."""

    do: Do
    out: str
    args: tuple[str, ...]
    type: TensorType  # of `out`, whole tile
    layout: Layout
    op: str = ""  # of a map
    barrier: bool = False  # of the block, before the statement

    @property
    def dtype(self) -> DType:
        """Element type of the result."""
        return self.type.dtype


@dataclass(frozen=True)
class Operand:
    """A tensor of the kernel's argument list: its place there and how lines are strided."""

    name: str
    index: int
    type: TensorType


@dataclass(frozen=True)
class TileProgram:
    """All a writer needs; statements in order, by part of the block's life."""

    recipe: str
    roles: Roles
    inputs: tuple[Operand, ...]
    scalars: tuple[str, ...]  # run-time scalars, in recipe order
    output: Operand
    literals: dict[str, str]  # constants and extents: value name -> dim name or number
    loop: tuple[Statement, ...]
    meetings: tuple[Statement, ...]
    epilogue: tuple[Statement, ...]
    tokens_on_m: bool = False  # which side of the tensor cores the tokens take: N, or M
    swizzled: bool = True  # the ring, so that reads of it meet no bank twice
    sharing: bool = True  # of bytes between values that are not needed at the same time

    @property
    def loads(self) -> tuple[Statement, ...]:
        """The statements that fill a step of the ring."""
        return tuple(s for s in self.loop if s.do is Do.LOAD)

    @property
    def accumulators(self) -> tuple[Statement, ...]:
        """The statements that add to a value carried across the loop."""
        return tuple(s for s in self.loop if s.do in (Do.CONTRACT, Do.SUM))
