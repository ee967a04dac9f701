"""Candidates: what is measured fits, is ordered by prediction, and can be emitted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.plan.candidates import (
    STAGES_OF_EACH,
    Candidate,
    Streaming,
    candidates,
    predicted_us,
)
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.plan.variants import (
    BUCKETS,
    REGISTERS_LEFT,
    Footprint,
    Knobs,
    variants,
)
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.target import TARGETS, target

Fused = Callable[..., Graph]
ON = target("sm_90a")
MANY = 10_000


@pytest.fixture(params=[(72, 40), (4096, 6144), (8192, 10240), (256, 4096)])
def program(request: pytest.FixtureRequest, fused: Fused) -> TileProgram:
    k, n = request.param
    return tile_program("test", fused("w", Shape("a test", {"K": k, "N": n}), DType.FP16))


@pytest.mark.parametrize("tokens", BUCKETS)
def test_the_choice_of_the_rule_is_measured_first(program: TileProgram, tokens: int) -> None:
    first, *rest = candidates(program, tokens, ON, top=8)
    by_rule = variants(program, ON)[BUCKETS.index(tokens)].knobs
    assert first.rule
    assert first.knobs == by_rule
    assert not any(c.rule or c.knobs == by_rule for c in rest)


@pytest.mark.parametrize("arch", TARGETS)
def test_every_candidate_fits_a_block(program: TileProgram, arch: str) -> None:
    on, footprint = target(arch), Footprint.of(program)
    for tokens in BUCKETS:
        for made in candidates(program, tokens, on, top=MANY):
            assert footprint.registers(made.knobs) <= REGISTERS_LEFT
            assert footprint.shared_bytes(made.knobs) <= on.shared_bytes


def test_candidates_come_in_the_order_of_their_predicted_times(program: TileProgram) -> None:
    _, *rest = candidates(program, 16, ON, top=MANY)
    times = [round(c.predicted_us, 3) for c in rest]
    assert times == sorted(times)


def test_there_are_no_more_than_asked_for(program: TileProgram) -> None:
    assert len(candidates(program, 8, ON, top=3)) <= 4


def test_no_candidate_comes_twice(program: TileProgram) -> None:
    made = [c.knobs for c in candidates(program, 8, ON, top=MANY)]
    assert len(made) == len(set(made))


def test_few_candidates_differ_in_their_stages_only(program: TileProgram) -> None:
    _, *rest = candidates(program, 8, ON, top=MANY)
    alike = [(c.knobs.rows, c.knobs.warps, c.knobs.chunks) for c in rest]
    assert max(map(alike.count, alike), default=0) <= STAGES_OF_EACH


def test_all_candidates_of_all_buckets_arrange_shared_memory_alike(program: TileProgram) -> None:
    footprint = Footprint.of(program)
    made = [c.knobs for m in BUCKETS for c in candidates(program, m, ON, top=MANY)]
    below = [dict(footprint.arrangement(k).below) for k in made]
    assert all(b == below[0] for b in below)


def test_the_same_program_has_the_same_candidates(program: TileProgram) -> None:
    def made() -> list[Candidate]:
        return candidates(program, 32, ON, top=8)

    assert made() == made()


def test_a_bucket_that_there_is_none_of_is_named(program: TileProgram) -> None:
    with pytest.raises(PlanError, match="no bucket of 7 tokens"):
        candidates(program, 7, ON, top=8)


def large(fused: Fused, n: int = 6144) -> Streaming:
    shape = Shape("a test", {"K": 4096, "N": n})
    return Streaming.of(tile_program("test", fused("w", shape, DType.FP16)), ON)


def test_twice_the_weights_are_predicted_to_take_nearly_twice_the_time(fused: Fused) -> None:
    small, big = Knobs(8, 48, 8, 2, 3), Knobs(8, 96, 8, 2, 2)
    ratio = predicted_us(large(fused, 12288), big) / predicted_us(large(fused), small)
    assert 1.6 < ratio < 2


def test_more_tokens_are_predicted_to_take_longer(fused: Fused) -> None:
    times = [predicted_us(large(fused), Knobs(m, 48, 4, 1, 4)) for m in BUCKETS]
    assert times == sorted(times)


def test_too_few_bytes_in_flight_are_predicted_to_take_longer(fused: Fused) -> None:
    short, deep = (predicted_us(large(fused), Knobs(8, 48, 4, 1, s)) for s in (2, 5))
    assert deep < short


def test_no_prediction_is_faster_than_device_memory(program: TileProgram) -> None:
    work = Streaming.of(program, ON)
    floor = 2 * work.rows * work.depth / ON.memory_bytes_per_us
    assert all(c.predicted_us > floor for c in candidates(program, 8, ON, top=MANY))
