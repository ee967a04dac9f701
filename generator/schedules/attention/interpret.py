"""Runs attention programs as their kernels do: work item by work item, step by step.

What device code does around the statements is done here alike. All steps of all work tiles stand in
one row, of which every block takes an equal range. The warps of a block take turns in the steps of
a work item, and combine what they carry, each relative to its own maximum; so do the blocks of a
work tile. Lines behind a sequence's length are never read: keys hold nan there, values zeros. A
value is known in its phase only, those of the loop in one step of one warp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import accumulate, pairwise, product
from math import inf, nan, prod

import numpy as np

from mirage_kernels.generator.ir import DType, Node, TensorType, Value
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.schedules.attention.program import AttentionProgram, Do, Place, Step
from mirage_kernels.generator.tiles.block import TileError
from mirage_kernels.generator.tiles.check import CLOSE

Values = dict[str, Array]
BEFORE, LOOP, AFTER = "before the loop", "in the loop", "after the combine"
_READING = array_reading(FLOAT64, {})


@dataclass(frozen=True)
class Split:
    """How the work is cut: by knobs, and over the blocks of a call."""

    rows: int  # of a tile of queries
    keys: int  # of a step
    warps: int  # of a block, with keys of their own
    blocks: int


def run(program: AttentionProgram, inputs: Mapping[str, Array], split: Split) -> Array:
    """Return the result, nan where nobody stores; raises TileError for a statement out of place."""
    return _Call(program, inputs, split).result()


def computed(op: str, args: Sequence[Array], over: str = "") -> Array:
    """Return what an op of the table makes of values."""
    if over and over not in args[0].dims:
        raise TileError(f"there is a {op} along {over} of a value that lacks it")
    out = Value(op, TensorType((), DType.FP32))
    (made,) = _READING[op](Node(op, (), (out,), over), args)
    return made


def total(factors: Sequence[Array], over: str) -> Array:
    """Return the sum of a product along a dim."""
    return computed("sum", [reduce(lambda a, b: computed("mul", (a, b)), factors)], over)


def number(value: float) -> Array:
    """Return a literal."""
    return Array((), (np.asarray(value),), isinstance(value, float))


def numbered(dim: str, numbers: range) -> Array:
    """Return positions along a dim."""
    return Array((dim,), (np.asarray(numbers),), real=False)


@dataclass(frozen=True)
class _Call:
    """One call of a kernel."""

    program: AttentionProgram
    inputs: Mapping[str, Array]
    split: Split

    @cached_property
    def extents(self) -> dict[str, int]:
        return {d: x.extent(d) for x in self.inputs.values() for d in x.dims}

    @cached_property
    def lengths(self) -> Array:
        sequences = (self.program.roles.sequences,)
        return next(x for x in self.inputs.values() if x.dims == sequences and not x.real)

    @cached_property
    def literals(self) -> Values:
        found = self.program.literals.items()
        of = self.extents
        return {n: number(float(of[v]) if isinstance(v, str) else v) for n, v in found}

    def result(self) -> Array:
        """Run all blocks, work tile by work tile."""
        queries = self.inputs[self.program.tensors["queries"]]
        out = replace(queries, parts=(np.full(queries.parts[0].shape, nan),))
        tiles = list(self.work_tiles())
        ends = [0, *accumulate(tile.steps for tile in tiles)]
        cuts = [i * ends[-1] // self.split.blocks for i in range(self.split.blocks)]
        for tile, start, stop in zip(tiles, ends[:-1], ends[1:], strict=True):
            bounds = [start, *(c for c in sorted({*cuts}) if start < c < stop), stop]
            items = [tile.item(range(a - start, b - start)) for a, b in pairwise(bounds)]
            tile.finish(tile.combined(items), out)
        return out

    def work_tiles(self) -> Iterator[_WorkTile]:
        roles, most = self.program.roles, self.split.rows
        rows = prod(self.extents[d] for d in roles.rows)
        dims = [d for d in (roles.sequences, roles.heads) if d]
        for at in product(*(range(self.extents[d]) for d in dims)):
            for first in range(0, rows, most):
                lines = range(first, min(first + most, rows))
                yield _WorkTile(self, dict(zip(dims, at, strict=True)), lines)


@dataclass(frozen=True)
class _WorkTile:
    """One sequence, one head of the cache, one tile of query rows."""

    call: _Call
    at: Mapping[str, int]
    lines: range  # of all query rows

    @property
    def program(self) -> AttentionProgram:
        return self.call.program

    @cached_property
    def length(self) -> int:
        return int(self.own(self.call.lengths).parts[0])

    @property
    def steps(self) -> int:
        return max(1, -(-self.length // self.call.split.keys))

    def own(self, x: Array) -> Array:
        """Return what a tensor has for the sequence, the head and the rows, one axis of these."""
        roles, index = self.program.roles, tuple(self.at.get(d, slice(None)) for d in x.dims)
        left = tuple(d for d in x.dims if d not in self.at)
        mine = Array(left, tuple(np.asarray(p[index]) for p in x.parts), x.real)
        if not {*left} & {*roles.rows}:
            return mine
        others = [d for d in left if d not in roles.rows]
        shape = [self.call.extents[d] for d in (*roles.rows, *others)]
        whole = np.broadcast_to(mine.over((*roles.rows, *others)).parts[0], shape)
        lines = whole.reshape(-1, *shape[len(roles.rows) :])[self.lines]
        return Array((roles.counted, *others), (lines,), x.real)

    def step_lines(self, x: Array, step: int, behind: float) -> Array:
        """Return a step's lines of the cache; what stands `behind` the sequence is not read."""
        keys = self.call.split.keys
        first = step * keys
        there = self.own(x).cut(self.program.roles.keys, first, min(first + keys, self.length))
        (lines,) = there.parts
        missing = np.full((keys - len(lines), *lines.shape[1:]), behind)
        return replace(there, parts=(np.concatenate([lines, missing]),))

    def nothing(self) -> Values:
        """Return what is carried before the first step."""
        roles, program, rows = self.program.roles, self.program, len(self.lines)
        product = np.zeros((rows, self.call.extents[roles.depth]))
        return {
            program.peak: Array((roles.counted,), (np.full(rows, -inf),)),
            program.sum.name: Array((roles.counted,), (np.zeros(rows),)),
            program.product.name: Array((roles.counted, roles.depth), (product,)),
        }

    def item(self, steps: range) -> Values:
        """Return what a block carries of a range of steps, once its warps have combined."""
        names = (*self.program.scalars, *self.program.integers)
        given = self.call.literals | {name: self.call.inputs[name] for name in names}
        first = _Run(self, BEFORE, given)
        first.statements(self.program.before)
        for resident in filter(None, (self.program.resident, self.program.more_resident)):
            first.value(resident)
        warps = [self.nothing() for _ in range(self.call.split.warps)]
        for turn, step in enumerate(steps):
            carried = warps[turn % len(warps)]
            _Run(self, LOOP, {**first.known}, carried, step).statements(self.program.loop)
        return self.combined(warps)

    def combined(self, parts: Sequence[Values]) -> Values:
        """Return the sums of all parts, each relative to its own maximum."""
        peak, found = self.program.peak, self.nothing()
        found[peak] = reduce(lambda a, b: computed("max", (a, b)), (p[peak] for p in parts))
        for part in parts:
            raise_to(found[peak], part, peak)
            for name in (self.program.sum.name, self.program.product.name):
                found[name] = computed("add", (found[name], part[name]))
        return found

    def finish(self, carried: Values, out: Array) -> None:
        """Store the rows of the result; what sums nothing is divided by 1."""
        sums, product = self.program.sum, self.program.product
        (divisor,) = carried[sums.name].parts
        total = replace(carried[sums.name], parts=(np.where(divisor == 0, 1.0, divisor),))
        whole = {sums.whole: total, product.whole: carried[product.name]}
        _Run(self, AFTER, self.call.literals | whole, out=out).statements(self.program.after)


def raise_to(higher: Array, carried: Values, peak: str) -> None:
    """Make all that is carried relative to a maximum that is not lower."""
    factor = replace(higher, parts=FLOAT64.decay(carried[peak].parts, higher.parts))
    for name, x in carried.items():
        carried[name] = higher if name == peak else computed("mul", (x, factor))


@dataclass
class _Run:
    """A phase of a work tile, or a step of one warp: what is known in it, and what is carried."""

    tile: _WorkTile
    phase: str
    known: Values
    carried: Values = field(default_factory=dict)
    step: int = 0
    out: Array | None = None

    @property
    def program(self) -> AttentionProgram:
        return self.tile.program

    def statements(self, said: Sequence[Step]) -> None:
        """Run statements in order."""
        for s in said:
            phases, run = _MEANINGS[s.do]
            if self.phase not in phases:
                raise TileError(f"{s.out} = {s.do.value} stands {self.phase}")
            made = run(self, s)
            if made is None:
                continue
            if {*made.dims} != self.axes(s):
                raise TileError(f"{s.out} {s.type} is computed along {', '.join(made.dims)}")
            self.known[s.out] = made

    def axes(self, s: Step) -> set[str]:
        """Return the axes that a result has here."""
        roles = self.program.roles
        of_rows = dict.fromkeys(roles.rows, roles.counted)
        return {of_rows.get(d, d) for d in s.type.names} - {roles.sequences, roles.heads}

    def value(self, name: str) -> Array:
        found = self.carried.get(name, self.known.get(name))
        if found is None:
            raise TileError(f"{name} is not known {self.phase}")
        return found

    def values(self, s: Step) -> list[Array]:
        return [self.value(a) for a in s.args]

    # -- statements ----------------------------------------------------------------------------

    def early(self, s: Step) -> Array:
        """Return what stays the same in all steps, as the work tile has it."""
        roles, call = self.program.roles, self.tile.call
        if s.do is Do.TOKEN_COUNT:
            return number(call.extents[roles.tokens])
        if s.do is Do.ROW_TOKENS:
            return self.tile.own(numbered(roles.tokens, range(call.extents[roles.tokens])))
        if s.do is Do.LENGTH:
            return self.tile.own(call.lengths)
        return self.tile.own(call.inputs[s.args[0] if s.args else self.program.tensors[s.do.value]])

    def lines(self, s: Step) -> Array:
        tensor = self.tile.call.inputs[self.program.tensors[s.do.value]]
        return self.tile.step_lines(tensor, self.step, behind=nan)

    def positions(self, s: Step) -> Array:
        keys = self.tile.call.split.keys
        return numbered(self.program.roles.keys, range(self.step * keys, (self.step + 1) * keys))

    def map(self, s: Step) -> Array:
        args = self.values(s)
        tile = self.program.roles.place(s.type) in (Place.QUERIES, Place.KEYS, Place.DEPTH_VECTOR)
        if tile and self.phase != AFTER and {*args[0].dims} != self.axes(s):
            raise TileError(f"{s.out} = {s.op}(..) broadcasts its first operand")
        return computed(s.op, args)

    def line_sum(self, s: Step) -> Array:
        return total(self.values(s), self.program.roles.depth)

    def scores(self, s: Step) -> Array:
        roles, program = self.program.roles, self.program
        resident, along = program.resident, roles.depth
        if s.do is Do.MORE_SCORES:
            resident, along = program.more_resident, roles.more
        return total([*self.values(s), self.value(resident)], along)

    def rescale(self, s: Step) -> None:
        if s.out != self.program.peak:
            raise TileError(f"{s.out} is a maximum that nobody carries")
        self.raised(*self.values(s))

    def raised(self, seen: Array) -> None:
        """Raise the running maximum to what is seen of the step's scores."""
        peak, keys = self.program.peak, self.program.roles.keys
        highest = computed("max", (self.carried[peak], computed("amax", [seen], keys)))
        raise_to(highest, self.carried, peak)

    def add(self, s: Step) -> None:
        if s.out not in self.carried:
            raise TileError(f"{s.out} is a sum that nobody carries")
        self.carry(s.out, self.value(s.args[-1]), of_values=s.do is Do.PRODUCT)

    def carry(self, name: str, weights: Array, *, of_values: bool) -> None:
        """Add the step's weights to what is carried, or the values times these."""
        factors, program = [weights], self.program
        if of_values:
            values = self.tile.call.inputs[program.tensors["values"]]
            factors.append(self.tile.step_lines(values, self.step, behind=0.0))
        made = total(factors, program.roles.keys)
        self.carried[name] = computed("add", (self.carried[name], made))
        if name == program.sum.name:
            self.require_maximum(weights)

    def require_maximum(self, weights: Array) -> None:
        """Raise TileError unless the largest weight that was summed is 1: none is out of range."""
        sums = np.asarray(self.carried[self.program.sum.name].parts[0], np.float64)
        largest = np.max(np.asarray(weights.parts[0], np.float64))
        if largest > 1 or np.any((sums != 0) & (sums < 1 - CLOSE)):
            raise TileError(f"{self.program.peak} is not the maximum of the scores that are summed")

    def softmax(self, s: Step) -> None:
        """Run what an online-softmax step stands for; see `softmax.py`."""
        program, (scores, mask) = self.program, self.values(s)
        self.raised(computed("where", (mask, scores, number(-inf))))
        lowered = computed("sub", (scores, self.carried[program.peak]))
        weights = computed("where", (mask, computed("exp", [lowered]), number(0.0)))
        self.carry(program.sum.name, weights, of_values=False)
        self.carry(program.product.name, weights, of_values=True)

    def store(self, s: Step) -> None:
        assert self.out is not None
        roles, (value,) = self.program.roles, self.values(s)
        at = tuple(self.tile.at.get(d, slice(None)) for d in self.out.dims)
        place = self.out.parts[0][at]  # [rows .., depth], a view
        (lines,) = value.over((roles.counted, roles.depth)).parts
        place[np.unravel_index(self.tile.lines, place.shape[:-1])] = lines


_MEANINGS: dict[Do, tuple[tuple[str, ...], Callable[[_Run, Step], Array | None]]] = {
    **dict.fromkeys((Do.QUERIES, Do.MORE_QUERIES, Do.LENGTH), ((BEFORE,), _Run.early)),
    **dict.fromkeys((Do.VECTOR, Do.ROW_VECTORS), ((BEFORE,), _Run.early)),
    **dict.fromkeys((Do.ROW_TOKENS, Do.TOKEN_COUNT), ((BEFORE,), _Run.early)),
    **dict.fromkeys((Do.KEYS, Do.MORE_KEYS), ((LOOP,), _Run.lines)),
    Do.KEY_POSITIONS: ((LOOP,), _Run.positions),
    Do.MAP: ((BEFORE, LOOP, AFTER), _Run.map),
    Do.LINE_SUM: ((BEFORE, LOOP), _Run.line_sum),
    **dict.fromkeys((Do.SCORES, Do.MORE_SCORES), ((LOOP,), _Run.scores)),
    Do.RAISE: ((LOOP,), _Run.rescale),
    **dict.fromkeys((Do.SUM, Do.PRODUCT), ((LOOP,), _Run.add)),
    Do.SOFTMAX: ((LOOP,), _Run.softmax),
    Do.STORE: ((AFTER,), _Run.store),
}  # the phases that a statement may stand in, and what it does
