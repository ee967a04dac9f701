"""The search's budget of prefixes: what it cuts off is counted, and does not depend on jobs."""

from __future__ import annotations

import pytest

from mirage_kernels.generator import pipeline
from mirage_kernels.generator.errors import SearchError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.recipe import Recipe, trace
from mirage_kernels.generator.search.kernels import Counts, Limits, ProgramSketch, search

SMALL = Limits(kernels=1, block_ops=9, states=4000)


def searched(recipe: Recipe, jobs: int) -> tuple[list[ProgramSketch], Counts]:
    spec = trace(recipe, recipe.shapes[0], DType.FP16)
    return search(spec, SMALL, jobs=jobs, progress=lambda done, tasks, counts: None)


def test_a_spent_budget_is_counted(rms_norm_linear: Recipe) -> None:
    _, counts = searched(rms_norm_linear, 1)
    assert counts.pruned["budget"] > 0
    assert counts.states <= SMALL.states + SMALL.states // 8


def test_what_the_budget_leaves_is_the_same_for_any_jobs(rms_norm_linear: Recipe) -> None:
    assert searched(rms_norm_linear, 1) == searched(rms_norm_linear, 2)


def test_finding_nothing_within_the_budget_says_so(
    rms_norm_linear: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "LIMITS", Limits(kernels=1, block_ops=9, states=80))
    request = pipeline.Request(rms_norm_linear, rms_norm_linear.shapes[0], DType.FP16)
    with pytest.raises(SearchError, match="prefixes of its budget"):
        pipeline.generate(request, jobs=1, progress=lambda event: None)


def test_progress_comes_before_the_tasks_are_known(rms_norm_linear: Recipe) -> None:
    spec = trace(rms_norm_linear, rms_norm_linear.shapes[0], DType.FP16)
    seen: list[tuple[int, int]] = []
    limits = Limits(kernels=2, block_ops=5, first_ops=3)
    search(spec, limits, jobs=1, progress=lambda done, tasks, counts: seen.append((done, tasks)))
    assert seen[0] == (0, 0)
    assert seen[-1][0] == seen[-1][1] > 0
