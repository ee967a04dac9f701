"""The program of fast schedules: what one block does, statement by statement, with values' places.

It is made of a general tile program (`plan/lower.py`), run before it is written
(`plan/interpret.py`), and the only thing that writers of these schedules read.

The operand with the most bytes (`rows`) takes the M side of the tensor-core instruction and streams
through a multistage pipeline, the one with few lines (`tokens`) takes the N side; the loop over the
contracted dim (`depth`) is partitioned over the warps of the block, and their partial sums meet in
shared memory after it. The epilogue then runs once per result element.

A second static dim may be streamed beside the rows (`inner`: the rank of an adapter) and contracted
after the loop. Every block has all of it: its sums are totalled in a stage of their own, kept in
shared memory in the storage type, and multiplied there with a tile that was fetched at the start.

What needs a token's whole depth before the loop, a norm's statistics, is computed row by row: a
warp takes a token in registers and leaves its numbers in shared memory. A program without a loop
has nothing but rows, one per block, or cut into row tiles where nothing is summed.

A result beside the output that the loop computes from tokens is stored there, step by step, each
block that computes it storing its share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Dim, DType, Graph, Node, TensorType, extents_in_memory
from mirage_kernels.generator.ir.dtypes import EIGHT_BITS


class Layout(Enum):
    """Where a value lives during the loop, by which of the three dims it has."""

    ROWS = "rows x depth"  # fragment of the M-side operand
    TOKENS = "tokens x depth"  # fragment of the N-side operand
    DEPTH = "depth"  # one vector along the contracted dim, the same for all lines
    ACCUM = "rows x tokens"  # fp32 accumulators
    TOKEN_SUMS = "tokens"  # fp32 partial sums, one per token
    ROW_SUMS = "rows"  # fp32 partial sums, one per row
    INNER = "inner x depth"  # fragment of an M-side operand, not cut by the grid
    INNER_ACCUM = "inner x tokens"  # fp32 accumulators of its product
    FACTORS = "rows x inner"  # in shared memory, fetched before the loop
    LINE = "tokens x whole depth"  # one token at a time, in registers
    LINE_VECTOR = "whole depth"  # what all lines share, in registers like one
    SCALAR = "scalar"


@dataclass(frozen=True)
class Roles:
    """Which dim of the program plays which part; without a loop there are no rows."""

    tokens: str
    depth: str
    rows: str = ""
    inner: tuple[str, ...] = ()  # other static lines with products along the loop

    def layout(self, dims: tuple[str, ...]) -> Layout | None:
        """Return the place of a value with these dims, None if the plan has none."""
        words = {self.rows: "rows", self.tokens: "tokens", self.depth: "depth"}
        words |= dict.fromkeys(self.inner, "inner")
        found = [words.get(d, "?") for d in dims]
        place = " x ".join(sorted(found, key="rows inner tokens depth".find)) or "scalar"
        return Layout(place) if place in {layout.value for layout in Layout} else None

    @property
    def counted(self) -> str:
        """What buckets count: tokens."""
        return self.tokens

    def inner_of(self, type_: TensorType) -> Dim | None:
        """Return the inner dim of a value, None if it has none."""
        return next((d for d in type_.dims if d.name in self.inner), None)


def roles_of(body: Graph) -> Roles:
    """Return which dim is streamed, which has the few lines, which is contracted.

    The loop's dim is the depth; of the two operands of a contraction over it, the one with static
    lines streams. Where several do, the grid cuts the rows; lines that it leaves whole are inner
    ones. Without a loop tokens are cut, and lines are whole or cut. Raises PlanError where that
    does not determine the roles.
    """
    assert body.space is not None
    cut = {axis.dim for axis in body.space.grid}
    dims = {d.name: d for v in body.values.values() for d in v.type.dims}
    if body.space.loop is None:
        ordered = sorted(dims, key=lambda name: not dims[name].dynamic)
        if [dims[name].dynamic for name in ordered] != [True, False]:
            raise PlanError("without a loop the plan takes a dynamic dim and a static one")
        if ordered[0] not in cut:
            raise PlanError(f"without a loop the plan cuts {ordered[0]}")
        return Roles(tokens=ordered[0], depth=ordered[1])
    depth = body.space.loop.dim
    found: list[tuple[str, str]] = []
    for node in body.of("contract"):
        kept = [[d for d in body.values[a].type.names if d != depth] for a in node.args]
        if node.over == depth and [len(k) for k in kept] == [1, 1]:
            (rows,), (tokens,) = sorted(kept, key=lambda k: dims[k[0]].dynamic)
            if not dims[rows].dynamic and dims[tokens].dynamic:
                found.append((rows, tokens))
    if not found:
        raise PlanError("no contraction along the loop has one static and one dynamic operand")
    streamed, few = next((pair for pair in found if pair[0] in cut), found[0])
    whole = [lines for lines, other in found if other == few and lines not in cut]
    return Roles(few, depth, streamed, tuple(dict.fromkeys(n for n in whole if n != streamed)))


class Do(Enum):
    """What a statement does."""

    LOAD = "load"  # one step's tile of an input, through the pipeline
    MAP = "map"  # elementwise, on fragments in the loop or on numbers in the epilogue
    FETCH = "fetch"  # the block's tile of an input that the loop does not cut, at the start
    CONTRACT = "contract"  # accumulator += rows x tokens on the tensor cores
    SUM = "sum"  # partial += sum of a fragment along depth
    REDUCE = "reduce"  # every warp's partial sums, side by side in shared memory
    TOTAL = "total"  # their sum, in fixed order, for one result element
    READ = "read"  # one element of an input that the loop does not cut
    KEEP = "keep"  # one element of a total, in the storage type, in shared memory
    STORE = "store"  # one result element; in the loop a step's tile of tokens, by one of its blocks


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


IN_WORKSPACE = -1  # the index of what is no argument: other blocks take it from there


@dataclass(frozen=True)
class Operand:
    """A tensor of the kernel's argument list: its place there and how lines are strided."""

    name: str
    index: int
    type: TensorType
    optional: bool = False  # a call may leave it out: zeros
    stacked: bool = False  # a call gives stacks of it, and which slice each token has
    broadcast: bool = False  # a vector that the epilogue alone reads, by its stride: it may be 0
    grouped: tuple[tuple[str, int], ...] = ()  # dims along which neighbours have one element

    @staticmethod
    def of(index: int, node: Node) -> Operand:
        """Return the tensor that an input is."""
        return Operand(node.name, index, node.out.type, node.optional, grouped=node.grouped)

    @property
    def in_memory(self) -> list[str]:
        """The extents of its dims in memory, as a text: `K / 128` where 128 have one element."""
        return extents_in_memory(self.type.names, self.grouped, "/")


@dataclass(frozen=True)
class Stage:
    """What runs once per element of [dim, tokens] before the epilogue: totals to be multiplied."""

    dim: str
    statements: tuple[Statement, ...]


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
    reductions: tuple[Statement, ...]
    epilogue: tuple[Statement, ...]
    fetches: tuple[Statement, ...] = ()  # before the loop
    stages: tuple[Stage, ...] = ()  # after the reductions
    products: tuple[Statement, ...] = ()  # of what stages keep with what was fetched
    lines: tuple[Statement, ...] = ()  # once per token, before the loop
    also: tuple[Operand, ...] = ()  # results beside the output, stored in the loop or by lines
    grid: tuple[str, ...] = ()  # the dims that it cuts
    row_parts: tuple[int, ...] = ()  # rows of tensors of their own, which the rows come in
    received: tuple[Statement, ...] = ()  # kept as other blocks of the launch leave it
    producers: TileProgram | None = None  # what these run
    consumers: TileProgram | None = None  # the same program for blocks that receive it

    def read_by(self, *statements: Statement) -> tuple[Operand, ...]:
        """Return the inputs that statements read."""
        names = {a for s in statements for a in s.args}
        return tuple(o for o in self.inputs if o.name in names)

    def operand(self, read: Statement) -> Operand:
        """Return the input that a statement reads."""
        return next(o for o in self.inputs if o.name == read.args[0])

    @property
    def streamed(self) -> TileProgram:
        """What the blocks run that stream the rows: all of it unless they receive something."""
        return self.consumers or self

    def in_parts(self, operand: Operand) -> bool:
        """Say whether a tensor comes in parts: `index` is then that of its first."""
        return bool(self.row_parts) and self.roles.rows in operand.type.names

    def tensors_of(self, operand: Operand) -> int:
        """Return how many tensors a call gives for one: its parts, or itself."""
        return len(self.row_parts) if self.in_parts(operand) else 1

    @property
    def produces(self) -> bool:
        """Whether it leaves its result for other blocks."""
        return self.output.index == IN_WORKSPACE

    @property
    def stacked(self) -> tuple[str, ...]:
        """The inputs that are slices of stacks, by token."""
        return tuple(o.name for o in self.inputs if o.stacked)

    @property
    def parted(self) -> bool:
        """Whether there are lines alone, and the grid cuts them as well."""
        return not self.loop and self.roles.depth in self.grid

    @property
    def results(self) -> tuple[Operand, ...]:
        """Every result, the output first."""
        return (self.output, *self.also)

    @property
    def extents(self) -> dict[str, int]:
        """Extents of the inputs' dims, of dynamic ones their bounds."""
        return {d.name: d.size for o in self.inputs for d in o.type.dims}

    @property
    def loads(self) -> tuple[Statement, ...]:
        """The statements that fill a stage of the pipeline."""
        return tuple(s for s in self.loop if s.do is Do.LOAD)

    @property
    def group_reads(self) -> tuple[Statement, ...]:
        """The reads of rows of which neighbours have one element."""
        return tuple(s for s in self.loop if s.do is Do.READ and s.layout is Layout.ROWS)

    @property
    def byte_rows(self) -> tuple[Statement, ...]:
        """The loads of rows whose elements have 8 bits."""
        return tuple(s for s in self.loads if s.layout is Layout.ROWS and s.dtype in EIGHT_BITS)

    @property
    def turned(self) -> frozenset[str]:
        """The streamed tensors whose rows lie side by side: the lines in memory are the depth's."""
        rows = {o.name for o in self.inputs if o.type.names[-1:] == (self.roles.rows,)}
        return frozenset(s.args[0] for s in self.loads if s.layout is Layout.ROWS) & rows

    @property
    def columns(self) -> tuple[str, ...]:
        """The loaded tiles of these tensors."""
        return tuple(s.out for s in self.loads if s.args[0] in self.turned)

    @property
    def accumulators(self) -> tuple[Statement, ...]:
        """The statements that add to a value carried across the loop."""
        return tuple(s for s in self.loop if s.do in (Do.CONTRACT, Do.SUM))

    @property
    def statistics(self) -> tuple[Statement, ...]:
        """The statements that keep a number of each token for the loop and what follows."""
        return tuple(s for s in self.lines if s.do is Do.KEEP)

    @property
    def kept(self) -> tuple[Statement, ...]:
        """The statements that keep a stage's totals."""
        return tuple(s for stage in self.stages for s in stage.statements if s.do is Do.KEEP)


class _Made(Protocol):
    """A statement: it makes a value from others."""

    @property
    def out(self) -> str: ...

    @property
    def args(self) -> tuple[str, ...]: ...


S = TypeVar("S", bound=_Made)


def needed(statements: Sequence[S], wanted: set[str]) -> tuple[S, ...]:
    """Return the statements that values are made by, in their order; the others are dead code."""
    found, names = list[S](), set(wanted)
    for s in reversed(statements):
        if s.out in names:
            names |= set(s.args)
            found.append(s)
    return tuple(reversed(found))
