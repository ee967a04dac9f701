"""Every value a block graph of one setting may compute, with every way to make it.

A value is known by its abstract term, how its dims are cut, and when it is ready: two ways to make
the same value are two derivations of it. So the search does not enumerate graphs but saturates
values: from the block's inputs and the constants, newest first, every op on every pair of values,
until nothing new appears. Terms forget indices, so a value may still mean several things; those
are told apart where they matter, on the way to the program's result (`fingerprints.py`).
A value is pruned when
* type: dims cut differently meet, or values inside and after the loop mix;
* abstract: its term cannot be part of anything equal to the program's term;
* occurrences: its operands together count an atom more often than the program's term does;
* depth: no program within the limit is deep enough to hold it.
The abstract pruner keeps what it cannot decide. Terms only grow from operands to results, so the
derivations form an acyclic and-or graph; programs are taken from it in `extract.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

from mirage_kernels.generator.ir import OPS, DType, Graph, Kind, Phase, join_phases, parts_of
from mirage_kernels.generator.ir.ops import ACCUMS, COMBINES
from mirage_kernels.generator.meaning.abstract import (
    COMBINE_PARTS,
    PARTS,
    accum_parts,
    sum_parts,
)
from mirage_kernels.generator.search.sketch import (
    BOTH,
    GRID,
    LOOP,
    PART,
    Counts,
    DimRoles,
    Dims,
    Leaf,
    Setting,
    Step,
    TensorInfo,
    View,
)
from mirage_kernels.generator.search.vocabulary import Vocabulary

LOAD = "load"  # the step that takes a value from a tensor or a constant
ROOM = 1 / 16  # of the budget, for what becomes of another kernel's result where it is used up


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


@dataclass
class Values:
    """Values of one setting by number, with every step that makes each; leaves are loaded."""

    setting: Setting
    values: list[Value] = field(default_factory=list)
    derivations: list[list[Step]] = field(default_factory=list)
    leaves: dict[int, Leaf] = field(default_factory=dict)

    def dims_of(self, value: int, order: Sequence[str]) -> tuple[str, ...]:
        """Return the dims of a stored value, parts first, then in that order."""
        dims = self.values[value].dims
        parts = sorted(d for d, how in dims if how == PART)
        return (*parts, *sorted((d for d, how in dims if how != PART), key=order.index))


@dataclass
class Saturation(Values):
    """Every value of one setting that the pruners keep."""

    vocabulary: Vocabulary = field(kw_only=True)
    depths: list[int] = field(default_factory=list)
    counts: Counts = field(default_factory=lambda: Counts(pruned=Counter()))
    numbers: dict[Value, int] = field(default_factory=dict)
    cuts: dict[tuple[Dims, str], int] = field(default_factory=dict)  # how dims are cut, and phase
    keys: list[tuple[int, int]] = field(default_factory=list)  # term and cut of each value
    tried: int = 0  # values whose steps with all older ones were taken

    def __post_init__(self) -> None:
        if not self.values:
            for constant in self.vocabulary.constants:
                self._leaf(constant, frozenset(), Phase.BEFORE, constant.name)

    def add_inputs(self, tensors: Sequence[TensorInfo], roles: DimRoles) -> None:
        """Add every view of every tensor."""
        for tensor in tensors:
            for view in self.setting.views(tensor, roles):
                phase = Phase.LOOP if view.loop_cut else Phase.BEFORE
                self._leaf(tensor, view.dims(tensor.dims), phase, view)

    def _leaf(self, tensor: TensorInfo, dims: Dims, phase: Phase, leaf: Leaf) -> None:
        dtype = DType.FP32 if tensor.dtype.is_real else tensor.dtype
        number = self._number(Value(tensor.term, dims, phase, dtype), 0)
        self.derivations[number] = [Step(LOAD, ())]  # what can be loaded is not computed again
        self.leaves[number] = leaf

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
        before, words = self.tried, self.vocabulary
        most = max(words.most_values, before + int(words.most_values * ROOM))
        while self.tried < len(self.values):
            for step in self._steps_at(self.tried):
                value = self._make(step)
                if value is None:
                    continue
                if value not in self.numbers:
                    depth = 1 + max(self.depths[i] for i in step.args)
                    too_deep = depth > words.limits.block_ops
                    if too_deep or len(self.values) >= most:
                        self.counts.pruned["depth" if too_deep else "budget"] += 1
                        continue
                    self._number(value, depth)
                self.derivations[self.numbers[value]].append(step)
            self.tried += 1
        self.counts.states += len(self.values) - before

    def extended(self, tensors: Sequence[TensorInfo], roles: DimRoles) -> Saturation:
        """Return a saturation that has more inputs, with counts of its own."""
        own = ("values", "keys", "cuts", "leaves", "depths", "numbers")
        copies = {name: copy(getattr(self, name)) for name in own}
        ways = [[*ways] for ways in self.derivations]
        more = replace(self, **copies, derivations=ways, counts=Counts(pruned=Counter()))
        more.add_inputs(tensors, roles)
        more.run()
        return more

    def seed(self, spec: Graph) -> None:
        """Add the program's own values where this setting has them, so that no budget cuts them."""
        known = {name: i for i, name in self.leaves.items() if isinstance(name, str)}
        for i, leaf in self.leaves.items():
            if isinstance(leaf, View) and leaf.loop_cut is None:
                known.setdefault(leaf.tensor, i)
        shared = self.setting.split if self.setting.holding else None
        for node in spec.nodes:
            if not node.args or not all(a in known for a in node.args):
                continue
            combine = "combine_max" if node.op == "amax" else "combine"
            args = tuple(known[a] for a in node.args)
            for op in (node.op, combine) if node.over and node.over == shared else (node.op,):
                value = self._make(Step(op, args, node.over))
                if value is None:
                    break
                args = (self._number(value, 1 + max(self.depths[a] for a in args)),)
            else:
                (known[node.name],) = args

    def _steps_at(self, high: int) -> Iterator[Step]:
        """Yield the steps whose newest operand is `high`.

        This runs for every pair of values: what depends on their terms alone is known to the
        vocabulary, and what depends on their cuts is computed once per cut.
        """
        value, words = self.values[high], self.vocabulary
        whole = not self._is_partial(value)
        functions = (op for op in words.elementwise[1] if words.takes(op, value.names, whole=whole))
        yield from (Step(op, (high,)) for op in functions)
        parts = sorted(d for d in value.names if d.endswith(parts_of("")))
        yield from (Step("sum", (high,), d) for d in (*words.sums, *parts) if d in value.names)
        maxima = (*words.maxima, *parts) if words.maxima else ()
        yield from (Step("amax", (high,), d) for d in maxima if d in value.names)
        if value.phase is Phase.LOOP:
            yield Step("accum", (high,))
            yield from (Step("accum_max", (high,)) for d in words.maxima if d == self.setting.loop)
        split = self.setting.split
        if split is not None and (parts_of(split), PART) in value.dims:
            yield Step("combine", (high,), split)
            yield from (Step("combine_max", (high,), d) for d in words.maxima if d == split)
        yield from self._pairs_at(high)
        upto = range(high + 1)
        for op in words.elementwise[3]:  # a truth value chooses between two numbers
            for condition in (i for i in upto if self.values[i].dtype is DType.BOOL):
                newest = [(high, i) for i in upto] + [(i, high) for i in range(high)]
                for a, b in product(upto, upto) if condition == high else newest:
                    if words.is_chosen_between(self.values[a].term, self.values[b].term):
                        yield Step(op, (condition, a, b))

    def _is_partial(self, value: Value) -> bool:
        """Return whether a value is of one step of the loop alone, or of one block of a split."""
        of_step = value.phase is Phase.LOOP and self.setting.loop not in value.names
        return of_step or any(how == PART for _, how in value.dims)

    def _pairs_at(self, high: int) -> Iterator[Step]:
        meets: dict[int, frozenset[str] | None] = {}  # by cut: the dims of both
        value, unneeded, apart = self.values[high], 0, 0
        own, ops_on = value.term, self.vocabulary.ops_on
        for low, (term, cut) in enumerate(self.keys[: high + 1]):
            ops = ops_on(term, own)
            if not ops:
                unneeded += 1
                continue
            if cut not in meets:
                other = self.values[low]
                meets[cut] = value.names & other.names if _met([value, other]) else None
            shared = meets[cut]
            if shared is None:
                apart += 1
                continue
            for op, swapped in ops:
                if op == "contract":
                    dims = self.vocabulary.contractions
                    yield from (Step(op, (low, high), over) for over in dims if over in shared)
                elif not swapped or low != high:
                    yield Step(op, (high, low) if swapped else (low, high))
        self.counts.pruned["abstract"] += unneeded
        self.counts.pruned["type"] += apart

    def _make(self, step: Step) -> Value | None:
        """Return the value of a step; None when it has no type or its term can't be needed."""
        args = [self.values[i] for i in step.args]
        dtype = _result_dtype(step.op, args, lifting=step.op in self.vocabulary.lifting)
        made = self._typed(step, args) if dtype is not None else None
        is_outer = made is not None and self._is_outer(step, args, made[0])
        if dtype is None or made is None or (is_outer and not self.vocabulary.outer):
            self.counts.pruned["type"] += 1
            return None
        dims, phase, factors = made
        over = (self.setting.loop or "") if step.op in ACCUMS else step.over
        terms = tuple(a.term for a in args)
        term = self.vocabulary.result(step.op, terms, over.removesuffix(parts_of("")), factors)
        if term is None:
            self.counts.pruned["abstract"] += 1
            return None
        value = Value(term, dims, phase, dtype)
        if is_outer and (term, value.names) not in self.vocabulary.outer:
            self.counts.pruned["type"] += 1
            return None
        return value

    def _is_outer(self, step: Step, args: Sequence[Value], dims: Dims) -> bool:
        """Return whether an elementwise op on numbers has the dims of none of its operands.

        The search makes the spec's own only: products over a new pair of dims are contractions.
        Positions and truth values may meet along new dims: they are computed where they are used.
        """
        counted = all(a.dtype in (DType.INT32, DType.BOOL) for a in args)
        elementwise = OPS[step.op].kind is Kind.ELEMENTWISE
        return elementwise and not counted and all(a.dims != dims for a in args)

    def _typed(
        self, step: Step, args: Sequence[Value]
    ) -> tuple[Dims, Phase, tuple[str, ...]] | None:
        """Return dims and phase of a result, and which factors of a sum a step does."""
        met = _met(args)
        if met is None:
            return None
        together, phase = met
        factors: tuple[str, ...] = PARTS
        loop, split, holding = self.setting.loop, self.setting.split, self.setting.holding
        part = (parts_of(split or ""), PART)
        if step.op in ACCUMS:
            if any(how in (LOOP, BOTH) for _, how in together):
                return None
            dims = together | {part} if loop == split else together
            return dims, Phase.AFTER, accum_parts(split=loop == split)
        if step.op in COMBINES:
            ready = phase in (Phase.BEFORE, Phase.AFTER) or (holding and phase is Phase.JOINED)
            return (together - {part}, Phase.JOINED, COMBINE_PARTS) if ready else None
        if OPS[step.op].kind is not Kind.ELEMENTWISE:
            how = dict(together)[step.over]
            if how == GRID and step.over != split:
                return None
            factors = sum_parts(step.over, looped=how in (LOOP, BOTH), split=how == GRID)
            if step.over.endswith(parts_of("")):
                factors = COMBINE_PARTS
            together = together - {(step.over, how)} | ({part} if how == GRID else set())
        if phase is not Phase.JOINED:
            return together, phase, factors
        early = (a for a in args if a.phase is not Phase.JOINED)
        own = part in together or (split, GRID) in together
        alone = any(part in a.dims for a in early) if holding else own
        return None if alone else (together, phase, factors)


def _met(args: Sequence[Value]) -> tuple[Dims, Phase] | None:
    """Return the dims and the phase in which operands meet; None where they are cut differently."""
    phase = join_phases(a.phase for a in args)
    together: Dims = frozenset().union(*(a.dims for a in args))
    if phase is None or len({d for d, _ in together}) < len(together):
        return None
    return together, phase


def _result_dtype(op: str, args: Sequence[Value], *, lifting: bool) -> DType | None:
    """Return the element type of a result, None where there is none; `lifting` makes ints real."""
    dtypes = {a.dtype for a in args}
    if lifting and dtypes == {DType.INT32, DType.FP32}:
        return DType.FP32
    if op == "where":
        return DType.FP32 if [a.dtype for a in args[1:]] == [DType.FP32] * 2 else None
    if op == "less":  # truth values are 0 and 1
        return DType.BOOL if DType.INT32 in dtypes <= {DType.INT32, DType.BOOL} else None
    if op == "both":
        return DType.BOOL if dtypes == {DType.BOOL} else None
    if dtypes == {DType.INT32} and op in ("add", "sub", "mul", "max"):
        return DType.INT32
    return DType.FP32 if dtypes == {DType.FP32} else None
