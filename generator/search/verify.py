"""Proof by random evaluation: candidate and recipe on the same random elements of a finite field.

A proof record says what was compared: extents, tile sizes, draws, and how likely a wrong candidate
would have passed there (docs/verification.md). A candidate that is not equal is refused with the
first place where the results differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.errors import GraphError, UndefinedError, VerifyError
from mirage_kernels.generator.ir import Dim, DType, Graph, Json, Node, retile
from mirage_kernels.generator.ir.codec import to_data
from mirage_kernels.generator.ir.ranges import ends_of, ranges_of
from mirage_kernels.generator.meaning.arrays import Array, Places, array_reading
from mirage_kernels.generator.meaning.degree import failure_probability
from mirage_kernels.generator.meaning.field import (
    SAFE_PRIMES,
    Field,
    draw_field,
    field_arithmetic,
    random_parts,
)
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.search.cases import Case, smaller, tiles_of
from mirage_kernels.generator.search.places import distances_of, leaves_some, places_of

Sizes = Mapping[str, int]
Ints = npt.NDArray[np.int64]
RangeOf = Callable[[str, Sizes], tuple[int, int]]

LOG2_WANTED = -40.0  # a bounded case is drawn until a wrong candidate passes no more often
MOST_DRAWS = 64  # of one case; where more would be needed, one draw is a test like any other
FEW_ELEMENTS = 2**18  # recipe's results up to this size are kept for the next candidate
RETRIES = 8  # of draws on which the recipe itself divides by zero, for each way to raise lengths
RETRY_STRIDE = 2**32  # between the seeds of such draws; keeps their prime


@dataclass(frozen=True)
class Compared:
    """A case with its draws (of consecutive seeds), and how likely all of them fail, at most."""

    tiles: dict[str, int]
    sizes: dict[str, int]
    seed: int
    draws: int
    log2_failure: float  # at most 2 to this power, should the muGraph be wrong at these sizes


@dataclass(frozen=True)
class Proof:
    """A passed verification: what was compared, and the probability that a wrong one passes.

    `log2_failure` is the weakest bound among those that were reached.
    """

    cases: tuple[Compared, ...]
    log2_failure: float

    @classmethod
    def of(cls, cases: Sequence[Compared]) -> Proof:
        """Return the proof that some comparisons make."""
        bounds = [c.log2_failure for c in cases]
        return cls(tuple(cases), max([b for b in bounds if b <= LOG2_WANTED] or bounds))

    @property
    def draws(self) -> int:
        """Number of draws, over all cases."""
        return sum(c.draws for c in self.cases)

    def to_json(self) -> Json:
        """Return the record as JSON data."""
        method, cases = "random field evaluation", to_data(self.cases)
        return {"method": method, "log2_failure": self.log2_failure, "cases": cases}


@dataclass(frozen=True)
class Reference:
    """The recipe on one draw: its inputs and results, and the field they are elements of."""

    field: Field
    inputs: list[Array]
    wanted: list[Array]


class Prover:
    """Proves candidates equal to one recipe, which is evaluated once per draw for all of them."""

    def __init__(self, spec: Graph, *, range_of: RangeOf | None = None) -> None:
        self.spec, self.range_of = spec, range_of or self.any_length
        self.distances, self._ranges = distances_of(spec), ranges_of(spec)
        self.near = self.distances.short(spec)
        self._near_ranges = ranges_of(self.near)
        self._places: dict[tuple[tuple[str, int], ...], Places] = {}
        self._references: dict[tuple[int, tuple[tuple[str, int], ...]], Reference] = {}

    def places(self, sizes: Sizes) -> Places:
        """Return which positions these extents stand for."""
        key = tuple(sizes.items())
        if key not in self._places:
            self._places[key] = places_of(self.near, sizes)
        return self._places[key]

    def any_length(self, name: str, sizes: Sizes) -> tuple[int, int]:
        """Return the range of a length or position when the recipe says none."""
        ends = ends_of(self._ranges[name], sizes)
        assert ends is not None, name
        return ends

    def prove(self, candidate: Graph, cases: Iterable[Case], *, seed: int) -> Proof:
        """Compare on fresh draws for every case; return the record or raise VerifyError."""
        require_signature(self.spec, candidate)
        compared: list[Compared] = []
        for case in cases:
            for tried in (case, *smaller(self.spec, case)):
                # A wrong candidate ends here, before any bound is computed.
                tiled = self.compare(candidate, tried, seed=seed)
                chance = log2_chance(self.spec, tiled, tried.sizes)
                draws = draws_needed(chance) if tried.bounded else 1
                for more in range(seed + 1, seed + draws):
                    self.compare(tiled, tried, seed=more)
                tiles = {d: n for d, n in tried.tiles.items() if d in tiles_of(tiled)}
                bound = rounded_up(draws * chance)
                compared.append(Compared(tiles, tried.sizes, seed, draws, bound))
                seed += draws
                if bound <= LOG2_WANTED:
                    break
        return Proof.of(compared)

    def compare(self, candidate: Graph, case: Case, *, seed: int) -> Graph:
        """Evaluate on one draw; return what was evaluated.

        Raises VerifyError where a result is not the recipe's.
        """
        what = "cut"
        try:
            tiled = self.distances.short(retile(candidate, case.tiles))
            what = "evaluated"
            reference = self.reference(case.sizes, seed)
            arithmetic = field_arithmetic(reference.field)
            reading = array_reading(arithmetic, case.sizes, self.places(case.sizes))
            made = results(tiled, reference.inputs, reading)
        except GraphError as error:
            raise VerifyError(f"the candidate cannot be {what}: {error.sentence}") from error
        if len(made) != len(reference.wanted):
            raise VerifyError(f"{len(made)} results instead of {len(reference.wanted)}")
        for wanted, found in zip(reference.wanted, made, strict=True):
            difference = _difference(wanted, found)
            if difference:
                at = f"extents {_text(case.sizes)}, tiles {_text(case.tiles)}, seed {seed}"
                raise VerifyError(f"not equal to its recipe: {difference} ({at})")
        return tiled

    def reference(self, sizes: Sizes, seed: int) -> Reference:
        """Return the recipe on the draw that `seed` chooses, kept for the next candidate."""
        key = (seed, tuple(sizes.items()))
        if key in self._references:
            return self._references[key]
        attempts, exponents = list(self._attempts()), bool(self.spec.of("exp"))
        for again, (attempt, raised) in product((False, True), enumerate(attempts)):
            field = draw_field(seed + attempt * RETRY_STRIDE, exponents=exponents)
            inputs = self.random_inputs(sizes, field, (seed, attempt), raised=raised)
            if attempt and self._leaves_some(inputs, sizes) == again:
                continue  # what leaves nothing to sum is tried last
            reading = array_reading(field_arithmetic(field), sizes, self.places(sizes))
            try:
                made = Reference(field, inputs, results(self.near, inputs, reading))
            except UndefinedError:
                continue  # by chance, or by lengths that leave nothing to sum: raise them
            if sum(a.parts[0].size for a in (*made.inputs, *made.wanted)) <= FEW_ELEMENTS:
                self._references[key] = made
            return made
        raise VerifyError(
            f"the recipe divides by zero on {len(attempts)} draws of extents {_text(sizes)}",
            'its mask may leave nothing to sum: say what lengths may be, ranges={"lens": "1..L"}',
        )

    def _leaves_some(self, inputs: Sequence[Array], sizes: Sizes) -> bool:
        """Say whether masks of these inputs leave something to sum."""
        pairs = zip(self.spec.inputs, inputs, strict=True)
        given = {node.name: x for node, x in pairs if not x.real}
        return not given or leaves_some(self.near, sizes, self.places(sizes), given)

    def _attempts(self) -> Iterator[dict[str, float]]:
        """Yield by which parts of their ranges to raise lengths: by none, one input's, all.

        Those that need not be raised keep their small values: a window of one key is drawn. Below 0
        it lowers the largest values, of where keys begin. Masks get fewer elements that hold, or
        that do not, where that leaves nothing to sum.
        """
        names, masks = self.spec.whole, self.spec.masks
        yield {}
        for sign in (1, -1) if names else (1,):
            for raised in (*([n] for n in names if len(names) > 1), names):
                for part in range(1, RETRIES):
                    yield dict.fromkeys(raised, sign * part / (RETRIES - 1))
        for part in range(1, RETRIES) if masks else ():
            for signs in product((1, -1), repeat=len(masks)):
                share = part / (RETRIES - 1)
                yield {m: sign * share for m, sign in zip(masks, signs, strict=True)} | (
                    dict.fromkeys(names, share)
                )

    def _ends(self, name: str, sizes: Sizes) -> tuple[int, int]:
        """Return the values of a whole number where distances are short."""
        given, ranges = self.range_of(name, sizes), (self._ranges, self._near_ranges)
        own, near = (ends_of(texts[name], sizes) for texts in ranges)
        if given == own and near is not None:
            return near
        least, largest = map(self.distances.number, given)
        return least, largest

    def random_inputs(
        self, sizes: Sizes, field: Field, draw: tuple[int, int], *, raised: Mapping[str, float]
    ) -> list[Array]:
        """Return random elements for every input; positions and lengths are whole numbers.

        `draw` is a seed and the number of the attempt. The least values of lengths are `raised` by
        parts of their ranges, or the largest lowered. A single one takes the values of its range in
        turn, seed by seed; several take all of them, where there are as many places.
        """
        turn, attempt = draw
        rng = np.random.default_rng((turn, 2, attempt))
        inputs = []
        for node in self.spec.inputs:
            names = node.out.type.names
            shape = tuple(sizes[d] for d in names)
            if node.out.type.dtype is DType.BOOL:
                mask = random_mask(shape, turn, raised.get(node.name, 0.0), rng)
                turn = turn // 2 if math.prod(shape) == 1 else turn
                inputs.append(Array(names, (mask,), real=False))
                continue
            if node.out.type.dtype.is_real:
                inputs.append(Array(names, random_parts(field, shape, rng)))
                continue
            least, largest = self._ends(node.name, sizes)
            if least > largest:
                raise VerifyError(f"{node.name} has no value at extents {_text(sizes)}")
            by = round((largest - least) * raised.get(node.name, 0.0))
            least, largest = least + max(0, by), largest + min(0, by)
            span, places = np.arange(least, largest + 1), math.prod(shape)
            if places == 1:
                turn, value = divmod(turn, len(span))
                numbers = span[[value]]
            else:
                rounds = -(-places // len(span))
                numbers = np.concatenate([rng.permutation(span) for _ in range(rounds)])[:places]
            inputs.append(Array(names, (numbers.reshape(shape),), real=False))
        return inputs


def random_mask(
    shape: tuple[int, ...], turn: int, raised: float, rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """Return random truth values, both of them where there are two places; one takes turns.

    Half of them hold, or of those that do not, below 0 of those that do, the fewer the nearer
    `raised` is to 1.
    """
    places = math.prod(shape)
    if places == 1:
        return np.full(shape, raised > 0 if raised else turn % 2 == 0)
    few = max(1, int(places * 2.0 ** -(1 + RETRIES * abs(raised))))
    order: npt.NDArray[np.int64] = rng.permutation(places).reshape(shape)
    return order < few if raised < 0 else order >= few


def log2_chance(spec: Graph, candidate: Graph, sizes: Sizes) -> float:
    """Return log2 of how likely one draw accepts a wrong candidate, at most; 0: no bound."""
    chance = failure_probability(spec, candidate, sizes, min(SAFE_PRIMES))
    return math.log2(max(chance, 2.0**-1000))


def rounded_up(bound: float) -> float:
    """Return a bound to one digit, never a better one."""
    return math.ceil(bound * 10) / 10


def draws_needed(chance: float) -> int:
    """Return how many draws of that log2 reach the wanted bound; 1 where too many would."""
    draws = math.ceil(LOG2_WANTED / min(chance, -1e-9))
    return draws if draws <= MOST_DRAWS else 1


def _difference(wanted: Array, found: Array) -> str:
    """Say where a result is not the wanted one; "" where it is everywhere."""
    if set(wanted.dims) != set(found.dims):
        return f"a result has dims {', '.join(found.dims)}, not {', '.join(wanted.dims)}"
    here, there = wanted.parts[0], found.over(wanted.dims).parts[0]
    if here.shape != there.shape:
        return f"a result has the shape {there.shape}, not {here.shape}"
    same = here == there
    if same.all():
        return ""
    place = np.unravel_index(int(np.argmin(same)), same.shape)
    where = ", ".join(f"{d}={int(i)}" for d, i in zip(wanted.dims, place, strict=True))
    return f"{int((~same).sum())} of {same.size} results differ, first at {where}"


def prove(spec: Graph, candidate: Graph, cases: Iterable[Case], *, seed: int) -> Proof:
    """Prove a single candidate; see `Prover.prove`.

    Raises VerifyError, too, where no case has a bound: equal values prove nothing then.
    """
    proof = Prover(spec).prove(candidate, cases, seed=seed)
    if proof.log2_failure > LOG2_WANTED:
        raise VerifyError(
            f"a wrong muGraph would pass with a probability of up to 2^{proof.log2_failure:g}, "
            f"not 2^{LOG2_WANTED:g}, in each of {len(proof.cases)} cases",
            "a shorter program, or smaller numbers in it, may have a bound",
        )
    return proof


def require_signature(spec: Graph, candidate: Graph) -> None:
    """Raise VerifyError unless inputs and results are declared as the recipe's, in order.

    Names, dims with their extents and what may be left out are compared, and whether inputs are
    real numbers; storage types are the numeric gate's to compare.
    """
    for node, given in zip(spec.inputs, candidate.inputs, strict=False):
        if _declared(node) != _declared(given):
            raise VerifyError(f"its input {_declared(given)} is {_declared(node)} in the recipe")
    if len(candidate.inputs) != len(spec.inputs):
        raise VerifyError(f"{len(candidate.inputs)} inputs instead of {len(spec.inputs)}")
    if len(candidate.outputs) != len(spec.outputs):
        raise VerifyError(f"{len(candidate.outputs)} results instead of {len(spec.outputs)}")
    for wanted, name in zip(spec.outputs, candidate.outputs, strict=True):
        ours, theirs = spec.values[wanted].type, candidate.values[name].type
        if ours.dims != theirs.dims:
            dims = f"{_text(theirs.dims)}, in the recipe {_text(ours.dims)}"
            raise VerifyError(f"its result {name} has dims {dims}")


def _declared(node: Node) -> str:
    """Return what is compared of an input, as it is shown: `optional bias [N=4096]`."""
    type_ = node.out.type
    kind = "" if type_.dtype.is_real else f" {type_.dtype.value}"
    groups = "".join(f" by {n} along {dim}" for dim, n in node.grouped)
    return f"{'optional ' * node.optional}{node.name}{kind} [{_text(type_.dims)}]{groups}"


def _text(sizes: Sizes | Sequence[Dim]) -> str:
    named = [f"{d}={n}" for d, n in sizes.items()] if isinstance(sizes, Mapping) else sizes
    return ", ".join(map(str, named))
