"""Specs of independent programs are taken apart, and their muGraphs are united."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from mirage_kernels.generator.errors import SearchError, VerifyError
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.pipeline import Result, generate, prove_record
from mirage_kernels.generator.recipe import Recipe, trace
from mirage_kernels.generator.request import Request
from mirage_kernels.generator.search.independent import independent_specs, united

Made = tuple[torch.Tensor, ...]


def three(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, t: torch.Tensor) -> Made:
    return torch.tanh(q * t), torch.exp(q * t), v * 1, torch.relu(k) * t


def in_common(q: torch.Tensor, t: torch.Tensor) -> Made:
    both = torch.tanh(q * t)
    return torch.exp(both), torch.relu(both)


def recipe_of(run: Callable[..., Made], counts: Sequence[int]) -> Recipe:
    shapes = {"q": (5, 64), "k": (5, 4, 64), "v": (5, 128), "t": (64,)}
    given = {
        n: torch.empty(s, dtype=torch.bfloat16, device="meta")
        for n, s in shapes.items()
        if n in run.__code__.co_varnames
    }
    dynamic = {n: {0: "M"} for n in given if n != "t"}
    return replace(from_torch(run, given, dynamic=dynamic), independent=tuple(counts), strided=True)


def spec_of(recipe: Recipe) -> Graph:
    return trace(recipe, recipe.shapes[0], DType.BF16)


@pytest.fixture(scope="module")
def result() -> Result:
    recipe = recipe_of(three, (2, 1, 1))
    request = Request(recipe, recipe.shapes[0], DType.BF16, "sm_90a")
    return generate(request, jobs=1, progress=lambda event: None)


def test_each_program_has_what_it_computes_from() -> None:
    recipe = recipe_of(three, (2, 1, 1))
    first, copy, last = independent_specs(spec_of(recipe), recipe.independent)
    assert [n.name for n in first.inputs] == ["q", "t"]
    assert [n.name for n in copy.inputs] == ["v"]
    assert (len(first.outputs), copy.outputs, last.outputs) == (2, ("result_2",), ("result_3",))


def test_a_spec_of_one_program_stays_whole() -> None:
    spec = spec_of(recipe_of(three, ()))
    assert independent_specs(spec, ()) == [spec]


def test_programs_that_compute_a_value_in_common_are_refused() -> None:
    recipe = recipe_of(in_common, (1, 1))
    with pytest.raises(SearchError, match="two of 2 independent programs compute"):
        independent_specs(spec_of(recipe), recipe.independent)


def test_results_that_are_of_no_program_are_refused() -> None:
    with pytest.raises(SearchError, match="3 results of 4"):
        independent_specs(spec_of(recipe_of(three, ())), (2, 1))


def test_a_program_of_several_kernels_is_refused(result: Result) -> None:
    graph = result.record.graph
    with pytest.raises(SearchError, match="has 3 kernels, not one"):
        united(graph, [graph])


def test_a_united_mugraph_is_proved_as_one(result: Result) -> None:
    record = result.record
    assert [len(n.outs) for n in record.graph.blocks] == [2, 1, 1]
    assert record.graph.outputs == ("out", "result_1", "result_2", "result_3")
    again = prove_record(record, spec_of(result.request.recipe), lambda event: None)
    assert again.proof == record.proof


def test_a_mugraph_that_mixes_up_its_programs_is_no_proof(result: Result) -> None:
    graph = result.record.graph
    first, *others = graph.blocks
    swapped = replace(first, outs=first.outs[::-1])
    nodes = [*(n for n in graph.nodes if n.op != "block"), swapped, *others]
    wrong = replace(result.record, graph=replace(graph, nodes=tuple(nodes)))
    spec = spec_of(result.request.recipe)
    with pytest.raises(VerifyError):
        prove_record(wrong, spec, lambda event: None)
