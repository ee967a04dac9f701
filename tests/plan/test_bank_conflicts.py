"""Bank conflicts: known patterns, and the layouts that avoid them."""

from __future__ import annotations

import pytest

from mirage_kernels.generator.plan.layouts import (
    Access,
    Fragment,
    Lanes,
    Stored,
    Swizzle,
    Tile,
    access,
    wavefronts,
)

WEIGHT = Tile({"N": 48, "K": 512, "M": 8}, warps=8)
VECTORS = Fragment(Lanes.VECTORS, ("N",), ("K",), "K")
MATRICES = Fragment(Lanes.MMA, ("N",), ("K",), "K")


def stored(swizzle: Swizzle, order: tuple[str, ...] = ("N", "K"), warp_dim: str = "") -> Stored:
    return Stored(order, swizzle, warp_dim)


PATTERNS = {
    "neighbouring words": ([4 * i for i in range(32)], 4, 1),
    "one word for all": ([0] * 32, 4, 1),
    "every other word": ([8 * i for i in range(32)], 4, 2),
    "one bank": ([128 * i for i in range(32)], 4, 32),
    "neighbouring vectors": ([16 * i for i in range(32)], 16, 4),
    "vectors of one bank": ([128 * i for i in range(32)], 16, 32),
    "neighbouring pairs of words": ([8 * i for i in range(32)], 8, 2),
    "two halves of each word": ([2 * i for i in range(32)], 2, 1),
}


@pytest.mark.parametrize("what", PATTERNS)
def test_the_fullest_bank_is_what_takes_time(what: str) -> None:
    addresses, width, passes = PATTERNS[what]
    assert wavefronts(addresses, width) == passes


CONFLICTS = {Swizzle.NONE: 2, Swizzle.XOR: 2, Swizzle.PADDED: 2, Swizzle.HALVES: 1}


@pytest.mark.parametrize("swizzle", CONFLICTS)
def test_vectors_of_two_lines_are_read_at_once(swizzle: Swizzle) -> None:
    """A pass takes half of lines 2 i and 2 i + 1: they have to start in different halves."""
    made = access(VECTORS, stored(swizzle, warp_dim="K"), WEIGHT, 2)
    assert made == Access(12, 12 * 4 * CONFLICTS[swizzle])


def test_matrices_of_lines_in_one_bank_take_eight_passes() -> None:
    in_order = access(MATRICES, stored(Swizzle.NONE), WEIGHT, 2)
    swizzled = access(MATRICES, stored(Swizzle.XOR), WEIGHT, 2)
    assert swizzled == Access(12, 48, matrices=True)
    assert in_order.wavefronts > 3 * swizzled.wavefronts


def test_matrices_are_transposed_where_rows_lie_together() -> None:
    whole = Tile({"N": 64, "K": 512}, warps=8)
    made = access(MATRICES, stored(Swizzle.XOR, order=("K", "N")), whole, 2)
    assert made == Access(16, 64, matrices=True)


def test_vectors_across_the_lines_are_read_element_by_element() -> None:
    made = access(VECTORS, stored(Swizzle.XOR, order=("K", "N")), WEIGHT, 2)
    assert made.instructions == 12 * 8


def test_a_vector_along_the_columns_is_read_once_for_all_rows() -> None:
    vector = Fragment(Lanes.VECTORS, (), ("K",), "K")
    made = access(vector, Stored(("K",), warp_dim="K"), WEIGHT, 2)
    assert made == Access(2, 2 * 4)


def test_striped_elements_meet_no_conflict() -> None:
    striped = Fragment(Lanes.STRIPED, ("M", "N"), ())
    made = access(striped, Stored(("M", "N")), WEIGHT, 4)
    assert made == Access(1, 2)
