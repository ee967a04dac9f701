"""Runs general tile programs statement by statement, as the emitted kernels do.

Tiles are flat memory that layouts address, in as many stages as they have. What a statement wrote
may be read by others behind a barrier only, what a copy brings behind one that waits for copies:
anything else raises TileError, whatever the numbers are. Memory that nobody wrote is nan.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mirage_kernels.generator.ir import Dim, Graph, Phase, parts_of
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.tiles.block import Array, Block, Index, indices
from mirage_kernels.generator.tiles.indices import addressed
from mirage_kernels.generator.tiles.program import (
    Add,
    Barrier,
    BlockProgram,
    Clear,
    Combine,
    Contract,
    Fill,
    Load,
    Reduce,
    Scale,
    Spill,
    Statement,
    Store,
)


class Interpreter:
    """Runs the block programs of a kernel graph on arrays."""

    def __init__(self, graph: Graph, extents: Mapping[str, int]) -> None:
        self.graph, self.extents = graph, dict(extents)

    def run(
        self, programs: Sequence[BlockProgram], inputs: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return every tensor of the graph; raises TileError for a program that is not safe."""
        tensors = dict(inputs)
        for program in programs:
            for axis in program.space.reduced:
                count = -(-self.extents[axis.dim] // axis.tile)
                self.extents[parts_of(axis.dim)] = count
            for node in program.body.of("output"):
                if node.name in program.indexed:  # what lies there stays where nothing is written
                    continue
                shape = [self.extents[d] for d in node.out.type.names]
                tensors[program.tensors[node.name]] = np.full(shape, np.nan)
            self.kernel(program, tensors)
        return tensors

    def kernel(self, program: BlockProgram, tensors: dict[str, Array]) -> None:
        reduced = [a for a in program.space.grid if a.reduced]
        kept = [a for a in program.space.grid if not a.reduced]
        for place in self.places(kept, program):
            cluster = [
                Block(program, {**place, **part}, self.extents)
                for part in self.places(reduced, program)
            ]
            for block in cluster:
                _Run(block, tensors, cluster).alone()
            _Run(cluster[0], tensors, cluster).joined()

    def places(self, axes: Sequence[object], program: BlockProgram) -> Iterator[dict[str, int]]:
        counts = [range(-(-self.extents[a.dim] // a.tile)) for a in axes]  # type: ignore[attr-defined]
        for at in itertools.product(*counts):
            yield {a.name: i for a, i in zip(axes, at, strict=True)}  # type: ignore[attr-defined]


@dataclass
class _Run:
    """One block's statements, with the tensors they read and the cluster it is in."""

    block: Block
    tensors: dict[str, Array]
    cluster: Sequence[Block]

    @property
    def program(self) -> BlockProgram:
        return self.block.program

    def alone(self) -> None:
        """Run what a block does by itself."""
        b, said = self.block, self.program.statements
        self.statements(s for s in said[Phase.BEFORE] if isinstance(s, Load))
        loop = self.program.space.loop
        steps = self.steps() if loop else 0
        loads = [s for s in said[Phase.LOOP] if isinstance(s, Load)]
        for ahead in range(min(self.program.stages - 1, steps)):
            b.loading = ahead
            for s in loads:
                self.load(s, ahead)
        b.loading = 0
        # The first barrier waits for the copies before the loop, not for those of its steps.
        staged = {s.value for s in loads}
        b.copied -= staged
        self.statements(s for s in said[Phase.BEFORE] if not isinstance(s, Load))
        for step in range(steps):
            b.step = b.loading = step
            self.statements(s for s in said[Phase.LOOP][:1])
            ahead = step + self.program.stages - 1
            if ahead < steps:
                b.loading = ahead
                for s in loads:
                    self.load(s, ahead)
                b.copied -= staged
                b.loading = step
            self.statements(s for s in said[Phase.LOOP][1:] if not isinstance(s, Load))
        b.agree(copies=True)
        self.statements(said[Phase.AFTER])

    def joined(self) -> None:
        """Run what the first block of a cluster does for all."""
        for other in self.cluster:
            other.agree(copies=True)
        self.statements(self.program.statements[Phase.JOINED])

    def steps(self) -> int:
        loop = self.program.space.loop
        assert loop is not None
        length = self.block.extents[loop.dim]
        for axis in self.program.space.reduced:
            if axis.dim == loop.dim:
                length = min(axis.tile, length - self.block.at[axis.name] * axis.tile)
        return max(0, -(-length // loop.tile))

    def statements(self, said: Iterator[Statement] | Sequence[Statement]) -> None:
        for s in said:
            self.statement(s)
            self.block.written |= {*s.writes} - {x.value for x in [s] if isinstance(x, Load)}

    def statement(self, s: Statement) -> None:
        run: dict[type[Statement], Callable[..., None]] = {
            Barrier: lambda s: self.block.agree(copies=s.copies),
            Load: self.copied,
            Fill: self.fill,
            Clear: self.clear,
            Reduce: self.reduce,
            Add: self.add,
            Scale: self.scale,
            Contract: self.contract,
            Spill: self.spill,
            Combine: self.combine,
            Store: self.store,
        }
        run[type(s)](s)

    def copied(self, s: Load) -> None:
        self.load(s, 0)
        self.block.copied.add(s.value)

    def fill(self, s: Fill) -> None:
        b, index = self.block, indices(self.program.tiles[s.value].dims)
        made = self.formula(s.value, index, again=True)
        b.put(s.value, index, np.where(b.within(s.value, index, s.ends), made, 0.0))

    def clear(self, s: Clear) -> None:
        if s.target in self.program.fragments:
            f = self.program.fragments[s.target]
            self.block.sums[s.target] = np.zeros([d.size for x in f.groups for d in x])
        if s.target in self.program.tiles:
            self.block.memory[s.target][:] = s.value

    def add(self, s: Add) -> None:
        b, tile = self.block, self.program.tiles[s.tile]
        index = indices(tile.dims)
        scale = self.own(s.factor, index) if s.factor else 1.0
        made = self.formula(s.value, index)
        before = self.own(s.tile, index)
        made = np.maximum(before, made) if s.op == "max" else before * scale + made
        b.memory[s.tile][b.address(tile, index, 0)] = made

    def scale(self, s: Scale) -> None:
        index = self.fragment_index(s.fragment)
        factor = self.block.get(s.factor, index)
        self.block.sums[s.fragment] = self.block.sums[s.fragment] * factor

    def spill(self, s: Spill) -> None:
        self.block.put(s.tile, self.fragment_index(s.fragment), self.block.sums[s.fragment])

    def fragment_index(self, name: str) -> Index:
        f = self.program.fragments[name]
        return indices([d for group in f.groups for d in group])

    def own(self, name: str, index: Index) -> Array:
        """Read what the same threads wrote: no barrier is needed."""
        b = self.block
        return b.memory[name][b.address(self.program.tiles[name], index, b.step)]

    def load(self, s: Load, step: int) -> None:
        b, tile = self.block, self.program.tiles[s.value]
        index = indices(tile.dims)
        made = self.device(s.value, index)
        b.memory[s.value][b.address(tile, index, step)] = made

    def device(self, name: str, index: Index) -> Array:
        """Read a tensor in place: zeros past its extents."""
        names = self.program.type(name).names
        mine = {d: index[d] for d in names}
        whole = self.block.whole(name, mine)
        inside = self.block.within(name, mine, names)
        tensor = self.tensors[self.program.tensors[name]]
        near = {d: np.where(inside, whole[d], 0) for d in names}
        places = tuple(np.broadcast_arrays(*near.values())) if names else ()
        if own := self.program.indexed.get(name):
            there, places = addressed(own, names, near, (tensor, self.tensors[own.by]))
            inside = inside & there
        return np.where(inside, tensor[places], 0.0) if names else tensor

    def formula(self, value: str, index: Index, *, again: bool = False) -> Array:
        """Compute a value at local coordinates."""
        p, b = self.program, self.block
        node = p.node(value)
        if value in p.tiles and not again:
            return b.get(value, index)
        if value in p.iotas or node.op == "iota":
            dim = p.type(value).names[0]
            return b.whole(value, {dim: index[dim]})[dim].astype(np.float64)
        if node.op == "const":
            return np.asarray(node.value)
        if node.op == "size":
            return np.asarray(float(b.extents[node.over]))
        if node.op == "input":
            return self.device(value, index)
        args = [self.formula(a, index) for a in node.args]
        with np.errstate(all="ignore"):
            return elementwise(node.op, args)

    def reduce(self, s: Reduce) -> None:
        b, tile = self.block, self.program.tiles[s.tile]
        values = [s.value, *([s.other] if s.other else [])]
        over = self.extent_of(values, s.over)
        dims = (*tile.dims, over)
        index = indices(dims)
        with np.errstate(all="ignore"):
            made = np.prod(
                [np.broadcast_to(self.formula(v, index), [d.size for d in dims]) for v in values],
                axis=0,
            )
        first = next(v for v in values if s.over in self.program.type(v).names)
        identity = -np.inf if s.op == "max" else 0.0
        made = np.where(b.within(first, {s.over: index[s.over]}, [s.over]), made, identity)
        joined = made.max(axis=-1) if s.op == "max" else made.sum(axis=-1)
        out = indices(tile.dims)
        if not s.carried:
            return b.put(s.tile, out, joined)
        before = self.own(s.tile, out)
        if s.op == "max":
            after = np.maximum(before, joined)
            if s.rescale:
                with np.errstate(all="ignore"):
                    b.put(s.rescale, out, np.where(after == -np.inf, 1.0, np.exp(before - after)))
        else:
            after = before * (b.get(s.factor, out) if s.factor else 1.0) + joined
        b.memory[s.tile][b.address(tile, out, 0)] = after
        return None

    def extent_of(self, values: Sequence[str], dim: str) -> Dim:
        """Return a dim with its extent in the tiles that values are made of."""
        leaves = [x for v in values for x in self.program.leaves(v)]
        tiles = (self.program.tiles[x] for x in leaves if x in self.program.tiles)
        rounded = [d for t in tiles for d in t.dims if d.name == dim]
        own = [d for v in values for d in self.program.type(v).dims if d.name == dim]
        return (rounded or own)[0]

    def contract(self, s: Contract) -> None:
        b, p = self.block, self.program
        f = p.fragments[s.fragment]
        depth = next(d for d in p.tiles[s.a].dims if d.name == s.over)
        batch, rows, columns = f.groups
        a = b.get(s.a, indices([*batch, *rows, depth]))
        c = b.get(s.b, indices([*batch, *columns, depth]))
        left = a.reshape([*(d.size for d in (*batch, *rows)), *(1 for _ in columns), depth.size])
        right = c.reshape(
            [*(d.size for d in batch), *(1 for _ in rows), *(d.size for d in columns), depth.size]
        )
        b.sums[s.fragment] = b.sums[s.fragment] + (left * right).sum(axis=-1)

    def combine(self, s: Combine) -> None:
        tile = self.program.tiles[s.tile]
        index = indices(tile.dims)
        values = np.stack([_Run(o, self.tensors, ()).own(s.value, index) for o in self.cluster])
        if s.peak:
            (peak,) = self.program.leaves(s.peak)
            peaks = np.stack([_Run(o, self.tensors, ()).own(peak, index) for o in self.cluster])
            with np.errstate(all="ignore"):
                factors = np.where(peaks == -np.inf, 0.0, np.exp(peaks - peaks.max(axis=0)))
            values = np.where(factors == 0, 0.0, values * factors)
        joined = values.max(axis=0) if s.op == "max" else values.sum(axis=0)
        self.block.put(s.tile, index, joined)

    def store(self, s: Store) -> None:
        p, b, output, value = self.program, self.block, s.output, s.value
        type_ = p.type(output)
        have = {d.name for d in p.type(value).dims}
        dims = [self.extent_of([value], d.name) for d in type_.dims if d.name in have]
        index = dict(indices(dims))
        for d in type_.dims:
            if d.name not in have:  # the parts of a split
                axis = next(a for a in p.space.reduced if parts_of(a.dim) == d.name)
                index[d.name] = np.full([x.size for x in dims], b.at[axis.name])
        made = np.broadcast_to(self.formula(value, index), [d.size for d in dims])
        whole = {d: index[d] if d not in have else w for d, w in b.whole(output, index).items()}
        tensor = self.tensors[p.tensors[output]]
        if not type_.names:
            tensor[...] = made
            return
        inside = np.logical_and.reduce([whole[d] < b.extents[d] for d in type_.names])
        places = tuple(np.broadcast_arrays(*(whole[d] for d in type_.names)))
        if own := p.indexed.get(output):
            near = {d: np.where(inside, whole[d], 0) for d in type_.names}
            there, places = addressed(own, type_.names, near, (tensor, self.tensors[own.by]))
            inside = inside & there
        tensor[tuple(x[inside] for x in places)] = made[inside]


def elementwise(op: str, args: Sequence[Array]) -> Array:
    """Compute an elementwise operation; truth values are 1 and 0."""
    if op == "last":
        return args[0]
    if op == "less":
        return np.asarray((args[0] < args[1]).astype(np.float64))
    if op == "both":
        return np.asarray(((args[0] != 0) & (args[1] != 0)).astype(np.float64))
    if op == "where":
        return np.asarray(np.where(args[0] != 0, args[1], args[2]))
    (made,) = FLOAT64.elementwise[op](*((a,) for a in args))
    return np.asarray(made)
