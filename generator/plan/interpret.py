"""Runs scheduled programs statement by statement, block by block, with their slices and stages.

A value of the loop has an axis of slices: all take their steps at once, each from its own stages of
the pipeline, and reads what others left in shared memory behind a barrier only. What lies there
lies at the bytes that the schedule arranged (`tiles/memory.py`). Numbers are float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np

from mirage_kernels.generator.plan.arranged import ELEMENT, RING, SLICE, SUM, Arranged, Kernels
from mirage_kernels.generator.plan.program import Do, Layout, Roles, Statement, TileProgram
from mirage_kernels.generator.tiles.block import Index
from mirage_kernels.generator.tiles.machine import (
    Machine,
    Meanings,
    elementwise,
    grid,
    masked_load,
    masked_store,
    within,
)
from mirage_kernels.generator.tiles.memory import ANY, Array, Memory, Places, TileError

COPIES, RECEIVER = 1000, 1001  # as warps: what copies have brought, who receives from other blocks
Values = dict[str, Array]  # by name, with an axis for slices and each dim
PARTS: dict[str, tuple[Do, ...]] = {  # of a program: what its statements may do
    "fetches": (Do.FETCH,),
    "received": (Do.KEEP,),
    "lines": (Do.LOAD, Do.MAP, Do.SUM, Do.KEEP, Do.STORE),
    "loop": (Do.LOAD, Do.READ, Do.MAP, Do.CONTRACT, Do.SUM, Do.STORE),
    "reductions": (Do.REDUCE,),
    "products": (Do.CONTRACT,),
    "epilogue": (Do.TOTAL, Do.READ, Do.MAP, Do.STORE),
}
KEPT = (Do.TOTAL, Do.MAP, Do.KEEP)  # what statements of a stage may do


def run(kernels: Kernels, sizes: Mapping[str, int], tensors: dict[str, Array]) -> dict[str, Array]:
    """Run kernels one after another on tensors, and return these with their results."""
    for program, arranged in kernels:
        _require_parts(program)
        for o in program.results:
            tensors[o.name] = np.full([sizes[d] for d in o.type.names], np.nan)
        tiles = arranged.tiles.items()
        for first in grid({dim: range(0, sizes[dim], tile) for dim, tile in tiles}):
            _Block(program, arranged, sizes, tensors, first).run()
    return tensors


def _require_parts(program: TileProgram) -> None:
    """Raise TileError for a statement with no place in its part, or a value with no such layout."""
    parts = [(name, getattr(program, name), does) for name, does in PARTS.items()]
    parts += [("stages", stage.statements, KEPT) for stage in program.stages]
    for name, said, does in parts:
        for s in said:
            if s.do not in does:
                raise TileError(f"{s.out} is made by {s.do.value} among the {name}")
            whole = s.layout in (Layout.LINE, Layout.LINE_VECTOR)
            in_row = whole or s.layout in (Layout.TOKEN_SUMS, Layout.SCALAR)
            alike = {*_dims(s, program.roles)} == {*s.type.names}
            if not alike or not (in_row if name == "lines" else not whole):
                raise TileError(f"{s.out} {s.type} is no {s.layout.value} among the {name}")


def _dims(s: Statement, roles: Roles) -> list[str]:
    """Return the dims of a value by its layout."""
    inner = roles.inner_of(s.type)
    words = {"rows": roles.rows, "tokens": roles.tokens, "depth": roles.depth}
    words |= {"whole depth": roles.depth, "inner": inner.name if inner is not None else ""}
    return [words[w] for w in s.layout.value.split(" x ") if w in words]


class _Block(Machine[Statement, Array]):
    """One block at work."""

    def __init__(
        self,
        program: TileProgram,
        arranged: Arranged,
        sizes: Mapping[str, int],
        tensors: dict[str, Array],
        first: Mapping[str, int],
    ) -> None:
        self.program, self.arranged, self.roles = program, arranged, program.roles
        self.sizes, self.tensors = sizes, tensors
        self.memory = Memory(arranged.bytes)
        roles = self.roles
        self.axes = [d for d in (SLICE, roles.rows, *roles.inner, roles.tokens, roles.depth) if d]
        self.local = {d: self.along(d, arranged.tiles.get(d, sizes[d])) for d in self.axes[1:]}
        self.local[SLICE] = self.along(SLICE, arranged.slices)
        self.whole = {d: at + first.get(d, 0) for d, at in self.local.items()}
        self.slices = self.local[SLICE] + 1  # as warps
        self.left = {s.out: s for s in (*program.fetches, *program.statistics, *program.kept)}
        self.left |= {s.out: s for s in (*program.received, *program.products)}
        self.left |= {s.out: s for s in program.reductions}
        self.operands = {o.name: o for o in (*program.inputs, *program.results)}
        self.values, self.sums = Values(), Values()
        self.who: Places | int = ANY
        self.at: Index = self.whole
        self.looping = False

    def run(self) -> None:
        p, depth = self.program, self.roles.depth
        fetching = RECEIVER if p.received else COPIES
        for s in (*p.fetches, *p.received):
            source = s.out if s in p.received else s.args[0]
            self.write(s, self.tensor(s, source, self.whole), fetching)
        with np.errstate(all="ignore"):
            # Of whole rows, of which a warp, or the block, takes each token.
            self.at = {**self.whole} | ({depth: self.local[depth]} if p.loop else {})
            self.part(p.lines, "lines", self.local[self.roles.tokens] % self.arranged.slices + 1)
            self.memory.barrier()  # the pass over tokens ends with one
            self.at = self.whole
            if p.received:
                self.part(p.products, "products", RECEIVER)
            if p.loop:
                self.loop()
            warps = self.slices if self.arranged.warps == 1 else ANY
            self.part(p.reductions, "reductions", warps, self.sums)
            for stage in p.stages:
                self.part(stage.statements, "stages")
            self.part(() if p.received else p.products, "products")
            self.part(p.epilogue, "epilogue")

    def part(
        self,
        said: Sequence[Statement],
        part: str,
        who: Places | int = ANY,
        known: Values | None = None,
    ) -> None:
        """Run a part of the program, by threads that have taken nothing yet but what is known."""
        self.values, self.who = dict(known or {}), who
        self.perform(said, part)

    def kind(self, s: Statement) -> Do:
        return s.do

    def made(self, s: Statement, value: Array) -> None:
        self.values[s.out] = value

    def require(self, s: Statement, part: str) -> None:
        """Pass the barrier in front of a statement."""
        if s.barrier and (self.arranged.waits or s.do is not Do.REDUCE):
            self.memory.barrier()

    # -- places ----------------------------------------------------------------------------------

    def along(self, dim: str, extent: int) -> Places:
        """Return the indices of a dim along its axis."""
        return np.arange(extent).reshape([-1 if d == dim else 1 for d in self.axes])

    def axis(self, dim: str) -> int:
        return self.axes.index(dim)

    def place(self, s: Statement) -> tuple[Places, int]:
        """Return where the elements of what a statement leaves lie, and their bytes."""
        strides = self.arranged.strides(s, self.roles, partial=s.do is Do.REDUCE)
        if s.out not in self.arranged.offsets:
            raise TileError(f"{s.out} has no place in shared memory")
        at = sum((self.local[d] * n for d, n in strides.items()), self.arranged.offsets[s.out])
        return np.asarray(at), min(SUM, *strides.values())

    def write(self, s: Statement, values: Array, who: Places | int) -> None:
        at, width = self.place(s)
        self.memory.write(s.out, at, width, values, who)

    def read(self, name: str, who: Places | int) -> Array:
        if name not in self.left:
            raise TileError(f"{name} is read, but nothing leaves it")
        at, width = self.place(self.left[name])
        return self.memory.read(name, at, width, who)

    # -- device memory ---------------------------------------------------------------------------

    def tensor(self, s: Statement, name: str, whole: Index) -> Array:
        """Return what a statement reads of a tensor: zeros past its extents."""
        names = self.operands[name].type.names if name in self.operands else s.type.names
        if name not in self.tensors or {*names} != {*s.type.names}:
            raise TileError(f"{s.out} {s.type} is read of {name}")
        places = [whole[d] for d in names]
        inside = within(whole, {d: self.sizes[d] for d in names})
        return masked_load(self.tensors[name], places, inside)

    # -- statements ------------------------------------------------------------------------------

    def value(self, name: str) -> Array:
        """Return a value that a statement takes, a constant, or a scalar of the call."""
        if name in self.values:
            return self.values[name]
        literal = self.program.literals.get(name)
        if literal is not None:
            return np.asarray(float(self.sizes.get(literal, 0) or literal))
        if name in self.program.scalars:
            return self.tensors[name]
        raise TileError(f"{name} is not there where it is taken")

    def load(self, s: Statement) -> Array:
        return self.tensor(s, s.args[0], self.at)

    def taken(self, s: Statement) -> Array:
        """Take what was left in shared memory, or of a tensor."""
        return self.read(s.args[0], self.who) if s.args[0] in self.left else self.load(s)

    def mapped(self, s: Statement) -> Array:
        return elementwise(s.op, [self.value(a) for a in s.args])

    def keep(self, s: Statement) -> None:
        self.write(s, self.value(s.args[0]), self.who)

    def total(self, s: Statement) -> Array:
        return np.asarray(self.read(s.args[0], self.who).sum(axis=0, keepdims=True))

    def store(self, s: Statement) -> None:
        result = self.operands[s.args[1]] if s.args[1:] else self.program.output
        ends = {d: self.sizes[d] for d in result.type.names}
        places, inside = [self.at[d] for d in ends], within(self.at, ends)
        masked_store(self.tensors[result.name], places, inside, self.value(s.args[0]))

    def summed(self, s: Statement) -> Array | None:
        """Sum along the depth; slices of a step that the depth has ended for add nothing."""
        depth = self.roles.depth
        made = self.contracted([self.value(x) for x in s.args], depth)
        if not self.looping:
            return made
        first = self.at[depth].min(axis=-1, keepdims=True)
        made = np.where(first < self.sizes[depth], made, 0.0)
        self.sums[s.out] = self.sums.get(s.out, 0.0) + made
        return None

    def contract(self, s: Statement) -> None:
        if self.looping:
            self.summed(s)
            return
        factors, totals = (self.read(x, self.who) for x in s.args)
        (over,) = {*self.left[s.args[0]].type.names} & {*self.left[s.args[1]].type.names}
        self.write(s, self.contracted([factors, totals], over), ANY)

    meanings: ClassVar[Meanings] = {
        Do.LOAD: load,
        Do.READ: taken,
        Do.MAP: mapped,
        Do.SUM: summed,
        Do.CONTRACT: contract,
        Do.REDUCE: keep,
        Do.KEEP: keep,
        Do.TOTAL: total,
        Do.STORE: store,
    }

    # -- the loop --------------------------------------------------------------------------------

    def loop(self) -> None:
        """Take the steps of all slices."""
        a = self.arranged
        said = {s.out for role in a.roles for s in role}
        if a.roles and said != {s.out for s in self.program.loop if s.do is not Do.LOAD}:
            raise TileError("warps by role run other statements than those of the loop")
        self.looping = True
        steps = -(-self.sizes[self.roles.depth] // (a.slices * a.depth))
        self.pipelined(range(steps), a.stages)
        self.looping, self.at = False, self.whole

    def ring(self, step: int) -> Iterator[tuple[Statement, Index, Places]]:
        """Yield what a step loads, where it lies in its tensor, and where in shared memory."""
        a, depth = self.arranged, self.roles.depth
        k = self.along(depth, a.depth)
        whole = {**self.whole, depth: (step * a.slices + self.local[SLICE]) * a.depth + k}
        at = a.offsets[RING] + self.local[SLICE] * a.slice_bytes + step % a.stages * a.step_bytes
        for s in self.program.loads:
            lines = [self.local[d] * a.depth for d in s.type.names if d != depth]
            yield s, whole, np.asarray(at + (sum(lines) + k) * ELEMENT)
            at = at + a.lines(s, self.roles) * a.depth * ELEMENT

    def copy(self, step: int) -> None:
        for s, whole, at in self.ring(step):
            self.memory.write(s.out, at, ELEMENT, self.tensor(s, s.args[0], whole), self.slices)

    def step(self, step: int) -> None:
        a, rest = self.arranged, [s for s in self.program.loop if s.do is not Do.LOAD]
        loaded, rewritten = Values(), Values()
        for s, whole, at in self.ring(step):
            self.at = whole
            loaded[s.out] = self.memory.read(s.out, at, ELEMENT, self.slices)
        for said in a.roles or (tuple(rest),):
            self.part(said, "loop", self.slices, {**loaded, **rewritten})
            known = self.values
            rewritten |= {a.rewritten: known[a.rewritten]} if a.rewritten in known else {}

    def contracted(self, operands: Sequence[Array], over: str) -> Array:
        """Sum the products of operands along a dim."""
        axis = self.axis(over)
        if len(operands) == 1:
            return np.asarray(operands[0].sum(axis=axis, keepdims=True))
        a, b = (np.moveaxis(x, axis, -1) for x in operands)
        flat = [x.reshape(x.shape[0], -1, x.shape[-1]) for x in (a, b)]
        made = flat[0] @ flat[1].swapaxes(1, 2)
        if np.argmax(a.shape[1:-1]) > np.argmax(b.shape[1:-1]):
            made = made.swapaxes(1, 2)
        outer = np.broadcast_shapes(a.shape[:-1], b.shape[:-1])
        return np.moveaxis(made.reshape([*outer, 1]), -1, axis)
