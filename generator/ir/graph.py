"""One Graph type for the kernel, block and thread level.

Tensor dims have names, and names decide everything: operands broadcast by name, a contraction
removes a name, an imap says which name a grid axis cuts. A tile keeps the names of the tensor it
was cut from and has smaller extents. A block graph runs once per point of its grid; its loop, if
it has one, runs the nodes that depend on loop-cut inputs once per step, and `accum` carries sums
out of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod

from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.ir.ops import ACCUMS, COMBINES


@dataclass(frozen=True, order=True)
class Dim:
    """A named extent; `dynamic` extents are bounds of a run-time value, `typical` in most calls."""

    name: str
    size: int
    dynamic: bool = False
    typical: int = 0  # 0: unknown

    def with_size(self, size: int) -> Dim:
        """Return the dim with another extent."""
        return self if size == self.size else Dim(self.name, size, self.dynamic, self.typical)

    def __str__(self) -> str:
        typical = f"~{self.typical}" if self.typical else ""
        return f"{self.name}{'<=' if self.dynamic else '='}{self.size}{typical}"


@dataclass(frozen=True)
class TensorType:
    """Dims in storage order (the last one contiguous) and the element type."""

    dims: tuple[Dim, ...]
    dtype: DType

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the dims, in order."""
        return tuple(d.name for d in self.dims)

    @property
    def elements(self) -> int:
        """Number of elements, dynamic dims at their bound."""
        return prod(d.size for d in self.dims)

    @property
    def bytes(self) -> int:
        """Size in bytes, dynamic dims at their bound."""
        return self.elements * self.dtype.bytes

    def dim(self, name: str) -> Dim:
        """Return the dim called `name`."""
        return next(d for d in self.dims if d.name == name)

    def __str__(self) -> str:
        return f"{self.dtype.value}[{', '.join(map(str, self.dims))}]"


def in_memory(dims: Iterable[Dim], grouped: Iterable[tuple[str, int]]) -> tuple[Dim, ...]:
    """Return the dims in memory of a tensor with one element for so many neighbours along some."""
    of = dict(grouped)
    return tuple(
        Dim(f"{d.name}_{of[d.name]}", d.size // of[d.name]) if d.name in of else d for d in dims
    )


def extents_in_memory(
    names: Iterable[str], grouped: Iterable[tuple[str, int]], over: str
) -> list[str]:
    """Return the same extents as texts, where dims stand for theirs; `over` is what divides."""
    of = dict(grouped)
    return [f"{name} {over} {of[name]}" if name in of else name for name in names]


@dataclass(frozen=True)
class Value:
    """A named edge of a graph."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class Axis:
    """A grid axis or a loop: it cuts the dim `dim` into tiles of `tile` elements.

    Blocks along a `reduced` axis make partial sums over its dim: they are combined in the kernel,
    or stored side by side along the dim `parts_of(dim)`. Such an axis may cut the loop's dim too;
    the loop then cuts each block's part further.
    """

    name: str
    dim: str
    tile: int
    reduced: bool = False

    @property
    def tile_key(self) -> str:
        """Name under which tile sizes are given: a reduced axis has its own beside the loop's."""
        return parts_of(self.dim) if self.reduced else self.dim

    def with_tile(self, tile: int) -> Axis:
        """Return the axis with another tile size."""
        return self if tile == self.tile else Axis(self.name, self.dim, tile, self.reduced)


def parts_of(dim: str) -> str:
    """Return the name of the dim that numbers the parts into which a reduced axis cuts `dim`."""
    return f"{dim}_parts"


@dataclass(frozen=True)
class Space:
    """Where a block graph runs: its grid axes and, if it has one, its for-loop."""

    grid: tuple[Axis, ...]
    loop: Axis | None = None

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Grid axes, then the loop."""
        return self.grid if self.loop is None else (*self.grid, self.loop)

    def loops_over(self, axis: Axis) -> bool:
        """Say whether blocks loop over what they have of an axis's dim."""
        return self.loop is not None and self.loop.dim == axis.dim

    def runs(self, node: Node) -> bool:
        """Say whether a node of the loop is a peak of all its steps so far.

        One of values that differ from step to step along its dims has one for each step.
        """
        loop = self.loop.dim if self.loop else ""
        return node.op == "peak" and bool(loop) and loop not in node.out.type.names

    def with_tiles(self, tiles: Mapping[str, int]) -> Space:
        """Return the same space with other tile sizes, given by `tile_key`."""
        cut = [a.with_tile(tiles.get(a.tile_key, a.tile)) for a in self.axes]
        return Space(tuple(cut[: len(self.grid)]), cut[-1] if self.loop else None)

    def steps(self, extents: Mapping[str, int]) -> int:
        """Return how many steps the loop takes, over a block's part where an axis splits its dim.

        Without a loop a block takes one step.
        """
        if self.loop is None:
            return 1
        parts = [a.tile for a in self.reduced if a.dim == self.loop.dim]
        return -(-min([extents[self.loop.dim], *parts]) // self.loop.tile)

    @property
    def reduced(self) -> tuple[Axis, ...]:
        """Grid axes whose blocks make partial sums."""
        return tuple(a for a in self.grid if a.reduced)


@dataclass(frozen=True)
class Node:
    """One operator applied to named values.

    `over` is the dim that a reduction or contraction removes (or that `size` and `iota` speak of),
    `value` the number of a `const`. In a block graph `cuts` is the imap of an input or the omap of
    an output (per grid axis the dim it cuts, None = replicated) and `loop_cut` the fmap: of an
    output that is stored step by step, the dim along which its tiles lie. A kernel graph's
    `optional` input may be left out: it counts as zeros then. Of a `grouped` one there is in memory
    one element for so many neighbours along a dim, as of scales of groups of weights.
    """

    op: str
    args: tuple[str, ...]
    outs: tuple[Value, ...]
    over: str = ""
    value: float = 0.0
    cuts: tuple[str | None, ...] = ()
    loop_cut: str | None = None
    body: Graph | None = None
    optional: bool = False
    grouped: tuple[tuple[str, int], ...] = ()

    @property
    def out(self) -> Value:
        """The only result."""
        (value,) = self.outs
        return value

    @property
    def name(self) -> str:
        """Name of the first result."""
        return self.outs[0].name

    @property
    def memory(self) -> tuple[Dim, ...]:
        """Dims of the only result in memory."""
        return in_memory(self.out.type.dims, self.grouped)

    def with_outs(self, outs: tuple[Value, ...]) -> Node:
        """Return the operator with other results; a search calls this so often that it is short."""
        made = object.__new__(Node)
        made.__dict__.update(self.__dict__, outs=outs)
        return made


class Level(Enum):
    """Where a graph's edges live: device memory, shared memory and registers, or registers."""

    KERNEL = "kernel"
    BLOCK = "block"
    THREAD = "thread"


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order, inputs first; `outputs` names the results in order."""

    level: Level
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    space: Space | None = None

    @cached_property
    def values(self) -> Mapping[str, Value]:
        """Every value of this graph (not of nested ones), by name."""
        return {v.name: v for n in self.nodes for v in n.outs}

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """The node that makes each value."""
        return {v.name: n for n in self.nodes for v in n.outs}

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Input nodes in argument order."""
        return self.of("input")

    @property
    def masks(self) -> tuple[str, ...]:
        """Names of the boolean inputs."""
        return tuple(n.name for n in self.inputs if n.out.type.dtype is DType.BOOL)

    @property
    def whole(self) -> tuple[str, ...]:
        """Names of the inputs of whole numbers: lengths, positions, ids."""
        return tuple(n.name for n in self.inputs if n.out.type.dtype is DType.INT32)

    def of(self, *ops: str) -> tuple[Node, ...]:
        """Return the nodes with one of the given ops, in order."""
        return tuple(n for n in self.nodes if n.op in ops)

    def users(self, name: str) -> tuple[Node, ...]:
        """Return the nodes that take the value `name`."""
        return tuple(n for n in self.nodes if name in n.args)

    @property
    def blocks(self) -> tuple[Node, ...]:
        """The custom kernels of a kernel graph."""
        return self.of("block")

    @property
    def spaces(self) -> tuple[Space, ...]:
        """Where the custom kernels of a kernel graph run."""
        bodies = (n.body for n in self.blocks if n.body is not None)
        return tuple(b.space for b in bodies if b.space is not None)


class Phase(Enum):
    """When a node of a block graph runs."""

    BEFORE = "before the loop"
    LOOP = "in the loop"
    AFTER = "after the loop"
    JOINED = "after the blocks' combine"


def join_phases(phases: Iterable[Phase]) -> Phase | None:
    """Return when a node runs whose operands are ready in `phases`; None if it never can.

    A value of the loop's last iteration has no meaning after the loop, nor has what a loop summed
    after the blocks' combine: of LOOP, AFTER and JOINED only one may occur. What a block holds
    since before its loop is at hand in all of them.
    """
    late = set(phases) - {Phase.BEFORE}
    if len(late) > 1:
        return None
    return late.pop() if late else Phase.BEFORE


def phases_of(block: Graph) -> dict[str, Phase | None]:
    """Return when each value of a block graph is computed (None: never)."""
    phases: dict[str, Phase | None] = {}
    for node in block.nodes:
        ready = [phases[a] for a in node.args]
        phase = None if None in ready else join_phases(p for p in ready if p is not None)
        if node.op == "input":
            phase = Phase.LOOP if node.loop_cut else Phase.BEFORE
        elif node.op in (*ACCUMS, "last"):
            phase = Phase.AFTER if phase is Phase.LOOP else None
        elif node.op in COMBINES:
            phase = Phase.JOINED if phase not in (Phase.LOOP, None) else None
        phases.update({v.name: phase for v in node.outs})
    return phases


def held_dims(block: Graph) -> frozenset[str]:
    """Return the dims of reduced axes of which each block stores its own part, cut by them."""
    grid, outputs = block.space.grid if block.space else (), block.of("output")
    cuts = (pair for node in outputs for pair in zip(grid, node.cuts, strict=False))
    return frozenset(axis.dim for axis, cut in cuts if axis.reduced and axis.dim == cut)


def partial_along(block: Graph) -> dict[str, frozenset[str]]:
    """Return for each value of a block graph the dims of reduced axes along which it varies.

    Such a value belongs to one block; it may leave the block only side by side with the others
    (its output has the axis's parts dim), whole (it still has the dim), or combined.
    """
    assert block.space is not None
    reduced = {a.dim for a in block.space.reduced}
    found: dict[str, frozenset[str]] = {}
    for node in block.nodes:
        if node.op == "input":
            cuts = zip(block.space.grid, node.cuts, strict=False)
            along = frozenset(a.dim for a, cut in cuts if a.reduced and cut is not None)
        else:
            along = frozenset[str]().union(*(found[a] for a in node.args))
        if node.op in COMBINES:
            along -= {node.over}
        found.update({v.name: along & reduced for v in node.outs})
    return found
