"""The finite field: primes, exact arithmetic at the extremes, exponents, random functions."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from sympy import isprime

from mirage_kernels.generator.errors import GraphError, UndefinedError
from mirage_kernels.generator.meaning.arrays import Parts
from mirage_kernels.generator.meaning.field import (
    LAWLESS,
    SAFE_PRIMES,
    Field,
    draw_field,
    field_arithmetic,
    inverse,
    matmul_mod,
    random_parts,
    root_to_the,
)

FIELD = draw_field(11, exponents=True)
ONE: Parts = (np.asarray(1), np.asarray(1))


def elements(seed: int, *shape: int) -> Parts:
    return random_parts(FIELD, shape, np.random.default_rng(seed))


def apply(name: str, *operands: Parts) -> Parts:
    return field_arithmetic(FIELD).elementwise[name](*operands)


def test_the_safe_primes_are_the_largest_below_2_to_the_31() -> None:
    below = range(2**31 - 1, min(SAFE_PRIMES) - 1, -2)
    assert tuple(p for p in below if isprime(p) and isprime((p - 1) // 2)) == SAFE_PRIMES


@pytest.mark.parametrize("seed", range(8))
def test_the_root_of_a_draw_has_order_q(seed: int) -> None:
    field = draw_field(seed, exponents=True)
    assert field.root != 1
    assert pow(field.root, field.q, field.p) == 1


def test_other_seeds_give_other_draws() -> None:
    draws = {draw_field(seed, exponents=False) for seed in range(40)}
    assert len({(d.root, d.key) for d in draws}) == 40


def test_elements_fill_both_parts_of_the_field() -> None:
    first, second = elements(0, 4000)
    assert 0 <= first.min() < FIELD.p // 1000
    assert FIELD.p - FIELD.p // 1000 < first.max() < FIELD.p
    assert FIELD.q - FIELD.q // 1000 < second.max() < FIELD.q


def exactly(a: np.ndarray, b: np.ndarray, p: int) -> list[list[int]]:
    """Return a @ b mod p in Python's own integers."""
    return [
        [sum(int(x) * int(y) for x, y in zip(row, column, strict=True)) % p for column in b.T]
        for row in a
    ]


@pytest.mark.parametrize("p", [*SAFE_PRIMES, (SAFE_PRIMES[0] - 1) // 2])
@pytest.mark.parametrize("depth", [1, 7, 4096, 131072])  # as deep as any model
def test_a_product_of_the_largest_elements_is_exact(p: int, depth: int) -> None:
    a = np.full((2, depth), p - 1, np.int64)
    b = np.full((depth, 3), p - 1, np.int64)
    assert matmul_mod(a, b, p).tolist() == exactly(a, b, p)


@pytest.mark.parametrize("shape", [(9, 300, 7), (200, 130, 90), (1, 5000, 1), (3, 2049, 40)])
def test_a_product_is_exact_however_it_is_made(shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    rng = np.random.default_rng(depth)
    a = rng.integers(FIELD.p - 1000, FIELD.p, (rows, depth))
    b = rng.integers(FIELD.p - 1000, FIELD.p, (depth, columns))
    made = matmul_mod(a, b, FIELD.p)
    for row, column in ((0, 0), (rows - 1, columns - 1)):
        assert [[made[row, column]]] == exactly(a[[row]], b[:, [column]], FIELD.p)


@pytest.mark.parametrize("exponent", [0, 1, 2, 1023, 1024, 2**20, 123456789, FIELD.q - 1])
def test_a_power_of_the_root_is_pythons(exponent: int) -> None:
    made = root_to_the(np.array([exponent, 0]), FIELD)
    assert made.tolist() == [pow(FIELD.root, exponent, FIELD.p), 1]


@pytest.mark.parametrize("count", [1, 2, 8, 9, 17, 64, 1001])
def test_an_inverse_times_its_number_is_one(count: int) -> None:
    x = np.random.default_rng(count).integers(1, FIELD.p, count)
    assert (inverse(x, FIELD.p) * x % FIELD.p).tolist() == [1] * count


def test_dividing_by_zero_is_refused() -> None:
    a, zero = elements(1, 50), (np.arange(50), np.ones(50, np.int64))
    with pytest.raises(UndefinedError, match="divided by 0"):
        apply("div", a, zero)


def test_a_total_field_has_a_value_for_one_over_zero() -> None:
    field = Field(FIELD.p, FIELD.root, FIELD.key, exponents=False, total=True)
    made = field_arithmetic(field).elementwise["div"]((np.array([6, 6]),), (np.array([0, 2]),))
    assert made[0].tolist() == [0, 3]


def test_exp_of_exp_has_no_law() -> None:
    with pytest.raises(GraphError, match="another exp"):
        apply("exp", apply("exp", elements(0, 3)))


def same(a: Parts, b: Parts) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_logarithms_and_powers_undo_each_other() -> None:
    power = apply("exp", elements(1, 50))
    assert same(apply("exp", apply("log", power)), power)


def test_an_exponent_added_to_a_logarithm_is_a_factor_of_its_argument() -> None:
    power, x = apply("exp", elements(1, 50)), elements(2, 50)
    factor = apply("exp", x)
    for op, of in (("add", "mul"), ("sub", "div")):
        assert same(apply(op, apply("log", power), x), apply("log", apply(of, power, factor)))
    assert same(apply("neg", apply("log", power)), apply("log", apply("div", ONE, power)))


def test_a_sum_of_logarithms_is_that_of_the_product() -> None:
    arithmetic, powers = field_arithmetic(FIELD), apply("exp", elements(1, 5, 3))
    made = arithmetic.total(apply("log", powers), 0)
    product: Parts = ONE
    for row in powers[0]:
        product = apply("mul", product, (row,))
    assert same(made, apply("log", product))


def test_a_logarithm_differs_for_other_numbers() -> None:
    assert len(np.unique(apply("log", (np.arange(500),))[0])) == 500


@pytest.mark.parametrize("name", LAWLESS)
def test_a_random_function_differs_on_different_arguments(name: str) -> None:
    neighbours = (np.arange(500), np.arange(500) % FIELD.q)
    assert len(np.unique(apply(name, neighbours)[0])) == 500


def test_a_random_function_looks_at_both_parts_of_its_argument() -> None:
    x = (np.full(100, 7), np.arange(100))
    assert len(np.unique(apply("sqrt", x)[0])) == 100


def test_a_random_function_differs_between_draws() -> None:
    x = elements(5, 20)
    other = field_arithmetic(draw_field(15, exponents=True)).elementwise["sqrt"](x)
    assert not np.array_equal(apply("sqrt", x)[0], other[0])


def test_no_random_function_is_another_one_of_a_shifted_argument() -> None:
    x = (np.arange(4000), np.zeros(4000, np.int64))
    values = [set(apply(name, x)[0].tolist()) for name in LAWLESS]
    assert all(len(a & b) < 4 for a, b in combinations(values, 2))


def test_a_random_maximum_does_not_mind_the_order() -> None:
    a, b = elements(7, 20), elements(8, 20)
    same = zip(apply("max", a, b), apply("max", b, a), strict=True)
    assert all(np.array_equal(x, y) for x, y in same)


def test_a_random_maximum_differs_for_other_numbers_of_the_same_sum() -> None:
    a, b = (np.array([5]), np.array([5])), (np.array([9]), np.array([9]))
    c, d = (np.array([6]), np.array([6])), (np.array([8]), np.array([8]))
    assert apply("max", a, b)[0] != apply("max", c, d)[0]


def test_a_peak_is_arbitrary_whatever_it_bounds() -> None:
    peak = field_arithmetic(FIELD).peak
    made = [peak(elements(seed, 4, 50), 1, 99) for seed in (1, 2)]
    assert np.array_equal(made[0][0], made[1][0])
    assert len({*made[0][0].tolist()}) == 4


def test_peaks_of_other_places_are_other_numbers() -> None:
    peak, x = field_arithmetic(FIELD).peak, elements(0, 300, 2)
    made = [peak(x, 1, seed)[0].tolist() for seed in range(20)]
    assert len({n for numbers in made for n in numbers}) == 20 * 300


def test_rescaling_takes_a_power_from_one_peak_to_another() -> None:
    arithmetic = field_arithmetic(FIELD)
    s, old, new = elements(1, 30), elements(2, 30), elements(3, 30)
    power = arithmetic.elementwise["exp"](arithmetic.elementwise["sub"](s, old))
    made = arithmetic.elementwise["mul"](power, arithmetic.decay(old, new))
    wanted = arithmetic.elementwise["exp"](arithmetic.elementwise["sub"](s, new))
    assert np.array_equal(made[0], wanted[0])


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 128.0, -7.0])
def test_a_whole_number_stands_for_itself(value: float) -> None:
    (first, second) = field_arithmetic(FIELD).number(np.asarray(value))
    assert (int(first), int(second)) == (int(value) % FIELD.p, int(value) % FIELD.q)


@pytest.mark.parametrize("value", [0.5, float("inf"), float("-inf")])
def test_both_parts_of_a_constant_are_random(value: float) -> None:
    fields = [draw_field(seed, exponents=True) for seed in range(40)]
    drawn = [field_arithmetic(f).number(np.asarray(value)) for f in fields]
    assert len({(int(a), int(b)) for a, b in drawn}) == 40
    assert all(int(a) % f.q != int(b) for (a, b), f in zip(drawn, fields, strict=True))
