"""Arrangements in shared memory: the least peak, compared with every way to place the buffers."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product

import pytest

from mirage_kernels.generator.ir import Graph, retile
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.memory import Arrangement, Buffer, arrange
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.schedules.sliced_k import Footprint, SlicedK


def drawn(seed: int) -> list[Buffer]:
    """Return up to five buffers of a few units of 16 bytes, live round a loop of six epochs."""
    rng = random.Random(seed)
    buffers = []
    for i in range(rng.randint(1, 5)):
        first, length = rng.randint(0, 5), rng.randint(1, 3)
        live = frozenset((first + j) % 6 for j in range(length))
        buffers.append(Buffer(f"b{i}", rng.choice((1, 16, 17, 30, 48, 64)), live))
    return buffers


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


@pytest.mark.parametrize("seed", range(40))
def test_no_placement_has_a_lower_peak(seed: int) -> None:
    buffers = drawn(seed)
    made = arrange(buffers)
    assert made.peak == brute_force(buffers)
    assert not overlaps(dict(made.offsets), buffers)
    sizes = {b.name: b.size for b in buffers}
    for name, below in made.below.items():
        ends = {made.offsets[b] + sizes[b] for b in below}
        assert ends == ({made.offsets[name]} if made.offsets[name] else set())


def test_the_most_live_bytes_are_not_always_enough() -> None:
    """Five equal buffers round a loop, two live at a time, need three places."""
    buffers = [Buffer(f"b{i}", 16, frozenset({i, (i + 1) % 5})) for i in range(5)]
    assert arrange(buffers).peak == 48


def test_stages_are_live_through_the_loop_and_free_after_it() -> None:
    stages = Buffer("stages", 96, frozenset({0, 1, 2}))
    first = Buffer("first", 32, frozenset({3}))
    second = Buffer("second", 48, frozenset({3}))
    assert arrange([stages, first, second]) == Arrangement(
        {"stages": 0, "first": 0, "second": 32},
        {"stages": (), "first": (), "second": ("first",)},
        96,
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
    assert made.peak >= max(sum(b.size for b in buffers if e in b.live) for e in range(14))


def test_stages_and_sums_of_warps_share_bytes(fused: Callable[..., Graph]) -> None:
    shape = Shape("a test", {"K": 4096, "N": 6144})
    program = tile_program("mine", retile(fused(shape=shape), {"M": 8, "N": 48, "K": 512}))
    knobs = SlicedK(tokens=64, rows=48, warps=4, chunks=2, stages=3)
    made = Footprint.of(program).arrangement(knobs)
    stages, product = (4 * 3 * 30 * 512, 4 * 64 * 52 * 4)
    assert made.offsets == {"steps": 0, "scaled_product": 0, "x_squared": product}
    assert made.peak == stages
