"""The numeric gate: a proved muGraph must also be accurate in the precision it is stored in.

Each distribution is run with every value rounded to its storage type (fp32 accumulation), and the
error against float64 is compared with that of the unfused program: one that rounds the operands
and results of its matrix products, as separate PyTorch kernels do, and computes the rest in fp32.
Of several results each must pass; the output's errors are recorded.
The distributions are chosen so that overflow shows: activations with outliers of 3e4 meet norm
weights of up to 4, which is normal for a network and beyond fp16 if multiplied before normalising.
The error must also be of the size of a few roundings, or of what the program has in fp32 throughout
(of nearly equal numbers' differences, say): an unfused program may be no measure at all.
Where a recipe masks positions, one more has short lengths and large garbage beyond them, as buffers
of keys and values have: a peak that covers what is masked makes all that is seen underflow. The
spec's masks say which elements of which inputs nothing looks at; that results do not depend on them
is confirmed by evaluating the spec on other values there.
Where a recipe has a softmax, its scores also lie on one side, far from 0 (`search/scores.py`).
Weights are then as inexact as rounding makes scores of such a size: the unfused program tells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from math import prod

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import DType, Graph, Json, Value, parts_of, retile, with_precision
from mirage_kernels.generator.ir.distances import Distances
from mirage_kernels.generator.ir.dtypes import EIGHT_BITS
from mirage_kernels.generator.meaning.arrays import (
    Array,
    Bools,
    Part,
    array_reading,
    relative_error,
)
from mirage_kernels.generator.meaning.reals import FLOAT64, STORAGE, round_to
from mirage_kernels.generator.meaning.walk import results, walk
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.search.cases import batch_dims, bounded, seen_dims, summed_dims
from mirage_kernels.generator.search.distributions import DISTRIBUTIONS, STALE, Distribution
from mirage_kernels.generator.search.scores import EVERYWHERE, Drawn, Shifts, scores_of
from mirage_kernels.generator.search.stabilise import stabilise

Real = npt.NDArray[np.float64]

# However bad the unfused program is (it may overflow), an error must look like rounding: it may be
# so many times that of the exact result, rounded once, or of a number of usual size.
ROUNDINGS = 8
EPSILON = {DType.FP16: 2.0**-11, DType.BF16: 2.0**-8}
ORDER = ROUNDINGS * 2.0**-24  # error up to which fp32 results differ by the order of sums alone
COARSE = EPSILON[DType.BF16]  # and those of 8 bits, where a number near the middle of two is either

SAME = 1e-9  # relative difference of float64 results up to which they are the same

SHOWN = 0.5  # of the elements of masks
LONG, WIDE = 256, 64  # extents of dims that are summed along, and of the others
NARROW = 8  # of the others where an input has several of them, or very many elements
MOST_ELEMENTS, MOST_OF_ALL = 2**20, 2**24  # of an input where it can be, and of any value
FEW = 2  # of those that only number independent problems
TILES = {LONG: 96, WIDE: 24, NARROW: 3, FEW: 1}


@dataclass(frozen=True)
class Measured:
    """Relative Frobenius errors of one distribution: the candidate's and the unfused program's."""

    distribution: str
    error: float
    unfused: float

    def to_json(self) -> Json:
        """Return the record as JSON data, with digits that every machine agrees on."""
        errors = {"error": self.error, "unfused": self.unfused}
        return {"distribution": self.distribution} | {
            name: float(f"{error:.1e}") for name, error in errors.items()
        }


@dataclass(frozen=True)
class Wanted:
    """One exact result where a distribution says, the errors of a rounding and of the unfused.

    `in_fp32` evaluates the program in fp32 throughout.
    """

    exact: Array
    at: Bools
    rounded: float
    unfused: float
    finite: Bools  # where the unfused program's result is finite
    unfused_there: float
    in_fp32: Callable[[], Array]

    @property
    def roundings(self) -> float:
        """The largest error that looks like rounding and not like overflow."""
        error = relative_error(self.in_fp32(), self.exact, at=self.at)
        return ROUNDINGS * max(self.rounded, error if np.isfinite(error) else 0.0)


@dataclass(frozen=True)
class Reference:
    """One draw of inputs, and by distribution what is wanted of each result."""

    inputs: list[Array]
    wanted: dict[str, list[Wanted]]


@dataclass(frozen=True)
class Gate:
    """A spec with the extents, inputs and reference results that candidates are measured with.

    `outer` are dims that split another one, which is long without them.
    """

    spec: Graph
    recipe: Recipe
    dtype: DType
    seed: int = 0
    outer: tuple[str, ...] = ()

    def sizes(self) -> dict[str, int]:
        """Return the extents: sums long enough for errors to add up, results enough to average.

        At these the ratio of two equally accurate programs' errors stayed within 6 % over 12 seeds.
        """
        sizes = dict.fromkeys(seen_dims(self.spec), WIDE)
        sizes |= dict.fromkeys(summed_dims(self.spec), LONG)
        sizes |= dict.fromkeys((*batch_dims(self.spec), *self.outer), FEW)
        for node in self.spec.inputs:
            names = node.out.type.names
            wide = [d for d in names if sizes[d] in (WIDE, NARROW)]
            large = prod(sizes[d] for d in names) > MOST_ELEMENTS
            sizes |= dict.fromkeys(wide, NARROW) if len(wide) > 1 or large else {}
        return bounded(self.spec, sizes, (LONG, WIDE, NARROW, FEW), MOST_OF_ALL)

    def tiles(self) -> dict[str, int]:
        """Return tile sizes that cut every dim unevenly, and sums into three uneven parts."""
        sizes = self.sizes().items()
        parts = {parts_of(d): TILES[LONG] for d, n in sizes if n == LONG}
        return {d: TILES[n] for d, n in sizes} | parts

    def inputs(self, distribution: Distribution) -> list[Array]:
        """Return float64 inputs holding values that the storage type can hold."""
        drawn = []
        for node, data in zip(
            self.spec.inputs, self._drawn(distribution.length_share), strict=True
        ):
            if isinstance(data, tuple):
                normal, chance = data
                scaled, far = normal * distribution.scale, chance < distribution.outlier_share
                data = np.where(far, np.sign(scaled) * distribution.outlier, scaled)
            x = Array(node.out.type.names, (data,), node.out.type.dtype.is_real)
            drawn.append(self._stored(x))
        return drawn

    @cached_property
    def _drawn(self) -> Callable[[float], list[Part | tuple[Real, Real]]]:
        return cache(self._raw)

    def _raw(self, length_share: float) -> list[Part | tuple[Real, Real]]:
        """Return what distributions share, of activations normal numbers and uniform ones."""
        rng, sizes = np.random.default_rng((self.seed, 3)), self.sizes()
        drawn: list[Part | tuple[Real, Real]] = []
        for node in self.spec.inputs:
            name, shape = node.name, tuple(sizes[d] for d in node.out.type.names)
            if node.out.type.dtype is DType.INT32:
                ends = self.recipe.range_of(name, sizes)
                least, largest = map(self.distances.number, ends)
                longest = least + int(length_share * (largest - least))
                drawn.append(rng.integers(least, longest + 1, shape))
            elif node.out.type.dtype is DType.BOOL:
                drawn.append(rng.random(shape) < SHOWN)
            elif not shape:
                drawn.append(np.asarray(self.recipe.scalars.get(name, 1.0), np.float64))
            elif not self.recipe.is_weight(name):
                drawn.append((rng.standard_normal(shape), rng.random(shape)))
            elif len(shape) == 1:
                drawn.append(rng.uniform(0.5, 4.0, shape))
            else:
                drawn.append(rng.standard_normal(shape) / np.sqrt(shape[-1]))
        return drawn

    def measure(self, candidate: Graph) -> tuple[Measured, ...]:
        """Return the candidate's errors; raise VerifyError when one is beyond the tolerance."""
        stored = self.recipe.stored(self.dtype)
        require_storage(self.spec, candidate, stored)
        cut = retile(self.distances.short(candidate), self.tiles())
        storage = array_reading(STORAGE, self.sizes())
        found: list[tuple[int, Measured]] = []
        for i in sorted(range(len(self.references)), key=lambda i: -self._refused[i]):
            made = results(cut, self.references[i].inputs, storage)
            self._refused[i] += 1
            for name, wanted in self.references[i].wanted.items():
                every = zip(made, wanted, stored, strict=True)
                judged = [self._judged(name, *each) for each in every]
                found.append((i, judged[0]))
            self._refused[i] -= 1
        return tuple(measured for _, measured in sorted(found, key=lambda pair: pair[0]))

    @cached_property
    def _refused(self) -> Counter[int]:
        """How many candidates each reference refused: others alike fail there, too."""
        return Counter()

    def _judged(self, name: str, made: Array, wanted: Wanted, stored: DType) -> Measured:
        where, exact, at = f"on the distribution {name!r}", wanted.exact, wanted.at
        finite = wanted.finite & at
        if finite.any() and (finite != at).any():  # the unfused program overflows at other places
            error = relative_error(made, exact, at=finite)
            alone = relative_error(rounded(exact, self.dtype), exact, at=finite)
            roundings = ROUNDINGS * max(EPSILON[self.dtype], alone)
            if not error <= max(roundings, self.recipe.tolerance * wanted.unfused_there):
                raise VerifyError(
                    f"error {error:.2e} {where}, where the unfused program is finite, is more than "
                    f"{ROUNDINGS} times that of a rounding and {self.recipe.tolerance:g} times "
                    f"the unfused program's {wanted.unfused_there:.2e}"
                )
        error, beyond = relative_error(made, exact, at=at), ""
        order = COARSE if stored in EIGHT_BITS else ORDER
        if not error <= max(order, self.recipe.tolerance * wanted.unfused):
            beyond = f"{self.recipe.tolerance:g} times the unfused program's {wanted.unfused:.2e}"
        elif ROUNDINGS * wanted.rounded < error < np.inf and error > wanted.roundings:
            beyond = f"{ROUNDINGS} times that of a rounding, {wanted.rounded:.2e}"
        if beyond:
            raise VerifyError(f"error {error:.2e} {where} is more than {beyond}")
        return Measured(name, error, wanted.unfused)

    @cached_property
    def references(self) -> tuple[Reference, ...]:
        """The inputs of every distribution, the exact results and the unfused program's errors."""
        stale = (STALE,) if self.hidden else ()
        usual = [
            self._reference(Drawn(self.inputs(d), {d.name: EVERYWHERE}), garbage=d.garbage)
            for d in (*DISTRIBUTIONS, *stale)
        ]
        sided = [self._reference(drawn, far=True) for drawn in self.one_sided()]
        return (*usual, *sided)

    def one_sided(self) -> Iterator[Drawn]:
        """Yield inputs on which scores lie on one side, as the storage type can hold them."""
        base, sizes, safe = self.inputs(DISTRIBUTIONS[0]), self.sizes(), self.safe
        hidden = hidden_positions(safe, base, sizes, seed=self.seed)
        for scores in scores_of(safe):
            for drawn in Shifts(scores, base, hidden, sizes, self.seed).draws():
                yield replace(drawn, inputs=[*map(self._stored, drawn.inputs)])

    def _stored(self, x: Array) -> Array:
        """Return an input as a tensor holds it; positions and scalars stay."""
        if not x.real or not x.dims:
            return x
        return Array(x.dims, (np.asarray(round_to(x.parts[0], self.dtype), np.float64),))

    @property
    def may_hide_all(self) -> bool:
        """Say whether draws may hide all of a row: truth values, or where it starts and ends."""
        several = max(len(self.spec.whole), len(self.spec.of("less"))) > 1
        return bool(self.spec.masks) or (bool(self.spec.whole) and several)

    @cached_property
    def safe(self) -> Graph:
        """The spec, its exponentials made safe: float64 overflows too."""
        return stabilise(self.distances.short(self.spec), self.dtype)

    @cached_property
    def distances(self) -> Distances:
        """What its conditions compare with, for sums as short as these."""
        return Distances.of(self.spec, LONG // 3)

    @cached_property
    def hidden(self) -> dict[int, Bools]:
        """The elements of inputs, by number of the input, that masks hide where lengths are short.

        Results do not depend on them.
        """
        return hidden_positions(self.safe, self.inputs(STALE), self.sizes(), seed=self.seed)

    def _reference(self, drawn: Drawn, *, garbage: float = 0.0, far: bool = False) -> Reference:
        """Return what is wanted on a draw; `far`: its scores are, and rounding shows in weights."""
        sizes, dtype, inputs = self.sizes(), self.dtype, [*drawn.inputs]
        exact = results(self.safe, inputs, array_reading(FLOAT64, sizes))
        rng = np.random.default_rng(4)
        for i, at in self.hidden.items() if garbage else ():
            signs = rng.choice((-garbage, garbage), at.shape)
            hiding = np.asarray(round_to(signs, dtype))
            inputs[i] = Array(inputs[i].dims, (np.where(at, hiding, inputs[i].parts[0]),))
        narrow = [
            Array(a.dims, (np.asarray(a.parts[0], np.float32),)) if a.real else a for a in inputs
        ]
        theirs = results(self.unfused(), narrow, array_reading(STORAGE, sizes))
        safe = with_precision(self.safe, DType.FP32)
        in_fp32 = cache(lambda: results(safe, narrow, array_reading(STORAGE, sizes)))
        both = enumerate(zip(exact, theirs, strict=True))
        pairs = [(*pair, lambda i=i: in_fp32()[i]) for i, pair in both]
        wanted = {
            name: [self._wanted(rows, *pair, far=far) for pair in pairs]
            for name, rows in drawn.rows.items()
        }
        return Reference(narrow, wanted)

    def _wanted(
        self, rows: Array, exact: Array, unfused: Array, in_fp32: Callable[[], Array], *, far: bool
    ) -> Wanted:
        chosen = np.asarray(rows.over(exact.dims).parts[0], np.bool_)
        at = np.broadcast_to(chosen, exact.parts[0].shape)
        if self.spec.of("where"):  # rows of which a mask hides everything, scores that it hides
            data = np.asarray(exact.parts[0], np.float64)
            at = at & ~np.isneginf(data) & ~(np.isnan(data) & self.may_hide_all)
        error = relative_error(unfused, exact, at=at)
        rounding = relative_error(rounded(exact, self.dtype), exact, at=at)
        if far and np.isfinite(error):
            rounding = error
        finite = np.isfinite(unfused.over(exact.dims).parts[0])
        there = relative_error(unfused, exact, at=finite & at)
        return Wanted(exact, at, max(EPSILON[self.dtype], rounding), error, finite, there, in_fp32)

    def unfused(self) -> Graph:
        """Return the spec as separate kernels would run it: rounded around matrix products."""
        nodes = []
        stored = dict(zip(self.spec.outputs, self.recipe.stored(self.dtype), strict=True))
        for node in with_precision(self.safe, self.dtype).nodes:
            if node.op == "contract" or node.name in stored:
                type_ = replace(node.out.type, dtype=stored.get(node.name, self.dtype))
                node = replace(node, outs=(Value(node.name, type_),))
            nodes.append(node)
        return replace(self.safe, nodes=tuple(nodes))


def hidden_positions(
    spec: Graph, inputs: Sequence[Array], sizes: Mapping[str, int], *, seed: int
) -> dict[int, Bools]:
    """Return by number of an input which of its elements no result of `spec` depends on.

    Only inputs with such elements are listed; `spec` is safe from overflow. An element may be
    hidden where every mask is false for all that meets it.
    """
    if not spec.of("where"):
        return {}
    reading, rng = array_reading(FLOAT64, sizes), np.random.default_rng((seed, 5))
    values = walk(spec, inputs, reading)
    masks = [values[name] for name in sorted({n.args[0] for n in spec.of("where")})]
    found, others = dict[int, Bools](), list(inputs)
    for i, x in enumerate(inputs):
        hidden = np.full(x.parts[0].shape, x.real)
        for mask in masks if x.real else ():
            beyond = tuple(axis for axis, d in enumerate(mask.dims) if d not in x.dims)
            dims = tuple(d for d in mask.dims if d in x.dims)
            met = Array(dims, (np.any(mask.parts[0], axis=beyond),), real=False)
            hidden = hidden & ~np.asarray(met.over(x.dims).parts[0], np.bool_)
        if not hidden.any():
            continue
        drawn = np.where(hidden, rng.standard_normal(hidden.shape), x.parts[0])
        changed = [*others[:i], Array(x.dims, (drawn,)), *others[i + 1 :]]
        made = zip(results(spec, changed, reading), spec.outputs, strict=True)
        pairs = [(a.over(values[name].dims), values[name]) for a, name in made]
        near = partial(np.allclose, rtol=SAME, atol=SAME, equal_nan=True)
        if all(near(a.parts[0], b.parts[0]) for a, b in pairs):
            found[i], others = hidden, changed
    return found


def require_storage(spec: Graph, candidate: Graph, dtypes: Sequence[DType]) -> None:
    """Raise VerifyError unless inputs are stored as the recipe's, and results as it says."""
    for ours, theirs in zip(spec.inputs, candidate.inputs, strict=True):
        wanted, given = ours.out.type.dtype, theirs.out.type.dtype
        if wanted is not given:
            what = f"its input {theirs.name} is {given.value}"
            raise VerifyError(f"{what}, in the recipe {wanted.value}")
    for name, dtype in zip(candidate.outputs, dtypes, strict=True):
        stored = candidate.values[name].type.dtype
        if stored is not dtype:
            raise VerifyError(f"its result {name} is {stored.value}, not {dtype.value}")


def rounded(exact: Array, dtype: DType) -> Array:
    """Return an exact result as it can be stored."""
    return Array(exact.dims, (np.asarray(round_to(np.asarray(exact.parts[0]), dtype)),))
