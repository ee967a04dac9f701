"""Stacked weights: which programs have a form for slices by token, and how large its blocks are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import Roles, TileProgram
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.schedules.batched_lora import (
    first_launch,
    slices_ahead,
    stacked_program,
    stacked_variants,
)
from mirage_kernels.generator.schedules.choose import programs_of, variants
from mirage_kernels.generator.schedules.cluster_split_k import ClusterSplitK
from mirage_kernels.generator.schedules.loop import producers_of
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.target import TARGETS, target

Fused = Callable[..., Graph]
ON = target("sm_90a")
STACKED = ("lora_a", "lora_b")
ROLES = Roles("M", "K", "N")


def plain(adapted: Fused, k: int = 4096, n: int = 4096, r: int = 64) -> TileProgram:
    shape = Shape("a test", {"K": k, "N": n, "R": r})
    return programs_of("mine_full", adapted(shape=shape), "sm_90a")[0]


def stacked(adapted: Fused, k: int = 4096, n: int = 4096, r: int = 64) -> TileProgram:
    made = stacked_program(plain(adapted, k, n, r), STACKED, ON)
    assert made is not None
    return made


def test_it_knows_what_is_stacked_and_is_named_after_its_overload(adapted: Fused) -> None:
    made = stacked(adapted)
    assert (made.recipe, made.stacked) == ("mine_batched", STACKED)
    assert made.consumers is not None
    assert made.producers is not None
    assert (made.consumers.stacked, made.producers.stacked) == (("lora_b",), ("lora_a",))
    assert [s.args[0] for s in made.consumers.fetches] == ["lora_b"]


@pytest.mark.parametrize("sizes", [(4096, 4224, 16), (256, 4096, 16), (4096, 1024, 16)])
def test_no_multiprocessor_has_to_be_left(adapted: Fused, sizes: tuple[int, int, int]) -> None:
    assert plain(adapted, *sizes).consumers is None
    made = stacked(adapted, *sizes)
    assert stacked_variants(made, variants(plain(adapted, *sizes), ON), ON)


@pytest.mark.parametrize("arch", sorted(set(TARGETS) - {"sm_90a"}))
def test_elsewhere_there_is_no_such_program(adapted: Fused, arch: str) -> None:
    assert stacked_program(plain(adapted), STACKED, target(arch)) is None


@pytest.mark.parametrize("names", [(), ("lora_a",), ("weight", "lora_b"), (*STACKED, "weight")])
def test_the_slices_are_the_factors_of_what_is_computed_apart(
    adapted: Fused, names: tuple[str, ...]
) -> None:
    assert stacked_program(plain(adapted), names, ON) is None


def test_without_inner_rows_there_is_nothing_to_stack(fused: Fused) -> None:
    assert stacked_program(tile_program("mine", fused("w")), ("weight",), ON) is None


@pytest.mark.parametrize(("depth", "stages"), [(4096, 2), (16384, 2), (2048, 1), (256, 1)])
def test_a_producer_has_no_more_steps_on_their_way_than_there_are(
    adapted: Fused, depth: int, stages: int
) -> None:
    assert first_launch(stacked(adapted, k=depth)).stages == stages


def test_variants_have_the_records_tiles_and_no_producers(adapted: Fused) -> None:
    chosen = variants(plain(adapted), ON)
    made = stacked_variants(stacked(adapted), chosen, ON)
    assert [v.knobs.tiles(ROLES) for v in made] == [v.knobs.tiles(ROLES) for v in chosen]
    assert not any(producers_of(v.knobs) for v in made)
    assert all(slices_ahead(stacked(adapted), v.knobs, ON) >= 2 for v in made)


def test_plans_without_a_place_for_slices_are_left_away(adapted: Fused) -> None:
    few = variants(plain(adapted), ON)[0]
    split = Variant(0, ClusterSplitK(64, 64, 4))
    (only,) = stacked_variants(stacked(adapted), (few, split), ON)
    assert only == replace(few, bucket=0, knobs=only.knobs)
