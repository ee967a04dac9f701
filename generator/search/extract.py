"""Programs from the and-or graph of values: cheapest first, each counted once.

A program chooses one derivation for every value that it computes. The cheapest derivation of a
value follows from those of its operands; any other costs some regret on top. All programs of at
most so much total regret are enumerated without dead ends, from the result down, and the bound is
raised until there are as many programs as wanted or no more. What is used twice is computed once.

A last kernel must read what the first one made: such an obligation is passed on from each value to
one of its operands until an input that meets it, and counts in the costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf, prod
from operator import itemgetter

from mirage_kernels.generator.ir import Dim, DType, Graph, Phase
from mirage_kernels.generator.meaning.cost import CHEAP, FUNCTION
from mirage_kernels.generator.search.cases import summed_dims
from mirage_kernels.generator.search.sketch import FULL, PART, Dims, Step, View
from mirage_kernels.generator.search.values import LOAD, Values
from mirage_kernels.generator.target import Target

# Nominal costs stand for work and traffic before tile sizes are known. Every step is charged alone,
# so costs add up; the full estimate of `meaning/cost.py` ranks what is found. Dynamic dims stand at
# what decoding has: few tokens, thousands of keys.
FEW, MANY = 8, 4096  # of a dynamic dim: rows or sequences; positions that are summed along
TILE, STEP = 64, 64  # nominal tiles of the grid and of the loop
LONGEST, UNCUT = 256, 1.25  # of a dim that is not cut; what more than that costs
PARTS_EACH = 16  # blocks that share a split dim
_EACH = 0.002  # of any step: fewer steps are better where nothing else differs


def nominal_sizes(spec: Graph) -> dict[str, int]:
    """Return the extents that costs are charged for."""
    reduced = summed_dims(spec)
    dims: dict[str, Dim] = {d.name: d for n in spec.nodes for v in n.outs for d in v.type.dims}
    return {
        name: min(d.size, MANY if name in reduced else FEW) if d.dynamic else d.size
        for name, d in dims.items()
    }


@dataclass(frozen=True)
class Costs:
    """Nominal microseconds of making values, and of reading and writing tensors."""

    sizes: Mapping[str, int]
    on: Target

    def step(self, found: Values, value: int, step: Step) -> float:
        """Return the nominal time of making a value, or of reading an input.

        An input is read once from memory, again from the cache; a long tile of it that is not cut
        is read before anything is computed with it.
        """
        made, args = found.values[value], [found.values[a] for a in step.args]
        if step.op == LOAD:
            if not isinstance(found.leaves[value], View):
                return 0.0
            whole = self._elements(made.dims) * 2
            if any(how == FULL and self.extent(d) > LONGEST for d, how in made.dims):
                whole *= UNCUT
            again = self._repeats(found, made.dims, looped=False)
            return whole / self.on.memory_bytes_per_us + whole * again / self.on.l2_bytes_per_us
        dims: Dims = frozenset().union(*(a.dims for a in args))
        looped = any(a.phase is Phase.LOOP for a in args)
        times = self._elements(dims) * self._repeats(found, dims, looped=looped)
        if step.op == "contract":
            return 2 * times / self.on.tensor_flops_per_us + _EACH
        each = 1 if step.op in (*CHEAP, "sum", "accum", "amax", "accum_max") else FUNCTION
        return times * each / self.on.alu_ops_per_us + _EACH

    def tensor(self, dims: tuple[str, ...]) -> float:
        """Return the nominal time of reading or writing a tensor once."""
        elements = prod(map(self.extent, dims))
        return elements * DType.FP16.bytes / self.on.memory_bytes_per_us

    def extent(self, dim: str) -> int:
        """Return the nominal extent of a dim; of a parts dim, how many blocks share the sum."""
        return self.sizes.get(dim, PARTS_EACH)

    def _elements(self, dims: Dims) -> float:
        return float(prod(self.extent(d) for d, how in dims if how != PART))

    def _repeats(self, found: Values, dims: Dims, *, looped: bool) -> float:
        """Return how many blocks and steps do the same: along axes that cut none of the dims."""
        cut, setting = {d for d, how in dims if how != FULL}, found.setting
        blocks = prod(
            PARTS_EACH if axis == setting.split else -(-self.extent(axis) // TILE)
            for axis in setting.grid
            if axis not in cut
        )
        loop = setting.loop
        steps = -(-self.extent(loop) // STEP) if looped and loop and loop not in cut else 1
        return float(blocks * steps)


Want = tuple[int, bool]  # a value, and whether it must be made from what an obligation names
Steps = tuple[tuple[int, Step], ...]  # values and what makes each
Way = tuple[float, Step, tuple[Want, ...]]  # the cost, the step, and what that wants in turn


@dataclass(frozen=True)
class Program:
    """One program: the derivation of every value it computes, operands first, and its cost."""

    steps: Steps  # loads left out
    roots: tuple[int, ...]
    cost: float


@dataclass
class Extraction:
    """Enumeration of the programs of one saturation, or of its refinement."""

    graph: Values
    cost: Callable[[int, Step], float]  # of a step that makes a value, loads included
    max_ops: int
    through: frozenset[int] = frozenset()  # inputs of which a program must read at least one
    bound: float = 0.0  # on the total regret
    beyond: float = inf  # the least regret that the bound cut off
    _ways: dict[Want, list[Way]] = field(default_factory=dict)
    _rank: dict[int, int] = field(default_factory=dict)

    def programs(self, roots: Sequence[int], wanted: int | None = None) -> list[Program]:
        """Return the programs that compute `roots`, cheapest first: all, or about `wanted`."""
        wants = tuple((root, i == 0 and bool(self.through)) for i, root in enumerate(roots))
        least = sum(self.least(want) for want in wants)
        if least == inf:
            return []
        self.bound = inf if wanted is None else 0.0
        while True:
            self.beyond = inf
            state = self._expand({}, dict(wants), self.bound)
            found = dict.fromkeys(islice(state, wanted and 4 * wanted))
            if wanted is None or len(found) >= wanted or self.beyond == inf:
                programs = [self._finished(steps, tuple(roots)) for steps in found]
                return sorted(programs, key=lambda p: (p.cost, len(p.steps), p.steps))[:wanted]
            self.bound = max(self.beyond, 2 * self.bound, 1e-3 * least)

    def least(self, want: Want) -> float:
        """Return the cost of the cheapest way to get what is wanted, shared parts counted twice."""
        ways = self.ways(want)
        return ways[0][0] if ways else inf

    def ways(self, want: Want) -> list[Way]:
        """Return the ways to get what is wanted, cheapest first."""
        if want not in self._ways:
            value, obliged = want
            priced = [
                (self.cost(value, step) + sum(map(self.least, wants)), step, wants)
                for step in self.graph.derivations[value]
                for wants in self._choices(value, step, obliged)
            ]
            self._rank.setdefault(value, len(self._rank))
            self._ways[want] = sorted((w for w in priced if w[0] < inf), key=itemgetter(0))
        return self._ways[want]

    def _choices(self, value: int, step: Step, obliged: bool) -> Iterator[tuple[Want, ...]]:
        """Yield what a step wants: its operands, one of them under the obligation if there is."""
        operands = tuple(dict.fromkeys(step.args))
        if not obliged or value in self.through:
            if not obliged or step.op == LOAD:
                yield tuple((a, False) for a in operands)
            return
        for chosen in operands:
            yield tuple((a, a == chosen) for a in operands)

    def _expand(
        self, chosen: dict[int, Step], pending: dict[int, bool], room: float
    ) -> Iterator[Steps]:
        if not pending:
            yield tuple(sorted(chosen.items(), key=lambda item: self._rank[item[0]]))
            return
        value = max(pending, key=self._rank.__getitem__)  # its users have all been chosen
        rest = {v: obliged for v, obliged in pending.items() if v != value}
        made, derivations = sum(s.op != LOAD for s in chosen.values()), self.graph.derivations
        ways = self.ways((value, pending[value]))
        for cost, step, wants in ways:
            regret = cost - ways[0][0]
            if regret > room:
                self.beyond = min(self.beyond, self.bound - room + regret)
                break
            left = {**rest}
            for operand, obliged in wants:
                left[operand] = left.get(operand, False) or obliged
            computed = sum(derivations[v][0].op != LOAD for v in left) + (step.op != LOAD)
            if made + computed > self.max_ops:
                continue
            chosen[value] = step
            yield from self._expand(chosen, left, room - regret)
            del chosen[value]

    def _finished(self, chosen: Steps, roots: tuple[int, ...]) -> Program:
        """Return a program; its operands come first, and of the steps that are ready the lightest.

        What is light leaves little behind; a heavy product that comes last holds its operands
        for the shortest time.
        """
        cost = sum(self.cost(value, step) for value, step in chosen)
        left = [s for s in chosen if s[1].op != LOAD]
        waiting, ordered = {value for value, _ in left}, []
        while left:
            ready = [s for s in left if waiting.isdisjoint(s[1].args)]
            lightest = min(ready, key=lambda s: (self.cost(*s), self._rank[s[0]]))
            ordered.append(lightest)
            left.remove(lightest)
            waiting.discard(lightest[0])
        return Program(tuple(ordered), roots, cost)
