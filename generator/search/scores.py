"""Inputs for the numeric gate on which softmax's exponents, its scores, land on one side.

A kernel whose running maximum also covers a constant, or what is masked, is right while scores lie
around 0, and divides 0 by 0 where all that is seen lies far below. So some inputs get a component
in common, along which the scores of a row move together:

    x -> x + a * u,   u is a sign for every place along the dims that scores contract, 1 elsewhere

Shifted like this, q and k have the product q k + a b u u, and u u adds up; an addend of the scores
moves them alone. Which inputs are shifted is tried out: few tensors and, where these do not do,
scalars, as a soft cap's. One of them has keys; what is masked there is shifted to the other side.
The leading input, the one with the most rows, is shifted by another amplitude in each row, found by
bisection, so that one draw has rows near each of the `TARGETS`: the highest score that such a row
sees is near it on average, and no key is far above. In a last draw the signs of the input with keys
alternate at random from key to key: a row has scores on both sides. Scores that nothing takes as
far land as near as they get.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.meaning.arrays import Array, Bools, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.search.stabilise import without_unused

Real = npt.NDArray[np.float64]

TARGETS = (-50.0, -200.0, -1000.0, 1000.0)
FARTHEST = min(TARGETS)
MIXED = "scores on both sides"
EVERYWHERE = Array((), (np.asarray(True),), real=False)
ROWS, KEYS = 4, 32  # along each dim, on which amplitudes are found
MOST, TRIED = 4, 200  # inputs that are shifted together, and how many sets of them are tried
AMPLITUDES = (16.0, 1024.0)  # of shifts that are tried, and then halved; inputs are of size 1
HALVINGS = 20


def near(target: float) -> str:
    """Return the name of the distribution of the rows whose scores are near a target."""
    return f"scores near {target:g}"


@dataclass(frozen=True)
class Drawn:
    """Inputs, and by the name of a distribution the rows of results that belong to it."""

    inputs: list[Array]
    rows: dict[str, Array]


@dataclass(frozen=True)
class Scores:
    """The exponents of one softmax: what has a peak, minus infinity where a mask hides it."""

    spec: Graph  # made safe
    value: str
    over: frozenset[str]  # dims that the powers are summed along

    @cached_property
    def graph(self) -> Graph:
        """What computes the scores."""
        return without_unused(replace(self.spec, outputs=(self.value,)))

    @cached_property
    def contracted(self) -> frozenset[str]:
        """Dims that scores are summed along."""
        return frozenset(n.over for n in self.graph.of("sum", "contract"))

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """Numbers of the inputs that scores depend on, those with most rows first, then scalars."""
        used = {self.value}.union(*(n.args for n in self.graph.nodes))
        types = [n.out.type for n in self.spec.inputs]
        found = [
            i for i, n in enumerate(self.spec.inputs) if n.name in used and types[i].dtype.is_real
        ]
        return tuple(sorted(found, key=lambda i: (not types[i].dims, -len(self.rows(i)))))

    def has_keys(self, number: int) -> bool:
        """Return whether an input differs from key to key."""
        return not self.over.isdisjoint(self.spec.inputs[number].out.type.names)

    def rows(self, number: int) -> tuple[str, ...]:
        """Return the dims of an input that number independent rows of scores and of results."""
        kept = (set(self.spec.values[name].type.names) for name in self.spec.outputs)
        own = set.intersection(*kept) - self.contracted - self.over
        return tuple(d for d in self.spec.inputs[number].out.type.names if d in own)

    def signs(self, sizes: Mapping[str, int], seed: int) -> list[Array]:
        """Return u for every input, alike along the dims that they share."""
        rng = np.random.default_rng((seed, 6))
        # As many of each sign: what has an odd number of factors u adds up to nothing.
        dims = sorted(self.contracted)
        along = {d: rng.permutation(np.resize((-1.0, 1.0), sizes[d])) for d in dims}
        found = []
        for node in self.spec.inputs:
            names = node.out.type.names
            data = np.ones(tuple(sizes[d] for d in names))
            for d in (d for d in names if d in along):
                data = data * _numbers(Array((d,), (along[d],)).over(names))
            found.append(Array(names, (data,)))
        return found


def scores_of(spec: Graph) -> list[Scores]:
    """Return the scores of every softmax of a safe spec: what has a peak."""
    found: dict[str, Scores] = {}
    for first in (n for n in spec.of("peak") if spec.producers[n.args[0]].op != "peak"):
        over, last = {first.over}, first
        while [n.op for n in spec.users(last.name)] == ["peak"]:
            (last,) = spec.users(last.name)
            over.add(last.over)
        found[first.args[0]] = Scores(spec, first.args[0], frozenset(over))
    return list(found.values())


@dataclass(frozen=True)
class Shifts:
    """A draw of inputs around 0, and what shifting some of them does to scores."""

    scores: Scores
    base: Sequence[Array]
    hidden: Mapping[int, Bools]  # by number of an input: what of it masks hide
    sizes: Mapping[str, int]
    seed: int

    @cached_property
    def signs(self) -> list[Array]:
        """u of every input."""
        return self.scores.signs(self.sizes, self.seed)

    @cached_property
    def narrow(self) -> tuple[dict[str, int], list[Array], list[Array]]:
        """Extents, inputs and signs with few rows and keys, lengths up to these."""
        scores = self.scores
        short = {d: min(n, KEYS if d in scores.over else ROWS) for d, n in self.sizes.items()}
        short |= {d: self.sizes[d] for d in scores.contracted}
        cut = []
        for arrays in (self.base, self.signs):
            made = list(arrays)
            for d, n in short.items():
                made = [a.cut(d, 0, n) if d in a.dims else a for a in made]
            longest = max((short[d] for d in scores.over), default=0)
            ints = (Array(a.dims, (np.minimum(a.parts[0], longest),), a.real) for a in made)
            cut.append([a if a.real else i for a, i in zip(made, ints, strict=True)])
        return short, cut[0], cut[1]

    def highest(self, amplitudes: Mapping[int, float]) -> Real:
        """Return the highest score of each row that sees a key, inputs shifted so far.

        0 where no row sees any.
        """
        sizes, base, signs = self.narrow
        moved = [
            shifted(x, u, amplitudes[i]) if i in amplitudes else x
            for i, (x, u) in enumerate(zip(base, signs, strict=True))
        ]
        (made,) = results(self.scores.graph, moved, array_reading(FLOAT64, sizes))
        keys = tuple(i for i, d in enumerate(made.dims) if d in self.scores.over)
        rows = np.max(_numbers(made), axis=keys)
        found = rows[rows > -np.inf]
        return found if found.size else np.zeros(1)

    def are_far(self, amplitudes: Mapping[int, float]) -> bool:
        """Return whether all scores are far below 0 with inputs shifted so far."""
        return bool(np.max(self.highest(amplitudes)) < FARTHEST / 2)

    @cached_property
    def chosen(self) -> dict[int, float]:
        """Amplitudes, the leading input's first, with which all scores are far below 0.

        Of the fewest inputs that do, and small; else the lowest scores there are.
        """
        every, lowest = self.scores.inputs, (0.0, dict[int, float]())
        subsets = (s for n in range(1, MOST + 1) for s in itertools.combinations(every, n))
        keyed = (s for s in subsets if any(map(self.scores.has_keys, s)))
        for several in itertools.islice(keyed, TRIED):
            for sign, amplitude in itertools.product((-1, 1), AMPLITUDES):
                tried = dict.fromkeys(several, amplitude) | {several[0]: sign * amplitude}
                if self.are_far(tried):
                    return self.least(tried)
                highest = float(np.max(self.highest(tried)))
                lowest = min(lowest, (highest, tried), key=itemgetter(0))
        return lowest[1]

    def least(self, amplitudes: dict[int, float]) -> dict[int, float]:
        """Return amplitudes halved as often as all scores stay far below 0, the leading one last.

        What is around 0 of the leading input meets the others' shifts: the smaller these are, the
        less do its rows differ. But a shift stays larger than what it shifts.
        """
        for i in reversed(amplitudes):
            half = {**amplitudes, i: amplitudes[i] / 2}
            while abs(half[i]) >= np.std(_numbers(self.base[i])) and self.are_far(half):
                amplitudes, half = half, {**half, i: half[i] / 2}
        return amplitudes

    def amplitude(self, target: float) -> float:
        """Return the leading input's amplitude for which the highest scores are near a target."""
        leading, *_ = self.chosen
        low = 2 * self.chosen[leading]
        high = -low
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if np.mean(self.highest({**self.chosen, leading: middle})) < target:
                low = middle
            else:
                high = middle
        return (low + high) / 2

    def draws(self) -> Iterator[Drawn]:
        """Yield inputs with rows near every target, then inputs whose rows have both sides."""
        if not self.chosen:
            return
        leading, *others = self.chosen
        made = [
            self.moved(i, self.chosen[i]) if i in others else x for i, x in enumerate(self.base)
        ]
        amplitudes, dims = [self.amplitude(t) for t in TARGETS], self.scores.rows(leading)
        shape = tuple(self.sizes[d] for d in dims)
        turn = np.arange(prod(shape)).reshape(shape)
        for first in range(0, len(TARGETS), max(1, prod(shape))):
            place = (turn + first) % len(TARGETS)
            by = Array(dims, (np.asarray(amplitudes)[place],))
            own = {near(t): place == i for i, t in enumerate(TARGETS)}
            rows = {name: Array(dims, (at,), real=False) for name, at in own.items() if at.any()}
            yield Drawn(_with(made, leading, self.moved(leading, by)), rows)
        made[leading] = self.moved(leading, self.chosen[leading])
        keyed = next(i for i in (*others, leading) if self.scores.has_keys(i))
        dims = tuple(d for d in self.base[keyed].dims if d not in self.scores.contracted)
        rng = np.random.default_rng((self.seed, 7))
        sides = rng.choice((-1.0, 1.0), tuple(self.sizes[d] for d in dims))
        by = Array(dims, (sides * self.chosen[keyed],))
        yield Drawn(_with(made, keyed, self.moved(keyed, by)), {MIXED: EVERYWHERE})

    def moved(self, number: int, by: float | Array) -> Array:
        """Return an input shifted, what masks hide of it to the other side."""
        x, u = self.base[number], _numbers(self.signs[number])
        if number in self.hidden:
            u = np.where(self.hidden[number], -u, u)
        return shifted(x, Array(x.dims, (u,)), by)


def shifted(x: Array, signs: Array, by: float | Array) -> Array:
    """Return x + by * signs."""
    amplitude = _numbers(by.over(x.dims)) if isinstance(by, Array) else by
    return Array(x.dims, (_numbers(x) + amplitude * _numbers(signs),))


def _with(inputs: Sequence[Array], number: int, x: Array) -> list[Array]:
    return [*inputs[:number], x, *inputs[number + 1 :]]


def _numbers(x: Array) -> Real:
    return np.asarray(x.parts[0], np.float64)
