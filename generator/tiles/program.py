"""The general tile program: what one block of any kernel does, statement by statement.

A value of the block graph has one place: a tile in shared memory, fp32 sums in registers as the
tensor cores make them (a fragment), or none: then it is a formula, computed where it is used from
the values that it is made of. Statements run in order, by phase of the block's life; all threads
take part in each, and a barrier stands wherever one reads what others wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from mirage_kernels.generator.ir import (
    Axis,
    Dim,
    DType,
    Graph,
    Indexed,
    Node,
    Phase,
    Space,
    TensorType,
)
from mirage_kernels.generator.ir.ops import MAXIMA
from mirage_kernels.generator.meaning.reals import LOWEST
from mirage_kernels.generator.tiles.loop_ends import LoopEnd, loop_ends
from mirage_kernels.generator.tiles.statements import Reduce, Rows, Statement
from mirage_kernels.generator.tiles.tensor_cores import COLUMNS

VECTOR_BYTES = 16  # what a thread copies at once
WARP = 32  # threads
THREADS_EACH = 2048  # of a multiprocessor: CUDA programming guide, appendix
MOST_INT = 2**31
DEAR = {"exp": 5, "log": 8, "sqrt": 6, "rsqrt": 6, "sigmoid": 10, "silu": 10, "tanh": 20} | {
    **dict.fromkeys(("gelu", "mish", "softplus", "elu", "sin", "cos", "erf", "log1p"), 25),
    **{"gelu_tanh": 12, "div": 4, "inner_exp": 5},
}  # warp instructions of operations that take many
SCRATCH_BYTES = 32  # of a warp: a float for each element of the widest vector


@dataclass(frozen=True)
class Tile:
    """A value in shared memory: dims in storage order, extents rounded up as its users want them.

    Rows have an odd number of vectors between them, so that a column of vectors meets all banks.
    """

    name: str
    dims: tuple[Dim, ...]
    dtype: DType
    stages: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the dims, the contiguous one last."""
        return tuple(d.name for d in self.dims)

    @cached_property
    def strides(self) -> Mapping[str, int]:
        """Elements from one index of a dim to the next."""
        vector, found, step = VECTOR_BYTES // self.dtype.bytes, dict[str, int](), 1
        for i, d in enumerate(reversed(self.dims)):
            found[d.name] = step
            step *= d.size
            if i == 0 and len(self.dims) > 1:
                step = -(-step // vector)
                step = (step + 1 - step % 2) * vector if step > 1 else d.size
        return found

    @property
    def elements(self) -> int:
        """Elements of one stage, with what lies between rows."""
        if not self.dims:
            return 1
        first = self.dims[0]
        return self.strides[first.name] * first.size

    @property
    def bytes(self) -> int:
        """Bytes of all stages, each a whole number of vectors."""
        stage = -(-self.elements * self.dtype.bytes // VECTOR_BYTES) * VECTOR_BYTES
        return stage * self.stages


@dataclass(frozen=True)
class Fragment:
    """Sums of a product in registers: [batch, rows, columns], rows in 16s, columns in 8s.

    Without columns it is a vector: eight columns are alike.
    """

    name: str
    batch: tuple[Dim, ...]
    rows: tuple[Dim, ...]
    columns: tuple[Dim, ...]
    warps: tuple[int, int] = (1, 1)  # along rows and columns

    @property
    def extents(self) -> tuple[int, int, int]:
        """Extents of batch, rows and columns, each flattened."""
        batch, rows, columns = (prod(d.size for d in x) for x in self.groups)
        return batch, rows, columns if self.columns else COLUMNS

    @property
    def groups(self) -> tuple[tuple[Dim, ...], ...]:
        """The dims of batch, rows and columns."""
        return self.batch, self.rows, self.columns


@dataclass(frozen=True)
class BlockProgram:
    """All that is needed to write, run or check the kernel of one block graph."""

    body: Graph  # without thread graphs: formulas are its nodes
    tensors: Mapping[str, str]  # of inputs and outputs of the body, by name
    tiles: Mapping[str, Tile]
    fragments: Mapping[str, Fragment]
    statements: Mapping[Phase, tuple[Statement, ...]]
    offsets: Mapping[str, Mapping[str, tuple[str, ...]]]  # value -> dim -> axes that cut it
    extents: Mapping[str, Dim]  # of whole tensors
    iotas: frozenset[str] = frozenset()  # inputs that number a dim
    optional: frozenset[str] = frozenset()  # inputs that a call may leave out: zeros
    grouped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # `ir.Node`, by input
    stages: int = 1
    threads: int = 128
    strided: bool = False  # tensors lie apart in memory, all strides are of the call
    indexed: Mapping[str, Indexed] = field(default_factory=dict)  # inputs and outputs, by name
    single: frozenset[str] = frozenset()  # inputs that calls give as one element: strides of 0

    @property
    def space(self) -> Space:
        """Grid and loop."""
        assert self.body.space is not None
        return self.body.space

    def with_indices(self, indexed: Mapping[str, Indexed]) -> BlockProgram:
        """Return the program with tensors of its kernel graph that are addressed by an index."""
        own = {v: indexed[tensor] for v, tensor in self.tensors.items() if tensor in indexed}
        return replace(self, indexed=own)

    def given(self, *, strided: bool, broadcast: Collection[str]) -> BlockProgram:
        """Return the program with what is known of a call's tensors, some with one element each."""
        own = frozenset(v for v, tensor in self.tensors.items() if tensor in broadcast)
        return replace(self, strided=strided, single=own)

    @cached_property
    def scattered(self) -> frozenset[str]:
        """Dims along which neighbouring elements lie anywhere in memory."""
        return frozenset(d for x in self.indexed.values() for d in x.dims)

    def memory(self, name: str) -> tuple[Dim, ...]:
        """The dims in memory of the tensor that an input or output of the body is a tile of."""
        own = self.whole(name).dims
        return self.indexed[name].memory(own) if name in self.indexed else own

    @property
    def splits(self) -> tuple[Axis, ...]:
        """Axes that cut a dim of any extent into few parts: tiles grow with that.

        Their blocks are a cluster, or loop over what they sum and store it.
        """
        joined = self.statements[Phase.JOINED]
        few = (a for a in self.space.reduced if joined or self.space.loops_over(a))
        return tuple(a for a in few if self.extents[a.dim].dynamic)

    @cached_property
    def ends(self) -> tuple[LoopEnd, ...]:
        """What steps of its loop are hidden whole."""
        return loop_ends(self.body, self.iotas)

    @cached_property
    def turns(self) -> Axis | None:
        """The axis whose blocks take steps of a loop that may end early by turns, each its share.

        A part of the dim in one piece may be hidden whole, and its block would do nothing.
        """
        loop = self.space.loop
        if loop is None or not self.ends:
            return None
        axis = next((a for a in self.space.reduced if a.dim == loop.dim), None)
        cuts = [cut.get(loop.dim, ()) for cut in self.offsets.values()]
        in_pieces = axis and any(axis.name in cut and "loop" not in cut for cut in cuts)
        return None if in_pieces else axis

    def end_dims(self, end: LoopEnd) -> list[Dim]:
        """Return the dims of a bound of the loop: along that one place, and what else it has."""
        loop = self.space.loop
        assert loop is not None
        dims = {d.name: d for v in (end.low, end.high) for d in self.type(v).dims}
        dims[loop.dim] = dims[loop.dim].with_size(1)
        return [*dims.values()]

    @cached_property
    def untiled(self) -> BlockProgram:
        """The program as it reads before anything is in shared memory."""
        return replace(self, tiles={})

    def is_held(self, output: str) -> bool:
        """Say whether each block of a cluster stores its own part of an output."""
        cuts = zip(self.space.grid, self.node(output).cuts, strict=True)
        return any(axis.reduced and axis.dim == cut for axis, cut in cuts)

    def node(self, name: str) -> Node:
        """The node of the body that makes a value."""
        return self.body.producers[name]

    def type(self, name: str) -> TensorType:
        """The type of a value of the body."""
        return self.body.values[name].type

    def whole(self, name: str) -> TensorType:
        """The type of the tensor that an input or output of the body is a tile of."""
        own = self.type(name)
        return TensorType(tuple(self.extents[d] for d in own.names), own.dtype)

    def leaves(self, value: str) -> Iterator[str]:
        """Yield the values that a formula is computed from, each once: tiles, tensors, literals."""
        seen, todo = set[str](), [value]
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            if self.is_leaf(name):
                yield name
            else:
                todo += self.node(name).args[::-1]

    def is_leaf(self, name: str) -> bool:
        """Say whether a value is at hand: a tile, sums in registers, an input, a literal."""
        at_hand = name in self.tiles or name in self.fragments or name in self.held
        return at_hand or not self.node(name).args

    def packed_strides(self, name: str) -> dict[str, int]:
        """Return the strides by dim of a tensor of static extents that lie side by side, else none.

        The aligned form of a kernel takes such tensors only, and small enough for ints.
        """
        whole = self.whole(name).dims
        if self.strided or any(d.dynamic for d in whole) or prod(d.size for d in whole) >= MOST_INT:
            return {}
        return {d.name: prod(x.size for x in whole[i + 1 :]) for i, d in enumerate(whole)}

    def parts(self, value: str, dim: str) -> list[Axis]:
        """Return the axes whose blocks each loop over one piece of a value's dim."""
        axes = self.offsets[value].get(dim, ())
        found = (a for a in self.space.reduced if a.name in axes and "loop" in axes)
        return [a for a in found if a != self.turns]

    def is_uneven(self, value: str, dim: str, size: int) -> bool:
        """Say whether `size` places of a block along a dim may lie beyond the end of a value."""
        node = self.node(value)
        # An output's own type is the whole tensor's.
        tile = self.type(node.args[0] if node.op == "output" else value)
        if dim not in tile.names:
            return False  # a block's own place among parts
        beyond = reaches_beyond(self.extents[dim], tile.dim(dim).size, size)
        return beyond or bool(self.parts(value, dim))

    @property
    def reductions(self) -> list[Reduce]:
        """All reductions, of one phase after the other."""
        said = (s for phase in self.statements.values() for s in phase)
        return [s for s in said if isinstance(s, Reduce)]

    @cached_property
    def held(self) -> frozenset[str]:
        """What rows join to that threads hold in registers."""
        said = (s for phase in self.statements.values() for s in phase)
        return frozenset(j.tile for s in said if isinstance(s, Rows) for j in s.joins)

    @property
    def shared_bytes(self) -> int:
        """Bytes of all tiles, and of what the warps of a block leave each other in reductions."""
        return sum(t.bytes for t in self.tiles.values()) + SCRATCH_BYTES * self.threads // WARP


def reaches_beyond(whole: Dim, tile: int, size: int) -> bool:
    """Say whether tiles of `size` places may lie beyond a dim's end; `tile` of them are its own."""
    return whole.dynamic or whole.size % tile != 0 or size != tile


# What nothing joins to. A peak is finite, so that exp(x - peak) of -inf is 0 and not NaN.
IDENTITY = {"sum": 0.0, "max": -float("inf"), "peak": LOWEST}


def joined_by(node: Node) -> str:
    """Return how a reduction, an accumulator or a combine joins: a name of `IDENTITY`."""
    return "peak" if node.op == "peak" else "max" if node.op in MAXIMA else "sum"
