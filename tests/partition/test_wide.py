"""Values that PyTorch keeps in fp32 between what become two kernels: they are stored so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cutting import cut_given, drawn, made, really_made, require_same, ways
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.errors import PlanError, RecipeError, VerifyError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.partition.program import Program, partitioned
from mirage_kernels.generator.partition.trace import Function
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.recipe import recipe
from mirage_kernels.generator.schedules.attention.lower import attention_program
from mirage_kernels.generator.search.gate import require_storage

Given = dict[str, Tensor]
X, W = drawn(6, 64), drawn(64, 32)


def router(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(x.float() @ w.float(), -1).to(x.dtype)


def residual(x: Tensor, h: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = h + x.float()
    y = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
    return F.linear(y, w), h


def summed(x: Tensor) -> Tensor:
    powers = torch.exp(x.float() / 4)
    return (torch.cumsum(powers, -1) + powers).to(x.dtype)


def state(x: Tensor, decay: Tensor, h: Tensor) -> Tensor:
    h.copy_(h * torch.sigmoid(decay.float()) + x.float())
    return h.sum(-1)


def widened(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(F.linear(x, w.t()).float(), -1)


def logits(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w.t()).float()


WIDE: dict[Callable[..., Any], tuple[Given, list[str]]] = {
    router: ({"x": X, "w": drawn(64, 160)}, ["matmul"]),
    residual: ({"x": X, "h": drawn(6, 64).float() * 99, "w": drawn(32, 64)}, ["rsqrt", "add"]),
    summed: ({"x": X}, ["exp"]),
    state: ({"x": X, "decay": X.flip(0), "h": drawn(6, 64).float() * 99}, ["add", "sum_1"]),
    widened: ({"x": X, "w": W}, ["softmax"]),
}


def cut(run: Callable[..., Any], given: Given, make: Callable[..., Any] = made) -> Program:
    examples = {n: x.to("meta") for n, x in given.items()}
    dynamic = {n: {0: "M"} for n in given if n != "w"}
    return partitioned(Function(run, examples, dynamic, "f"), DType.BF16, "sm_90a", make)


def stored(program: Program) -> dict[str, bool]:
    """Return by name which results of kernels are stored in fp32."""
    found = {}
    results = {r.record.recipe: r.request.recipe.stored(DType.BF16) for r in program.results}
    for step in (s for s in program.document["ways"][0]["steps"] if "kernel" in s):
        types = results[step["kernel"].removesuffix("_any")]
        for result, dtype in zip(step["results"], types, strict=True):
            found[result["value"]] = dtype is DType.FP32
    return found


@pytest.mark.parametrize("run", WIDE, ids=lambda run: run.__name__)
def test_what_pytorch_keeps_in_fp32_is_stored_so(run: Callable[..., Any]) -> None:
    given, wide = WIDE[run]
    program = cut(run, given)
    assert [name for name, is_wide in stored(program).items() if is_wide] == wide
    require_same(program, run, **given)


def test_what_a_product_rounds_is_stored_in_16_bits() -> None:
    program = cut(logits, {"x": X, "w": W})
    assert stored(program) == {"to": False}
    require_same(program, logits, x=X, w=W)


def test_what_takes_a_cast_that_rounds_nothing_casts_itself() -> None:
    w = drawn(64, 160)
    program = cut(widened, {"x": X, "w": w})
    assert ways(program)[0] == ["linear", "softmax"]
    assert stored(program) == {"linear": False, "softmax": True}
    require_same(program, widened, x=X, w=w)


def test_a_cast_is_not_put_off_beyond_what_writes_over_its_operand() -> None:
    def written(x: Tensor, y: Tensor) -> Tensor:
        wide = torch.exp(x).float()
        y.copy_(x)
        return torch.sigmoid(wide) + y

    program = cut(written, {"x": X, "y": X.flip(0)})
    require_same(program, written, x=X, y=X.flip(0))


def test_a_state_of_fp32_is_written_where_it_is() -> None:
    program = cut(state, WIDE[state][0])
    assert len(ways(program)[0]) == 2
    first, *_ = program.document["ways"][0]["steps"]
    assert [r["into"]["value"] for r in first["results"]] == ["h"]


def test_such_kernels_are_general_ones_that_write_floats() -> None:
    program = cut(residual, WIDE[residual][0], really_made)
    (result,) = (r for r in program.results if r.request.recipe.stores)
    assert {v.schedule for v in result.record.variants} == {"general"}
    graph = result.record.graph
    assert [graph.values[o].type.dtype for o in graph.outputs] == [DType.FP32] * 2
    (cuda,) = (text for name, text in result.files.items() if name.endswith(".cu"))
    assert cuda.count("float* out_stored;") == 1
    for make in (tile_program, attention_program):
        with pytest.raises(PlanError, match="f: only general kernels store fp32"):
            make("f", graph)


def test_a_result_of_another_type_than_the_recipe_says_is_refused() -> None:
    graph = cut(summed, WIDE[summed][0], really_made).results[0].record.graph
    require_storage(graph, graph, [DType.FP32])
    with pytest.raises(VerifyError, match="is fp32, not bf16"):
        require_storage(graph, graph, [DType.BF16])


def test_operands_of_a_product_are_cast_by_its_kernel() -> None:
    def wide(h: Tensor, w: Tensor) -> Tensor:
        return F.linear(h, w.float())

    given = {"h": drawn(6, 64).float(), "w": drawn(32, 64)}
    program = cut(wide, given, really_made)
    assert ways(program)[0] == ["linear"]
    require_same(program, wide, **given)


def test_a_wide_result_that_there_is_none_of_is_named() -> None:
    declare = recipe(
        inputs={"x": "M K"},
        output="M K",
        dynamic={"M": 8},
        reference=lambda x: x,
        stores={"also": DType.FP32},
    )
    with pytest.raises(
        RecipeError, match="stores of recipe f names also, which is none of its res"
    ):

        @declare
        def f(x: Tensor) -> Tensor:
            return x


def test_the_triton_program_rounds_where_all_tensors_are_fp32() -> None:
    def run(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, torch.einsum("bmkh,bkhn->bmhn", a * a, b)

    given = {"x": X, "a": torch.empty(2, 32, 32, 4), "b": torch.empty(2, 32, 4, 16)}
    program = cut_given(run, given, make=really_made)
    (triton,) = (t for n, t in program.results[1].files.items() if n.endswith(".py"))
    assert "storage = tl.bfloat16" in triton
