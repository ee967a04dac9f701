"""Whole numbers that are inputs: lengths, positions and ids are compared, and computed with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from cutting import Given, cut_given, drawn, really_made, require_same, rotated, ways
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.errors import PlanError, VerifyError
from mirage_kernels.generator.ir import DType, Graph, Node
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.recipe import trace
from mirage_kernels.generator.search.cases import small_cases
from mirage_kernels.generator.search.gate import Gate
from mirage_kernels.generator.search.verify import Prover
from mirage_kernels.generator.tiles.check import require_same as require_tiles

HIDDEN = -math.inf
LENGTHS = torch.tensor([3, 24, 1, 17, 9, 24])


def places(x: Tensor) -> Tensor:
    return torch.arange(x.shape[-1])


# -- compared with positions -----------------------------------------------------------------------


def softmax_of_lengths(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.softmax(x.masked_fill(places(x) >= lengths[:, None], HIDDEN), -1)


def sum_of_lengths(x: Tensor, lengths: Tensor) -> Tensor:
    return (x * (places(x) < lengths[:, None])).sum(-1)


def up_to_a_position(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.where(places(x) <= lengths[:, None] - 1, x, 0.0) * 2


def behind_a_start(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.softmax(x.masked_fill(places(x) < lengths[:, None] - 1, HIDDEN), -1)


def a_window(x: Tensor, lengths: Tensor) -> Tensor:
    seen = (places(x) < lengths[:, None]) & (places(x) >= lengths[:, None] - 4)
    return torch.where(seen, x, 0.0).sum(-1)


def a_band(x: Tensor, lengths: Tensor) -> Tensor:
    away = (places(x) - lengths[:, None]).abs()
    return torch.where(away <= 4, x, 0.0).sum(-1) + torch.where(away > 7, x, 0.0).sum(-1)


def inside_a_band(x: Tensor, lengths: Tensor) -> Tensor:
    away = (lengths[:, None] - places(x)).abs()
    return torch.softmax(x.masked_fill(away >= 5, HIDDEN), -1) * (away < 3)


def a_wide_window(x: Tensor, lengths: Tensor) -> Tensor:
    seen = (places(x) < lengths[:, None]) & (places(x) >= lengths[:, None] - 200)
    return torch.softmax(x.masked_fill(~seen, HIDDEN), -1)


def of_pages(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.softmax(x.masked_fill(places(x) >= 16 * lengths[:, None], HIDDEN), -1)


def added(x: Tensor, lengths: Tensor) -> Tensor:
    bias = torch.where(places(x) < lengths[:, None], 0.0, HIDDEN)
    return torch.softmax(x.float() + bias, -1)


# -- compared with each other, and computed with ---------------------------------------------------


def of_no_padding(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.where((lengths != 24)[:, None], x, 0.0) * 2


def mean_of_lengths(x: Tensor, lengths: Tensor) -> Tensor:
    return (x * (places(x) < lengths[:, None])).sum(-1) / lengths


def decayed(x: Tensor, lengths: Tensor) -> Tensor:
    return x * torch.exp(-0.1 * (lengths[:, None] - places(x)).float().abs())


def turned(x: Tensor, lengths: Tensor) -> Tensor:
    angles = lengths[:, None].float() / (100.0 ** (torch.arange(12) / 12))
    a, b = x[:, :12].float(), x[:, 12:].float()
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


def slopes(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.softmax(x - 0.25 * (lengths[:, None] - 1 - places(x)), -1)


def penalised(x: Tensor, presence: Tensor, frequency: Tensor, counts: Tensor) -> Tensor:
    return x - frequency[:, None] * counts - presence[:, None] * (counts > 0)


def started(x: Tensor, presence: Tensor, frequency: Tensor, counts: Tensor) -> Tensor:
    return torch.where(counts > 1, presence[:, None], frequency[:, None]) + x


ROWS: Given = {"x": drawn(6, 24), "lengths": LENGTHS}
PENALTIES: Given = {"x": drawn(6, 24), "presence": drawn(6), "frequency": drawn(6).flip(0)}
PENALTIES |= {"counts": torch.arange(6 * 24).view(6, 24) % 3}
OF_ROWS = [softmax_of_lengths, sum_of_lengths, up_to_a_position, behind_a_start, a_window, added]
OF_ROWS += [a_band, inside_a_band, of_no_padding, mean_of_lengths, decayed, turned, slopes]


WIDE: Given = {"x": drawn(6, 600), "lengths": 25 * LENGTHS}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("run", OF_ROWS, ids=lambda run: run.__name__)
def test_whole_numbers_are_taken_by_one_kernel(run: Callable[..., Any], dtype: torch.dtype) -> None:
    given = {**ROWS, "lengths": LENGTHS.to(dtype)}
    program = cut_given(run, given, ("x", "lengths"))
    assert [len(way) for way in ways(program)] == [1]
    assert "[" not in ways(program)[0][0]
    require_same(program, run, **given)


def test_the_least_whole_number_of_8_bits_has_no_absolute_value() -> None:
    def small(x: Tensor, q: Tensor) -> Tensor:
        return torch.where(q.abs() < 5, x, 0.0) * 2

    given = {"x": drawn(4, 64), "q": torch.arange(-128, 128).view(4, 64).to(torch.int8)}
    require_same(cut_given(small, given), small, **given)


@pytest.mark.parametrize("run", [penalised, started])
def test_a_number_of_a_row_is_chosen_by_what_its_elements_are(run: Callable[..., Any]) -> None:
    program = cut_given(run, PENALTIES, tuple(PENALTIES))
    assert [len(way) for way in ways(program)] == [1]
    assert "[" not in ways(program)[0][0]
    require_same(program, run, **PENALTIES)


def documents(x: Tensor, ids: Tensor, others: Tensor) -> Tensor:
    return torch.softmax(x.masked_fill(ids[:, None] != others, HIDDEN), -1)


def between(x: Tensor, ids: Tensor, others: Tensor) -> Tensor:
    seen = (places(x) >= ids[:, None]) & (places(x) < others[:6, None])
    return torch.softmax(x.masked_fill(~seen, HIDDEN), -1)


def rows_and_columns(x: Tensor, ids: Tensor, others: Tensor) -> Tensor:
    return x * (ids[:, None] + 2 * others) - ids[:, None]


IDS = torch.tensor([0, 0, 1, 1, 1, 2])
TWO: Given = {"x": drawn(6, 24), "ids": IDS, "others": torch.arange(24) // 8}


@pytest.mark.parametrize("run", [documents, rows_and_columns])
def test_two_inputs_of_whole_numbers_meet(run: Callable[..., Any]) -> None:
    program = cut_given(run, TWO)
    assert [len(way) for way in ways(program)] == [1]
    require_same(program, run, **TWO)


def lengths_of_heads(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    seen = torch.arange(k.shape[2]) < lengths[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None])


def causal_behind(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    rows = lengths[:, None] - q.shape[2] + torch.arange(q.shape[2])
    seen = torch.arange(k.shape[2]) <= rows[..., None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None])


def alibi(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    slopes = 0.5 ** torch.arange(1, q.shape[1] + 1)
    away = torch.arange(k.shape[2]) - (lengths[:, None, None, None] - 1)
    bias = (slopes[:, None, None] * away).masked_fill(away > 0, HIDDEN)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))


ATTENTIONS = [lengths_of_heads, causal_behind, alibi]
HEADS: Given = {
    "q": drawn(2, 4, 3, 16),
    "k": drawn(2, 4, 24, 16),
    "v": drawn(2, 4, 24, 16),
    "lengths": torch.tensor([24, 11]),
}


def padded(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    at = torch.arange(k.shape[2])
    seen = (at <= at[:, None]) & (at < lengths[:, None, None, None])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def documents_of_tokens(q: Tensor, k: Tensor, v: Tensor, ids: Tensor) -> Tensor:
    at = torch.arange(k.shape[2])
    seen = (at <= at[:, None]) & (ids[:, None] == ids)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def behind_starts(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
    at = torch.arange(k.shape[2])
    scores = q @ k.mT * 0.25
    hidden = (at > at[:, None]) | (at < starts[:, None])
    return torch.softmax(scores.masked_fill(hidden, HIDDEN), -1) @ v


OF_TOKENS = {padded: "lengths", documents_of_tokens: "ids", behind_starts: "starts"}
TOKENS: Given = {name: drawn(2, 2, 24, 16) for name in ("q", "k", "v")}
NUMBERS = {"lengths": torch.tensor([24, 11]), "ids": torch.arange(24) // 7}
NUMBERS["starts"] = torch.arange(24) // 7 * 7


def of_tokens(run: Callable[..., Any]) -> Given:
    return TOKENS | {OF_TOKENS[run]: NUMBERS[OF_TOKENS[run]]}


@pytest.mark.parametrize("run", OF_TOKENS)
def test_tokens_see_what_several_conditions_say(run: Callable[..., Any]) -> None:
    program = cut_given(run, of_tokens(run))
    assert [len(way) for way in ways(program)] == [1]
    assert "[" not in ways(program)[0][0]
    require_same(program, run, **of_tokens(run))


@pytest.mark.parametrize("run", ATTENTIONS)
def test_attention_sees_as_many_keys_as_a_length_says(run: Callable[..., Any]) -> None:
    program = cut_given(run, HEADS)
    assert [len(way) for way in ways(program)] == [1]
    assert "[" not in ways(program)[0][0]
    require_same(program, run, **HEADS)


def rope(q: Tensor, k: Tensor, frequencies: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    angles = positions[:, None].float() * frequencies
    both = torch.cat((angles, angles), -1)[:, None]
    cos, sin = both.cos().to(q.dtype), both.sin().to(q.dtype)
    return rotated(q, cos, sin), rotated(k, cos, sin)


def test_angles_of_positions_are_no_cat_of_pytorch_s() -> None:
    given = {"q": drawn(6, 4, 16), "k": drawn(6, 2, 16), "frequencies": drawn(8).float().exp()}
    given["positions"] = LENGTHS
    program = cut_given(rope, given)
    assert ways(program)[0][0] == "mul, cos, cos, to, to, sin, sin, to, to"
    assert [len(way) for way in ways(program)] == [2]
    require_same(program, rope, **given)


# -- what is PyTorch's -----------------------------------------------------------------------------


def test_pytorch_looks_up_what_kernels_compare_too() -> None:
    def shard(ids: Tensor, table: Tensor) -> Tensor:
        own = (ids >= 8) & (ids < 16)
        return F.embedding(torch.where(own, ids - 8, 0), table) * own[:, None]

    given = {"ids": torch.tensor([3, 9, 15, 16, 8]), "table": drawn(8, 24)}
    program = cut_given(shard, given)
    assert any("embedding" not in line and "mul" in line for line in program.lines())
    require_same(program, shard, **given)


def test_a_whole_number_that_is_returned_is_pytorch_s() -> None:
    def both(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return x * lengths[:, None], lengths + 1

    program = cut_given(both, ROWS)
    require_same(program, both, **ROWS)


# -- what is found, and what is refused ------------------------------------------------------------


@cache
def found(run: Callable[..., Any]) -> Result:
    own = HEADS if run in ATTENTIONS else TWO if run in (documents, between) else ROWS
    own = of_tokens(run) if run in OF_TOKENS else WIDE if run in (a_wide_window, of_pages) else own
    program = cut_given(run, own, make=really_made)
    assert not program.reasons
    (result,) = program.results
    return result


MADE = [softmax_of_lengths, behind_a_start, a_window, mean_of_lengths, turned, documents, between]
MADE += [lengths_of_heads, alibi, *OF_TOKENS, a_wide_window, of_pages]


@pytest.mark.parametrize("run", MADE)
def test_such_a_kernel_is_found_proved_and_run(run: Callable[..., Any]) -> None:
    record = found(run).record
    assert record.proof.log2_failure <= -40
    assert all(v.schedule == "general" for v in record.variants)
    assert all(math.isfinite(a.error) for a in record.accuracy)
    require_tiles(record.graph, 64, 2)


def test_numbers_are_drawn_from_where_comparisons_matter() -> None:
    ranges = {run: found(run).request.recipe.ranges for run in MADE}
    assert ranges[softmax_of_lengths] == {"lengths": "1..D2"}
    assert ranges[behind_a_start] == {"lengths": "0..D2"}
    assert ranges[turned] == {"lengths": "1..4096"}
    assert ranges[a_window] == {"lengths": "1..D2"}
    assert ranges[documents] == {"ids": "0..2", "others": "0..2"}
    assert [*ranges[between].values()] == ["0..D2-1", "1..D2"]
    assert [*ranges[behind_starts].values()] == ["0..N-1"]
    assert ranges[of_pages] == {"lengths": "1..D2/16"}


def changed(graph: Graph, change: Callable[[Node], Node]) -> Graph:
    """Change the nodes of a muGraph, and of its blocks."""
    nodes = (change(replace(n, body=n.body and changed(n.body, change))) for n in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def turned_round(node: Node) -> Node:
    return replace(node, args=node.args[::-1]) if node.op == "less" else node


def never_hidden(node: Node) -> Node:
    is_zero = node.op == "where" and len(node.args) == 3
    return replace(node, op="max", args=(node.args[1],) * 2) if is_zero else node


def half(node: Node) -> Node:
    return replace(node, args=(node.args[0],) * 2) if node.op == "both" else node


def other_half(node: Node) -> Node:
    return replace(node, args=(node.args[1],) * 2) if node.op == "both" else node


def one_more(node: Node) -> Node:
    return replace(node, value=17) if node.op == "const" and node.value == 16 else node


MUTANTS = [(of_pages, one_more), (of_pages, turned_round)]
MUTANTS += [(softmax_of_lengths, turned_round), (softmax_of_lengths, never_hidden)]
MUTANTS += [(between, half), (documents, half), (a_window, half), (alibi, turned_round)]
MUTANTS += [(run, change) for run in (a_wide_window, *OF_TOKENS) for change in (half, other_half)]


@pytest.mark.parametrize(("run", "change"), MUTANTS)
def test_a_comparison_that_is_dropped_or_turned_round_is_refused(
    run: Callable[..., Any], change: Callable[[Node], Node]
) -> None:
    request, graph = found(run).request, found(run).record.graph
    spec = trace(request.recipe, request.shape, request.dtype)
    prover = Prover(spec, range_of=request.recipe.range_of)
    prover.prove(graph, small_cases(spec), seed=3)
    with pytest.raises(VerifyError):
        prover.prove(changed(graph, change), small_cases(spec), seed=3)


@pytest.mark.parametrize("change", [half, other_half])
def test_the_gate_sees_whether_a_window_wider_than_its_sums_is_kept(
    change: Callable[[Node], Node],
) -> None:
    request, graph = found(a_wide_window).request, found(a_wide_window).record.graph
    gate = Gate(trace(request.recipe, request.shape, request.dtype), request.recipe, DType.BF16)
    gate.measure(graph)
    with pytest.raises(VerifyError):
        gate.measure(changed(graph, change))


def uncovered(node: Node) -> Node:
    """A peak over all scores, hidden ones as well."""
    hides = node.op == "where" and any("infinity" in a for a in node.args)
    return replace(node, op="max", args=(node.args[1],) * 2) if hides else node


@pytest.mark.parametrize("run", [softmax_of_lengths, between, documents, lengths_of_heads])
def test_a_peak_over_what_is_hidden_is_refused_by_the_gate(run: Callable[..., Any]) -> None:
    request, graph = found(run).request, found(run).record.graph
    spec = trace(request.recipe, request.shape, request.dtype)
    gate = Gate(spec, request.recipe, DType.BF16)
    gate.measure(graph)
    with pytest.raises(VerifyError):
        gate.measure(changed(graph, uncovered))


def test_fast_schedules_refuse_whole_numbers() -> None:
    with pytest.raises(PlanError, match="only general kernels take int32, as lengths is"):
        tile_program("f", found(softmax_of_lengths).record.graph)
