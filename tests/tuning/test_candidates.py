"""Candidates: what is measured fits, is ordered by prediction, and can be emitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.schedules.choose import (
    MUCH,
    STAGES_OF_EACH,
    Candidate,
    Wanted,
    by_size,
    candidates,
    member,
    predicted_us,
    programs_of,
    registers,
    shared_bytes,
    untuned,
    variants,
)
from mirage_kernels.generator.schedules.latency import OVERLAP, Streaming
from mirage_kernels.generator.schedules.loop import (
    BUCKETS,
    REGISTERS_LEFT,
    producers_of,
    prologue_warps,
)
from mirage_kernels.generator.schedules.row_wise import COMPARED_AT
from mirage_kernels.generator.schedules.sliced_k import Footprint, SlicedK
from mirage_kernels.generator.target import TARGETS, target

Fused = Callable[..., Graph]
ON = target("sm_90a")
MANY = Wanted(10_000)


@pytest.fixture(params=[(72, 40), (4096, 6144), (256, 4096)])
def program(request: pytest.FixtureRequest, fused: Fused) -> TileProgram:
    k, n = request.param
    return tile_program("test", fused("w", Shape("a test", {"K": k, "N": n}), DType.FP16))


def found(program: TileProgram, tokens: int, wanted: Wanted = MANY) -> list[Candidate]:
    return candidates((program,), tokens, ON, wanted)


def slices(made: list[Candidate]) -> list[Candidate]:
    return [c for c in made if c.knobs.label == "sliced_k"]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_every_candidate_fits_a_block(program: TileProgram, arch: str) -> None:
    on = target(arch)
    for tokens in (8, 64):
        for made in candidates((program,), tokens, on, MANY):
            assert registers(program, made.knobs) <= REGISTERS_LEFT
            assert shared_bytes(program, made.knobs) <= on.shared_bytes


def test_candidates_differ_and_come_in_the_order_of_their_predicted_times(
    program: TileProgram,
) -> None:
    made = found(program, 16)
    times = [round(c.predicted_us, 3) for c in made[1:]]
    assert times == sorted(times)
    assert len({c.knobs for c in made}) == len(made)
    alike = [replace(c.knobs, stages=0) for c in made[1:]]
    assert max(map(alike.count, alike), default=0) <= STAGES_OF_EACH
    assert len(found(program, 16, Wanted(3))) <= 4
    assert found(program, 16) == made
    work = Streaming(program.streamed, ON)
    floor = 2 * work.rows * work.depth / ON.memory_bytes_per_us / OVERLAP
    assert all(c.predicted_us > floor for c in made)  # not faster than device memory


def test_all_slices_of_all_buckets_arrange_shared_memory_alike(program: TileProgram) -> None:
    footprint = Footprint.of(program)
    made = [c.knobs for m in BUCKETS for c in slices(found(program, m))]
    below = [dict(footprint.arrangement(k).below) for k in made]
    assert all(b == below[0] for b in below)


def large(fused: Fused, n: int = 6144) -> TileProgram:
    shape = Shape("a test", {"K": 4096, "N": n})
    return tile_program("test", fused("w", shape, DType.FP16))


def predicted(program: TileProgram, knobs: SlicedK) -> float:
    return predicted_us(program, knobs, knobs.tokens, ON)


def test_more_weights_more_tokens_and_fewer_stages_are_predicted_to_take_longer(
    fused: Fused,
) -> None:
    small, big = SlicedK(8, 48, 8, 2, 3), SlicedK(8, 96, 8, 2, 2)
    ratio = predicted(large(fused, 12288), big) / predicted(large(fused), small)
    assert 1.6 < ratio < 2  # of twice the weights
    times = [predicted(large(fused), SlicedK(m, 48, 4, 1, 4)) for m in BUCKETS]
    assert times == sorted(times)
    few, enough = (predicted(large(fused), SlicedK(8, 48, 4, 1, s)) for s in (2, 5))
    assert enough < few  # bytes in flight


# -- of every plan ---------------------------------------------------------------------------------

Programs = tuple[TileProgram, ...]


def committed(name: str) -> Programs:
    """Return the programs of a committed kernel."""
    record = load_record(ROOT / "kernels" / "sm_90a" / f"{name}_fp16.json")
    return programs_of(record.recipe, record.graph, "sm_90a")


PLANS = {
    "rms_norm_linear/K4096_N6144": {"sliced_k", "cluster_split_k"},
    "gated_mlp/K4096_N4096": {
        "sliced_k",
        "cluster_split_k",
        "register_operand",
        "register_operand in pairs",
        "register_operand in clusters of 4",
    },
    "rms_norm_gated_mlp/K4096_N14336": {"sliced_k", "cluster_split_k"},
    "layer_norm_linear/K4096_N4096": {
        *("sliced_k", "register_operand, prologue", "register_operand in pairs, prologue"),
        "register_operand in clusters of 4, prologue",
    },
    "lora_linear/K4096_N4096_R64": {
        "register_operand",
        *("sliced_k, producer blocks", "register_operand in pairs, producer blocks in pairs"),
    },
    "lora_linear/K256_N4096_R16": {"sliced_k"},
    "ntrans/K4096": {"row_wise"},
}


@pytest.fixture(params=PLANS)
def kernel(request: pytest.FixtureRequest) -> tuple[str, Programs]:
    return request.param, committed(request.param)


def test_every_plan_that_can_serve_has_candidates(kernel: tuple[str, Programs]) -> None:
    name, programs = kernel
    last = [*by_size(programs[0], ON)][-1]
    made = candidates(programs, last, ON, Wanted(len(PLANS[name]) - 1))
    assert {c.knobs.label for c in candidates(programs, last, ON, MANY)} == PLANS[name]
    few = {c.knobs.label for c in made}
    assert few == (PLANS[name] if len(PLANS[name]) > 1 else {made[0].knobs.label})


def test_every_bucket_begins_with_the_rule_s_choice_and_what_follows_fits(
    kernel: tuple[str, Programs],
) -> None:
    _, programs = kernel
    for tokens, by_rule in by_size(programs[0], ON).items():
        made = candidates(programs, tokens, ON, Wanted(12))
        assert [c.knobs for c in made if c.rule] == [made[0].knobs] == [by_rule.knobs]
        times = [c.predicted_us for c in made]
        assert max(times) < 3 * min(times)
        for knobs in (c.knobs for c in made):
            program = member(programs, producers=producers_of(knobs) is not None)
            assert registers(program, knobs) <= REGISTERS_LEFT
            assert shared_bytes(program, knobs) <= ON.shared_bytes


def least(name: str, tokens: int) -> dict[str, float]:
    """Return the least predicted time of every schedule."""
    made = candidates(committed(name), tokens, ON, MANY)
    return {c.knobs.label: c.predicted_us for c in sorted(made, key=lambda c: -c.predicted_us)}


def test_predictions_order_the_schedules_as_measurements_do() -> None:
    alone = least("layer_norm_linear/K4096_N6144", 32)
    assert alone["register_operand, prologue"] < alone["register_operand in pairs, prologue"]
    many, few = (least("gated_mlp/K4096_N4096", tokens) for tokens in (64, 16))
    assert many["register_operand"] < many["cluster_split_k"] < many["sliced_k"] * 1.05
    assert few["sliced_k"] < few["register_operand"]
    for tokens in (8, 64):
        times = least("lora_linear/K4096_N4096_R64", tokens)
        with_producers = [us for label, us in times.items() if "producer" in label]
        assert min(with_producers) < min(us for us in times.values() if us not in with_producers)


def test_a_launch_in_front_is_tried_with_several_numbers_of_warps() -> None:
    programs = committed("layer_norm_linear/K4096_N4096")
    for tokens in (16, 64):
        made = candidates(programs, tokens, ON, MANY)
        assert {prologue_warps(c.knobs) for c in made} == {0, 2, 4, 8, 16}
        rule = made[0].knobs
        warps = prologue_warps(rule)
        fronted = [c for c in made if prologue_warps(c.knobs)]
        others = [c for c in fronted if replace(c.knobs, prologue_warps=warps) == rule]
        assert prologue_warps(others[0].knobs) == 4  # fewest warps and pieces together
        assert max(c.predicted_us for c in others) < others[0].predicted_us + 0.2
    assert not any(prologue_warps(c.knobs) for c in candidates(programs, 8, ON, MANY))


def test_blocks_that_receive_have_tokens_for_every_warp_that_does() -> None:
    sliced, pairs = (
        *("sliced_k, producer blocks", "register_operand in pairs, producer blocks in pairs"),
    )
    programs = committed("lora_linear/K4096_N4096_R16")
    for tokens, plans in ((16, {sliced}), (32, {sliced, pairs})):
        made = [c.knobs for c in candidates(programs, tokens, ON, MANY)]
        assert {knobs.label for knobs in made if producers_of(knobs)} == plans


def test_what_was_chosen_before_is_measured_again_if_it_can_be(fused: Fused) -> None:
    program = large(fused)
    last = max(slices(found(program, 8))[1:], key=lambda c: c.predicted_us)
    made = found(program, 8, Wanted(1, last.knobs))
    assert last.knobs in [c.knobs for c in made]
    assert len(made) == 3
    assert len(found(program, 8, Wanted(1, SlicedK(8, 8000, 8, 2, 2)))) == 2


def test_lines_are_compared_at_one_number_of_tokens() -> None:
    programs = committed("ntrans/K4096")
    assert [*by_size(programs[0], ON)] == [COMPARED_AT]
    warps = {c.knobs.warps for c in candidates(programs, COMPARED_AT, ON, MANY)}
    assert warps == {2, 4, 8, 16}
    with pytest.raises(PlanError, match="no bucket of 8 tokens"):
        candidates(programs, 8, ON, MANY)


# -- never tuned -----------------------------------------------------------------------------------


def test_without_a_tuning_the_model_helps_where_it_expects_much() -> None:
    (program,) = committed("rms_norm_gated_mlp/K4096_N14336")
    rule, chosen = (f(program, ON)[-1].knobs for f in (variants, untuned))
    assert (rule.label, chosen.label) == ("sliced_k", "cluster_split_k")
    by_rule = predicted_us(program, rule, 64, ON)
    assert predicted_us(program, chosen, 64, ON) * MUCH < by_rule
    (other,) = committed("rms_norm_linear/K4096_N6144")
    assert untuned(other, ON) == variants(other, ON)


@pytest.mark.parametrize("arch", sorted(set(TARGETS) - {"sm_90a"}))
def test_elsewhere_there_are_candidates_and_the_model_decides_nothing(arch: str) -> None:
    record = load_record(ROOT / "kernels" / arch / "gated_mlp" / "K4096_N4096_fp16.json")
    (program,) = programs_of(record.recipe, record.graph, arch)
    for tokens in by_size(program, target(arch)):
        assert candidates((program,), tokens, target(arch), Wanted(4))
    assert untuned(program, target(arch)) == variants(program, target(arch))
