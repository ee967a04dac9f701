"""What the search must find from the bare mathematics, by structure and not by name; its bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from programs import PROGRAMS, WRITTEN
from small import block_of, found, graphs, programs_of, search_of, views_of

from mirage_kernels.generator import pipeline
from mirage_kernels.generator.errors import SearchError
from mirage_kernels.generator.ir import (
    OPS,
    DType,
    Graph,
    Kind,
    Node,
    Phase,
    parts_of,
    phases_of,
)
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.request import Event
from mirage_kernels.generator.search.sketch import BlockSketch, Limits
from mirage_kernels.generator.search.superoptimizer import superoptimize


def body_of(graph: Graph, kernel: int = 0) -> Graph:
    body = graph.blocks[kernel].body
    assert body is not None
    return body


def loop_of(body: Graph) -> str | None:
    assert body.space is not None
    return body.space.loop.dim if body.space.loop else None


def split_of(body: Graph) -> tuple[str, ...]:
    assert body.space is not None
    return tuple(axis.dim for axis in body.space.reduced)


def is_custom(graph: Graph, kernels: int = 1) -> bool:
    """Return whether a muGraph is so many block graphs and nothing else."""
    return len(graph.blocks) == kernels and not graph.of("contract")


def made_of(body: Graph, name: str) -> set[str]:
    """Return the tensors that a value is computed from."""
    todo, seen = [name], set()
    while todo:
        node = body.producers[todo.pop()]
        seen |= {node.name.split("_tile")[0]} if node.op == "input" else set()
        todo += node.args
    return seen


def ready(body: Graph, *ops: str) -> set[Phase | None]:
    """Return when the nodes with these ops run."""
    return {phases_of(body)[n.name] for n in body.of(*ops)}


def carried(body: Graph) -> list[Node]:
    return [body.producers[n.args[0]] for n in body.of("accum", "accum_rescaled")]


def one_loop(recipe: str, dim: str) -> list[Graph]:
    """Return the bodies of a recipe's programs that are one kernel with a loop and no split."""
    bodies = [body_of(g) for g in graphs(recipe) if is_custom(g)]
    return [b for b in bodies if loop_of(b) == dim and not split_of(b)]


def divides_late(body: Graph, scaled: str) -> bool:
    """Return whether sum(x * weight * norm_weight) is carried by the loop and divided after it.

    The norm weight multiplies `scaled`, in the loop, and x squared is summed by the same loop.
    """
    products = [n for n in carried(body) if made_of(body, n.name) == {"x", "norm_weight", "weight"}]
    squares = [n for n in carried(body) if made_of(body, n.name) == {"x"}]
    divided = any(made_of(body, n.args[1]) == {"x", "eps"} for n in body.of("div"))
    first = [made_of(body, a) for n in products for a in n.args]
    return (
        len(carried(body)) == 2
        and len(products) == len(squares) == 1
        and {"norm_weight", scaled} in first
        and divided
    )


TWO = Limits()


def combines(body: Graph, dim: str, loop: str | None) -> bool:
    """Return whether blocks share two sums along a dim and combine them."""
    both = len(body.of("combine", "combine_rescaled")) == 2
    return split_of(body) == (dim,) and loop_of(body) == loop and both


def reads_once(body: Graph, tile: str, products: int) -> bool:
    """Return whether an input is read in one way, for so many products."""
    inputs = [n for n in body.inputs if n.name.startswith(tile)]
    return len(inputs) == 1 and len(body.of("contract")) == products


def divides_products_late(body: Graph) -> bool:
    divided = [n for n in body.of("div") if "weight" in made_of(body, n.args[0])]
    return bool(divided) and ready(body, "sqrt") == {Phase.AFTER}


def late_gated(body: Graph) -> bool:
    return len(carried(body)) == 3 and ready(body, "silu", "sqrt", "div") == {Phase.AFTER}


# A program of one kernel: what it is, the recipe, what its block graph must be.
ONE_BLOCK: list[tuple[str, str, Callable[[Graph], bool]]] = [
    ("scales weights and divides late", "rms_norm_linear", lambda b: divides_late(b, "weight")),
    ("scales x and divides late", "rms_norm_linear", lambda b: divides_late(b, "x")),
    ("has no loop", "rms_norm_linear", lambda b: loop_of(b) is None),
    ("combines what loops sum", "rms_norm_linear", lambda b: combines(b, "K", "K")),
    ("combines without a loop", "rms_norm_linear", lambda b: combines(b, "K", None)),
    ("reads x once for lora", "lora_linear", lambda b: reads_once(b, "x", 3)),
    ("shares x among gate and up", "gated_mlp", lambda b: reads_once(b, "x", 2)),
    ("norms and gates after its loop", "rms_norm_gated_mlp", late_gated),
    ("norms layers after its loop", "layer_norm_linear", divides_products_late),
    (
        "loops over the keys and divides after",
        "gqa",
        lambda b: len(carried(b)) == 2 and ready(b, "div") == {Phase.AFTER},
    ),
    ("splits the keys and combines", "gqa", lambda b: combines(b, "L", "L")),
]


@pytest.mark.parametrize(("what", "recipe", "holds"), ONE_BLOCK, ids=[w for w, *_ in ONE_BLOCK])
def test_a_program_is_found_that(what: str, recipe: str, holds: Callable[[Graph], bool]) -> None:
    assert any(holds(body_of(g)) for g in graphs(recipe) if is_custom(g))


@pytest.mark.parametrize(
    ("recipe", "last"), [("rms_norm_linear", "contract"), ("lora_linear", "block")]
)
def test_a_library_product_after_a_kernel_and_before_one_is_found(recipe: str, last: str) -> None:
    forms = [g for g in graphs(recipe, TWO) if g.of("contract") and g.blocks]
    assert any(g.nodes[-1].op == last for g in forms)


def test_blocks_that_share_a_sum_store_it_for_a_second_kernel() -> None:
    forms = [g for g in graphs("rms_norm_linear", TWO) if is_custom(g, 2)]
    splits = [g for g in forms if split_of(body_of(g, 0))]
    assert splits
    for graph in splits:
        first, last = graph.blocks
        assert all(parts_of("K") in value.type.names for value in first.outs)
        assert any(n.over == parts_of("K") for n in body_of(graph, 1).of("sum"))
        assert set(last.args) >= {value.name for value in first.outs}


@pytest.mark.parametrize("recipe", ["rms_norm_linear", "gqa"])
def test_no_first_kernel_stores_more_than_two_partial_sums(recipe: str) -> None:
    firsts = [p.kernels[0] for p in found(recipe, TWO).programs if len(p.kernels) == 2]
    results = [len(first.results) for first in firsts if isinstance(first, BlockSketch)]
    assert max(results) == (2 if recipe == "gqa" else 1)


@pytest.mark.parametrize("most", [3, 6, 9])
def test_every_program_stays_within_the_limit_of_ops(most: int) -> None:
    kinds = (Kind.ELEMENTWISE, Kind.REDUCE, Kind.CONTRACT, Kind.CARRY)
    for graph in graphs("rms_norm_linear", Limits(block_ops=most)):
        ops = [n for b in graph.blocks if b.body for n in b.body.nodes if OPS[n.op].kind in kinds]
        assert len(ops) + len(graph.of("contract")) <= most


def test_attention_splits_the_keys_among_blocks_of_a_first_kernel() -> None:
    forms = [g for g in graphs("gqa", TWO) if is_custom(g, 2) and split_of(body_of(g))]
    assert any(loop_of(body_of(g)) == "L" for g in forms)
    assert all(parts_of("L") in v.type.names for g in forms for v in g.blocks[0].outs)


def test_both_norms_of_qk_norm_attention_are_inside_its_one_kernel() -> None:
    body = one_loop("qk_norm_attention", "L")[0]  # the first: no value is made in two ways
    assert made_of(body, body.outputs[0]) >= {"q", "k", "v", "q_weight", "k_weight"}
    assert len(body.of("sqrt")) == 2


def test_a_tensor_is_read_cut_for_a_sum_and_again_whole_for_the_result() -> None:
    programs = programs_of(WRITTEN["norm"].small.spec(), Limits(kernels=1))
    cuts = [{v.loop_cut for v in views_of(block_of(p)) if v.tensor == "x"} for p in programs]
    assert {"K", None} in cuts


@pytest.mark.parametrize("recipe", ["rms_norm_linear", "gqa", "gated_mlp"])
def test_the_programs_come_cheapest_first(recipe: str) -> None:
    costs = [p.cost for p in found(recipe).programs]
    assert costs == sorted(costs)


NORM = PROGRAMS["norm"].small


@pytest.mark.parametrize("recipe", ["rms_norm_linear", "gqa"])
def test_two_processes_find_what_one_finds_with_the_same_counts(recipe: str) -> None:
    assert found(recipe, Limits()) == found(recipe, Limits(), 2)


def test_the_order_of_tasks_does_not_matter() -> None:
    search, again = (search_of(NORM.spec(), Limits()) for _ in range(2))
    forwards = [search.run(task) for task in search.tasks()]
    backwards = [again.run(task) for task in reversed(again.tasks())]
    assert [f.programs for f in forwards] == [f.programs for f in reversed(backwards)]
    assert [f.counts for f in forwards] == [f.counts for f in reversed(backwards)]


FEW_VALUES = Limits(kernels=1, values=40)


def test_no_more_values_than_the_budget_says_are_computed() -> None:
    search = search_of(NORM.spec(), replace(FEW_VALUES, values=12))
    for setting in search.problem.settings():
        assert len(search.problem.saturated(setting).values) <= 12 + len(NORM.spec().nodes)


def test_every_candidate_is_proved_rejected_or_too_slow() -> None:
    for recipe in ("rms_norm_linear", "gated_mlp", "gqa"):
        result = found(recipe, Limits())
        counts = result.counts
        assert counts.candidates == len(result.programs) + counts.rejected + counts.pruned.get(
            "time", 0
        )


def test_only_so_many_programs_are_verified() -> None:
    result = found("rms_norm_linear", Limits(verified=10))
    assert len(result.programs) + result.counts.rejected == 10
    assert result.programs == found("rms_norm_linear", Limits()).programs[:10]


def test_a_task_keeps_only_so_many_programs() -> None:
    search = search_of(
        NORM.spec(), Limits(kept=3, kept_spec_products=0, kept_loop_inputs=0, kept_of_two=2)
    )
    for task in search.tasks():
        assert len(search.run(task).programs) <= (3 if task.first is None else 2)


def test_finding_nothing_says_how_large_the_search_was(
    rms_norm_linear: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "LIMITS", Limits(kernels=1, block_ops=3))
    request = pipeline.Request(rms_norm_linear, rms_norm_linear.shapes[0], DType.FP16)
    with pytest.raises(SearchError, match=r"at most 3 block operators in 1 kernel\b"):
        pipeline.generate(request, jobs=1, progress=lambda event: None)


def test_progress_tells_the_stages_and_reaches_their_tasks() -> None:
    seen: list[Event] = []
    superoptimize(NORM.spec(), Limits(), "sm_90a", progress=seen.append)
    for stage in ("search", "verify"):
        told = [(event.done, event.total) for event in seen if event.stage == stage]
        assert told == [(i, len(told) - 1) for i in range(len(told))]
