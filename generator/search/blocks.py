"""Depth-first enumeration of block graphs in canonical order, with pruning.

A prefix is a list of values; a step adds one op on earlier values. Steps come in increasing rank
(operands, newest first, then op), so every graph is reached in exactly one order. A prefix is
pruned when
* the new value has no type: dims cut differently meet, or values inside and after the loop mix;
* abstract: its term cannot be part of anything equal to the program's term;
* occurrences: what is still to be used counts some input more often than the program does;
* length: the steps left cannot join what is still to be used into one result.
The first and the last two are exact, the second keeps whatever it cannot decide.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mirage_kernels.generator.ir import OPS, Kind, Phase, join_phases
from mirage_kernels.generator.meaning.abstract import PARTS, elementwise, summed
from mirage_kernels.generator.meaning.terms import Terms
from mirage_kernels.generator.search.settings import Setting, TensorInfo, View

Dims = frozenset[tuple[str, str]]  # (dim, "full" | "grid" | "loop")


@dataclass(frozen=True)
class Step:
    """One op on earlier values, by their position (block inputs first, then constants)."""

    op: str
    args: tuple[int, ...]
    over: str = ""


@dataclass(frozen=True)
class BlockSketch:
    """A block graph without tile sizes: setting, constants and steps; the last step is stored."""

    setting: Setting
    constants: tuple[str, ...]  # names of the spec's constant values
    steps: tuple[Step, ...]
    dims: tuple[str, ...]  # of the result


@dataclass(frozen=True)
class Vocabulary:
    """What enumeration may use: ops with the dims they reduce, and constants with their terms."""

    elementwise: tuple[str, ...]
    sums: tuple[str, ...]
    contractions: tuple[str, ...]
    constants: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Goal:
    """What block graphs are enumerated for.

    With `exact`, results whose term is the target's; otherwise every result that can be part of
    it (a first kernel of several).
    """

    target: int
    dims: frozenset[str]
    exact: bool
    max_steps: int
    prune_abstract: bool = True


@dataclass(frozen=True)
class _Value:
    term: int
    dims: Dims
    phase: Phase
    counts: int  # occurrences of each input in the term, packed, one byte each


class _Occurrences:
    """Counts of inputs packed into one number, so that adding and comparing are single steps."""

    def __init__(self, terms: Terms, target: int) -> None:
        capacity = terms.occurrences(target)
        counted = sorted(name for name, n in capacity.items() if n < 0x80)  # more are not limited
        self.terms = terms
        self.shift = {name: 8 * i for i, name in enumerate(counted)}
        self.high_bits = sum(0x80 << s for s in self.shift.values())
        self.room = sum(capacity[name] << s for name, s in self.shift.items())
        self.packed: dict[int, int] = {}

    def of(self, term: int) -> int:
        """Return the packed counts of a term; inputs that the target lacks don't count."""
        if term not in self.packed:
            counts = self.terms.occurrences(term).items()
            self.packed[term] = sum(
                min(n, 127) << self.shift[name] for name, n in counts if name in self.shift
            )
        return self.packed[term]

    def fit(self, total: int) -> bool:
        """Return whether no count exceeds the target's."""
        return ((self.room | self.high_bits) - total) & self.high_bits == self.high_bits


Move = tuple[Step, _Value]


@dataclass
class BlockSearch:
    """One enumeration: shared terms and vocabulary, and counts of what happened."""

    terms: Terms
    vocabulary: Vocabulary
    tensors: Sequence[TensorInfo]
    most_states: int = sys.maxsize  # prefixes to keep before giving up, counted as "budget"
    states: int = 0
    pruned: Counter[str] = field(default_factory=Counter)

    def run(self, setting: Setting, goal: Goal) -> Iterator[BlockSketch]:
        """Yield the block graphs of one setting that reach the goal."""
        prefix = _Prefix(self, setting, goal)
        first = [m for high in range(len(prefix.values)) for m in prefix.moves_at(high)]
        yield from prefix.extend([], frozenset(range(len(setting.views))), first)

    def term_of(self, sketch: BlockSketch, target: int) -> int:
        """Return the term of a sketch's result."""
        goal = Goal(target, frozenset(), False, len(sketch.steps), prune_abstract=False)
        prefix = _Prefix(self, sketch.setting, goal)
        for step in sketch.steps:
            value = prefix.make(step)
            assert value is not None
            prefix.values.append(value)
        return prefix.values[-1].term


class _Prefix:
    """A growing block graph: its values, and the steps that may come next."""

    def __init__(self, search: BlockSearch, setting: Setting, goal: Goal) -> None:
        self.search, self.setting, self.goal = search, setting, goal
        self.occurrences = _Occurrences(search.terms, goal.target)
        words = search.vocabulary
        self.elementwise = {
            n: [o for o in words.elementwise if OPS[o].arity == n] for n in (1, 2, 3)
        }
        by_name = {t.name: t for t in search.tensors}
        self.values = [self._input(by_name[v.tensor], v) for v in setting.views]
        self.values += [_Value(t, frozenset(), Phase.BEFORE, 0) for _, t in words.constants]

    def _input(self, tensor: TensorInfo, view: View) -> _Value:
        how = dict.fromkeys(tensor.dims, "full")
        how |= {d: "grid" for d in view.cuts if d is not None}
        if view.loop_cut is not None:
            how[view.loop_cut] = "loop"
        phase = Phase.LOOP if view.loop_cut else Phase.BEFORE
        counts = self.occurrences.of(tensor.term)
        return _Value(tensor.term, frozenset(how.items()), phase, counts)

    def extend(
        self, steps: list[Step], waiting: frozenset[int], moves: Sequence[Move]
    ) -> Iterator[BlockSketch]:
        """Yield every completion of a prefix.

        `waiting` are the values still to be used; `moves` the steps that may come next, in
        increasing rank: those left over from shorter prefixes, then those on the newest value.
        """
        steps_left = self.goal.max_steps - len(steps) - 1
        for i, (step, value) in enumerate(moves):
            left = waiting.difference(step.args)
            if not self.reachable(value, left, steps_left):
                continue
            if self.search.states >= self.search.most_states:
                self.search.pruned["budget"] += 1
                return
            self.search.states += 1
            steps.append(step)
            self.values.append(value)
            if not left and self.is_result(value):
                yield self.sketch(steps, value)
            if steps_left:
                newest = len(self.values) - 1
                after = [*moves[i + 1 :], *self.moves_at(newest)]
                yield from self.extend(steps, left | {newest}, after)
            self.values.pop()
            steps.pop()

    def moves_at(self, high: int) -> list[Move]:
        """Return the steps whose newest operand is `high` and that make a useful value."""
        made = ((step, self.make(step)) for step in self.steps_at(high))
        return [(step, value) for step, value in made if value is not None]

    def steps_at(self, high: int) -> Iterator[Step]:
        """Yield the steps whose newest operand is `high`."""
        yield from self.steps_on_one(high)
        for low in range(high + 1):
            yield from self.steps_on_two(low, high)
        for op in self.elementwise[3]:
            for args in itertools.product(range(high + 1), repeat=3):
                if high in args:
                    yield Step(op, args)

    def steps_on_one(self, value: int) -> Iterator[Step]:
        """Yield the steps with a single operand."""
        for op in self.elementwise[1]:
            yield Step(op, (value,))
        for over in self.search.vocabulary.sums:
            if self.has_dim(value, over):
                yield Step("sum", (value,), over)
        if self.setting.loop is not None and self.values[value].phase is Phase.LOOP:
            yield Step("accum", (value,))

    def steps_on_two(self, low: int, high: int) -> Iterator[Step]:
        """Yield the steps with two operands, in one order where the op commutes."""
        for op in self.elementwise[2]:
            yield Step(op, (low, high))
            if low != high and not OPS[op].commutative:
                yield Step(op, (high, low))
        for over in self.search.vocabulary.contractions:
            if self.has_dim(low, over) and self.has_dim(high, over):
                yield Step("contract", (low, high), over)

    def has_dim(self, value: int, dim: str) -> bool:
        """Return whether a value has a dim, cut or not."""
        return any(d == dim for d, _ in self.values[value].dims)

    def make(self, step: Step) -> _Value | None:
        """Return the value of a step, or None when it has no type or its term can't be needed."""
        args = [self.values[i] for i in step.args]
        phase = join_phases(a.phase for a in args)
        dims = self.dims_of(step, args)
        if phase is None or dims is None:
            self.search.pruned["type"] += 1
            return None
        term = self.term_of(step, args)
        if self.goal.prune_abstract and not self.search.terms.contains(self.goal.target, term):
            self.search.pruned["abstract"] += 1
            return None
        if step.op == "accum":
            phase = Phase.AFTER
        return _Value(term, dims, phase, self.occurrences.of(term))

    def dims_of(self, step: Step, args: Sequence[_Value]) -> Dims | None:
        """Return the dims of a step's result; None where operands are cut differently.

        An elementwise op has the dims of one of its operands: no outer products (the same rule
        for every program; products over a new pair of dims are contractions).
        """
        together = frozenset(p for a in args for p in a.dims)
        if len({d for d, _ in together}) < len(together):
            return None
        if step.op == "accum":
            return None if any(how == "loop" for _, how in together) else together
        if OPS[step.op].kind is Kind.ELEMENTWISE:
            return together if any(a.dims == together for a in args) else None
        return frozenset(p for p in together if p[0] != step.over)

    def term_of(self, step: Step, args: Sequence[_Value]) -> int:
        """Return the abstract term of a step's result."""
        terms = self.search.terms
        inputs = [a.term for a in args]
        if step.op == "accum":
            return summed(terms, inputs[0], self.setting.loop or "", ("loop",))
        if OPS[step.op].kind is Kind.ELEMENTWISE:
            return elementwise(terms, step.op, inputs)
        cut = any(p == (step.over, "loop") for p in args[0].dims)
        product = terms.mul(*inputs) if step.op == "contract" else inputs[0]
        return summed(terms, product, step.over, ("tile",) if cut else PARTS)

    def reachable(self, value: _Value, left: frozenset[int], steps_left: int) -> bool:
        """Return whether `value` and the values in `left` can still be joined into one result."""
        if len(left) > steps_left * (2 if self.elementwise[3] else 1):
            self.search.pruned["length"] += 1
            return False
        total = value.counts
        for i in left:
            total += self.values[i].counts
        if not self.occurrences.fit(total):
            self.search.pruned["occurrences"] += 1
            return False
        return True

    def is_result(self, value: _Value) -> bool:
        """Return whether a value with nothing else waiting is what the goal asks for."""
        ready = Phase.AFTER if self.setting.loop is not None else Phase.BEFORE
        grid = {d for d, how in value.dims if how == "grid"}
        if value.phase is not ready or grid != set(self.setting.grid):
            return False
        if self.goal.exact:
            return value.term == self.goal.target and {d for d, _ in value.dims} == self.goal.dims
        return value.term != self.goal.target

    def sketch(self, steps: Sequence[Step], value: _Value) -> BlockSketch:
        """Return the finished prefix."""
        constants = tuple(name for name, _ in self.search.vocabulary.constants)
        dims = tuple(sorted(d for d, _ in value.dims))
        return BlockSketch(self.setting, constants, tuple(steps), dims)
