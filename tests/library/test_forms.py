"""One muGraph whose sums a cluster joins in some calls, and in others a kernel of its own."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

import mirage_kernels
from mirage_kernels.generator import pipeline
from mirage_kernels.generator.cli import main
from mirage_kernels.generator.errors import PlanError, VerifyError
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.pipeline import Result, generate, prove_record
from mirage_kernels.generator.recipe import trace
from mirage_kernels.generator.records.folder import write
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.records.sources import files_of
from mirage_kernels.generator.request import Request
from mirage_kernels.generator.schedules import general
from mirage_kernels.generator.schedules.general import (
    GeneralKnobs,
    buckets_of,
    candidates,
    explored,
    form_of,
    required,
    sizes_for,
)
from mirage_kernels.generator.schedules.general.candidates import fits, general_candidates
from mirage_kernels.generator.schedules.general.reduction_kernels import planned_apart
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.target import target

ON = target("sm_90a")
HEADS, QUERIES, KEYS, DIM = 2, 4, 1024, 64
FEW = 2  # sequences, whose keys are split for a kernel of its own to join
UNIT = 2.0**-8  # of bf16, twice its rounding


def of_sequences(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


@cache
def request() -> Request:
    shapes = {"q": QUERIES, "k": KEYS, "v": KEYS}
    given = {
        name: torch.empty(3, HEADS, rows, DIM, dtype=torch.bfloat16, device="meta")
        for name, rows in shapes.items()
    }
    recipe = from_torch(of_sequences, given, dynamic={name: {0: "M"} for name in shapes})
    return Request(recipe, recipe.shapes[0], DType.BF16, ON.arch)


@cache
def found() -> Result:
    return generate(request(), jobs=1, progress=lambda event: None)


def spec() -> Graph:
    return trace(request().recipe, request().shape, DType.BF16)


@cache
def fastest(size: int) -> tuple[GeneralKnobs, ...]:
    """The fastest knobs of each form, by prediction."""
    sizes = sizes_for(found().record.graph, "M", size)
    return tuple(explored(f, sizes, ON, starts=1)[0] for f in required(found().record.graph, ON))


@cache
def of_both() -> KernelRecord:
    """A record with a second kernel for few sequences, and clusters for more."""
    variants = Variant(FEW, fastest(FEW)[1]), Variant(0, fastest(0)[0])
    record = replace(found().record, variants=variants)
    return prove_record(record, spec(), lambda event: None)


def test_few_sequences_and_several_have_kernels_of_their_own() -> None:
    assert buckets_of(found().record.graph, "M") == (2, 8, 16, 64, 0)


def test_each_form_is_proved_at_the_tiles_of_its_variants() -> None:
    record = of_both()
    graphs = pipeline.proved_graphs(record)
    assert [len(graph.blocks) for graph in graphs] == [1, 2]
    assert all(graphs.values())
    parts = {case.tiles.get("N_parts", 0) for case in record.proof.cases}
    assert {dict(v.knobs.cuts)["N_parts"] for v in record.variants} <= parts


def test_a_wrong_form_is_refused_when_it_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    record = of_both()

    def wrong(graph: Graph) -> Graph | None:
        made = planned_apart(graph)
        assert made is not None
        joins = made.blocks[-1]
        assert joins.body is not None
        own = tuple(replace(n, op="amax") if n.op == "sum" else n for n in joins.body.nodes)
        changed = replace(joins, body=replace(joins.body, nodes=own))
        return replace(made, nodes=tuple(changed if n is joins else n for n in made.nodes))

    monkeypatch.setattr(general, "planned_apart", wrong)
    with pytest.raises(VerifyError, match="not equal"):
        prove_record(record, spec(), lambda event: None)


def test_launches_are_those_of_the_form(tmp_path: Path) -> None:
    (text,) = (t for path, t in files_of(of_both()).items() if path.endswith(".cu"))
    few, many = (text.split(f"cudaError_t launch_{name}(")[1] for name in ("up_to_2", "any"))
    assert few[: few.index("return status")].count("status == cudaSuccess") == 2
    assert many[: many.index("return status")].count("status == cudaSuccess") == 1
    spaces = text.split("int64_t workspace_any(")[1]
    assert "return 0;" in spaces[: spaces.index("}")]


def test_a_record_keeps_which_form_its_variants_have(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(of_both().text())
    assert load_record(path).text() == of_both().text()
    assert [v.knobs.reduction_kernel for v in load_record(path).variants] == [True, False]


def test_candidates_are_of_both_forms_and_no_kernel_joins_a_single_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidates, "SPREAD", 8)
    graph = found().record.graph
    knobs = [k for k, _ in general_candidates(graph, 16, ON, 4)]
    assert {k.reduction_kernel for k in knobs} == {True, False}
    assert all(dict(k.cuts)["N_parts"] < KEYS for k in knobs if k.reduction_kernel)
    assert all(fits(graph, k, 16, ON) for k in knobs)


def test_knobs_of_a_form_that_a_mugraph_lacks_fit_it_not() -> None:
    graph = form_of(found().record.graph, fastest(0)[1])
    assert not fits(graph, fastest(0)[1], 0, ON)
    with pytest.raises(PlanError, match="no blocks combine sums"):
        form_of(graph, fastest(0)[1])


@pytest.mark.gpu
def test_results_are_right_on_either_side_of_the_bucket(tmp_path: Path) -> None:
    record = of_both()
    write([replace(found(), record=record, files=files_of(record))], tmp_path)
    assert main(["compile", str(tmp_path)]) == 0
    mirage_kernels.load(tmp_path)
    for rows in (0, 1, FEW, FEW + 1, 16, 65):
        shapes = [(rows, HEADS, n, DIM) for n in (QUERIES, KEYS, KEYS)]
        generator = torch.Generator().manual_seed(rows)
        given = [torch.randn(s, generator=generator).bfloat16().cuda() for s in shapes]
        exact = of_sequences(*(x.double() for x in given))
        made = mirage_kernels.program("of_sequences")(*given)
        assert made.shape == exact.shape
        assert (made.double() - exact).norm() <= UNIT * exact.norm()
