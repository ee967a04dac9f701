"""What each statement of a general tile program does, for one block of numbers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from mirage_kernels.generator.ir import Dim, Phase, parts_of
from mirage_kernels.generator.tiles.block import Block, Index, indices
from mirage_kernels.generator.tiles.indices import addressed
from mirage_kernels.generator.tiles.loop_ends import LoopEnd
from mirage_kernels.generator.tiles.machine import (
    Inside,
    Machine,
    Meanings,
    elementwise,
    masked_load,
    masked_store,
)
from mirage_kernels.generator.tiles.memory import COPIES, Array, Places, TileError
from mirage_kernels.generator.tiles.program import IDENTITY, WARP
from mirage_kernels.generator.tiles.shares import dealt, share
from mirage_kernels.generator.tiles.statements import (
    Add,
    Apply,
    Arrive,
    Barrier,
    Clear,
    Combine,
    Contract,
    Fill,
    JoinRows,
    Load,
    Reduce,
    Rows,
    Scale,
    Spill,
    Statement,
    Store,
)
from mirage_kernels.generator.tiles.vectors import WIDTHS


class BlockRun(Machine[Statement, None]):
    """One block's statements, with the tensors they read and the cluster it is in."""

    def __init__(self, block: Block, tensors: dict[str, Array], cluster: Sequence[Block]) -> None:
        self.block, self.tensors, self.cluster = block, tensors, cluster
        self.program = block.program
        self.group = 0  # of copies: those before the loop, then one for each step

    def kind(self, s: Statement) -> Hashable:
        own: type = type(s)
        return own

    def alone(self) -> None:
        """Run what a block does by itself."""
        said, loop = self.program.statements, self.program.space.loop
        loads = [s for s in said[Phase.BEFORE] if isinstance(s, Load)]
        self.perform(loads, Phase.BEFORE.value)
        self.perform([s for s in said[Phase.BEFORE] if s not in loads], Phase.BEFORE.value)
        self.pipelined(self.steps() if loop else range(0), self.program.stages)
        self.block.memory.barrier()
        self.perform(said[Phase.AFTER], Phase.AFTER.value)

    def joined(self, s: Statement) -> None:
        """Run a statement of those that the blocks of a cluster run together."""
        p = self.program
        of_all = isinstance(s, Store) and not p.is_held(s.output) and not dealt(p, s)
        if not of_all or self.block is self.cluster[0]:  # it stores what all of them have
            self.perform([s], Phase.JOINED.value)

    def steps(self) -> range:
        """Return the steps of the loop: those that no condition hides whole."""
        loop, turns = self.program.space.loop, self.program.turns
        assert loop is not None
        first, end, hop = 0, self.block.extents[loop.dim], self.block.hop(loop)
        if turns:
            end -= self.block.at[turns.name] * loop.tile
        for axis in self.program.space.reduced:
            if axis.dim == loop.dim and axis != turns:
                end = min(axis.tile, end - self.block.at[axis.name] * axis.tile)
        for bound in self.program.ends:
            seen = self.seen(bound)
            hidden = hop - loop.tile + 1 - seen
            first, end = (max(first, hidden), end) if bound.begins else (first, min(end, seen))
        return range(first // hop, max(0, -(-end // hop)))

    def seen(self, bound: LoopEnd) -> int:
        """Return `high - low` at the loop's first place, the largest of the block's rows."""
        block = replace(self.block, program=self.program.untiled, step=0, loading=0)
        here, index = BlockRun(block, self.tensors, ()), indices(self.program.end_dims(bound))
        low, high = (here.formula(v, index) for v in (bound.low, bound.high))
        return int(np.max(high - low))

    def copy(self, step: int) -> None:
        """Copy what a step takes to its stage."""
        self.block.loading, self.group = step, step + 1
        said = self.program.statements[Phase.LOOP]
        self.perform([s for s in said if isinstance(s, Load)], Phase.LOOP.value)
        self.block.loading, self.group = self.block.step, self.block.step + 1

    def enter(self, step: int) -> None:
        """Begin a step with the barrier that waits for its copies."""
        self.block.step = self.block.loading = step
        self.group = step + 1
        self.perform(self.program.statements[Phase.LOOP][:1], Phase.LOOP.value)

    def step(self, step: int) -> None:
        """Run the statements of a step."""
        said = self.program.statements[Phase.LOOP][1:]
        self.perform([s for s in said if not isinstance(s, Load)], Phase.LOOP.value)

    # -- statements ------------------------------------------------------------------------------

    def barrier(self, s: Barrier) -> None:
        """Let threads agree, on the copies of the step and of those before it if it waits.

        So do those of the whole cluster.
        """
        self.block.memory.barrier(COPIES + (self.group + 1 if s.copies else 0))
        if s.cluster:
            self.block.meet()

    def arrive(self, s: Arrive) -> None:
        """Promise to read no tiles of other blocks."""
        self.block.has_arrived = True

    def fill(self, s: Fill) -> None:
        b, index = self.block, indices(self.program.tiles[s.value].dims)
        made = self.formula(s.value, index, again=True)
        b.put(s.value, index, np.where(b.within(s.value, index, s.ends), made, 0.0))

    def clear(self, s: Clear) -> None:
        if s.target in self.program.fragments:
            f = self.program.fragments[s.target]
            self.block.sums[s.target] = np.zeros([d.size for x in f.groups for d in x])
        if s.target in self.program.tiles:
            index = indices(self.program.tiles[s.target].dims)
            self.block.put(s.target, index, np.asarray(s.value))

    def add(self, s: Add) -> None:
        b, tile = self.block, self.program.tiles[s.tile]
        index = indices(tile.dims)
        scale = b.own(s.factor, index) if s.factor else 1.0
        made = self.formula(s.value, index)
        before = b.own(s.tile, index)
        made = np.maximum(before, made) if s.op == "max" else before * scale + made
        b.put(s.tile, index, made)

    def scale(self, s: Scale) -> None:
        index = self.fragment_index(s.fragment)
        factor = self.block.get(s.factor, index)
        self.block.sums[s.fragment] = self.block.sums[s.fragment] * factor

    def spill(self, s: Spill) -> None:
        self.block.put(s.tile, self.fragment_index(s.fragment), self.block.sums[s.fragment])

    def apply(self, s: Apply) -> None:
        b, index = self.block, self.fragment_index(s.fragment)
        made = self.formula(s.value, index, again=True, sums=s)
        b.sums[s.fragment] = np.where(b.within(s.value, index, s.ends), made, 0.0)

    def join_rows(self, s: JoinRows) -> None:
        join, tile = s.join, self.program.tiles[s.join.parts]
        (rows,) = self.program.fragments[s.fragment].rows
        index = indices((*tile.dims[:-1], rows))
        made = self.formula(join.value, index, sums=s)
        if not s.zeros:
            seen = self.block.tested(join.value, {join.over: index[join.over]})
            made = np.where(seen, made, IDENTITY[join.op])
        shares = made.reshape(*(d.size for d in tile.dims), -1)
        self.block.put(join.parts, indices(tile.dims), self.joined_last(join, shares))

    def joined_last(self, s: Reduce, made: Array) -> Array:
        """Join along the last axis."""
        return np.asarray(made.max(-1, initial=IDENTITY[s.op]) if s.is_max else made.sum(-1))

    def fragment_index(self, name: str) -> Index:
        f = self.program.fragments[name]
        return indices([d for group in f.groups for d in group])

    def load(self, s: Load) -> None:
        index = indices(self.program.tiles[s.value].dims)
        self.block.copy(s.value, index, self.device(s.value, index), self.group)

    def device(self, name: str, index: Index) -> Array:
        """Read a tensor in place: zeros past its extents, and NaN or zeros of unknown rows."""
        names, own = self.program.type(name).names, self.program.indexed.get(name)
        mine = {d: index[d] for d in names}
        whole = self.block.whole(name, mine)
        inside = self.block.tested(name, mine)
        tensor = self.tensors[self.program.tensors[name]]
        if not names:
            return tensor
        places, there = self.located(name, whole, inside)
        read = masked_load(tensor, places, there)
        nan = own is not None and own.unknown_is_nan
        return np.where(inside & ~there, np.nan, read) if nan else read

    def located(
        self, name: str, whole: Mapping[str, Places], inside: Inside
    ) -> tuple[Sequence[Places], Inside]:
        """Return where elements of a tensor lie in memory, and which of them do."""
        p, names = self.program, self.program.type(name).names
        if (own := p.indexed.get(name)) is None:
            return [whole[d] for d in names], inside
        near = {d: np.where(inside, whole[d], 0) for d in names}
        given = self.tensors[p.tensors[name]], self.tensors[own.by]
        there, places = addressed(own, names, near, given)
        return places, inside & there

    def formula(
        self,
        value: str,
        index: Index,
        *,
        again: bool = False,
        sums: Apply | JoinRows | None = None,
    ) -> Array:
        """Compute a value at local coordinates, with a fragment's `sums` at hand."""
        p, b = self.program, self.block
        node = p.node(value)
        if sums is not None and value == sums.held:
            dims = (d.name for group in p.fragments[sums.fragment].groups for d in group)
            return b.sums[sums.fragment][tuple(index[d] for d in dims)]
        if value in p.tiles and not again:
            return b.get(value, index)
        if value in p.held:
            if value not in b.sums:
                raise TileError(f"{value} is read before rows are joined to it")
            return b.sums[value][tuple(index[d] for d in p.type(value).names)]
        if value in p.iotas or node.op == "iota":
            dim = p.type(value).names[0]
            return b.whole(value, {dim: index[dim]})[dim].astype(np.float64)
        if node.op == "const":
            return np.asarray(node.value)
        if node.op == "size":
            return np.asarray(float(b.extents[node.over]))
        if node.op == "input":
            return self.device(value, index)
        args = [self.formula(a, index, sums=sums) for a in node.args]
        with np.errstate(all="ignore"):
            return elementwise(node.op, args)

    def joined_along(self, s: Reduce, kept: Sequence[Dim]) -> Array:
        """Return what formulas join to along a dim, for each place of those that are kept."""
        dims = (*kept, self.extent_of(s.values, s.over))
        index = indices(dims)
        with np.errstate(all="ignore"):
            made = np.prod(
                [np.broadcast_to(self.formula(v, index), [d.size for d in dims]) for v in s.values],
                axis=0,
            )
        first = next(v for v in s.values if s.over in self.program.type(v).names)
        seen = self.block.tested(first, {s.over: index[s.over]})
        return self.joined_last(s, np.where(seen, made, IDENTITY[s.op]))

    def rows(self, s: Rows) -> None:
        """Join rows that the lanes of a warp hold, then store; all of a row has to be held."""
        row = self.extent_of(s.joins[0].values, s.joins[0].over).size
        if s.lanes > WARP or s.lanes & s.lanes - 1 or s.lanes * WIDTHS[0] < row:
            raise TileError(f"no {s.lanes} lanes of a warp hold a row of {row} elements")
        for one in s.joins:
            kept = self.program.type(one.tile).dims
            self.block.sums[one.tile] = self.joined_along(one, kept)
        for stored in s.stores:
            self.store(stored)

    def reduce(self, s: Reduce) -> None:
        b, tile = self.block, self.program.tiles[s.tile]
        out = indices(tile.dims)
        joined = self.of_warps(s, out) if s.parts else self.joined_along(s, tile.dims)
        if not s.carried:
            return b.put(s.tile, out, joined)
        before = b.own(s.tile, out)
        if s.is_max:
            after = np.maximum(before, joined)
            if s.rescale:
                b.put(s.rescale, out, np.exp(before - after))
        else:
            after = before * (b.get(s.factor, out) if s.factor else 1.0) + joined
        b.put(s.tile, out, after)
        return None

    def of_warps(self, s: Reduce, out: Index) -> Array:
        """Return what warps joined, joined."""
        warps = self.program.tiles[s.parts].dims[-1]
        index = {d: at[..., None] for d, at in out.items()} | {warps.name: np.arange(warps.size)}
        return self.joined_last(s, self.block.get(s.parts, index))

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
        shared, here, there = ([d.size for d in x] for x in f.groups)
        a = b.get(s.a, indices([*batch, *rows, depth]))
        c = b.get(s.b, indices([*batch, *columns, depth]))
        left = a.reshape([*shared, *here, *(1 for _ in there), depth.size])
        right = c.reshape([*shared, *(1 for _ in here), *there, depth.size])
        b.sums[s.fragment] = b.sums[s.fragment] + (left * right).sum(axis=-1)

    def combine(self, s: Combine) -> None:
        index, shape = self.mine(s, self.program.tiles[s.tile].dims)
        if 0 in shape:
            return
        values = self.of_cluster(s.value, index, shape)
        if s.peak:
            peaks = self.of_cluster(s.peak, index, shape)
            with np.errstate(all="ignore"):
                factors = np.exp(peaks - peaks.max(axis=0))
            values = np.where(factors == 0, 0.0, values * factors)
        joined = values.max(axis=0) if s.op == "max" else values.sum(axis=0)
        self.block.put(s.tile, index, joined)

    def mine(self, s: Combine | Store, dims: Sequence[Dim]) -> tuple[Index, Sequence[int]]:
        """Return the places that this block of the cluster makes a result at, and their shape."""
        index, shape = indices(dims), [d.size for d in dims]
        if not dealt(self.program, s):
            return index, shape
        rank = next(i for i, block in enumerate(self.cluster) if block is self.block)
        own = share(shape, rank, len(self.cluster))
        return {d: np.broadcast_to(x, shape)[own] for d, x in index.items()}, [own.sum()]

    def of_cluster(self, name: str, index: Index, shape: Sequence[int]) -> Array:
        """Read a tile of every block of the cluster, the same along dims that it has not."""
        if self.block.has_arrived:
            raise TileError(f"{name} of other blocks is read behind the last that a block reads")
        read = (other.lend(name, index) for other in self.cluster)
        return np.stack([np.broadcast_to(values, shape) for values in read])

    def store(self, s: Store) -> None:
        p, b, output, value = self.program, self.block, s.output, s.value
        type_ = p.type(output)
        have = {d.name for d in p.type(value).dims}
        dims = [self.extent_of([value], d.name) for d in type_.dims if d.name in have]
        places, shape = self.mine(s, dims)
        if 0 in shape:
            return
        index = dict(places)
        for d in type_.dims:
            if d.name not in have:  # the parts of a split
                axis = next(a for a in p.space.reduced if parts_of(a.dim) == d.name)
                index[d.name] = np.asarray(b.at[axis.name])
        made = np.broadcast_to(self.formula(value, index), shape)
        whole = {d: index[d] if d not in have else w for d, w in b.whole(output, index).items()}
        inside = b.tested(output, {d: x for d, x in index.items() if d in have})
        tensor = self.tensors[p.tensors[output]]
        if not type_.names:
            tensor[...] = made
            return
        masked_store(tensor, *self.located(output, whole, inside), made)

    meanings: ClassVar[Meanings] = {
        Arrive: arrive,
        Barrier: barrier,
        Load: load,
        Fill: fill,
        Clear: clear,
        Reduce: reduce,
        Rows: rows,
        Add: add,
        Apply: apply,
        JoinRows: join_rows,
        Scale: scale,
        Contract: contract,
        Spill: spill,
        Combine: combine,
        Store: store,
    }
