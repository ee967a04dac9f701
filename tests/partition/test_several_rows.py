"""Rows that dynamic dims and static ones number: one dim, split by the function or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cutting import cut, drawn, really_made, require_same, ways
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

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


def summed(x: Tensor) -> Tensor:
    """A sum along the static dim tells the two apart."""
    return torch.softmax(x, -1).sum(1)


WEIGHTS = {"w": (K, N), "b": (N,), "n": (K,), "g": (N, K), "u": (N, K)}
FUNCTIONS: dict[Callable[..., Any], dict[str, tuple[int, ...]]] = {
    activated: {"x": (2, T, K)},
    residual: {"x": (2, T, K)},
    normed: {"x": (2, T, K)},
    gated: {"x": (2, FEW, K)},
    summed: {"x": (2, T, K)},
}


@pytest.mark.parametrize("run", FUNCTIONS, ids=lambda run: run.__name__)
def test_any_number_of_rows_is_computed(run: Callable[..., Any]) -> None:
    names = [n for n in run.__annotations__ if n != "return"]
    shapes = FUNCTIONS[run] | {n: WEIGHTS[n] for n in names if n in WEIGHTS}
    program = cut(run, [*FUNCTIONS[run]], **shapes)
    for times in (1, 3):
        own = {n: (s[0] * times, *s[1:]) if n in FUNCTIONS[run] else s for n, s in shapes.items()}
        given = {n: drawn(*s) * (0.1 if n in WEIGHTS else 1) for n, s in own.items()}
        require_same(program, run, **given)


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
