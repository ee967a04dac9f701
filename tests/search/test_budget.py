"""What bounds a search: budgets are counted, and nothing depends on the number of processes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from programs import PROGRAMS
from small import ONE_KERNEL, found, search_of

from mirage_kernels.generator import pipeline
from mirage_kernels.generator.errors import SearchError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.recipe import Recipe, trace
from mirage_kernels.generator.search.problem import Limits
from mirage_kernels.generator.search.superoptimizer import shape_class, superoptimize

NORM = PROGRAMS["norm"].small


@pytest.mark.parametrize("recipe", ["rms_norm_linear", "gqa"])
def test_two_processes_find_what_one_finds_with_the_same_counts(recipe: str) -> None:
    assert found(recipe, Limits()) == found(recipe, Limits(), 2)


def test_the_order_of_tasks_does_not_matter() -> None:
    search, again = (search_of(NORM.spec(), Limits()) for _ in range(2))
    forwards = [search.run(task) for task in search.tasks()]
    backwards = [again.run(task) for task in reversed(again.tasks())]
    assert [f.programs for f in forwards] == [f.programs for f in reversed(backwards)]
    assert [f.counts for f in forwards] == [f.counts for f in reversed(backwards)]


FEW_VALUES = Limits(kernels=1, values=40)


def test_values_beyond_the_budget_are_counted() -> None:
    counts = found("rms_norm_linear", FEW_VALUES).counts
    assert counts.pruned["budget"] > 0
    assert counts.states < found("rms_norm_linear", ONE_KERNEL).counts.states


def test_no_more_values_than_the_budget_says_are_computed() -> None:
    search = search_of(NORM.spec(), replace(FEW_VALUES, values=12))
    for setting in search.problem.settings():
        assert len(search.problem.saturated(setting).values) <= 12 + len(NORM.spec().nodes)


def test_every_candidate_is_proved_rejected_or_too_slow() -> None:
    for recipe in ("rms_norm_linear", "gated_mlp", "gqa"):
        result = found(recipe, Limits())
        counts = result.counts
        assert counts.candidates == len(result.programs) + counts.rejected + counts.pruned.get(
            "time", 0
        )


def test_only_so_many_programs_are_verified() -> None:
    result = found("rms_norm_linear", Limits(verified=10))
    assert len(result.programs) + result.counts.rejected == 10
    assert result.programs == found("rms_norm_linear", Limits()).programs[:10]


def test_a_task_keeps_only_so_many_programs() -> None:
    search = search_of(
        NORM.spec(), Limits(kept=3, kept_spec_products=0, kept_loop_inputs=0, kept_of_two=2)
    )
    for task in search.tasks():
        assert len(search.run(task).programs) <= (3 if task.first is None else 2)


def test_finding_nothing_says_how_large_the_search_was(
    rms_norm_linear: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "LIMITS", Limits(kernels=1, block_ops=3))
    request = pipeline.Request(rms_norm_linear, rms_norm_linear.shapes[0], DType.FP16)
    with pytest.raises(SearchError, match=r"at most 3 block operators in 1 kernel\b"):
        pipeline.generate(request, jobs=1, progress=lambda event: None)


def test_progress_tells_the_stages_and_reaches_their_tasks() -> None:
    seen: list[tuple[str, int, int]] = []
    superoptimize(NORM.spec(), Limits(), "sm_90a", progress=lambda *told: seen.append(told))
    for stage in ("search", "verify"):
        told = [(done, tasks) for name, done, tasks in seen if name == stage]
        assert told == [(i, len(told) - 1) for i in range(len(told))]


def test_one_search_serves_all_shapes_of_a_class(rms_norm_linear: Recipe) -> None:
    classes = {
        shape_class(trace(rms_norm_linear, shape, dtype))
        for shape in rms_norm_linear.shapes
        for dtype in (DType.FP16, DType.BF16)
    }
    assert len(classes) == 1
