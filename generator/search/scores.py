"""Inputs for the numeric gate on which softmax's exponents, its scores, land on one side.

A kernel whose running maximum also covers a constant, or what is masked, is right while scores lie
around 0, and divides 0 by 0 where all that is seen lies far below. So some inputs get a component
in common, along which the scores of a row move together:

    x -> x + a * u,   u is a sign for every place along the dims that scores contract, 1 elsewhere

Shifted like this, q and k have the product q k + a b u u, and u u adds up; an addend of the scores
moves them alone. Which inputs are shifted is tried out: one, two, or all that the scores depend on.
The leading input, the one with the most rows, is shifted by another amplitude in each row, found by
bisection, so that one draw has rows near each of the `TARGETS`: the highest score that such a row
sees is near it on average, and no key is far above. In a last draw the signs of another input
alternate at random from key to key: a row has scores on both sides. Scores that are bounded, as by
a soft cap, land as near as they get.
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
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.search.stabilise import without_unused

Real = npt.NDArray[np.float64]

TARGETS = (-50.0, -200.0, -1000.0, 1000.0)
FARTHEST = min(TARGETS)
MIXED = "scores on both sides"
FEW = 8  # rows along dims that only number them, on which amplitudes are found
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
        """Numbers of the tensors that scores depend on, those with most rows first."""
        used = {self.value}.union(*(n.args for n in self.graph.nodes))
        found = [
            i
            for i, n in enumerate(self.spec.inputs)
            if n.name in used and n.out.type.dtype.is_real and n.out.type.dims
        ]
        return tuple(sorted(found, key=lambda i: -len(self.rows(i))))

    def rows(self, number: int) -> tuple[str, ...]:
        """Return the dims of an input that number independent rows of scores and of results."""
        kept = (set(self.spec.values[name].type.names) for name in self.spec.outputs)
        own = set.intersection(*kept) - self.contracted - self.over
        return tuple(d for d in self.spec.inputs[number].out.type.names if d in own)

    def signs(self, sizes: Mapping[str, int], seed: int) -> list[Array]:
        """Return u for every input, alike along the dims that they share."""
        rng = np.random.default_rng((seed, 6))
        along = {d: rng.choice((-1.0, 1.0), sizes[d]) for d in sorted(self.contracted)}
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
    sizes: Mapping[str, int]
    seed: int

    @cached_property
    def signs(self) -> list[Array]:
        """u of every input."""
        return self.scores.signs(self.sizes, self.seed)

    @cached_property
    def narrow(self) -> tuple[dict[str, int], list[Array], list[Array]]:
        """Extents, inputs and signs with few places along the dims that only number rows."""
        graph = self.scores.graph
        whole = self.scores.contracted | {n.over for n in graph.of("iota", "size")}
        short = {d: n if d in whole else min(n, FEW) for d, n in self.sizes.items()}
        cut = []
        for arrays in (self.base, self.signs):
            made = list(arrays)
            for d, n in short.items():
                made = [a.cut(d, 0, n) if d in a.dims else a for a in made]
            cut.append(made)
        return short, cut[0], cut[1]

    def highest(self, amplitudes: Mapping[int, float]) -> Real:
        """Return the highest score of each row that sees a key, inputs shifted so far."""
        sizes, base, signs = self.narrow
        moved = [
            shifted(x, u, amplitudes[i]) if i in amplitudes else x
            for i, (x, u) in enumerate(zip(base, signs, strict=True))
        ]
        (made,) = results(self.scores.graph, moved, array_reading(FLOAT64, sizes))
        keys = tuple(i for i, d in enumerate(made.dims) if d in self.scores.over)
        rows = np.max(np.asarray(made.parts[0], np.float64), axis=keys)
        return np.asarray(rows[np.isfinite(rows)])

    @cached_property
    def chosen(self) -> dict[int, float]:
        """Amplitudes, the leading input's first, with which all scores are far below 0.

        Of the fewest inputs and the smallest amplitude that do; else the lowest scores there are.
        """
        every, lowest = self.scores.inputs, (0.0, dict[int, float]())
        sizes = sorted({1, min(2, len(every)), len(every)} - {0})
        for several in (s for n in sizes for s in itertools.combinations(every, n)):
            for sign, amplitude in itertools.product((-1, 1), AMPLITUDES):
                tried = dict.fromkeys(several, amplitude) | {several[0]: sign * amplitude}
                largest = np.max(self.highest(tried))
                lowest = min(lowest, (float(largest), tried), key=itemgetter(0))
                if largest < FARTHEST / 2:
                    return self.least(tried)
        return lowest[1]

    def least(self, amplitudes: dict[int, float]) -> dict[int, float]:
        """Return amplitudes halved as often as all scores stay far below 0."""
        half = {i: a / 2 for i, a in amplitudes.items()}
        far = np.max(self.highest(half)) < FARTHEST / 2
        return self.least(half) if far else amplitudes

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
        amplitudes, dims = [self.amplitude(t) for t in TARGETS], self.scores.rows(leading)
        shape = tuple(self.sizes[d] for d in dims)
        turn, moved = np.arange(prod(shape)).reshape(shape), self.moved({**self.chosen, leading: 0})
        for first in range(0, len(TARGETS), max(1, prod(shape))):
            place = (turn + first) % len(TARGETS)
            by = Array(dims, (np.asarray(amplitudes)[place],))
            made = [*moved]
            made[leading] = shifted(self.base[leading], self.signs[leading], by)
            own = {near(t): place == i for i, t in enumerate(TARGETS)}
            rows = {name: Array(dims, (at,), real=False) for name, at in own.items() if at.any()}
            yield Drawn(made, rows)
        yield from self.mixed([*others, leading])

    def mixed(self, chosen: Sequence[int]) -> Iterator[Drawn]:
        """Yield inputs of which the first that has keys is shifted to both sides."""
        for number in chosen:
            x, over = self.base[number], self.scores.over
            if over & {*x.dims}:
                rng = np.random.default_rng((self.seed, 7))
                dims = tuple(d for d in x.dims if d not in self.scores.contracted)
                sides = rng.choice((-1.0, 1.0), tuple(x.extent(d) for d in dims))
                by = Array(dims, (sides * self.chosen[number],))
                made = self.moved(self.chosen)
                made[number] = shifted(x, self.signs[number], by)
                yield Drawn(made, {MIXED: Array((), (np.asarray(True),), real=False)})
                return

    def moved(self, amplitudes: Mapping[int, float]) -> list[Array]:
        """Return the inputs, shifted."""
        pairs = enumerate(zip(self.base, self.signs, strict=True))
        return [shifted(x, u, amplitudes.get(i, 0.0)) if x.real else x for i, (x, u) in pairs]


def shifted(x: Array, signs: Array, by: float | Array) -> Array:
    """Return x + by * signs."""
    amplitude = _numbers(by.over(x.dims)) if isinstance(by, Array) else by
    return Array(x.dims, (_numbers(x) + amplitude * _numbers(signs),))


def _numbers(x: Array) -> Real:
    return np.asarray(x.parts[0], np.float64)
