"""Packed weights: gate and up of one product are two halves of its weight, q, k and v are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cutting import cut, drawn, made, really_made, require_same, ways
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.recipe import Recipe

K, N = 96, 64
SHAPES = {"x": (8, K), "w": (2 * N, K)}


def chunked(x: Tensor, w: Tensor) -> Tensor:
    gate, up = F.linear(x, w).chunk(2, dim=-1)
    return up * F.silu(gate)


def with_bias(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    gate, up = F.linear(x, w, b).split(N, dim=-1)
    return F.gelu(gate) * up


def behind_a_sum(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    gate, up = (x @ w.t() + b).chunk(2, -1)
    return F.silu(gate) * up


def glu(x: Tensor, w: Tensor) -> Tensor:
    return F.glu(x @ w.t())


def in_turn(x: Tensor, w: Tensor) -> Tensor:
    both = F.linear(x, w)
    return F.silu(both[:, ::2]) * both[:, 1::2]


def behind_a_norm(x: Tensor, n: Tensor, w: Tensor, down: Tensor) -> Tensor:
    both = F.linear(F.rms_norm(x, (K,), n, 1e-5), w)
    return F.linear(F.silu(both[..., :N]) * both[..., N:], down)


MLPS: list[tuple[Callable[..., Any], dict[str, tuple[int, ...]], list[str]]] = [
    (chunked, SHAPES, ["linear, linear, silu, mul"]),
    (with_bias, SHAPES | {"b": (2 * N,)}, ["linear, linear, gelu, mul"]),
    (behind_a_sum, SHAPES | {"b": (2 * N,)}, ["matmul, matmul, add, add, silu, mul"]),
    (in_turn, SHAPES, ["linear, linear, silu, mul"]),
    (glu, SHAPES, ["matmul, matmul, sigmoid, mul"]),
    (
        behind_a_norm,
        SHAPES | {"n": (K,), "down": (K, N)},
        ["rms_norm, linear, linear, silu, mul", "linear"],
    ),
]


@pytest.mark.parametrize(("run", "shapes", "kernels"), MLPS)
def test_a_packed_gated_mlp_is_one_kernel_of_two_halves_of_its_weight(
    run: Callable[..., Any], shapes: dict[str, tuple[int, ...]], kernels: list[str]
) -> None:
    program = cut(run, ["x"], **shapes)
    assert ways(program)[0] == kernels
    for rows in (5, 70):
        given = {n: drawn(*s) for n, s in shapes.items()} | {"x": drawn(rows, K)}
        require_same(program, run, **given)


@pytest.mark.parametrize(("run", "shapes", "kernels"), MLPS)
def test_where_pytorch_multiplies_the_product_stays_one(
    run: Callable[..., Any], shapes: dict[str, tuple[int, ...]], kernels: list[str]
) -> None:
    products = [x for x in ways(cut(run, ["x"], **shapes))[1] if x in ("[linear]", "[matmul]")]
    assert len(products) == len(kernels)


def test_halves_of_a_weight_are_views_that_the_kernel_takes() -> None:
    steps = cut(chunked, ["x"], **SHAPES).ways[0].steps
    views = {s["result"]: s["args"][0]["value"] for s in steps if "call" in s}
    assert {s.get("call", "aten.slice.Tensor") for s in steps} == {"aten.slice.Tensor"}
    taken = [i["value"] for i in steps[-1]["inputs"]]
    assert [views.get(n, n) for n in taken] == ["x", "w", "w"]
    assert [i["shape"] for i in steps[-1]["inputs"]][1:] == [[N, K], [N, K]]


def queries(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    q, k, v = F.linear(x, w).split([64, 32, 32], -1)
    return q.view(-1, 4, 16), k.view(-1, 2, 16), v.view(-1, 2, 16)


def of_another_length(x: Tensor, w: Tensor) -> Tensor:
    both = F.linear(x, w)
    return both[:, :100] * both[:, 127:]


def in_turn_within_rows(x: Tensor, w: Tensor) -> Tensor:
    both = F.linear(x, w.t().contiguous().t())
    return both[:, ::2] * both[:, 1::2]


def overlapping(x: Tensor, w: Tensor) -> Tensor:
    both = F.linear(x, w)
    return both[:, :N] * both[:, N // 2 : N // 2 + N]


def returned(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    gate, up = F.linear(x, w).chunk(2, -1)
    return gate, F.silu(gate) * up


def of_two_results(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    a, b = F.linear(x, w).chunk(2, -1)
    return torch.relu(a), torch.relu(b)


def summed(x: Tensor, w: Tensor) -> Tensor:
    a, b = F.linear(x, w).chunk(2, -1)
    return a * b.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    "run",
    [
        queries,
        of_another_length,
        in_turn_within_rows,
        overlapping,
        returned,
        of_two_results,
        summed,
    ],
)
def test_products_whose_parts_do_not_just_meet_stay_one(run: Callable[..., Any]) -> None:
    program = cut(run, ["x"], **SHAPES)
    assert sum(text.count("linear") for text in ways(program)[0]) == 1
    require_same(program, run, x=drawn(5, K), w=drawn(2 * N, K))


def test_a_packed_product_that_has_no_kernel_of_its_halves_stays_one() -> None:
    def refusing(recipe: Recipe) -> Result:
        if sum(len(dims) == 2 for dims in recipe.inputs.values()) > 2 or "mul" in recipe.name:
            raise PlanError("there is no kernel")
        return made(recipe)

    program = cut(chunked, ["x"], refusing, **SHAPES)
    assert ways(program)[0][0] == "linear"
    require_same(program, chunked, x=drawn(5, K), w=drawn(2 * N, K))


def test_the_kernel_of_two_halves_is_a_fast_schedule_s() -> None:
    program = cut(chunked, ["x"], really_made, x=(8, 4096), w=(2 * 512, 4096))
    fused = program.ways[0].parts[-1]
    record = program.kernels[fused.key].record
    assert record.proof.log2_failure <= -40
    assert all(v.schedule != "general" for v in record.variants)


def test_both_ways_of_a_program_share_their_other_kernels() -> None:
    def run(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return chunked(x, w), torch.softmax(x, -1)

    program = cut(run, ["x"], **SHAPES)
    shared = [text for text in ways(program)[0] if text in ways(program)[1]]
    assert shared == ["softmax"]
    assert len(program.results) == 3  # softmax, the gated MLP, and the activation behind PyTorch
