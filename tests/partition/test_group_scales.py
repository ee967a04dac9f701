"""Scales of groups of 8-bit weights: kernels read one for many elements where they multiply."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from cutting import cut_given, drawn, really_made, require_same, ways
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.errors import PlanError, RecipeError, VerifyError
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.frontend.references import require_reference
from mirage_kernels.generator.ir import DType, from_json, to_json, to_text
from mirage_kernels.generator.partition.again import cut_again
from mirage_kernels.generator.partition.program import Program, partitioned
from mirage_kernels.generator.partition.trace import Function
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.plan.lower import lowered
from mirage_kernels.generator.recipe import trace
from mirage_kernels.generator.schedules.run import require_runs
from mirage_kernels.generator.search.cases import small_cases
from mirage_kernels.generator.search.verify import prove

FP8 = torch.float8_e4m3fn
N, K, GROUP = 256, 512, 128
Run = Callable[..., Any]


def in_groups(q: Tensor, scales: Tensor) -> Tensor:
    parts = q.to(scales.dtype).unflatten(-1, (-1, GROUP)) * scales[..., None]
    return parts.flatten(-2)


def in_blocks(f: Tensor, blocks: Tensor, dtype: torch.dtype) -> Tensor:
    rows, columns = blocks.shape
    parts = f.float().view(rows, GROUP, columns, GROUP) * blocks[:, None, :, None]
    return parts.view(f.shape).to(dtype)


def of_groups(x: Tensor, q: Tensor, scales: Tensor) -> Tensor:
    return F.linear(x, in_groups(q, scales))


def of_blocks(x: Tensor, f: Tensor, blocks: Tensor, n: Tensor) -> Tensor:
    return F.linear(x, in_blocks(f, blocks, x.dtype), n)


def repeated(x: Tensor, q: Tensor, scales: Tensor) -> Tensor:
    return F.linear(x, q.to(x.dtype) * scales.repeat_interleave(GROUP, 1))


def with_zeros(x: Tensor, q: Tensor, zeros: Tensor, scales: Tensor) -> Tensor:
    parts = q.to(x.dtype).unflatten(-1, (-1, GROUP))
    return F.linear(x, ((parts - zeros[..., None]) * scales[..., None]).flatten(-2))


def gated(x: Tensor, f: Tensor, blocks: Tensor, q: Tensor, scales: Tensor) -> Tensor:
    return F.silu(F.linear(x, in_blocks(f, blocks, x.dtype))) * F.linear(x, in_groups(q, scales))


def three(x: Tensor, f: Tensor, blocks: Tensor, g: Tensor, taller: Tensor) -> Any:
    pairs = ((f, blocks), (g, taller))
    return tuple(F.linear(x, in_blocks(w, s, x.dtype)) for w, s in pairs)


def whole(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-128, 128, shape, generator=generator).to(torch.int8)


def given_of(run: Run, rows: int = 8) -> dict[str, Tensor]:
    """The tensors that a function takes, by name."""
    known = {
        "x": drawn(rows, K),
        "n": drawn(N),
        "q": whole(N, K),
        "f": drawn(N, K).to(FP8),
        "g": drawn(2 * N, K).to(FP8),
        "scales": drawn(N, K // GROUP) / 64,
        "zeros": drawn(N, K // GROUP),
        "blocks": drawn(N // GROUP, K // GROUP).float() / 8,
        "taller": drawn(2 * N // GROUP, K // GROUP).float() / 8,
    }
    return {name: x for name, x in known.items() if name in run.__annotations__}


@cache
def program(run: Run) -> Program:
    return cut_given(run, given_of(run), ["x"], really_made)


def fast(run: Run) -> Result:
    """The kernel for few rows."""
    part = next(p for p in program(run).ways[0].parts if p.runs)
    return program(run).kernels[part.key]


ALL = [of_groups, of_blocks, repeated, with_zeros, gated, three]


@pytest.mark.parametrize("run", ALL)
class TestGroups:
    """Functions whose weights have scales of groups."""

    def test_the_program_is_the_function(self, run: Run) -> None:
        require_same(program(run), run, **given_of(run, 5))

    def test_a_kernel_scales_weights_where_it_multiplies(self, run: Run) -> None:
        assert len(ways(program(run))[0]) == 1
        record = fast(run).record
        assert "general" not in {v.schedule for v in record.variants}
        assert record.proof.log2_failure < -40
        made = lowered(record.recipe, record.graph)
        assert len(made.group_reads) == (2 if run in (gated, with_zeros) else 1)
        for variant in record.variants:
            require_runs(made, record.graph, variant.knobs)

    def test_the_record_says_how_a_call_gives_them(self, run: Run) -> None:
        record = fast(run).record
        assert from_json(to_json(record.graph)) == record.graph
        assert "one for 128 along K" in to_text(record.graph)
        (text,) = (t for n, t in fast(run).files.items() if n.endswith(".cu"))
        assert "Shape::K / 128" in text

    def test_it_is_cut_the_same_way_again(self, run: Run) -> None:
        made = program(run)
        given = {n: x.to("meta") for n, x in given_of(run).items()}
        records = {r.record.recipe: r.record for r in made.results}
        again = cut_again(Function(run, given, {"x": {0: "M"}}, "f"), made.document, records)
        assert again.document == made.document


def test_blocks_of_rows_and_columns_have_one_element() -> None:
    recipe = from_torch(of_blocks, given_of(of_blocks), dynamic={"x": {0: "M"}})
    assert recipe.inputs == {"x": "M K", "f": "N K:fp8_e4m3", "blocks": "N K:fp32", "n": "N"}
    assert recipe.grouped == {"blocks": {"N": GROUP, "K": GROUP}}
    apart = recipe.apart
    assert apart is not None
    assert not apart.grouped
    assert len(apart.inputs["blocks"].split()) == len(apart.inputs["f"].split()) - 2


def test_siblings_are_one_launch_with_scales_of_their_own() -> None:
    record = fast(three).record
    assert record.row_parts == (N, 2 * N)
    (kernel,) = (s for s in program(three).document["ways"][0]["steps"] if "kernel" in s)
    shapes = [i["shape"] for i in kernel["inputs"] if i["value"] in ("blocks", "taller")]
    assert shapes == [[N // GROUP, K // GROUP], [2 * N // GROUP, K // GROUP]]


@pytest.mark.parametrize("dims", [(), ("B", "T")])
def test_rows_may_be_of_a_static_number_or_of_several_dims(dims: tuple[str, ...]) -> None:
    given = {**given_of(of_blocks), "x": drawn(*((2, 4) if dims else (8,)), K)}
    function = Function(of_blocks, given, {"x": dict(enumerate(dims))} if dims else {}, "f")
    made = partitioned(function, DType.BF16, "sm_90a", really_made)
    assert len(ways(made)[0]) == 1
    assert "general" not in {v.schedule for v in made.results[0].record.variants}
    require_same(made, of_blocks, **given)


def test_weights_that_no_product_takes_are_converted_by_a_general_kernel() -> None:
    def converted(q: Tensor, scales: Tensor) -> Tensor:
        return in_groups(q, scales)

    recipe = from_torch(converted, given_of(converted))
    assert not recipe.grouped
    assert {v.schedule for v in really_made(recipe).record.variants} == {"general"}


def test_what_no_fast_schedule_takes_is_a_general_kernel() -> None:
    def small(x: Tensor, q: Tensor, few: Tensor) -> Tensor:
        parts = q.to(x.dtype).unflatten(-1, (-1, 8)) * few[..., None]
        return F.linear(x, parts.flatten(-2))

    given = {"x": drawn(8, K), "q": whole(N, K), "few": drawn(N, K // 8)}
    recipe = from_torch(small, given, dynamic={"x": {0: "M"}})
    assert recipe.grouped == {"few": {"K": 8}}
    record = really_made(recipe).record
    assert {v.schedule for v in record.variants} == {"general"}
    assert not any(n.grouped for n in record.graph.inputs)


def test_fast_schedules_say_which_groups_they_take() -> None:
    record = fast(of_groups).record

    def grouped(count: int, dim: str = "K") -> Any:
        nodes = (
            replace(n, grouped=((dim, count),)) if n.grouped else n for n in record.graph.nodes
        )
        return replace(record.graph, nodes=tuple(nodes))

    assert lowered("f", grouped(32)).group_reads
    for graph in (grouped(16), grouped(128, "N")):
        with pytest.raises(PlanError, match="scales has groups of no whole 32 elements"):
            lowered("f", graph)


def test_another_scale_is_another_function() -> None:
    recipe = from_torch(of_groups, given_of(of_groups), dynamic={"x": {0: "M"}})
    spec = trace(recipe, recipe.shapes[0], DType.BF16)
    require_reference(recipe, spec, DType.BF16)
    other = replace(recipe, reference=copy(recipe.reference))
    other.reference.function = lambda x, q, scales: of_groups(x, q, 2 * scales)  # type: ignore[attr-defined]
    with pytest.raises(RecipeError, match="computes another output"):
        require_reference(other, spec, DType.BF16)


def test_groups_are_part_of_what_is_proved() -> None:
    result = fast(of_groups)
    spec = trace(result.request.recipe, result.request.shape, result.request.dtype)
    other = replace(spec, nodes=tuple(replace(n, grouped=()) for n in spec.nodes))
    with pytest.raises(VerifyError):
        prove(other, result.record.graph, small_cases(other), seed=3)


def test_heads_that_are_repeated_are_views() -> None:
    def repeats(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (t.repeat_interleave(4, dim=1) for t in (k, v))
        return F.scaled_dot_product_attention(q, keys, values)

    given = {"q": drawn(2, 8, 1, 64), "k": drawn(2, 2, 96, 64), "v": drawn(2, 2, 96, 64)}
    made = cut_given(repeats, given, ["q", "k", "v"])
    assert not any("repeat" in name for name in ways(made)[0])
    require_same(made, repeats, **given)
