"""Choice: predicted time first, then what passes every test, and who was refused and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest

from mirage_kernels.generator.errors import PlanError, SearchError, VerifyError
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.meaning.cost import Estimate, estimate
from mirage_kernels.generator.recipe import Recipe, Shape, output_type, trace
from mirage_kernels.generator.search.extract import nominal_sizes
from mirage_kernels.generator.search.lower import Goal, lower
from mirage_kernels.generator.search.select import Ranked, choose, rank, tile_choices
from mirage_kernels.generator.search.sketch import (
    BlockSketch,
    LibrarySketch,
    ProgramSketch,
    Setting,
    Step,
    View,
    middle_name,
)
from mirage_kernels.generator.target import target

Fused = Callable[..., Graph]
SHAPE = Shape("a model", {"K": 4096, "N": 6144})
ON = target("sm_90a")


@pytest.fixture(scope="module")
def spec(rms_norm_linear: Recipe) -> Graph:
    return trace(rms_norm_linear, SHAPE, DType.FP16)


@pytest.fixture(scope="module")
def two_kernels(rms_norm_linear: Recipe, spec: Graph) -> Graph:
    """The weight scaled by one kernel and multiplied by the library, for its cost alone."""
    views = (View("norm_weight", (None,), None), View("weight", ("N",), None))
    scaling = BlockSketch(Setting(("N",), None), views, (Step("mul", (0, 1)),), ((2, ("N", "K")),))
    product = LibrarySketch((middle_name(0), "x"), "K", ("N", "M"))
    result = output_type(rms_norm_linear, SHAPE, DType.FP16)
    return lower(ProgramSketch((scaling, product)), Goal(spec, result, DType.FP16, {"N": 16}))


@pytest.fixture(scope="module")
def ranked(fused: Fused, two_kernels: Graph, spec: Graph) -> list[Ranked]:
    return rank([two_kernels, fused("x", shape=SHAPE), fused("w", shape=SHAPE)], spec, ON)


def passes(graph: Graph) -> None:
    pass


def refuses(*bad: Graph, error: Exception | None = None) -> Callable[[Graph], None]:
    def test(graph: Graph) -> None:
        if graph in bad:
            raise error or VerifyError("error inf is more than 1.1 times the unfused program's")

    return test


def test_one_kernel_is_predicted_to_beat_two(ranked: list[Ranked]) -> None:
    assert ranked[-1].position == 0


def test_a_mugraph_is_ranked_at_its_best_tiles(ranked: list[Ranked], spec: Graph) -> None:
    floor = 4096 * 6144 * 2 / ON.memory_bytes_per_us + ON.launch_us
    assert ranked[0].estimate.microseconds < 1.5 * floor
    assert ranked[0].estimate == estimate(ranked[0].graph, nominal_sizes(spec), ON)


def test_ranking_does_not_depend_on_the_order_of_what_is_ranked(
    fused: Fused, two_kernels: Graph, spec: Graph
) -> None:
    graphs = [two_kernels, fused("w", shape=SHAPE)]
    forwards, backwards = rank(graphs, spec, ON), rank(graphs[::-1], spec, ON)
    assert [r.graph for r in forwards] == [r.graph for r in backwards]


def test_short_dims_are_not_cut_and_independent_problems_are_cut_into_single_ones(
    fused: Fused, spec: Graph
) -> None:
    sizes = nominal_sizes(spec) | {"N": 5}
    choices = tile_choices(fused("w", shape=SHAPE), sizes, frozenset({"M"}))
    assert (choices["N"], choices["M"]) == ((5,), (1,))


def test_a_refusal_says_who_was_refused_and_why(ranked: list[Ranked]) -> None:
    chosen, refused = choose(ranked, [passes, refuses(ranked[0].graph)])
    assert chosen is ranked[1]
    assert [(r.line, r.reason) for r in refused] == [
        (ranked[0].line(), "error inf is more than 1.1 times the unfused program's")
    ]


def test_the_last_reason_is_given_when_none_passes(ranked: list[Ranked]) -> None:
    everything = refuses(*(r.graph for r in ranked), error=PlanError("it has no loop"))
    with pytest.raises(SearchError, match="none of 3 proved muGraphs can be emitted: it has no"):
        choose(ranked, [everything])


def test_nothing_to_choose_from_is_said() -> None:
    with pytest.raises(SearchError, match="the search found no equivalent muGraph"):
        choose([], [passes])


def test_a_line_says_time_kernels_loop_and_ops(ranked: list[Ranked]) -> None:
    assert ranked[0].line().partition(" us  ")[2] == (
        "one kernel (loop over K: mul, contract, accum, contract, accum, div, add, sqrt, div)"
    )
    assert ranked[-1].line().endswith("one kernel (no loop: mul) then library product")
    none_fits = replace(ranked[0], estimate=Estimate(inf, "shared memory"))
    assert none_fits.line().startswith("at smaller tiles  one kernel (")
