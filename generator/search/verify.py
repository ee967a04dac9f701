"""Proof by random evaluation: candidate and recipe on the same random elements of a finite field.

A proof record says what was compared: extents, tile sizes, draws, primes, and how likely a wrong
candidate would have passed (docs/verification.md). A candidate that is not equal is refused with
the first place where the results differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mirage_kernels.generator.errors import GraphError, VerifyError
from mirage_kernels.generator.ir import DType, Graph, Json, retile
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.degree import failure_probability
from mirage_kernels.generator.meaning.field import (
    SAFE_PRIMES,
    Field,
    draw_field,
    field_arithmetic,
    random_parts,
)
from mirage_kernels.generator.meaning.walk import results

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Draw:
    """One comparison: the seed that fixes everything random, tile sizes, extents, the prime."""

    seed: int
    tiles: dict[str, int]
    sizes: dict[str, int]
    prime: int


@dataclass(frozen=True)
class Proof:
    """A passed verification: its draws and the probability that a wrong candidate passes."""

    draws: tuple[Draw, ...]
    log2_failure: float  # at most 2 to this power, over all draws together; 0 = no bound known

    def to_json(self) -> Json:
        """Return the record as JSON data."""
        draws: list[Json] = [
            {"seed": d.seed, "tiles": {**d.tiles}, "sizes": {**d.sizes}, "prime": d.prime}
            for d in self.draws
        ]
        method = "random field evaluation"
        return {"method": method, "log2_failure": self.log2_failure, "draws": draws}


def seen_dims(spec: Graph) -> tuple[str, ...]:
    """Return the names of all dims of a spec, in order of appearance."""
    names = [d for n in spec.nodes for v in n.outs for d in v.type.names]
    return tuple(dict.fromkeys(names))


def random_inputs(spec: Graph, sizes: Sizes, field: Field, seed: int) -> list[Array]:
    """Return random field elements for every input; positions and lengths are random integers."""
    rng = np.random.default_rng((seed, 2))
    inputs = []
    for node in spec.inputs:
        type_ = node.out.type
        shape = tuple(sizes[d] for d in type_.names)
        if type_.dtype is DType.INT32:
            longest = max(sizes.values())
            lengths = rng.integers(1, longest + 1, shape)
            inputs.append(Array(type_.names, (lengths,), real=False))
        else:
            inputs.append(Array(type_.names, random_parts(field, shape, rng)))
    return inputs


@dataclass(frozen=True)
class Case:
    """What one draw is made for: the muGraph at these tile sizes, tensors of these extents."""

    tiles: dict[str, int]
    sizes: dict[str, int]


def compare(spec: Graph, candidate: Graph, case: Case, *, seed: int) -> Draw:
    """Evaluate both graphs on one draw; raise VerifyError where they differ."""
    has_exp = any(n.op == "exp" for n in spec.nodes)
    field = draw_field(seed, exponents=has_exp)
    inputs = random_inputs(spec, case.sizes, field, seed)
    reading = array_reading(field_arithmetic(field), case.sizes)
    try:
        wanted = results(spec, inputs, reading)[0]
        found = results(retile(candidate, case.tiles), inputs, reading)[0].over(wanted.dims)
    except GraphError as error:
        raise VerifyError(f"the candidate cannot be evaluated: {error.sentence}") from error
    same = np.broadcast_to(wanted.parts[0], found.parts[0].shape) == found.parts[0]
    if not same.all():
        place = np.unravel_index(int(np.argmin(same)), same.shape)
        where = ", ".join(f"{d}={int(i)}" for d, i in zip(wanted.dims, place, strict=True))
        raise VerifyError(
            f"not equal to its recipe: {int((~same).sum())} of {same.size} results differ, "
            f"first at {where} (extents {_text(case.sizes)}, tiles {_text(case.tiles)}, "
            f"seed {seed})"
        )
    return Draw(seed, case.tiles, case.sizes, field.p)


def prove(spec: Graph, candidate: Graph, cases: Iterable[Case], *, seed: int) -> Proof:
    """Compare on one fresh draw per case; return the record or raise VerifyError."""
    done: list[Case] = []
    draws: list[Draw] = []
    for case in cases:
        draws.append(compare(spec, candidate, case, seed=seed + len(draws)))
        done.append(case)
    return Proof(tuple(draws), log2_failure(spec, candidate, done))


def log2_failure(spec: Graph, candidate: Graph, cases: Sequence[Case]) -> float:
    """Return log2 of the bound for the tile sizes that were drawn least often.

    Draws are independent, so for one choice of tile sizes their probabilities multiply. With exp
    the bound is not derived yet; 0 says so (a probability of at most 1).
    """
    if any(n.op == "exp" for n in spec.nodes):
        return 0.0
    smallest = min(SAFE_PRIMES)
    total: dict[tuple[tuple[str, int], ...], float] = {}
    for case in cases:
        chance = failure_probability(spec, candidate, case.sizes, smallest)
        key = tuple(sorted(case.tiles.items()))
        total[key] = total.get(key, 0.0) + math.log2(chance)
    return round(max(total.values()), 1)


def small_cases(spec: Graph) -> list[Case]:
    """Return cases for a quick proof at small tiles: uneven, within a single tile, several."""
    tiles = small_tiles(spec)
    uneven = {d: 2 * n + 1 for d, n in tiles.items()}
    least = {d: max(1, n - 1) for d, n in tiles.items()}
    even = {d: 3 * n for d, n in tiles.items()}
    return [Case(tiles, sizes) for sizes in (uneven, least, even)]


def small_tiles(spec: Graph) -> dict[str, int]:
    """Return a different small tile size for every dim, so that no two can be confused."""
    return {d: 2 + i for i, d in enumerate(seen_dims(spec))}


def _text(sizes: Sizes) -> str:
    return ", ".join(f"{d}={n}" for d, n in sizes.items())
