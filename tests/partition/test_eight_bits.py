"""Inputs of 8 bits, as quantized weights: kernels convert them where they compute with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from cutting import cut_given, drawn, numbers, really_made, require_same, ways
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.errors import PlanError, VerifyError
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import DType, Graph, Node
from mirage_kernels.generator.partition.program import Program
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.plan.lower import lowered
from mirage_kernels.generator.recipe import trace
from mirage_kernels.generator.schedules.attention.lower import attention_program
from mirage_kernels.generator.schedules.run import require_runs
from mirage_kernels.generator.search.cases import small_cases
from mirage_kernels.generator.search.verify import prove
from mirage_kernels.generator.tiles.check import require_same as require_tiles

FP8 = torch.float8_e4m3fn
N, K, GROUP = 64, 512, 8  # elements with one scale, fewer than lanes have of a row
Run = Callable[..., Any]


def whole(*shape: int, dtype: torch.dtype = torch.int8) -> Tensor:
    """Random whole numbers, the least and the greatest among them."""
    ends = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(sum(shape))
    made = torch.randint(ends.min, ends.max + 1, shape, generator=generator, dtype=dtype)
    made.view(-1)[:2] = torch.tensor([ends.min, ends.max], dtype=dtype)
    return made


def scaled(x: Tensor, q: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, q.to(x.dtype) * scale[:, None])


def scaled_behind(x: Tensor, q: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, q.to(x.dtype)) * scale


def normed(x: Tensor, n: Tensor, q: Tensor, scale: Tensor) -> Tensor:
    return F.linear(F.rms_norm(x, (K,), n, 1e-6), q.to(x.dtype)) * scale


def gated(x: Tensor, q: Tensor, f: Tensor, scale: Tensor) -> Tensor:
    return F.silu(F.linear(x, q.to(x.dtype)) * scale) * F.linear(x, f.to(x.dtype))


def with_zero(x: Tensor, u: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, (u.to(x.dtype) - 128) * scale[:, None])


def of_one(x: Tensor, q: Tensor, one: Tensor) -> Tensor:
    return x @ (q.float() * one).to(x.dtype).t()


def of_fp32(x: Tensor, q: Tensor, wide: Tensor) -> Tensor:
    return F.linear(x, (q.float() * wide[:, None]).to(x.dtype))


def three_of_fp32(x: Tensor, q: Tensor, wide: Tensor, p: Tensor, wider: Tensor) -> Any:
    weights = ((w.float() * s[:, None]).to(x.dtype) for w, s in ((q, wide), (p, wider)))
    first, second = (F.linear(x, w) for w in weights)
    return first, second


def three_of_one(x: Tensor, q: Tensor, one: Tensor, p: Tensor, other: Tensor) -> Any:
    weights = ((w.float() * s).to(x.dtype) for w, s in ((q, one), (p, other)))
    first, second = (F.linear(x, w) for w in weights)
    return first, second


def of_a_slice(x: Tensor, q: Tensor, wide: Tensor) -> Tensor:
    return F.linear(x, q.to(x.dtype)) * wide[3].to(x.dtype)


def in_groups(x: Tensor, q: Tensor, scales: Tensor) -> Tensor:
    parts = q.to(x.dtype).unflatten(-1, (-1, GROUP)) * scales[..., None]
    return F.linear(x, parts.flatten(-2))


def three(x: Tensor, q: Tensor, scale: Tensor, p: Tensor, tall: Tensor) -> tuple[Tensor, Tensor]:
    weights = (w.to(x.dtype) * s[:, None] for w, s in ((q, scale), (p, tall)))
    first, second = (F.linear(x, w) for w in weights)
    return first, second


def plain(x: Tensor, d: Tensor, n: Tensor) -> Tensor:
    return d.to(x.dtype) * n + x


def rows_of(x: Tensor, q: Tensor, at: Tensor) -> Tensor:
    return q[at].to(x.dtype) * 0.02 + x


def known(rows: int = 8) -> dict[str, Tensor]:
    """The tensors that functions take, by name."""
    return {
        "x": drawn(rows, K),
        "n": drawn(K),
        "q": whole(N, K),
        "p": whole(2 * N, K),
        "d": whole(rows, K),
        "u": whole(N, K, dtype=torch.uint8),
        "f": drawn(N, K).to(FP8),
        "scale": drawn(N) / 64,
        "tall": drawn(2 * N) / 64,
        "wide": drawn(N).float() / 64,
        "wider": drawn(2 * N).float() / 64,
        "one": drawn(1).float(),
        "other": drawn(1).float() + 2,
        "scales": drawn(N, K // GROUP) / 64,
        "at": numbers(rows, below=N),
    }


def given_of(run: Run, rows: int = 8) -> dict[str, Tensor]:
    return {name: x for name, x in known(rows).items() if name in run.__annotations__}


@cache
def program(run: Run) -> Program:
    rows = [n for n in ("x", "d", "at") if n in given_of(run)]
    return cut_given(run, given_of(run), rows, really_made)


def fast(run: Run) -> Result:
    """The kernel for few rows."""
    part = next(p for p in program(run).ways[0].parts if p.runs)
    return program(run).kernels[part.key]


WIDE = [of_one, of_fp32, of_a_slice]
ALONE = [scaled, scaled_behind, gated, with_zero, *WIDE]


@pytest.mark.parametrize(
    "run", [*ALONE, normed, in_groups, three, three_of_fp32, three_of_one, plain, rows_of]
)
def test_the_program_is_the_function(run: Run) -> None:
    require_same(program(run), run, **given_of(run, 5))


@pytest.mark.parametrize("run", ALONE)
def test_a_kernel_converts_weights_where_it_multiplies(run: Run) -> None:
    assert len(ways(program(run))[0]) == 1
    record = fast(run).record
    assert record.proof.log2_failure < -40
    kinds = fast(run).request.recipe.inputs
    assert {kinds[n].partition(":")[2] for n in kinds if n in "quf"} <= {
        "int8",
        "uint8",
        "fp8_e4m3",
    }


@pytest.mark.parametrize("run", [scaled, scaled_behind, gated, *WIDE])
def test_sliced_k_streams_bytes(run: Run) -> None:
    record = fast(run).record
    assert {v.schedule for v in record.variants} == {"sliced_k"}
    made = lowered(record.recipe, record.graph)
    assert len(made.byte_rows) == (2 if run is gated else 1)
    for variant in record.variants:
        require_runs(made, record.graph, variant.knobs)
    (form,) = (text for name, text in fast(run).files.items() if name.endswith("sliced_k.cuh"))
    assert form.count("tile::converted<T>(step.") == len(made.byte_rows)
    assert "const int8_t* q = static_cast<const int8_t*>(args.inputs[" in form


def test_a_norm_in_front_is_a_kernel_of_its_own() -> None:
    assert ways(program(normed))[0] == ["rms_norm", "linear, mul"]
    product = program(normed).kernels[program(normed).ways[0].parts[-1].key].record
    assert {v.schedule for v in product.variants} == {"sliced_k"}


@pytest.mark.parametrize("run", [three, three_of_fp32, three_of_one])
def test_weights_of_one_tensor_are_one_launch(run: Run) -> None:
    assert [x.count("linear") for x in ways(program(run))[0]] == [2]
    assert fast(run).record.row_parts == (N, 2 * N)


@pytest.mark.parametrize("run", [plain, rows_of])
def test_other_tensors_of_bytes_are_general_kernels(run: Run) -> None:
    record = fast(run).record
    assert {v.schedule for v in record.variants} == {"general"}
    require_tiles(record.graph, 64, 2, () if run is plain else record.indexed)


def test_general_products_convert_on_the_way_to_tensor_cores() -> None:
    recipe = from_torch(in_groups, given_of(in_groups), dynamic={"x": {0: "M"}})
    record = really_made(recipe).record
    assert {v.schedule for v in record.variants} == {"general"}
    require_tiles(record.graph, 64, 2)


def test_scales_of_small_groups_are_applied_in_front_of_a_fast_product() -> None:
    assert ways(program(in_groups))[0] == ["mul", "linear"]


def without_scale(graph: Graph) -> Graph:
    """Leave out what multiplies by the scale."""

    def changed(node: Node) -> Node:
        body = node.body and without_scale(node.body)
        args = node.args
        if node.op == "mul" and any("scale" in a for a in args):
            args = (next(a for a in args if "scale" not in a or a.startswith("scaled")),) * 2
        return replace(node, body=body, args=args)

    return replace(graph, nodes=tuple(map(changed, graph.nodes)))


def test_a_scale_that_is_left_out_is_refused() -> None:
    result = fast(scaled)
    spec = trace(result.request.recipe, result.request.shape, result.request.dtype)
    prove(spec, result.record.graph, small_cases(spec), seed=3)
    with pytest.raises(VerifyError):
        prove(spec, without_scale(result.record.graph), small_cases(spec), seed=3)


def test_what_is_rounded_to_bytes_is_stored_before_it_is_computed_with() -> None:
    def rounded(x: Tensor, n: Tensor) -> Tensor:
        return (x * n).to(FP8).to(x.dtype) + n

    made = cut_given(rounded, given_of(rounded), ["x"])
    assert ways(made)[0] == ["mul, to", "add"]
    require_same(made, rounded, **given_of(rounded))


def test_sums_of_whole_numbers_are_pytorchs() -> None:
    def summed(x: Tensor, q: Tensor) -> Tensor:
        return x[:, :1] * (q + q).sum()

    made = cut_given(summed, given_of(summed), ["x"])
    assert [name for name in ways(made)[0] if name.startswith("[")] == ["[add]", "[sum]", "[mul]"]


def test_attention_takes_no_tensors_of_fp32() -> None:
    def added(x: Tensor, w: Tensor, beside: Tensor) -> Tensor:
        return F.linear(x, w) + beside.to(x.dtype)

    beside = torch.empty(8, N)
    recipe = from_torch(
        added,
        {"x": drawn(8, K), "w": drawn(N, K), "beside": beside},
        dynamic={n: {0: "M"} for n in ("x", "beside")},
    )
    record = really_made(recipe).record
    assert "general" not in {v.schedule for v in record.variants}  # epilogues read what is beside
    with pytest.raises(PlanError, match="f: only general kernels take fp32, as beside is"):
        attention_program("f", record.graph)


def test_loops_take_no_tensors_of_fp32() -> None:
    def weighed(x: Tensor, n: Tensor, w: Tensor) -> Tensor:
        return F.linear(x * n, w)

    def widened(node: Node) -> Node:
        (value,) = node.outs
        type_ = replace(value.type, dtype=DType.FP32)
        return replace(node, outs=(replace(value, type=type_),)) if node.name == "n" else node

    given = {"x": drawn(8, K), "n": drawn(K), "w": drawn(N, K)}
    graph = really_made(from_torch(weighed, given, dynamic={"x": {0: "M"}})).record.graph
    assert lowered("f", graph).loop
    with pytest.raises(PlanError, match="only epilogues read fp32, as n is"):
        lowered("f", replace(graph, nodes=tuple(map(widened, graph.nodes))))


def test_an_fp32_weight_that_is_cast_goes_to_no_fast_schedule() -> None:
    def cast(x: Tensor, w: Tensor) -> Tensor:
        return F.linear(x, w.to(x.dtype))

    made = cut_given(cast, {"x": drawn(8, K), "w": drawn(N, K).float()}, ["x"], really_made)
    for result in made.results:
        kinds = result.request.recipe.inputs.values()
        if any(kind.endswith(":fp32") for kind in kinds):
            assert {v.schedule for v in result.record.variants} == {"general"}
