"""Which muGraph and which tiles a general kernel of few rows has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.pipeline import goal_of, searched
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.recipe import trace
from mirage_kernels.generator.request import Request
from mirage_kernels.generator.schedules.general import best_knobs, sizes_for
from mirage_kernels.generator.schedules.general.choice import general_first
from mirage_kernels.generator.schedules.general.options import LEAST_PART, choices
from mirage_kernels.generator.search.select import mugraphs, rank
from mirage_kernels.generator.target import target

ON, ROWS, LENGTH = target("sm_90a"), 64, 8192


def found(run: Callable[..., Tensor], *names: str, vector: str = "") -> list[Graph]:
    """Return the muGraphs of a function of rows of 8192, those that are cut the best way first.

    A vector has a number of each row.
    """
    given = {n: torch.empty(ROWS, LENGTH, dtype=torch.bfloat16, device="meta") for n in names}
    if vector:
        given[vector] = torch.empty(ROWS, dtype=torch.bfloat16, device="meta")
    recipe = from_torch(run, given, dynamic={n: {0: "M"} for n in given}, name="it")
    request = Request(recipe, recipe.shapes[0], DType.BF16, ON.arch)
    spec = trace(recipe, request.shape, request.dtype)
    programs = searched(request, jobs=1, progress=lambda event: None, store=None).programs
    ranked = rank(mugraphs(programs, goal_of(request, spec)), spec, ON)
    return [one.graph for one in general_first(ranked, lambda one: one.graph, ON)]


def log_sum_exp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, dim=1)


def mean_and_residual(x: Tensor, y: Tensor) -> Tensor:
    return x.mean(dim=1, keepdim=True) + y


def test_a_sum_of_exponentials_of_rows_that_a_block_holds_is_one_kernel() -> None:
    safe = next(g for g in found(log_sum_exp, "x") if _ops(g) & {"peak"})
    assert len(safe.blocks) == 1


@pytest.fixture(scope="module")
def residual() -> Graph:
    """One kernel that adds the mean of rows to those of another tensor."""
    graphs = found(mean_and_residual, "x", "y")
    return with_threads(next(g for g in graphs if len(g.blocks) == 1))


def test_few_blocks_read_a_row_again_whose_sum_goes_to_every_element(residual: Graph) -> None:
    sizes = sizes_for(residual, "M", ROWS)
    along = residual.values[residual.outputs[0]].type.names[-1]
    assert choices(residual, sizes)[along][-1] == LENGTH
    tiles = dict(best_knobs(residual, sizes, ON).cuts)
    assert -(-LENGTH // tiles[along]) <= 8


def test_a_number_of_each_row_does_not_keep_rows_together() -> None:
    loss = found(lambda x, y: (x.sum(dim=1) - y).mean(), "x", vector="y")[0]
    sizes = sizes_for(loss, "", 0)
    assert choices(loss, sizes)["M_parts"][0] < LEAST_PART
    assert dict(best_knobs(loss, sizes, ON).cuts)["M_parts"] < LEAST_PART


def _ops(graph: Graph) -> set[str]:
    return {n.op for kernel in graph.blocks if kernel.body for n in kernel.body.nodes}
