"""Masks that functions make of positions: kernels compare positions, and store and read no mask."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
from cutting import cut, drawn, really_made, require_same, ways
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.errors import RecipeError, VerifyError
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.frontend.references import require_reference
from mirage_kernels.generator.ir import DType, Graph, Node
from mirage_kernels.generator.pipeline import proved_graphs
from mirage_kernels.generator.recipe import trace
from mirage_kernels.generator.search.cases import small_cases
from mirage_kernels.generator.search.verify import prove

HIDDEN = -math.inf


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def last_tokens(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows, keys = q.shape[-2], k.shape[-2]
    seen = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows, keys = q.shape[-2], k.shape[-2]
    below = torch.tril(torch.ones(rows, keys)).view(1, 1, rows, keys)
    scores = (q @ k.transpose(-1, -2) * 0.2).masked_fill(below == 0, HIDDEN)
    return torch.softmax(scores, -1) @ v


ATTENTIONS: dict[str, tuple[Callable[..., Tensor], int]] = {
    "is_causal": (causal, 4),
    "is_causal with groups": (grouped, 2),
    "a boolean mask": (last_tokens, 4),
    "products and a softmax": (by_hand, 4),
}


def filled(x: Tensor) -> Tensor:
    above = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax(x.masked_fill(above, HIDDEN), -1)


def added(x: Tensor) -> Tensor:
    return torch.softmax(x + torch.full(x.shape[-2:], HIDDEN).triu(1), -1)


def penalised(x: Tensor) -> Tensor:
    below = torch.tril(torch.ones(x.shape[-2:]))
    return torch.softmax(x + (1 - below) * -50.0, -1)


def within_a_window(x: Tensor) -> Tensor:
    row, column = torch.arange(x.shape[-2])[:, None], torch.arange(x.shape[-1])
    seen = (column <= row) & (column > row - 5)
    return torch.softmax(torch.where(seen, x, HIDDEN), -1)


def not_the_last(x: Tensor) -> Tensor:
    return torch.logsumexp(x.masked_fill(torch.arange(x.shape[-1]) >= 20, HIDDEN), -1)


def lower(x: Tensor) -> Tensor:
    return torch.tril(x, 2) + 1


def scaled(x: Tensor) -> Tensor:
    return x * torch.ones(x.shape[-2:]).triu(-1)


def exponentials(x: Tensor) -> Tensor:
    above = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)
    return torch.exp(x.masked_fill(above, HIDDEN)) * 2


CHOICES = [exponentials, filled, added, penalised, within_a_window, not_the_last, lower, scaled]


@pytest.mark.parametrize("name", ATTENTIONS)
def test_causal_attention_is_one_kernel(name: str) -> None:
    run, heads = ATTENTIONS[name]
    shapes = {"q": (2, 4, 8, 16), "k": (2, heads, 24, 16), "v": (2, heads, 24, 16)}
    program = cut(run, [*shapes], **shapes)
    assert len(ways(program)[0]) == 1
    require_same(program, run, **{n: drawn(3, *s[1:]) for n, s in shapes.items()})


@pytest.mark.parametrize("run", CHOICES, ids=lambda run: run.__name__)
def test_a_choice_by_position_is_part_of_a_kernel(run: Callable[[Tensor], Tensor]) -> None:
    program = cut(run, ["x"], x=(4, 24, 24))
    assert len(ways(program)[0]) == 1
    assert "[" not in str(ways(program)[0][0])
    require_same(program, run, x=drawn(3, 24, 24))
    recipe = from_torch(run, {"x": torch.empty(4, 24, 24)}, dynamic={"x": {0: "M"}})
    require_reference(recipe, trace(recipe, recipe.shapes[0], DType.BF16), DType.BF16)


@pytest.mark.parametrize("run", [causal, filled, within_a_window], ids=lambda run: run.__name__)
def test_such_a_kernel_is_found_and_proved(run: Callable[..., Any]) -> None:
    attention = {"q": (2, 4, 8, 16), "k": (2, 4, 80, 16), "v": (2, 4, 80, 16)}
    shapes = attention if run is causal else {"x": (4, 24, 24)}
    program = cut(run, [*shapes], really_made, **shapes)
    assert not program.reasons
    (record,) = (result.record for result in program.results)
    assert record.proof.log2_failure <= -40


def test_a_mask_that_pytorch_takes_is_made_by_pytorch() -> None:
    def positions(x: Tensor) -> tuple[Tensor, Tensor]:
        below = torch.ones(x.shape[-2:], dtype=torch.bool).tril()
        return torch.sort(x.masked_fill(below, 0.0), dim=-1)[1] + below, torch.relu(x)

    program = cut(positions, ["x"], x=(4, 8, 8))
    assert {"[sort]", "relu"} <= {*ways(program)[0]}
    require_same(program, positions, x=drawn(3, 8, 8))


def prefix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    at = torch.arange(q.shape[-2])
    seen = (at[None, :] <= at[:, None]) | (at[None, :] < 3)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen[None, None])


def prefix_added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    at = torch.arange(q.shape[-2])
    seen = (at[None, :] <= at[:, None]) | (at[None, :] < 3)
    scores = q @ k.mT + torch.where(seen, 0.0, -math.inf).to(q.dtype)
    return torch.softmax(scores, -1) @ v


@pytest.mark.parametrize(
    ("run", "kernel"),
    [
        (prefix, ["[or]", "scaled_dot_product_attention"]),
        (prefix_added, ["[or]", "[where]", "[to]", "matmul, add, softmax, matmul"]),
    ],
)
def test_pytorch_stores_a_mask_where_one_of_several_conditions_holds(
    run: Callable[..., Tensor], kernel: list[str]
) -> None:
    shape = (1, 2, 20, 32)
    program = cut(run, [], q=shape, k=shape, v=shape)
    assert ways(program) == [kernel]
    require_same(program, run, q=drawn(*shape), k=drawn(*shape), v=drawn(*shape))


def test_a_mask_is_no_result_of_one_kernel() -> None:
    def mask(x: Tensor) -> Tensor:
        return torch.ones(x.shape[-2:]).tril()

    with pytest.raises(RecipeError, match="mask returns positions or a mask"):
        from_torch(mask, {"x": torch.empty(4, 4)})


def windowed(scores: Tensor) -> Tensor:
    rows, keys = scores.shape[-2:]
    at, key = torch.arange(keys - rows, keys)[:, None], torch.arange(keys)[None, :]
    seen = (key <= at) & (key > at - 20)
    return torch.softmax(scores.masked_fill(~seen, HIDDEN), -1)


def changed(graph: Graph, change: Callable[[Node], Node]) -> Graph:
    body = [n if n.body is None else replace(n, body=changed(n.body, change)) for n in graph.nodes]
    return replace(graph, nodes=tuple(change(n) for n in body))


@pytest.mark.parametrize("side", [0, 1])
def test_a_window_of_positions_is_a_kernel_that_keeps_both_of_its_sides(side: int) -> None:
    def one_sided(node: Node) -> Node:
        return replace(node, args=(node.args[side],) * 2) if node.op == "both" else node

    program = cut(windowed, [], really_made, scores=(4, 24, 72))
    assert ways(program) == [["masked_fill, softmax"]]
    require_same(program, windowed, scores=drawn(4, 24, 72))
    (made,) = program.results
    spec = trace(made.request.recipe, made.request.shape, made.request.dtype)
    cases = [*small_cases(spec), *chain(*proved_graphs(made.record).values())]
    prove(spec, made.record.graph, cases, seed=3)
    with pytest.raises(VerifyError, match="not equal"):
        prove(spec, changed(made.record.graph, one_sided), cases, seed=3)
