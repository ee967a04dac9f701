"""Products by several matrices, as those of experts: general kernels where rows are few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cutting import cut, drawn, made, really_made, require_same, ways
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

T, D, N, E = 8, 64, 96, 4
SHAPES = {"x": (T, D), "router": (D, E), "w1": (E, D, N), "w3": (E, D, N), "w2": (E, N, D)}


def by_einsum(x: Tensor, router: Tensor, w1: Tensor, w3: Tensor, w2: Tensor) -> Tensor:
    p = torch.softmax(x @ router, -1)
    gate, up = (torch.einsum("td,edf->etf", x, w) for w in (w1, w3))
    out = torch.einsum("etf,efd->etd", F.silu(gate) * up, w2)
    return (out * p.T[..., None]).sum(0)


def by_token(x: Tensor, router: Tensor, w1: Tensor, w3: Tensor, w2: Tensor) -> Tensor:
    p = torch.softmax(x @ router, -1)
    gate, up = (torch.einsum("td,edf->tef", x, w) for w in (w1, w3))
    out = torch.einsum("tef,efd->ted", F.silu(gate) * up, w2)
    return torch.einsum("ted,te->td", out, p)


def by_bmm(x: Tensor, router: Tensor, w1: Tensor, w3: Tensor, w2: Tensor) -> Tensor:
    p = torch.softmax(x @ router, -1)
    tokens = x[None].expand(w1.shape[0], -1, -1)
    hidden = F.silu(torch.bmm(tokens, w1)) * torch.bmm(tokens, w3)
    return torch.einsum("etd,te->td", torch.bmm(hidden, w2), p)


def by_matmul(x: Tensor, router: Tensor, w1: Tensor, w3: Tensor, w2: Tensor) -> Tensor:
    p = torch.softmax(x @ router, -1)
    return ((F.silu(x @ w1) * (x @ w3)) @ w2 * p.T.unsqueeze(-1)).sum(0)


def packed(x: Tensor, router: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    p = torch.softmax(F.linear(x, router).float(), -1).to(x.dtype)
    gate, up = torch.bmm(x[None].expand(E, -1, -1), w1.transpose(1, 2)).chunk(2, -1)
    return torch.einsum("etd,te->td", torch.bmm(F.silu(gate) * up, w2), p)


def packed_einsum(x: Tensor, router: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    p = torch.softmax(F.linear(x, router), -1)
    both = torch.einsum("td,efd->etf", x, w1)
    out = torch.einsum("etf,efd->etd", F.silu(both[..., :N]) * both[..., N:], w2)
    return torch.einsum("etd,te->td", out, p)


def gpt_oss(x: Tensor, router: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Compute all experts as transformers does: biases, gate and up in turn in memory, clamped."""
    p = torch.softmax(F.linear(x, router), -1)
    tokens = x.repeat(E, 1).view(E, -1, D)
    both = torch.bmm(tokens, w1) + b1[..., None, :]
    gate, up = both[..., ::2].clamp(max=7.0), both[..., 1::2].clamp(min=-7.0, max=7.0)
    out = torch.bmm((up + 1) * (gate * torch.sigmoid(gate * 1.7)), w2) + b2[..., None, :]
    return (out.view(E, T, -1, D) * p.t().reshape(E, T, -1)[..., None]).sum(0)


def test_experts_of_gpt_oss_are_kernels() -> None:
    shapes = {"x": (T, D), "router": (E, D), "w1": (E, D, 2 * N), "b1": (E, 2 * N)}
    shapes |= {"w2": (E, N, D), "b2": (E, D)}
    program = cut(gpt_oss, [], **shapes)
    assert not any(text.startswith("[") for text in ways(program)[0])
    assert sum(text.count("bmm") for text in ways(program)[0]) == 2
    require_same(program, gpt_oss, **{n: drawn(*s) / s[-1] ** 0.25 for n, s in shapes.items()})


@pytest.mark.parametrize("run", [packed, packed_einsum])
def test_packed_experts_are_one_gated_kernel(run: Callable[..., Any]) -> None:
    shapes = {"x": (T, D), "router": (E, D), "w1": (E, 2 * N, D), "w2": (E, N, D)}
    program = cut(run, [], **shapes)
    gated = next(text for text in ways(program)[0] if "silu" in text)
    assert gated.replace("einsum", "bmm") == "bmm, bmm, silu, mul"
    require_same(program, run, **{n: drawn(*s) / s[-1] ** 0.25 for n, s in shapes.items()})


EXPERTS: list[Callable[..., Any]] = [by_einsum, by_token, by_bmm, by_matmul]


@pytest.mark.parametrize("run", EXPERTS)
@pytest.mark.parametrize("rows", [[], ["x"]])
def test_products_of_experts_are_kernels_for_few_tokens(
    run: Callable[..., Any], rows: list[str]
) -> None:
    program = cut(run, rows, **SHAPES)
    few = ways(program)[0]
    assert not any(text.startswith("[") for text in few)
    gated = [text for text in few if "silu" in text]
    assert len(gated) == 1
    assert sum(gated[0].count(op) for op in ("einsum", "bmm", "matmul")) == 2
    require_same(program, run, **{n: drawn(*s) / s[-1] ** 0.25 for n, s in SHAPES.items()})


def test_products_of_experts_are_pytorch_s_for_many_tokens() -> None:
    program = cut(by_bmm, ["x"], **SHAPES)
    assert ways(program)[1].count("[bmm]") >= 2
    given = {n: drawn(*s) / s[-1] ** 0.25 for n, s in SHAPES.items()} | {"x": drawn(70, D)}
    require_same(program, by_bmm, **given)


def test_such_a_product_is_found_and_proved_though_no_fast_schedule_takes_it() -> None:
    def gated(x: Tensor, w1: Tensor, w3: Tensor) -> Tensor:
        return F.silu(x @ w1) * (x @ w3)

    program = cut(gated, [], really_made, **{n: SHAPES[n] for n in ("x", "w1", "w3")})
    assert ways(program) == [["matmul, silu, matmul, mul"]]
    (result,) = program.results
    assert result.record.proof.log2_failure <= -40
    assert {v.schedule for v in result.record.variants} == {"general"}


def test_a_product_of_one_matrix_without_a_fast_schedule_stays_pytorch_s() -> None:
    def general(recipe: Any) -> Any:
        return made(recipe, "general")

    program = cut(lambda x, w: x @ w, ["x"], general, x=(T, D), w=(D, 1024))
    assert ways(program) == [["[matmul]"]]
    assert "a general kernel takes longer" in " ".join(program.lines())
