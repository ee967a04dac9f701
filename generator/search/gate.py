"""The numeric gate: a proved muGraph must also be accurate in the precision it is stored in.

Each distribution is run with every value rounded to its storage type (fp32 accumulation), and the
error against float64 is compared with that of the unfused program: one that rounds the operands
and results of its matrix products, as separate PyTorch kernels do, and computes the rest in fp32.
Of several results each must pass; the output's errors are recorded.
The distributions are chosen so that overflow shows: activations with outliers of 3e4 meet norm
weights of up to 4, which is normal for a network and beyond fp16 if multiplied before normalising.
The error must also be of the size of a few roundings of the result: an unfused program may be no
measure at all.
Where a recipe masks positions, one more has short lengths and large garbage beyond them
(`search/masked_garbage.py`): a peak that covers what is masked makes all that is seen underflow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import (
    DType,
    Graph,
    Json,
    TensorType,
    Value,
    parts_of,
    retile,
    with_precision,
)
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64, STORAGE, round_to
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.search.masked_garbage import hidden_positions, with_garbage
from mirage_kernels.generator.search.signature import require_storage
from mirage_kernels.generator.search.stabilise import stabilise
from mirage_kernels.generator.search.verify import seen_dims, summed_dims

Real = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Distribution:
    """How activations are drawn: normal, with a share of outliers of fixed magnitude.

    Lengths are drawn from the lower `length_share` of their range.
    """

    name: str
    scale: float
    outlier: float = 0.0
    outlier_share: float = 0.0
    garbage: float = 0.0  # magnitude of elements that masks hide; 0 leaves them as they are drawn
    length_share: float = 1.0


DISTRIBUTIONS = (
    Distribution("unit", 1.0),
    Distribution("tiny", 2.0**-10),
    Distribution("outliers", 1.0, outlier=3e4, outlier_share=0.03),
    Distribution("wide", 30.0),
)
STALE = Distribution("stale", 1.0, garbage=1e4, length_share=1 / 8)

# However bad the unfused program is (it may overflow), an error must look like rounding: it may be
# so many times that of the exact result, rounded once, or of a number of usual size.
ROUNDINGS = 8
EPSILON = {DType.FP16: 2.0**-11, DType.BF16: 2.0**-8}

LONG, LONG_TILE = 256, 96  # of dims that are summed along
WIDE, WIDE_TILE = 64, 24  # of the others
NARROW, NARROW_TILE = 8, 3  # of the others where an input has several of them
FEW, FEW_TILE = 2, 1  # of those that only number independent problems


@dataclass(frozen=True)
class Measured:
    """Relative Frobenius errors of one distribution: the candidate's and the unfused program's."""

    distribution: str
    error: float
    unfused: float

    def to_json(self) -> Json:
        """Return the record as JSON data, with digits that every machine agrees on."""
        return {
            "distribution": self.distribution,
            "error": float(f"{self.error:.1e}"),
            "unfused": float(f"{self.unfused:.1e}"),
        }


@dataclass(frozen=True)
class Reference:
    """One distribution's inputs, exact results, and the errors of a rounding and of unfused."""

    distribution: Distribution
    inputs: list[Array]
    exact: list[Array]
    rounded: list[float]
    unfused: list[float]
    finite: list[Bools]  # where the unfused program's results are finite


@dataclass(frozen=True)
class Gate:
    """A spec with the extents, inputs and reference results that candidates are measured with."""

    spec: Graph
    recipe: Recipe
    dtype: DType
    seed: int = 0

    def sizes(self) -> dict[str, int]:
        """Return the extents: sums long enough for errors to add up, results enough to average.

        At these the ratio of two equally accurate programs' errors stayed within 6 % over 12 seeds.
        """
        sizes = dict.fromkeys(seen_dims(self.spec), WIDE)
        sizes |= dict.fromkeys(summed_dims(self.spec), LONG)
        sizes |= dict.fromkeys(batch_dims(self.spec), FEW)
        for node in self.spec.inputs:
            wide = [d for d in node.out.type.names if sizes[d] in (WIDE, NARROW)]
            sizes |= dict.fromkeys(wide, NARROW) if len(wide) > 1 else {}
        return sizes

    def tiles(self) -> dict[str, int]:
        """Return tile sizes that cut every dim unevenly, and sums into three uneven parts."""
        cut = {LONG: LONG_TILE, WIDE: WIDE_TILE, NARROW: NARROW_TILE, FEW: FEW_TILE}
        tiles = {d: cut[n] for d, n in self.sizes().items()}
        parts = {parts_of(d): LONG_TILE for d, n in self.sizes().items() if n == LONG}
        return tiles | parts

    def inputs(self, distribution: Distribution) -> list[Array]:
        """Return float64 inputs holding values that the storage type can hold."""
        rng = np.random.default_rng((self.seed, 3))
        drawn = []
        for node in self.spec.inputs:
            type_ = node.out.type
            shape = tuple(self.sizes()[d] for d in type_.names)
            if type_.dtype is DType.INT32:
                least, largest = self.recipe.range_of(node.name, self.sizes())
                longest = least + int(distribution.length_share * (largest - least))
                lengths = rng.integers(least, longest + 1, shape)
                drawn.append(Array(type_.names, (lengths,), real=False))
            else:
                data = self._draw(node.name, type_, shape, distribution, rng)
                drawn.append(Array(type_.names, (data,)))
        return drawn

    def _draw(
        self,
        name: str,
        type_: TensorType,
        shape: tuple[int, ...],
        distribution: Distribution,
        rng: np.random.Generator,
    ) -> Real:
        if not type_.dims:
            return np.asarray(self.recipe.scalars.get(name, 1.0), np.float64)
        if not self.recipe.is_weight(name):
            data = rng.standard_normal(shape) * distribution.scale
            hit = rng.random(shape) < distribution.outlier_share
            data = np.where(hit, np.sign(data) * distribution.outlier, data)
        elif len(shape) == 1:
            data = rng.uniform(0.5, 4.0, shape)
        else:
            data = rng.standard_normal(shape) / np.sqrt(shape[-1])
        return np.asarray(round_to(data, self.dtype), np.float64)

    def measure(self, candidate: Graph) -> tuple[Measured, ...]:
        """Return the candidate's errors; raise VerifyError when one is beyond the tolerance."""
        require_storage(self.spec, candidate, self.dtype)
        cut = retile(candidate, self.tiles())
        found = []
        for reference in self.references:
            every = self._measured(cut, reference)
            for m, rounded_error in zip(every, reference.rounded, strict=True):
                self._judge(m, rounded_error)
            found.append(every[0])
        return tuple(found)

    def _measured(self, candidate: Graph, reference: Reference) -> list[Measured]:
        """Return the errors of every result, where the unfused program overflows judged in part."""
        storage = array_reading(STORAGE, self.sizes())
        mine = results(candidate, reference.inputs, storage)
        for result, exact, finite in zip(mine, reference.exact, reference.finite, strict=True):
            if finite.any() and not finite.all():
                self._judge_partly(result, exact, finite, reference.distribution)
        errors = map(relative_error, mine, reference.exact)
        name = reference.distribution.name
        return [Measured(name, e, u) for e, u in zip(errors, reference.unfused, strict=True)]

    def _judge_partly(
        self, found: Array, exact: Array, finite: Bools, distribution: Distribution
    ) -> None:
        """Judge an error at the places where the unfused program does not overflow."""
        error = relative_error(found, exact, at=finite)
        alone = relative_error(rounded(exact, self.dtype), exact, at=finite)
        if not error <= ROUNDINGS * max(EPSILON[self.dtype], alone):
            raise VerifyError(
                f"error {error:.2e} on the distribution {distribution.name!r}, where the unfused "
                f"program is finite, is more than {ROUNDINGS} times that of a rounding"
            )

    def _judge(self, m: Measured, rounded_error: float) -> None:
        if not m.error <= self.recipe.tolerance * m.unfused:
            raise VerifyError(
                f"error {m.error:.2e} on the distribution {m.distribution!r} is more than "
                f"{self.recipe.tolerance:g} times the unfused program's {m.unfused:.2e}"
            )
        if np.isfinite(m.error) and m.error > ROUNDINGS * rounded_error:
            raise VerifyError(
                f"error {m.error:.2e} on the distribution {m.distribution!r} is more than "
                f"{ROUNDINGS} times that of a rounding, {rounded_error:.2e}"
            )

    @cached_property
    def references(self) -> tuple[Reference, ...]:
        """The inputs of every distribution, the exact results and the unfused program's errors."""
        stale = (STALE,) if self.hidden else ()
        return tuple(self._reference(d) for d in (*DISTRIBUTIONS, *stale))

    @cached_property
    def safe(self) -> Graph:
        """The spec, its exponentials made safe: float64 overflows too."""
        return stabilise(self.spec, self.dtype)

    @cached_property
    def hidden(self) -> dict[int, npt.NDArray[np.bool_]]:
        """The elements of inputs, by number of the input, that masks hide where lengths are short.

        Results do not depend on them.
        """
        return hidden_positions(self.safe, self.inputs(STALE), self.sizes(), seed=self.seed)

    def _reference(self, distribution: Distribution) -> Reference:
        inputs = self.inputs(distribution)
        exact = results(self.safe, inputs, array_reading(FLOAT64, self.sizes()))
        if distribution.garbage:
            inputs = with_garbage(inputs, self.hidden, distribution.garbage, self.dtype)
        narrow = [
            Array(a.dims, (np.asarray(a.parts[0], np.float32),)) if a.real else a for a in inputs
        ]
        storage = array_reading(STORAGE, self.sizes())
        theirs = results(self.unfused(), narrow, storage)
        alone = (relative_error(rounded(e, self.dtype), e) for e in exact)
        return Reference(
            distribution,
            narrow,
            exact,
            [max(EPSILON[self.dtype], error) for error in alone],
            list(map(relative_error, theirs, exact)),
            [np.isfinite(t.over(e.dims).parts[0]) for t, e in zip(theirs, exact, strict=True)],
        )

    def unfused(self) -> Graph:
        """Return the spec as separate kernels would run it: rounded around matrix products."""
        nodes = []
        for node in with_precision(self.safe, self.dtype).nodes:
            rounds = node.op == "contract" or node.name in self.spec.outputs
            if rounds:
                type_ = replace(node.out.type, dtype=self.dtype)
                node = replace(node, outs=(Value(node.name, type_),))
            nodes.append(node)
        return replace(self.safe, nodes=tuple(nodes))


def batch_dims(spec: Graph) -> frozenset[str]:
    """Return the dims that both operands of every contraction have: they number problems."""
    found = {d for v in spec.values.values() for d in v.type.names}
    for node in spec.of("contract"):
        found &= {*spec.values[node.args[0]].type.names} & {*spec.values[node.args[1]].type.names}
    return frozenset(found - summed_dims(spec)) if spec.of("contract") else frozenset()


def rounded(exact: Array, dtype: DType) -> Array:
    """Return an exact result as it can be stored."""
    return Array(exact.dims, (np.asarray(round_to(np.asarray(exact.parts[0]), dtype)),))


def relative_error(found: Array, exact: Array, *, at: Bools | None = None) -> float:
    """Return ||found - exact|| / ||exact||, at some places or all.

    Infinite where a finite result became inf or nan.
    """
    places = ... if at is None else at
    a = np.asarray(found.over(exact.dims).parts[0], np.float64)[places]
    b = np.asarray(exact.parts[0], np.float64)[places]
    if not np.isfinite(a).all():
        return float("inf")
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
