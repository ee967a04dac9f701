"""Arrangements in shared memory: the least peak, compared with every way to place the buffers."""

from __future__ import annotations

import random
from itertools import product

import pytest

from mirage_kernels.generator.plan.memory import (
    Arrangement,
    Buffer,
    arrange,
    least_peak,
    side_by_side,
)


def drawn(seed: int) -> list[Buffer]:
    """Return up to five buffers of a few units of 16 bytes, live in intervals of six epochs."""
    rng = random.Random(seed)
    buffers = []
    for i in range(rng.randint(1, 5)):
        first = rng.randint(0, 5)
        live = range(first, min(6, first + rng.randint(1, 3)))
        buffers.append(Buffer(f"b{i}", rng.choice((1, 16, 17, 30, 48, 64)), frozenset(live)))
    return buffers


def circular(seed: int) -> list[Buffer]:
    """Return buffers whose epochs go round a loop, so that no interval order packs them."""
    rng = random.Random(seed)
    return [
        Buffer(f"b{i}", 16 * rng.randint(1, 3), frozenset((i + j) % 5 for j in range(2)))
        for i in range(5)
    ]


def overlaps(offsets: dict[str, int], buffers: list[Buffer]) -> bool:
    return any(
        a.live & b.live
        and offsets[a.name] < offsets[b.name] + b.bytes
        and offsets[b.name] < offsets[a.name] + a.bytes
        for i, a in enumerate(buffers)
        for b in buffers[:i]
    )


def brute_force(buffers: list[Buffer]) -> int:
    """Return the least peak over all offsets in units of 16 bytes, sizes rounded up to them."""
    units = [-(-b.bytes // 16) for b in buffers]
    for peak in range(sum(units) + 1):
        places = [range(peak - u + 1) for u in units]
        for at in product(*places):
            offsets = {b.name: 16 * i for b, i in zip(buffers, at, strict=True)}
            if not overlaps(offsets, buffers):
                return 16 * peak
    raise AssertionError("side by side always fits")


@pytest.mark.parametrize("seed", range(60))
def test_no_placement_has_a_lower_peak(seed: int) -> None:
    buffers = drawn(seed)
    assert arrange(buffers).peak == brute_force(buffers)


@pytest.mark.parametrize("seed", range(15))
def test_no_placement_of_a_loops_buffers_has_a_lower_peak(seed: int) -> None:
    buffers = circular(seed)
    assert arrange(buffers).peak == brute_force(buffers)


def test_the_most_live_bytes_are_not_always_enough() -> None:
    """Five equal buffers round a loop, two live at a time, need three places."""
    buffers = [Buffer(f"b{i}", 16, frozenset({i, (i + 1) % 5})) for i in range(5)]
    assert least_peak(buffers) == 32
    assert arrange(buffers).peak == 48


@pytest.mark.parametrize("seed", range(60))
def test_buffers_live_together_do_not_overlap(seed: int) -> None:
    buffers = drawn(seed)
    made = arrange(buffers)
    assert not overlaps(dict(made.offsets), buffers)
    assert all(at % 16 == 0 for at in made.offsets.values())


@pytest.mark.parametrize("seed", range(60))
def test_an_offset_is_the_end_of_the_buffers_below(seed: int) -> None:
    buffers = {b.name: b for b in drawn(seed)}
    made = arrange(list(buffers.values()))
    for name, below in made.below.items():
        ends = [made.offsets[b] + -(-buffers[b].bytes // 16) * 16 for b in below]
        assert set(ends) <= {made.offsets[name]}
        assert bool(ends) == (made.offsets[name] > 0)


@pytest.mark.parametrize("seed", range(60))
def test_without_a_plan_the_peak_is_the_sum(seed: int) -> None:
    buffers = drawn(seed)
    assert side_by_side(buffers).peak == sum(-(-b.bytes // 16) * 16 for b in buffers)
    assert side_by_side(buffers).peak >= arrange(buffers).peak


def test_a_ring_is_live_through_the_loop_and_free_after_it() -> None:
    ring = Buffer("ring", 96, frozenset({0, 1, 2}))
    first = Buffer("first", 32, frozenset({3}))
    second = Buffer("second", 48, frozenset({3}))
    assert arrange([ring, first, second]) == Arrangement(
        {"ring": 0, "first": 0, "second": 32}, {"ring": (), "first": (), "second": ("first",)}, 96
    )


def test_twelve_buffers_are_placed_at_once() -> None:
    rng = random.Random(1)
    buffers = []
    for i in range(12):
        first = rng.randint(0, 9)
        live = frozenset(range(first, first + rng.randint(1, 4)))
        buffers.append(Buffer(f"b{i}", 16 * rng.randint(1, 64), live))
    made = arrange(buffers)
    assert made == arrange(buffers)
    assert made.peak >= least_peak(buffers)


def test_nothing_takes_no_bytes() -> None:
    assert arrange([]).peak == 0
