"""Boolean inputs: kernels read their bytes, and choose by them what they compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from cutting import drawn, made, really_made, require_same, ways
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.errors import PlanError, VerifyError
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.frontend.references import require_reference
from mirage_kernels.generator.ir import DType, Graph, Node
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.partition.program import Program, partitioned
from mirage_kernels.generator.partition.trace import Function
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.recipe import Recipe, trace
from mirage_kernels.generator.schedules.attention.lower import attention_program
from mirage_kernels.generator.search.cases import small_cases
from mirage_kernels.generator.search.verify import prove
from mirage_kernels.generator.tiles.check import require_same as require_tiles

HIDDEN = -math.inf
Given = dict[str, Tensor]


def cut(run: Callable[..., Any], given: Given, make: Callable[[Recipe], Result] = made) -> Program:
    examples = {n: x.to("meta") for n, x in given.items()}
    return partitioned(Function(run, examples, {}, "f"), DType.BF16, "sm_90a", make)


def mask(*shape: int) -> Tensor:
    """Random truth values; of each row the first and the last are seen."""
    seen = torch.rand(shape, generator=torch.Generator().manual_seed(7)) < 0.5
    seen[..., 0] = seen[..., -1] = True
    return seen


# -- attention -------------------------------------------------------------------------------------


def padded(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None, :])


def of_heads(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    rows = seen[:, None, None, :].expand(-1, q.shape[1], q.shape[2], -1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=rows, enable_gqa=True)


def padded_and_causal(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    rows, keys = q.shape[-2], k.shape[-2]
    below = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None, :] & below)


def by_hand(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) * 0.2
    return torch.softmax(scores.masked_fill(~seen[:, None, None, :], HIDDEN), -1) @ v


def penalised(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    bias = (1.0 - seen[:, None, None, :].to(q.dtype)) * -1e4
    return torch.softmax(q @ k.transpose(-1, -2) * 0.2 + bias, -1) @ v


ATTENTIONS = [padded, of_heads, padded_and_causal, by_hand, penalised]


def attention(run: Callable[..., Any]) -> Given:
    heads = 2 if run is of_heads else 4
    return {
        "q": drawn(2, 4, 8, 16),
        "k": drawn(2, heads, 24, 16),
        "v": drawn(2, heads, 24, 16),
        "seen": mask(2, 24),
    }


# -- other choices ---------------------------------------------------------------------------------


def chosen(x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    return torch.where(seen, x, y) + 1


def of_rows(x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    return torch.where(seen[:, :1], x, x * y)


def filled(x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    return x.masked_fill(seen, 0.5) * y


def multiplied(x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    return (x + y) * seen


def either(x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    later = torch.arange(x.shape[-1]) >= 5
    return torch.where(seen | later, x, y)


def not_seen(x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    return torch.where(seen == 0, x, y)


def mean_of_seen(x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    return (x * seen).sum(-1, keepdim=True) / 3 + y


def turned(x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
    return torch.where(seen.t(), x.t(), 0.0) + y.t()


CHOICES = [chosen, of_rows, filled, multiplied, either, not_seen, mean_of_seen, turned]
TENSORS: Given = {"x": drawn(6, 24), "y": drawn(6, 24).flip(0), "seen": mask(6, 24)}


def given_of(run: Callable[..., Any]) -> Given:
    return attention(run) if run in ATTENTIONS else TENSORS


def called(run: Callable[..., Any]) -> str:
    return run.__name__


@pytest.mark.parametrize("run", [*ATTENTIONS, *CHOICES], ids=called)
def test_a_boolean_input_chooses_in_one_kernel(run: Callable[..., Any]) -> None:
    given = given_of(run)
    program = cut(run, given)
    assert [len(way) for way in ways(program)] == [1]
    assert "[" not in ways(program)[0][0]
    require_same(program, run, **given)


@pytest.mark.parametrize(
    "run", [r for r in (*ATTENTIONS, *CHOICES) if r is not of_rows], ids=called
)
def test_the_recipe_is_the_function(run: Callable[..., Any]) -> None:
    recipe = from_torch(run, {n: x.to("meta") for n, x in given_of(run).items()})
    assert any(text.endswith(":bool") for text in recipe.inputs.values())
    require_reference(recipe, trace(recipe, recipe.shapes[0], DType.BF16), DType.BF16)


def test_several_kernels_take_one_mask_and_pytorch_makes_what_it_returns() -> None:
    def several(x: Tensor, y: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        other = ~seen
        first = torch.cumsum(torch.where(other, x, y), -1)
        return torch.where(other, first, y) * 2, other

    program = cut(several, TENSORS)
    assert ways(program) == [["where", "[cumsum]", "where, mul"]]
    require_same(program, several, **TENSORS)


def test_a_kernel_takes_a_comparison_that_pytorch_makes() -> None:
    def larger(x: Tensor, y: Tensor, seen: Tensor) -> Tensor:
        return torch.where((x > y) & seen, x, 0.0) * y

    program = cut(larger, TENSORS)
    assert ways(program) == [["[gt]", "where, mul"]]
    require_same(program, larger, **TENSORS)


# -- what is found, and what is refused ------------------------------------------------------------


@cache
def found(run: Callable[..., Any]) -> Result:
    program = cut(run, given_of(run), really_made)
    assert not program.reasons
    (result,) = program.results
    return result


@pytest.mark.parametrize("run", [padded, padded_and_causal, by_hand, chosen, filled, mean_of_seen])
def test_such_a_kernel_is_found_proved_and_run(run: Callable[..., Any]) -> None:
    result = found(run)
    assert result.record.proof.log2_failure <= -40
    assert [v.schedule for v in result.record.variants] == ["general"] * len(result.record.variants)
    require_tiles(result.record.graph, 64, 2)


@pytest.mark.parametrize("stages", [2, 3])
def test_the_tile_program_of_a_long_mask_is_the_mugraph(stages: int) -> None:
    given = attention(padded) | {"k": drawn(2, 4, 640, 16), "v": drawn(2, 4, 640, 16)}
    program = cut(padded, given | {"seen": mask(2, 640)}, really_made)
    require_tiles(program.results[0].record.graph, 128, stages)


def nodes_changed(graph: Graph, change: Callable[[Node], Node]) -> Graph:
    """Change the nodes of a muGraph, and of its blocks."""

    def changed(node: Node) -> Node:
        body = node.body and nodes_changed(node.body, change)
        return change(replace(node, body=body))

    return replace(graph, nodes=tuple(map(changed, graph.nodes)))


def inverted(node: Node) -> Node:
    a, *sides = node.args if node.op == "where" else ("",)
    return replace(node, args=(a, *sides[::-1])) if sides else node


def dropped(node: Node) -> Node:
    if node.op != "where":
        return node
    _, a, _ = node.args
    return replace(node, op="max", args=(a, a))


def without_less(node: Node) -> Node:
    """~seen that became seen: 0 < seen."""
    return replace(node, args=node.args[::-1]) if node.op == "less" else node


def half(node: Node) -> Node:
    """The first of two masks."""
    return replace(node, args=(node.args[0],) * 2) if node.op == "both" else node


def other_half(node: Node) -> Node:
    return replace(node, args=(node.args[1],) * 2) if node.op == "both" else node


MUTANTS = [(padded_and_causal, half), (padded_and_causal, other_half)]
MUTANTS += [(padded, inverted), (padded, dropped), (chosen, inverted), (chosen, dropped)]
MUTANTS += [(filled, inverted), (by_hand, inverted), (padded_and_causal, without_less)]


@pytest.mark.parametrize(("run", "change"), MUTANTS)
def test_a_mask_that_is_dropped_or_inverted_is_refused(
    run: Callable[..., Any], change: Callable[[Node], Node]
) -> None:
    result = found(run)
    request = result.request
    spec = trace(request.recipe, request.shape, request.dtype)
    prove(spec, result.record.graph, small_cases(spec), seed=3)
    with pytest.raises(VerifyError):
        prove(spec, nodes_changed(result.record.graph, change), small_cases(spec), seed=3)


def test_a_row_of_which_all_is_hidden_is_nan_as_softmax_makes_it() -> None:
    graph, given = found(by_hand).record.graph, attention(by_hand)
    given["seen"][1] = False
    inputs = []
    for node in graph.inputs:
        x = given[node.name]
        data = x.numpy() if node.name == "seen" else x.double().numpy()
        inputs.append(Array(node.out.type.names, (data,), node.name != "seen"))
    sizes = {d.name: d.size for n in graph.inputs for d in n.out.type.dims}
    with np.errstate(all="ignore"):
        (made,) = results(graph, inputs, array_reading(FLOAT64, sizes))
    wanted = by_hand(**{n: x if x.dtype is torch.bool else x.double() for n, x in given.items()})
    order = graph.values[graph.outputs[0]].type.names
    np.testing.assert_allclose(made.over(order).parts[0], wanted.numpy(), rtol=1e-9)
    assert wanted[1].isnan().all()


@pytest.mark.parametrize("make", [tile_program, attention_program])
def test_fast_schedules_refuse_masks(make: Callable[[str, Graph], object]) -> None:
    with pytest.raises(PlanError, match="f: only general kernels take masks, as seen is"):
        make("f", found(padded).record.graph)


def test_what_masks_are_made_of_comes_before_the_kernels_that_use_them() -> None:
    def run(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(~(x > 0).any(-1, keepdim=True), x, y) + (x >= 1).to(x.dtype)

    given = {"x": drawn(6, 48), "y": drawn(1, 48)}
    program = cut(run, given)
    assert ways(program) == [["[gt]", "[any]", "where, ge, to, add"]]
    require_same(program, run, **given)
