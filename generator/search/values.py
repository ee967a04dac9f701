"""Every value a block graph of one setting may compute, with every way to make it.

A value is known by its abstract term, how its dims are cut, and when it is ready: two ways to make
the same value are two derivations of it. So the search does not enumerate graphs but saturates
values: from the block's inputs and the constants, newest first, every op on every pair of values,
until nothing new appears. Terms forget indices, so a value may still mean several things; those
are told apart where they matter, on the way to the program's result (`refine.py`).
A value is pruned when
* type: dims cut differently meet, or values inside and after the loop mix;
* abstract: its term cannot be part of anything equal to the program's term;
* occurrences: its operands together count an atom more often than the program's term does;
* depth: no program within the limit is deep enough to hold it.
The abstract pruner keeps what it cannot decide. Terms only grow from operands to results, so the
derivations form an acyclic and-or graph; programs are taken from it in `extract.py`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

from mirage_kernels.generator.ir import OPS, DType, Graph, Kind, Phase, join_phases, parts_of
from mirage_kernels.generator.meaning.abstract import COMBINE_PARTS, PARTS, accum_parts, sum_parts
from mirage_kernels.generator.search.settings import (
    BOTH,
    GRID,
    LOOP,
    PART,
    DimRoles,
    Setting,
    TensorInfo,
    View,
)
from mirage_kernels.generator.search.termspace import TermSpace

LOAD = "load"  # the step that takes a value from a tensor or a constant
Dims = frozenset[tuple[str, str]]  # (dim, how it is cut)


@dataclass(frozen=True, order=True)
class Step:
    """One op on values, by their numbers."""

    op: str
    args: tuple[int, ...]
    over: str = ""


@dataclass(frozen=True)
class Value:
    """What is known of a value without saying how it was made."""

    term: int
    dims: Dims
    phase: Phase
    dtype: DType  # fp32 stands for any real type

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the dims, parts left out."""
        return frozenset(d for d, how in self.dims if how != PART)


@dataclass(frozen=True)
class Vocabulary:
    """What enumeration may use: ops with the dims they reduce, and constants with their terms."""

    elementwise: tuple[str, ...]
    sums: tuple[str, ...]
    contractions: tuple[str, ...]
    constants: tuple[tuple[str, int, DType], ...]

    def of_arity(self, arity: int) -> tuple[str, ...]:
        """Return the elementwise ops with so many operands."""
        return tuple(op for op in self.elementwise if OPS[op].arity == arity)


@dataclass
class Counts:
    """What a search did: values kept, values pruned by reason, programs found and refused."""

    states: int = 0
    pruned: Counter[str] = field(default_factory=Counter)
    candidates: int = 0
    rejected: int = 0


@dataclass
class Saturation:
    """The values of one setting under construction, numbered as they are found."""

    space: TermSpace
    vocabulary: Vocabulary
    setting: Setting
    max_depth: int
    most_values: int = sys.maxsize
    values: list[Value] = field(default_factory=list)
    keys: list[tuple[int, int]] = field(default_factory=list)  # their terms, and cuts by number
    cuts: dict[tuple[Dims, str], int] = field(default_factory=dict)  # numbers of dims and phases
    derivations: list[list[Step]] = field(default_factory=list)
    leaves: dict[int, View | str] = field(default_factory=dict)  # inputs and constants
    depths: list[int] = field(default_factory=list)
    numbers: dict[Value, int] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    tried: int = 0  # values whose ops have been tried

    def add_constants(self) -> None:
        """Add the constants."""
        for name, term, dtype in self.vocabulary.constants:
            self._leaf(Value(term, frozenset(), Phase.BEFORE, _reading(dtype)), name)

    def add_inputs(self, tensors: Sequence[TensorInfo], roles: DimRoles) -> None:
        """Add every view of every tensor."""
        for tensor in tensors:
            for view in self.setting.views(tensor, roles):
                phase = Phase.LOOP if view.loop_cut else Phase.BEFORE
                how = self.setting.how(view, tensor.dims)
                self._leaf(Value(tensor.term, how, phase, _reading(tensor.dtype)), view)

    def _leaf(self, value: Value, what: View | str) -> None:
        number = self._number(value, 0)
        self.derivations[number] = [Step(LOAD, ())]  # what can be loaded is not computed again
        self.leaves[number] = what

    def _number(self, value: Value, depth: int) -> int:
        """Return the number of a value, a new one if it is new."""
        number = self.numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
            cut = self.cuts.setdefault((value.dims, value.phase.value), len(self.cuts))
            self.keys.append((value.term, cut))
            self.derivations.append([])
            self.depths.append(depth)
        return number

    def run(self) -> None:
        """Saturate: try every op on every value that has not been tried yet, and all before it."""
        before = self.tried
        while self.tried < len(self.values):
            for step in self._steps_at(self.tried):
                self._take(step)
            self.tried += 1
        self.counts.states += len(self.values) - before

    def extended(self, tensors: Sequence[TensorInfo], roles: DimRoles) -> Saturation:
        """Return a saturation that has more inputs, with counts of its own."""
        own = ("values", "keys", "cuts", "leaves", "depths", "numbers")
        more = replace(self, **{name: copy(getattr(self, name)) for name in own}, counts=Counts())
        more.derivations = [[*ways] for ways in self.derivations]
        more.add_inputs(tensors, roles)
        more.run()
        return more

    def seed(self, spec: Graph) -> None:
        """Add the program's own values where this setting has them, so that no budget cuts them."""
        known = {name: i for i, name in self.leaves.items() if isinstance(name, str)}
        for i, leaf in self.leaves.items():
            if isinstance(leaf, View) and leaf.loop_cut is None:
                known.setdefault(leaf.tensor, i)
        for node in spec.nodes:
            if node.args and all(a in known for a in node.args):
                args = tuple(known[a] for a in node.args)
                value = self._make(Step(node.op, args, node.over))
                if value is not None:
                    known[node.name] = self._number(value, 1 + max(self.depths[a] for a in args))

    def _take(self, step: Step) -> None:
        value = self._make(step)
        if value is None:
            return
        if value not in self.numbers:
            depth = 1 + max(self.depths[i] for i in step.args)
            if depth > self.max_depth or len(self.values) >= self.most_values:
                self.counts.pruned["depth" if depth > self.max_depth else "budget"] += 1
                return
            self._number(value, depth)
        self.derivations[self.numbers[value]].append(step)

    def _steps_at(self, high: int) -> Iterator[Step]:
        """Yield the steps whose newest operand is `high`.

        This runs for every pair of values: what depends on their terms alone is known to the term
        space, and what depends on their cuts is computed once per cut.
        """
        yield from self._steps_on_one(high, self.values[high])
        meets: dict[int, bool] = {}
        own, unneeded, apart = self.keys[high][0], 0, 0
        for low, (term, cut) in enumerate(self.keys[: high + 1]):
            ops = self.space.ops_on(term, own)
            if not ops:
                unneeded += 1
                continue
            if cut not in meets:
                meets[cut] = _may_meet(self.values[high], self.values[low])
            if meets[cut]:
                yield from self._steps_on_two(low, high, ops)
            else:
                apart += 1
        self.counts.pruned["abstract"] += unneeded
        self.counts.pruned["type"] += apart
        yield from self._choices_at(high)

    def _steps_on_two(self, low: int, high: int, ops: Sequence[tuple[str, bool]]) -> Iterator[Step]:
        for op, swapped in ops:
            if op == "contract":
                shared = self.values[high].names & self.values[low].names
                for over in self.vocabulary.contractions:
                    if over in shared:
                        yield Step(op, (low, high), over)
            elif not swapped:
                yield Step(op, (low, high))
            elif low != high:
                yield Step(op, (high, low))

    def _steps_on_one(self, number: int, value: Value) -> Iterator[Step]:
        for op in self.vocabulary.of_arity(1):
            yield Step(op, (number,))
        for over in self.vocabulary.sums:
            if over in value.names:
                yield Step("sum", (number,), over)
        for dim in sorted(value.names):
            if dim.endswith(parts_of("")):
                yield Step("sum", (number,), dim)
        if value.phase is Phase.LOOP:
            yield Step("accum", (number,))
        if self.setting.split is not None and (parts_of(self.setting.split), PART) in value.dims:
            yield Step("combine", (number,), self.setting.split)

    def _choices_at(self, high: int) -> Iterator[Step]:
        """Yield the steps with three operands: a truth value chooses between two numbers."""
        upto = range(high + 1)
        for op in self.vocabulary.of_arity(3):
            for condition in (i for i in upto if self.values[i].dtype is DType.BOOL):
                newest = [(high, i) for i in upto] + [(i, high) for i in range(high)]
                for a, b in product(upto, upto) if condition == high else newest:
                    if self.space.is_chosen_between(self.values[a].term, self.values[b].term):
                        yield Step(op, (condition, a, b))

    def _make(self, step: Step) -> Value | None:
        """Return the value of a step; None when it has no type or its term can't be needed."""
        args = [self.values[i] for i in step.args]
        dtype = _result_dtype(step.op, args)
        dims = self._dims_of(step, args, dtype) if dtype is not None else None
        phase = self._phase_of(step, args, dims) if dims is not None else None
        if dtype is None or dims is None or phase is None:
            self.counts.pruned["type"] += 1
            return None
        terms = tuple(a.term for a in args)
        over = (self.setting.loop or "") if step.op == "accum" else step.over
        parts = self._parts_of(step, args)
        term = self.space.result(step.op, terms, over.removesuffix(parts_of("")), parts)
        if term is None:
            self.counts.pruned["abstract"] += 1
            return None
        return Value(term, dims, phase, dtype)

    def _dims_of(self, step: Step, args: Sequence[Value], dtype: DType) -> Dims | None:
        """Return the dims of a result; None where operands are cut differently.

        An elementwise op on numbers has the dims of one of its operands: no outer products (the
        same rule for every program; products over a new pair of dims are contractions). Positions
        and truth values may meet along new dims: they are computed where they are used.
        """
        together: Dims = frozenset().union(*(a.dims for a in args))
        setting = self.setting
        if len({d for d, _ in together}) < len(together):
            return None
        if step.op == "accum":
            if any(how in (LOOP, BOTH) for _, how in together):
                return None
            split = setting.split if setting.loop == setting.split else None
            return together | {(parts_of(split), PART)} if split else together
        if step.op == "combine":
            return together - {(parts_of(step.over), PART)}
        if OPS[step.op].kind is Kind.ELEMENTWISE:
            free = dtype in (DType.INT32, DType.BOOL) or any(a.dims == together for a in args)
            return together if free else None
        how = dict(together)[step.over]
        if how == GRID and step.over != setting.split:
            return None
        left = together - {(step.over, how)}
        return left | {(parts_of(step.over), PART)} if how == GRID else left

    def _phase_of(self, step: Step, args: Sequence[Value], dims: Dims) -> Phase | None:
        if step.op == "accum":
            return Phase.AFTER
        if step.op == "combine":
            return Phase.JOINED if args[0].phase in (Phase.BEFORE, Phase.AFTER) else None
        phase = join_phases(a.phase for a in args)
        split = self.setting.split
        own = {(split, GRID), (parts_of(split), PART)} if split else set[tuple[str, str]]()
        return None if phase is Phase.JOINED and own & dims else phase

    def _parts_of(self, step: Step, args: Sequence[Value]) -> tuple[str, ...]:
        """Return which factors of a sum a step does."""
        split = self.setting.split
        if step.op == "accum":
            return accum_parts(split=self.setting.loop == split)
        if step.op == "combine" or step.over.endswith(parts_of("")):
            return COMBINE_PARTS
        if not step.over:
            return PARTS
        how = dict(args[0].dims)[step.over]
        return sum_parts(step.over, looped=how in (LOOP, BOTH), split=how == GRID)


def _may_meet(a: Value, b: Value) -> bool:
    """Return whether two values can be operands of one op: phases and cuts agree."""
    if join_phases((a.phase, b.phase)) is None:
        return False
    together = a.dims | b.dims
    return len({d for d, _ in together}) == len(together)


def _reading(dtype: DType) -> DType:
    return DType.FP32 if dtype.is_real else dtype


def _result_dtype(op: str, args: Sequence[Value]) -> DType | None:
    dtypes = {a.dtype for a in args}
    if op == "where":
        return DType.FP32 if [a.dtype for a in args[1:]] == [DType.FP32] * 2 else None
    if op == "less":
        return DType.BOOL if dtypes == {DType.INT32} else None
    if op == "both":
        return DType.BOOL if dtypes == {DType.BOOL} else None
    if dtypes == {DType.INT32} and op in ("add", "sub", "mul", "max"):
        return DType.INT32
    return DType.FP32 if dtypes == {DType.FP32} else None
