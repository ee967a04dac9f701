"""Rows that dynamic dims and static ones number: one dim, split by the function or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cutting import cut, drawn, really_made, require_same, ways
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.partition.program import Program
from mirage_kernels.program_steps import way_of

K, N = 128, 256
T, FEW = 4, 2  # rows of a sequence, and of one whose products are of few rows


def flattened(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """GPT-2's Conv1D: a product of all rows, whose result has its dims again."""
    made = torch.addmm(b, x.view(-1, x.size(-1)), w)
    return made.view(x.shape[0], x.shape[1], -1)


def activated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = flattened(x, w, b)
    return torch.tanh(y + 0.5 * y * y * y) * y


def residual(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """OPT's: all rows have one dim until the sum is done."""
    rows = x.reshape(-1, x.size(-1))
    return (rows + F.linear(torch.relu(torch.addmm(b, rows, w)), w)).view(x.shape)


def normed(x: Tensor, n: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], n, 1e-5)


def gated(x: Tensor, n: Tensor, g: Tensor, u: Tensor) -> Tensor:
    y = normed(x, n)
    return F.silu(F.linear(y, g)) * F.linear(y, u)


def headed(x: Tensor, n: Tensor, h: Tensor) -> Tensor:
    """Qwen's: what numbers rows is a part of a dim of what the product stores."""
    y = F.linear(x, h).view(x.shape[0], x.shape[1], -1, K).float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (n * y.to(x.dtype)).transpose(1, 2)


def attended(x: Tensor) -> Tensor:
    """Causal attention of a dynamic number of queries."""
    y = x.view(x.shape[0], x.shape[1], -1, 32).transpose(1, 2)
    return F.scaled_dot_product_attention(y, y, y, is_causal=True)


def summed(x: Tensor) -> Tensor:
    """A sum along the static dim tells the two apart."""
    return torch.softmax(x, -1).sum(1)


WEIGHTS = {"w": (K, N), "b": (N,), "n": (K,), "g": (N, K), "u": (N, K), "h": (4 * K, K)}
FUNCTIONS: dict[Callable[..., Any], dict[str, tuple[int, ...]]] = {
    activated: {"x": (2, T, K)},
    residual: {"x": (2, T, K)},
    normed: {"x": (2, T, K)},
    gated: {"x": (2, FEW, K)},
    headed: {"x": (2, FEW, K)},
    attended: {"x": (2, T, K)},
    summed: {"x": (2, T, K)},
}


def weights_of(run: Callable[..., Any]) -> dict[str, tuple[int, ...]]:
    return {n: WEIGHTS[n] for n in run.__annotations__ if n in WEIGHTS}


def cut_by(run: Callable[..., Any], *dims: str) -> Program:
    return cut(run, [*FUNCTIONS[run]], dims=dims, **FUNCTIONS[run], **weights_of(run))


def require_rows(run: Callable[..., Any], program: Program, *rows: int) -> None:
    """Compare with the function at extents of the first dims."""
    own = {n: (*rows, *shape[len(rows) :]) for n, shape in FUNCTIONS[run].items()}
    shapes = own | weights_of(run)
    given = {n: drawn(*s) * (0.1 if n in WEIGHTS else 1) for n, s in shapes.items()}
    require_same(program, run, **given)


@pytest.mark.parametrize("run", FUNCTIONS, ids=lambda run: run.__name__)
def test_any_number_of_rows_is_computed(run: Callable[..., Any]) -> None:
    program = cut_by(run, "M")
    for rows in (1, 2, 6, 40):
        require_rows(run, program, rows)


@pytest.mark.parametrize("run", FUNCTIONS, ids=lambda run: run.__name__)
def test_batch_and_sequence_may_both_be_dynamic(run: Callable[..., Any]) -> None:
    program = cut_by(run, "B", "T")
    for batch, tokens in ((1, 1), (3, 5), (1, 70), (9, 9)):
        require_rows(run, program, batch, tokens)


def test_products_ask_how_many_rows_all_dims_have_together() -> None:
    program = cut_by(gated, "B", "T")
    assert [way.most for way in program.ways] == [{"B*T": 64}, {}]
    many = {n: drawn(*s) for n, s in WEIGHTS.items() if n in "ngu"} | {"x": drawn(5, 13, K)}
    (step, *_) = way_of(program.document, {"B": 5, "T": 13})["steps"]
    assert step in program.ways[1].steps
    require_same(program, gated, **many)


def test_a_limit_that_another_implies_is_left_out() -> None:
    def projected(x: Tensor, v: Tensor) -> Tensor:
        return F.linear(attended(x).transpose(1, 2).reshape(x.shape), v)

    program = cut(projected, ["x"], dims=("B", "T"), x=(2, T, K), v=(N, K))
    assert [way.most for way in program.ways] == [{"B*T": 64}, {}]
    for rows in ((2, 5), (1, 70)):
        require_same(program, projected, x=drawn(*rows, K), v=drawn(N, K) * 0.1)


def test_what_lies_between_two_views_is_one_kernel() -> None:
    given = {"x": (2, T, K), "w": (K, N), "b": (N,)}
    program = cut(activated, ["x"], **given)
    assert ways(program)[-1] == ["[addmm]", "mul, mul, mul, add, tanh, mul"]
    assert not program.reasons


def test_products_and_norms_have_the_kernels_of_rows_of_one_dim() -> None:
    weights = {n: WEIGHTS[n] for n in "ngu"}
    one, two = (cut(gated, ["x"], really_made, x=x, **weights) for x in ((2, K), (2, FEW, K)))
    assert ways(one) == ways(two)
    rows = [r for f in (one, two) for r in f.results if "silu" not in r.record.recipe]
    assert [r.files for r in rows[: len(rows) // 2]] == [r.files for r in rows[len(rows) // 2 :]]
    assert (one.ways[0].most, two.ways[0].most) == ({"M": 64}, {"M": 64 // FEW})


def test_rows_with_gaps_between_them_stay_as_they_are() -> None:
    def later(x: Tensor) -> Tensor:
        return F.silu(x[:, 1:])

    program = cut(later, ["x"], x=(2, T, K))
    (result,) = program.results
    assert result.request.recipe.shapes[0].dims == {"D2": (T - 1) * K}
    require_same(program, later, x=drawn(3, T, K))


def test_products_of_other_numbers_of_rows_have_a_way_of_their_own() -> None:
    def modulated(x: Tensor, c: Tensor, v: Tensor, w: Tensor) -> Tensor:
        shift, scale = F.linear(F.silu(c), v).chunk(2, -1)
        return F.linear(x * (1 + scale[:, None]) + shift[:, None], w)

    shapes = {"x": (2, 16, 128), "c": (2, 128), "v": (256, 128), "w": (128, 128)}
    program = cut(modulated, ["x", "c"], dims=("B",), **shapes)
    assert [dict(way.most) for way in program.ways] == [{"B": 4}, {"B": 64}, {}]
    assert [sum("linear" in x for x in way) for way in ways(program)] == [2, 2, 2]
    assert [way.count("[linear]") for way in ways(program)] == [0, 1, 2]
    for rows in (3, 40, 70):
        given = {n: (rows, *s[1:]) if n in "xc" else s for n, s in shapes.items()}
        require_same(program, modulated, **{n: drawn(*s) for n, s in given.items()})


def test_functions_in_front_of_a_product_are_a_kernel_of_their_own() -> None:
    def activated(x: Tensor, w: Tensor) -> Tensor:
        return F.linear(F.silu(x), w)

    def squared(x: Tensor, w: Tensor) -> Tensor:
        return F.linear(F.relu(x).square(), w)

    both = [cut(f, ["x"], really_made, x=(4, 1024), w=(2048, 1024)) for f in (activated, squared)]
    assert [ways(one)[0] for one in both] == [["silu", "linear"], ["relu, square, linear"]]
