"""Arrays that are computed with at once: each result is what its operands alone make."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.meaning.arrays import Array
from mirage_kernels.generator.recipe import catalog, trace
from mirage_kernels.generator.search.fingerprints import Fingerprints
from mirage_kernels.generator.search.sketch import Step
from mirage_kernels.generator.search.stacks import digest, stacked


def drawn(dims: str, seed: int, parts: int = 2) -> Array:
    rng = np.random.default_rng(seed)
    shape = [{"M": 3, "K": 8, "N": 8}[d] for d in dims]
    return Array(tuple(dims), tuple(rng.integers(1, 30000, shape) for _ in range(parts)))


@pytest.fixture(scope="module")
def fingerprints() -> Fingerprints:
    recipe = catalog()["rms_norm_linear"]
    return Fingerprints(trace(recipe, recipe.shapes[0], DType.FP16), frozenset({"K", "N"}))


SOME = [drawn("MK", 1), drawn("KM", 2), drawn("MK", 3, parts=1), drawn("MK", 4)]
OTHERS = [drawn("K", 5), drawn("K", 6), drawn("K", 7, parts=1)]
STEPS = {
    "of two": (Step("mul", (4, 9)), [SOME, OTHERS]),
    "of two the other way": (Step("sub", (9, 4)), [OTHERS, SOME]),
    "contracted": (Step("contract", (4, 9), "K"), [SOME, OTHERS]),
    "of one": (Step("square", (4,)), [SOME]),
    "summed": (Step("sum", (4,), "K"), [SOME]),
    "of one twice": (Step("mul", (4, 4)), [SOME]),
    "single ones": (Step("mul", (4, 9)), [SOME[:1], OTHERS[:1]]),
    "none": (Step("mul", (4, 9)), [SOME, []]),
}


def keys_of(variants: Sequence[Sequence[Array]]) -> list[object]:
    return [tuple(digest(a) for a in own) for own in variants]


@pytest.mark.parametrize("name", STEPS)
def test_a_step_makes_of_variants_what_it_makes_of_each(
    fingerprints: Fingerprints, name: str
) -> None:
    step, variants = STEPS[name]
    operands = list(dict.fromkeys(step.args))
    asked = step, dict(zip(operands, variants, strict=True)), keys_of(variants)
    made = fingerprints.results(*asked)
    assert all(variants) == (fingerprints.results(*asked) is made)  # it is made once
    assert [m.chosen for m in made] == [*product(*(range(len(own)) for own in variants))]
    for one in made:
        own = {a: v[i] for a, v, i in zip(operands, variants, one.chosen, strict=True)}
        alone = fingerprints.result(step.op, [own[a] for a in step.args], step.over)
        assert one.key == digest(alone) == digest(one.array())


def test_only_arrays_of_one_form_lie_together_and_no_more_than_asked_for() -> None:
    found = stacked(SOME, "@first", 2)
    assert [numbers for numbers, _ in found] == [[0, 1], [3], [2]]
    assert [stack.dims for _, stack in found] == [("@first", "K", "M")] * 3
