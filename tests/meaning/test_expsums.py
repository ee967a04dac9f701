"""Exponential sums: sizes of sums and products, and that none vanishes more often than it says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mirage_kernels.generator.meaning.expsums import (
    NOTHING,
    ONE,
    VARIABLE,
    Ratio,
    Size,
    Terms,
    vanishing,
)

P, Q = 47, 23  # a safe prime small enough to try every element
LARGE = 2147483579
X = Ratio(VARIABLE)


def power(*varies: str, exponent: Ratio = X) -> Terms:
    """Return the size of w^E."""
    return Terms(exponent=exponent, varies=frozenset(varies))


def test_exponents_add_as_fractions() -> None:
    a, b = Ratio(Size(1, 1), Size(2, 1)), Ratio(Size(1, 1), Size(5, 1))
    assert a + b == Ratio(Size(6, 2), Size(7, 1))


def test_a_power_of_a_sum_multiplies_its_terms() -> None:
    assert Terms(Size(2, 3), 2, X, most=2).to_the(3) == Terms(
        Size(6, 27), 8, Ratio(Size(1, 3)), most=8
    )


def tied(*coordinates: str) -> Terms:
    """Return the size of one of the chosen input's variables, one per place."""
    return Terms(VARIABLE, tied=frozenset(coordinates))


SUMS: dict[str, tuple[Terms, tuple[int, int]]] = {  # terms, and those of one monomial
    "what has not been through exp stays one term": (
        Terms(VARIABLE) + Terms(VARIABLE) * Terms(VARIABLE),
        (1, 1),
    ),
    "different powers make as many terms as elements": (power("L").summed("L", 7), (7, 7)),
    "one power times different numbers is one term": (power("M").summed("L", 7), (1, 1)),
    "different variables of the chosen input keep terms apart": (
        (power("L") * tied("L", "N")).summed("L", 7),
        (7, 1),
    ),
    "one variable of the chosen input keeps nothing apart": (
        (power("L") * tied("N")).summed("L", 7),
        (7, 7),
    ),
}


@pytest.mark.parametrize("rule", SUMS)
def test_a_sum_has_as_many_terms_as_its_powers_and_variables_keep_apart(rule: str) -> None:
    made, terms = SUMS[rule]
    assert (made.count, made.most) == terms


def test_what_lacks_the_chosen_input_multiplies_every_monomials_terms() -> None:
    weighted = (power("L") * tied("L")).summed("L", 7)
    assert (weighted * power("L").summed("L", 7)).most == 7


def test_two_factors_with_the_chosen_input_may_share_monomials() -> None:
    weighted = (power("L") * tied("L")).summed("L", 7)
    plain = tied("L").summed("L", 7)
    # Of (u + v) (w^a u + w^b v) the monomial u v has two terms: w^a + w^b.
    assert (plain.most, weighted.most) == (1, 1)
    assert (plain * weighted).most == (weighted * plain).most == 7
    assert (plain * weighted).tied == frozenset()


def test_a_sum_with_another_term_is_tied_to_nothing() -> None:
    assert (tied("L") + Terms()).tied == frozenset()


def test_a_choice_between_a_tied_value_and_zero_stays_tied() -> None:
    zero = Terms(NOTHING, count=0)
    assert tied("L").either(zero).tied == zero.either(tied("L")).tied == {"L"}


def test_a_choice_between_zero_and_zero_lacks_the_chosen_input() -> None:
    zero = Terms(NOTHING, count=0)
    assert zero.either(zero).tied is None


def test_a_polynomial_that_may_be_a_multiple_of_p_has_no_bound() -> None:
    assert vanishing(Terms(Size(6, LARGE)), LARGE) == 1.0


def test_exponents_that_may_be_equal_mod_q_have_no_bound() -> None:
    large = Ratio(Size(1, 2**29))  # a difference of two is twice that
    assert vanishing(Terms(count=2, most=2, exponent=large), LARGE) == 1.0


def test_the_bound_weakens_with_the_number_of_terms() -> None:
    bounds = [vanishing(Terms(ONE, k, X, most=k), LARGE) for k in range(1, 40)]
    assert bounds == sorted(bounds)
    assert bounds[0] < 2**-29
    assert bounds[-1] == 1.0


def test_the_bound_is_that_of_a_single_monomials_terms() -> None:
    few = vanishing(Terms(ONE, 3, X, most=3), LARGE)
    assert vanishing(Terms(ONE, 18, X, most=3), LARGE) == few


def elements_of_order_q() -> list[int]:
    return [pow(g, 2, P) for g in range(2, P - 1) if pow(g, 2, P) != 1][: Q - 1]


def most_zeros(k: int) -> int:
    """Return for how many w a sum of k powers with some coefficients is 0, at most."""
    roots = sorted(set(elements_of_order_q()))
    table = np.array([[pow(w, e, P) for e in range(Q)] for w in roots])
    most = 0
    for exponents in itertools.combinations(range(1, Q), k - 1):
        columns = table[:, (0, *exponents)]
        others = itertools.product(range(1, P), repeat=k - 2)
        free = np.array(list(others), np.int64).reshape((P - 1) ** (k - 2), k - 2)
        rest = columns[:, :1] + columns[:, 1:-1] @ free.T  # the last coefficient cancels it
        inverse = np.array([pow(int(c), -1, P) for c in columns[:, -1]])
        wanted = -rest * inverse[:, None] % P
        for row in wanted.T:
            most = max(most, int(np.bincount(row, minlength=P)[1:].max()))
    return most


@pytest.mark.parametrize("k", [2, 3])
def test_no_sum_of_few_powers_is_zero_for_more_elements_than_the_bound_says(k: int) -> None:
    bound = vanishing(Terms(ONE, k, most=k), P) * (Q - 1)  # exponents that do not collide
    assert most_zeros(k) <= round(bound)
