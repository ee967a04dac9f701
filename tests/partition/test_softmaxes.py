"""Attention with sinks, and other softmaxes of joined columns of which some are cut off again."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from cutting import cut, drawn, really_made, require_same, ways
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import STORAGE
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.tiles.check import require_same as require_tiles

SCALE, WINDOW = 0.25, 8


def repeat_kv(x: Tensor, times: int) -> Tensor:
    b, h, keys, d = x.shape
    return x[:, :, None, :, :].expand(b, h, times, keys, d).reshape(b, h * times, keys, d)


def gpt_oss(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, mask: Tensor) -> Tensor:
    k, v = repeat_kv(k, 4), repeat_kv(v, 4)
    scores = torch.matmul(q, k.transpose(2, 3)) * SCALE + mask[:, :, :, : k.shape[-2]]
    columns = sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], -1)
    joined = torch.cat([scores, columns], dim=-1)
    joined = joined - joined.max(dim=-1, keepdim=True).values
    probs = F.softmax(joined, dim=-1, dtype=joined.dtype)
    dropped = F.dropout(probs[..., :-1], p=0.1, training=False)
    return torch.matmul(dropped, v).transpose(1, 2).contiguous()


def without_maximum(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(2, 3)) * SCALE
    columns = sinks.view(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], -1)
    probs = torch.softmax(torch.cat([scores, columns], -1), -1, dtype=torch.float32)
    return probs.to(q.dtype)[:, :, :, :-1] @ v


def in_a_window(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(2, 3)) * SCALE
    i = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    j = torch.arange(k.shape[2])[None]
    scores = scores.masked_fill((j > i) | (j <= i - WINDOW), float("-inf"))
    columns = sinks[:, None, None].expand(q.shape[0], -1, q.shape[2], 1).float()
    joined = torch.cat([columns, scores.float()], -1)
    joined = joined - torch.amax(joined, -1, keepdim=True)
    return joined.softmax(-1).to(q.dtype).narrow(-1, 1, k.shape[2]) @ v


def of_tokens(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    n, h, m, _ = q.shape
    keys, values = (x[:, :, None, :].expand(-1, -1, m, -1) for x in (k, v))
    columns = sinks.reshape(h, m, 1, 1).expand(-1, -1, n, -1)
    mask = torch.triu(q.new_full((n, n), -float("inf")), diagonal=1)
    mask += torch.tril(mask.new_full((n, n), -float("inf")), diagonal=-WINDOW)
    scores = torch.einsum("qhmd,khmd->hmqk", q, keys)
    scores *= SCALE
    scores += mask[None, None, :, :]
    probs = torch.softmax(torch.cat([scores, columns], dim=-1), dim=-1)[..., :-1]
    return torch.einsum("hmqk,khmd->qhmd", probs, values).reshape(n, -1)


def split_off(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(2, 3)) * SCALE
    columns = sinks.view(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], -1)
    probs, _ = torch.softmax(torch.cat([scores, columns], -1), -1).split([k.shape[2], 1], -1)
    return probs @ v


def of_zeros(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(2, 3)) * SCALE
    joined = torch.cat([scores, scores.new_zeros(*scores.shape[:-1], 1)], -1)
    return torch.softmax(joined, -1)[..., :-1] @ v


GIVEN = {"q": (2, 8, 1, 16), "k": (2, 8, 24, 16), "v": (2, 8, 24, 16), "sinks": (8,)}
GROUPED = {"k": (2, 2, 24, 16), "v": (2, 2, 24, 16), "mask": (2, 1, 1, 32)}
TOKENS = {"q": (12, 2, 4, 16), "k": (12, 2, 16), "v": (12, 2, 16), "sinks": (8,)}
ATTENTIONS: list[tuple[Callable[..., Any], dict[str, tuple[int, ...]], str]] = [
    (gpt_oss, GIVEN | GROUPED, "matmul, mul, add, softmax_beside, matmul"),
    (without_maximum, GIVEN, "matmul, mul, softmax_beside, to, matmul"),
    (
        in_a_window,
        GIVEN | {"q": (2, 8, 4, 16)},
        "matmul, mul, masked_fill, softmax_beside, to, matmul",
    ),
    (of_tokens, TOKENS, "einsum, mul, add, softmax_beside, einsum"),
    (split_off, GIVEN, "matmul, mul, softmax_beside, matmul"),
    (of_zeros, {n: GIVEN[n] for n in "qkv"}, "matmul, mul, softmax_beside, matmul"),
]


@pytest.mark.parametrize(("run", "shapes", "kernel"), ATTENTIONS)
def test_attention_with_sinks_is_one_kernel(
    run: Callable[..., Any], shapes: dict[str, tuple[int, ...]], kernel: str
) -> None:
    program = cut(run, [], **shapes)
    assert ways(program) == [[kernel]]
    require_same(program, run, **{n: drawn(*s) for n, s in shapes.items()})


def test_keys_that_are_expanded_for_a_group_are_taken_as_they_are() -> None:
    program = cut(gpt_oss, [], **GIVEN | GROUPED)
    (step,) = (s for s in program.ways[0].steps if "kernel" in s)
    taken = {given["value"]: given["shape"] for given in step["inputs"]}
    assert taken["k"] == taken["v"] == [2, 2, 24, 16]
    assert taken["q"] == [2, 2, 4, 1, 16]


def of_rows(scores: Tensor, sinks: Tensor) -> Tensor:
    joined = torch.cat([scores * 2, sinks[:, None].expand(-1, 1)], -1)
    return torch.softmax(joined, -1)[:, :-1]


def logsumexp(scores: Tensor, sinks: Tensor) -> Tensor:
    return torch.cat([scores * 2, sinks[:, None]], -1).float().logsumexp(-1)


def of_three(scores: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    joined = torch.cat([scores, sinks[:, None], scores[:, :4] * 2], -1)
    weights = torch.softmax(joined, -1)
    return weights[:, : scores.shape[1]], weights[:, scores.shape[1] + 1 :]


@pytest.mark.parametrize(
    ("run", "kernels"),
    [
        (of_rows, ["mul, softmax_beside"]),
        (logsumexp, ["mul, logsumexp, logsumexp, logaddexp"]),
        (of_three, ["mul, softmax_beside, softmax_beside"]),
    ],
)
@pytest.mark.parametrize("rows", [[], ["scores", "sinks"]])
def test_rows_of_scores_are_not_joined(
    run: Callable[..., Any], kernels: list[str], rows: list[str]
) -> None:
    program = cut(run, rows, scores=(8, 96), sinks=(8,))
    assert ways(program) == [kernels]
    require_same(program, run, scores=drawn(8, 96), sinks=drawn(8))


def written_over(scores: Tensor, sinks: Tensor) -> Tensor:
    joined = torch.cat([scores, sinks[:, None]], -1)
    scores.zero_()
    return torch.softmax(joined, -1)[:, :-1]


def returned_whole(scores: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(torch.cat([scores, sinks[:, None]], -1), -1)
    return weights, weights[:, :-1]


def cut_elsewhere(scores: Tensor, sinks: Tensor) -> Tensor:
    return torch.softmax(torch.cat([scores, sinks[:, None]], -1), -1)[:, :-2]


def along_rows(scores: Tensor, sinks: Tensor) -> Tensor:
    return torch.softmax(torch.cat([scores, sinks[:, None]], -1), 0)[:, :-1]


@pytest.mark.parametrize("run", [written_over, returned_whole, cut_elsewhere, along_rows])
def test_columns_that_are_taken_or_written_over_stay_joined(run: Callable[..., Any]) -> None:
    program = cut(run, [], scores=(8, 96), sinks=(8,))
    assert not any("softmax_beside" in part for part in ways(program)[0])
    require_same(program, run, scores=drawn(8, 96), sinks=drawn(8))


def of_a_product(q: Tensor, k: Tensor, sinks: Tensor) -> Tensor:
    """Of so many rows that PyTorch multiplies, and nothing is joined for it."""
    scores = q @ k.T
    return torch.softmax(torch.cat([scores, sinks[:, None]], -1), -1)[:, :-1] @ k


def test_where_pytorch_multiplies_the_softmax_is_a_kernel() -> None:
    shapes = {"q": (80, 16), "k": (96, 16), "sinks": (80,)}
    program = cut(of_a_product, [], **shapes)
    assert ways(program) == [["[matmul]", "softmax_beside", "[matmul]"]]
    require_same(program, of_a_product, **{n: drawn(*s) for n, s in shapes.items()})


def test_pytorch_runs_a_softmax_that_kernels_are_not_made_of() -> None:
    def refused(recipe: Recipe) -> Result:
        raise PlanError("there is no kernel")

    program = cut(of_rows, [], refused, scores=(8, 96), sinks=(8,))
    assert ways(program) == [["[mul]", "[softmax_beside]"]]
    require_same(program, of_rows, scores=drawn(8, 96), sinks=drawn(8))


# -- kernels that are found ------------------------------------------------------------------------


@cache
def found(run: Callable[..., Any]) -> Result:
    shapes = next(shapes for each, shapes, _ in ATTENTIONS if each is run)
    (result,) = cut(run, [], really_made, **shapes).results
    return result


@pytest.mark.parametrize("run", [gpt_oss, in_a_window, of_tokens, of_zeros])
def test_such_a_kernel_is_found_proved_and_run(run: Callable[..., Any]) -> None:
    record = found(run).record
    assert record.proof.log2_failure <= -40
    assert len(record.graph.blocks) == 1
    (body,) = (n.body for n in record.graph.blocks if n.body)
    assert body.of("peak")
    require_tiles(record.graph, 64, 2)


@pytest.mark.parametrize("sink", [-400.0, 0.0, 3.0, 400.0, -math.inf])
@pytest.mark.parametrize("run", [in_a_window, without_maximum])
def test_a_sink_may_be_far_above_all_scores_and_far_below(
    run: Callable[..., Any], sink: float
) -> None:
    graph = found(run).record.graph
    drawn_as = next(shapes for each, shapes, _ in ATTENTIONS if each is run)
    given = {n: drawn(*s).double() for n, s in drawn_as.items()} | {
        "sinks": torch.full((8,), sink, dtype=torch.float64)
    }
    types = {n.name: n.out.type for n in graph.inputs}
    shapes = {name: [d.size for d in type_.dims] for name, type_ in types.items()}
    inputs = [Array(t.names, (given[n].numpy().reshape(shapes[n]),)) for n, t in types.items()]
    sizes = {d.name: d.size for type_ in types.values() for d in type_.dims}
    with np.errstate(all="ignore"):
        (made,) = results(graph, inputs, array_reading(STORAGE, sizes))
    result = made.over(graph.values[graph.outputs[0]].type.names).parts[0]
    wanted = run(**given).float().numpy()
    np.testing.assert_allclose(result.reshape(wanted.shape), wanted, atol=0.03)
