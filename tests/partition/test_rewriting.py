"""Operators that are written in others before a function is cut."""

from __future__ import annotations

import pytest
import torch
from cutting import cut, cut_given, drawn, require_same, ways
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.partition.rewriting import spelled_out
from mirage_kernels.generator.pipeline import Result, generate
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.request import Request


def test_keys_repeated_for_the_heads_of_a_group_are_read_in_attention_s_kernel() -> None:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(4, dim=1) for x in (k, v))
        weights = torch.softmax(torch.tanh(q @ k.transpose(2, 3) / 30) * 30, -1)
        return weights @ v

    shapes = {"q": (2, 8, 1, 16), "k": (2, 2, 24, 16), "v": (2, 2, 24, 16)}
    program = cut(run, [], **shapes)
    assert ways(program) == [["matmul, div, tanh, mul, softmax, matmul"]]
    require_same(program, run, **{n: drawn(*s) for n, s in shapes.items()})


def test_keys_that_are_expanded_for_the_heads_of_a_group_are_read_in_attention_s_kernel() -> None:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x[:, :, None].expand(-1, -1, 4, -1, -1).reshape(2, 8, 24, 16) for x in (k, v))
        return torch.softmax(q @ k.transpose(2, 3), -1) @ v

    shapes = {"q": (2, 8, 1, 16), "k": (2, 2, 24, 16), "v": (2, 2, 24, 16)}
    program = cut(run, [], **shapes)
    assert ways(program) == [["matmul, softmax, matmul"]]
    assert [i["value"] for i in program.ways[0].steps[-1]["inputs"]] == ["q", "k", "v"]
    require_same(program, run, **{n: drawn(*s) for n, s in shapes.items()})


def test_sums_and_maxima_along_what_is_expanded_count_all_of_it() -> None:
    def run(x: Tensor, y: Tensor) -> Tensor:
        wide = x[:, None, :].expand(-1, 6, -1)
        return wide.sum(1) * y + wide.amax(1) + wide.mean((1, 2), keepdim=True)[:, 0]

    program = cut(run, ["x", "y"], x=(8, 96), y=(8, 96))
    assert not any(text.startswith("[") for text in ways(program)[0])
    require_same(program, run, x=drawn(5, 96), y=drawn(5, 96))


def test_a_narrowed_tensor_is_a_slice() -> None:
    def run(x: Tensor) -> Tensor:
        return x.narrow(-1, 8, 40) * x.narrow(1, -40, 40)

    program = cut(run, ["x"], x=(8, 96))
    assert ways(program) == [["mul"]]
    require_same(program, run, x=drawn(5, 96))


def test_one_index_of_a_list_is_a_slice() -> None:
    class Ends(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, [-2]] * x[:, [1]] + x[:, [-1]] * torch.tensor(2.0)

    run = nn.Sequential(nn.Sequential(Ends(), nn.ReLU()), nn.Tanh())
    program = cut_given(run, {"input": drawn(8, 12, 32)})
    assert ways(program) == [["mul, mul, add, relu, tanh"]]
    require_same(program, run, input=drawn(8, 12, 32))


def test_pads_of_nothing_are_left_out() -> None:
    def run(x: Tensor) -> Tensor:
        return F.pad(torch.tanh(x), (0, 0, 0, 0)) * 2

    program = cut(run, ["x"], x=(8, 32))
    assert ways(program) == [["tanh, mul"]]
    require_same(program, run, x=drawn(5, 32))


def test_tensors_of_one_number_take_nothing_of_those_that_they_are_like() -> None:
    def run(x: Tensor) -> Tensor:
        y = torch.relu(x)
        hidden = torch.triu(y.new_full((96, 96), -float("inf")), 1)
        far = torch.tril(torch.ones_like(hidden) * -float("inf"), -9)
        return (
            torch.softmax(y[:, None, :] + (hidden + far)[:8, :], -1) + torch.zeros_like(x)[:, None]
        )

    program = cut(run, [], x=(8, 96))
    require_same(program, run, x=drawn(8, 96))


def test_a_gated_linear_unit_is_a_product_of_slices() -> None:
    program = cut(F.glu, ["input"], input=(8, 96))
    assert ways(program) == [["sigmoid, mul"]]
    require_same(program, F.glu, input=drawn(5, 96))


def test_a_pool_of_one_element_is_a_mean() -> None:
    def run(x: Tensor) -> Tensor:
        return x * torch.sigmoid(nn.AdaptiveAvgPool2d(1)(x))

    program = cut(run, [], x=(2, 8, 6, 6))
    assert ways(program) == [["mean, sigmoid, mul"]]
    require_same(program, run, x=drawn(2, 8, 6, 6))


def test_cosines_and_their_like_are_kernels() -> None:
    def run(x: Tensor, y: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        mixed = torch.lerp(x, y, t) + torch.addcmul(x, y, t, value=0.5) - torch.addcdiv(x, y, t)
        return F.cosine_similarity(x, y), torch.exp2(-mixed.abs()) + torch.log2(1 + mixed.square())

    program = cut(run, ["x", "y"], x=(8, 96), y=(8, 96), t=(96,))
    assert not any(text.startswith("[") for text in ways(program)[0])
    require_same(program, run, x=drawn(5, 96), y=drawn(6, 96)[:5], t=drawn(96).abs() + 1)


def test_a_sum_of_batched_products_is_a_product() -> None:
    def run(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.relu(torch.baddbmm(c, a, b, beta=0.5, alpha=2))

    shapes = {"c": (4, 1, 24), "a": (4, 8, 16), "b": (4, 16, 24)}
    program = cut(run, [], **shapes)
    require_same(program, run, **{n: drawn(*s) for n, s in shapes.items()})


@pytest.mark.parametrize(
    ("equation", "shapes", "kernels"),
    [
        ("bld,bde,bl->ble", [(6, 8, 16), (6, 16, 24), (6, 8)], True),
        ("ab,cb,cd->ad", [(8, 16), (24, 16), (24, 32)], True),
        ("...ab,...bc,...c", [(6, 8, 16), (6, 16, 24), (6, 24)], True),
        ("bld,bde->be", [(6, 8, 16), (6, 16, 24)], True),  # l is in one operand alone
        ("bld->db", [(6, 8, 16)], True),
        ("bll->bl", [(6, 8, 8)], False),  # a diagonal
    ],
)
def test_products_of_any_number_of_operands_are_kernels(
    equation: str, shapes: list[tuple[int, ...]], *, kernels: bool
) -> None:
    def run(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return torch.tanh(torch.einsum(equation, *[x, y, z][: len(shapes)]))

    given = dict(zip("xyz", [*shapes, (1,), (1,)], strict=False))
    program = cut(run, [], **given)
    assert kernels == (not any(text.startswith("[") for text in ways(program)[0]))
    require_same(program, run, **{n: drawn(*s) for n, s in given.items()})


@pytest.mark.parametrize(
    ("equation", "ranks", "explicit"),
    [
        ("ij, jk -> ik", (2, 2), "ij,jk->ik"),
        ("ij,jk", (2, 2), "ij,jk->ik"),
        ("...qk,...kd->...qd", (4, 4), "baqk,bakd->baqd"),
        ("...k,dk->...d", (3, 2), "bak,dk->bad"),
        ("k...,k", (3, 1), "kba,k->ba"),
    ],
)
def test_equations_are_spelled_out(equation: str, ranks: tuple[int, ...], explicit: str) -> None:
    assert spelled_out(equation, ranks) == explicit
    a, b = (torch.rand((3,) * rank) for rank in ranks)
    torch.testing.assert_close(torch.einsum(equation, a, b), torch.einsum(explicit, a, b))


def test_an_exp_of_another_one_begins_a_kernel() -> None:
    def run(w: Tensor, s: Tensor) -> Tensor:
        return s * torch.exp(-torch.exp(w))[:, None] + torch.softmax(torch.softmax(s, -1), -1)

    def make(recipe: Recipe) -> Result:
        request = Request(recipe, recipe.shapes[0], DType.BF16)
        return generate(request, jobs=1, progress=lambda event: None)

    program = cut(run, [], make, w=(8,), s=(8, 64))
    assert not any(text.startswith("[") for text in ways(program)[0])
    (line,) = {*program.reason_lines()}
    assert line.startswith("  several kernels: exp of a value that depends on another exp")
    require_same(program, run, w=drawn(8), s=drawn(8, 64))


def test_attention_whose_second_product_has_no_form_is_cut() -> None:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.softmax(torch.einsum("hd,hld->hl", q, k), -1)
        return torch.einsum("hl,hldd->hd", weights, v)

    shapes = {"q": (4, 16), "k": (4, 24, 16), "v": (4, 24, 16, 16)}
    program = cut(run, [], **shapes)
    assert ways(program)[0][-1] == "[einsum]"
    require_same(program, run, **{n: drawn(*s) for n, s in shapes.items()})


def test_attention_stores_rows_as_the_next_product_takes_them() -> None:
    def projected(x: Tensor, w: Tensor) -> Tensor:
        y = x.view(x.shape[0], x.shape[1], 4, 32).transpose(1, 2)
        made = F.scaled_dot_product_attention(y, y, y)
        return F.linear(made.transpose(1, 2).reshape(x.shape), w)

    program = cut(projected, ["x"], x=(2, 3, 128), w=(64, 128))
    assert ways(program)[0] == ["scaled_dot_product_attention, contiguous", "linear"]
    require_same(program, projected, x=drawn(4, 3, 128), w=drawn(64, 128) * 0.1)


def test_what_no_product_takes_is_not_copied() -> None:
    def turned(x: Tensor, w: Tensor) -> Tensor:
        return F.silu((F.linear(x, w) * 2.0).transpose(0, 1).reshape(-1))

    program = cut(turned, ["x"], x=(8, 128), w=(64, 128))
    assert not any("contiguous" in part for part in ways(program)[0])
    require_same(program, turned, x=drawn(5, 128), w=drawn(64, 128) * 0.1)
