"""Runs attention programs as their kernels do: work item by work item, step by step.

What device code does around the statements is done here alike. All steps of all work tiles stand in
one row, of which every block takes an equal range. The warps of a block take turns in the steps of
a work item, and combine what they carry, each relative to its own maximum; so do the blocks of a
work tile. Lines behind a sequence's length are never read: keys hold nan there, values zeros. A
value is known in its phase only, those of the loop in one step of one warp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import accumulate, pairwise, product
from math import inf, nan
from typing import ClassVar

import numpy as np

from mirage_kernels.generator.ir import DType, Node, TensorType, Value
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.schedules.attention.program import AttentionProgram, Do, Place, Step
from mirage_kernels.generator.tiles.check import CLOSE
from mirage_kernels.generator.tiles.machine import Machine, Meanings
from mirage_kernels.generator.tiles.memory import TileError

Values = dict[str, Array]
BEFORE, LOOP, AFTER = "before the loop", "in the loop", "after the combine"
STORED = "the result"
_READING = array_reading(FLOAT64, {})


@dataclass(frozen=True)
class Split:
    """How the work is cut: by knobs, and over the blocks of a call."""

    heads: int  # of a group in a tile of query rows, each with all tokens
    keys: int  # of a step
    warps: int  # of a block, with keys of their own
    blocks: int


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


def run(program: AttentionProgram, inputs: Values, split: Split) -> Array:
    """Return the result; raises TileError for a statement out of place."""
    roles, queries = program.roles, inputs[program.tensors["queries"]]
    sizes = {d: x.extent(d) for x in inputs.values() for d in x.dims}
    cuts = [(roles.sequences, 1), (roles.heads, 1), (roles.group, split.heads)]
    along = [[(d, slice(i, i + n)) for i in range(0, sizes[d], n)] for d, n in cuts if d]
    places = [dict(at) for at in product(*along)]
    tiles = [
        _WorkTile(program, {n: _cut(x, at) for n, x in inputs.items()}, split) for at in places
    ]
    ends = [0, *accumulate(tile.steps for tile in tiles)]
    shares = {i * ends[-1] // split.blocks for i in range(split.blocks)}
    out = replace(queries, parts=(np.full(queries.parts[0].shape, nan),))
    for at, tile, start, stop in zip(places, tiles, ends[:-1], ends[1:], strict=True):
        bounds = [start, *(i for i in sorted(shares) if start < i < stop), stop]
        items = [range(a - start, b - start) for a, b in pairwise(bounds)]
        _cut(out, at).parts[0][...] = tile.result(items).over(out.dims).parts[0]
    return out


def _cut(x: Array, at: Mapping[str, slice]) -> Array:
    """Return a part of a tensor, as a view."""
    return reduce(lambda y, d: y.cut(d, at[d].start, at[d].stop), filter(at.get, x.dims), x)


def _number(value: float) -> Array:
    return Array((), (np.asarray(value),), isinstance(value, float))


@dataclass(frozen=True)
class _WorkTile:
    """One sequence, one head of the cache, some heads of its group, with its parts of tensors."""

    program: AttentionProgram
    inputs: Values
    split: Split

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {d: x.extent(d) for x in self.inputs.values() for d in x.dims}

    @cached_property
    def lengths(self) -> Array:
        sequences = (self.program.roles.sequences,)
        return next(x for x in self.inputs.values() if x.dims == sequences and not x.real)

    @property
    def steps(self) -> int:
        return max(1, -(-int(self.lengths.parts[0][0]) // self.split.keys))

    @cached_property
    def literals(self) -> Values:
        given = self.program.literals.items()
        return {n: _number(float(self.sizes[v]) if isinstance(v, str) else v) for n, v in given}

    @cached_property
    def nothing(self) -> Values:
        """What is carried before the first step."""
        program, queries = self.program, self.inputs[self.program.tensors["queries"]]
        product = replace(queries, parts=(np.zeros(queries.parts[0].shape),))
        sums = computed("sum", [product], program.roles.depth)
        peak = replace(sums, parts=(np.full(sums.parts[0].shape, -inf),))
        return {program.peak: peak, program.sum.name: sums, program.product.name: product}

    def result(self, items: Sequence[range]) -> Array:
        """Return the rows of the result, whose steps are of several blocks."""
        sums, product = self.program.sum, self.program.product
        carried = self.combined([self.item(steps) for steps in items])
        (found,) = carried[sums.name].parts  # what sums nothing is divided by 1
        divisor = replace(carried[sums.name], parts=(np.where(found == 0, 1.0, found),))
        whole = {sums.whole: divisor, product.whole: carried[product.name]}
        last = _Run(self, AFTER, self.literals | whole)
        last.perform(self.program.after, AFTER)
        return last.value(STORED)

    def item(self, steps: range) -> Values:
        """Return what a block carries of a range of steps, once its warps have combined."""
        program, numbers = self.program, (*self.program.scalars, *self.program.integers)
        first = _Run(self, BEFORE, self.literals | {name: self.inputs[name] for name in numbers})
        first.perform(program.before, BEFORE)
        for resident in filter(None, (program.resident, program.more_resident)):
            first.value(resident)
        warps = [dict(self.nothing) for _ in range(self.split.warps)]
        for turn, step in enumerate(steps):
            _Run(self, LOOP, dict(first.known), warps[turn % len(warps)]).step(step)
        return self.combined(warps)

    def combined(self, parts: Sequence[Values]) -> Values:
        """Return the sums of all parts, each relative to its own maximum."""
        peak, found = self.program.peak, dict(self.nothing)
        found[peak] = reduce(lambda a, b: computed("max", (a, b)), (p[peak] for p in parts))
        for part in parts:
            _raise(found[peak], part, peak)
            for name in {*found} - {peak}:
                found[name] = computed("add", (found[name], part[name]))
        return found


def _raise(higher: Array, carried: Values, peak: str) -> None:
    """Make all that is carried relative to a maximum that is not lower."""
    lower = carried[peak].over(higher.dims)
    factor = replace(higher, parts=FLOAT64.decay(lower.parts, higher.parts))
    for name, x in carried.items():
        carried[name] = higher if name == peak else computed("mul", (x, factor))


class _Run(Machine[Step, Array]):
    """A phase of a work tile, or a step of one warp: what is known in it, and what is carried."""

    def __init__(
        self, tile: _WorkTile, phase: str, known: Values, carried: Values | None = None
    ) -> None:
        self.tile, self.phase, self.known = tile, phase, known
        self.carried, self.turn = carried if carried is not None else Values(), 0

    def kind(self, s: Step) -> Do:
        return s.do

    def require(self, s: Step, part: str) -> None:
        """Raise TileError for a statement of another phase."""
        if part not in _PHASES.get(s.do, (LOOP,)):
            raise TileError(f"{s.out} = {s.do.value} stands {part}")

    def made(self, s: Step, value: Array) -> None:
        """Keep a value that has the dims which the statement declares."""
        if not self.is_along(value, s):
            raise TileError(f"{s.out} {s.type} is computed along {', '.join(value.dims)}")
        self.known[s.out] = value

    def step(self, step: int) -> None:
        self.turn = step
        self.perform(self.tile.program.loop, LOOP)

    def is_along(self, value: Array, s: Step) -> bool:
        """Say whether a value has the dims of a statement's result, of those with an extent."""
        ones = {self.tile.program.roles.sequences, self.tile.program.roles.heads}
        return {*value.dims} - ones == {*s.type.names} - ones

    def value(self, name: str) -> Array:
        found = self.carried.get(name, self.known.get(name))
        if found is None:
            raise TileError(f"{name} is not known {self.phase}")
        return found

    def values(self, s: Step) -> list[Array]:
        return [self.value(a) for a in s.args]

    # -- statements ----------------------------------------------------------------------------

    def argument(self, s: Step) -> Array:
        name = s.args[0] if s.args else self.tile.program.tensors[s.do.value]
        return self.tile.inputs[name]

    def lines(self, tensor: str, behind: float) -> Array:
        """Return the step's lines of the cache; what stands `behind` the sequence is not read."""
        keys, x = self.tile.split.keys, self.tile.inputs[self.tile.program.tensors[tensor]]
        first, end = self.turn * keys, int(self.tile.lengths.parts[0][0])
        dim = self.tile.program.roles.keys
        read = x.cut(dim, first, min(first + keys, end))
        edge = [(0, keys - read.extent(d) if d == dim else 0) for d in x.dims]
        return replace(read, parts=(np.pad(read.parts[0], edge, constant_values=behind),))

    def keys(self, s: Step) -> Array:
        return self.lines(s.do.value, behind=nan)

    def map(self, s: Step) -> Array:
        args, tiles = self.values(s), (Place.QUERIES, Place.KEYS, Place.DEPTH_VECTOR)
        tile = self.phase != AFTER and self.tile.program.roles.place(s.type) in tiles
        if tile and not self.is_along(args[0], s):
            raise TileError(f"{s.out} = {s.op}(..) broadcasts its first operand")
        return computed(s.op, args)

    def line_sum(self, s: Step) -> Array:
        return total(self.values(s), self.tile.program.roles.depth)

    def scores(self, s: Step) -> Array:
        program, more = self.tile.program, s.do is Do.MORE_SCORES
        resident = self.value(program.more_resident if more else program.resident)
        along = program.roles.more if more else program.roles.depth
        return total([*self.values(s), resident], along)

    def rescale(self, s: Step) -> None:
        if s.out != self.tile.program.peak:
            raise TileError(f"{s.out} is a maximum that nobody carries")
        self.raised(*self.values(s))

    def raised(self, seen: Array) -> None:
        """Raise the running maximum to what is seen of the step's scores."""
        peak, keys = self.tile.program.peak, self.tile.program.roles.keys
        highest = computed("max", (self.carried[peak], computed("amax", [seen], keys)))
        _raise(highest, self.carried, peak)

    def add(self, s: Step) -> None:
        if s.out not in self.carried:
            raise TileError(f"{s.out} is a sum that nobody carries")
        values = [self.lines("values", 0.0)] if s.do is Do.PRODUCT else []
        self.carry(s.out, [self.value(s.args[-1]), *values])

    def carry(self, name: str, factors: Sequence[Array]) -> None:
        """Add to what is carried; the largest weight that is summed is 1, or they may overflow."""
        program = self.tile.program
        made = total(factors, program.roles.keys)
        self.carried[name] = computed("add", (self.carried[name], made))
        if name == program.sum.name:
            largest = np.max(np.asarray(factors[0].parts[0], np.float64))
            sums = np.asarray(self.carried[name].parts[0], np.float64)
            if largest > 1 or np.any((sums != 0) & (sums < 1 - CLOSE)):
                raise TileError(f"{program.peak} is not the maximum of the scores that are summed")

    def softmax(self, s: Step) -> None:
        """Run what an online-softmax step stands for; see `softmax.py`."""
        program, (scores, mask) = self.tile.program, self.values(s)
        self.raised(computed("where", (mask, scores, _number(-inf))))
        lowered = computed("sub", (scores, self.carried[program.peak]))
        weights = computed("where", (mask, computed("exp", [lowered]), _number(0.0)))
        self.carry(program.sum.name, [weights])
        self.carry(program.product.name, [weights, self.lines("values", 0.0)])

    def positions(self, s: Step) -> Array:
        """Return positions of query tokens, or of the step's keys."""
        roles, keys = self.tile.program.roles, self.tile.split.keys
        dim, first, count = roles.keys, self.turn * keys, keys
        if s.do is Do.ROW_TOKENS:
            dim, first, count = roles.tokens, 0, self.tile.sizes[roles.tokens]
        return Array((dim,), (np.arange(first, first + count),), real=False)

    def stored(self, s: Step) -> None:
        self.known[STORED] = self.value(*s.args)

    meanings: ClassVar[Meanings] = {
        **dict.fromkeys((Do.QUERIES, Do.MORE_QUERIES, Do.VECTOR, Do.ROW_VECTORS), argument),
        **dict.fromkeys((Do.ROW_TOKENS, Do.KEY_POSITIONS), positions),
        **dict.fromkeys((Do.KEYS, Do.MORE_KEYS), keys),
        **dict.fromkeys((Do.SCORES, Do.MORE_SCORES), scores),
        **dict.fromkeys((Do.SUM, Do.PRODUCT), add),
        Do.LENGTH: lambda run, s: run.tile.lengths,
        Do.TOKEN_COUNT: lambda run, s: _number(run.tile.sizes[run.tile.program.roles.tokens]),
        Do.MAP: map,
        Do.LINE_SUM: line_sum,
        Do.RAISE: rescale,
        Do.SOFTMAX: softmax,
        Do.STORE: stored,
    }


_EARLY = (Do.QUERIES, Do.MORE_QUERIES, Do.VECTOR, Do.ROW_VECTORS, Do.ROW_TOKENS)
# The phases of statements that may not stand in the loop alone.
_PHASES: dict[Do, tuple[str, ...]] = {
    **dict.fromkeys((*_EARLY, Do.LENGTH, Do.TOKEN_COUNT), (BEFORE,)),
    Do.MAP: (BEFORE, LOOP, AFTER),
    Do.LINE_SUM: (BEFORE, LOOP),
    Do.STORE: (AFTER,),
}
