"""Layouts: as cheap as the cheapest of all choices, and what is chosen where one knows why."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import (
    Axis,
    Builder,
    Dim,
    DType,
    Graph,
    Level,
    Node,
    Space,
    TensorType,
    Value,
    check,
    from_json,
    retile,
    tile_type,
    with_precision,
)
from mirage_kernels.generator.plan.implementations import Offered
from mirage_kernels.generator.plan.integer_program import Problem, Solution
from mirage_kernels.generator.plan.layout_planner import (
    EVERYTHING,
    WRITTEN,
    Setup,
    plan_layouts,
    problem_of,
)
from mirage_kernels.generator.plan.layouts import Copy, Fragment, Lanes, Stored, Swizzle
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.target import target

ROOT = Path(__file__).parents[2]
ON = target("sm_90a")
ANY = TensorType((), DType.FP32)  # replaced by what the builder infers
FEW = Offered(
    copies=(Copy.CP_ASYNC, None),
    swizzles=(Swizzle.NONE, Swizzle.HALVES),
    per_warp=(True,),
    lanes=(Lanes.VECTORS,),
)


def product_kernel(step: int = 64, depth: int = 64, *, scaled: bool = False) -> Graph:
    """Return a muGraph of x w^T, perhaps with w scaled along the depth, perhaps with a loop."""
    m, n, k = Dim("M", 64, True), Dim("N", 96), Dim("K", depth)
    tensors = {"x": (m, k), "w": (n, k), "g": (k,)}
    outer = Builder(Level.KERNEL)
    loop = Axis("loop", "K", step) if step < depth else None
    space = Space((Axis("x", "N", 32), Axis("y", "M", 8)), loop)
    body = Builder(Level.BLOCK, space)
    used = ("x", "w", "g") if scaled else ("x", "w")
    for name in used:
        full = TensorType(tensors[name], DType.FP16)
        outer.input(name, full)
        imap = tuple(d if d in full.names else None for d in ("N", "M"))
        fmap = "K" if loop else None
        node = Node("input", (), (Value(f"{name}_tile", full),), cuts=imap, loop_cut=fmap)
        type_ = tile_type(node, full, space, {"M": m, "N": n, "K": k})
        body.add(Node("input", (), (Value(f"{name}_tile", type_),), cuts=imap, loop_cut=fmap))
    weight = "w_tile"
    if scaled:
        weight = body.add(Node("mul", ("w_tile", "g_tile"), (Value("scaled", ANY),)))
    last = body.add(Node("contract", ("x_tile", weight), (Value("y", ANY),), over="K"))
    if loop:
        last = body.add(Node("accum", (last,), (Value("y_total", ANY),)))
    out = TensorType((m, n), DType.FP16)
    body.add(Node("output", (last,), (Value("out_stored", out),), cuts=("N", "M")))
    graph = with_precision(body.graph(["out_stored"]), DType.FP16)
    outer.add(Node("block", used, (Value("out", out),), body=graph))
    return check(outer.graph(["out"]))


def brute_force(problem: Problem) -> float:
    """Return the least cost over all implementations, each missing layout by any conversion."""
    costs = []
    for chosen in product(*problem.operators.values()):
        made = {placed for i in chosen for placed in i.placed}
        missing = dict.fromkeys(placed for i in chosen for placed in i.needs if placed not in made)
        ways = (
            [c for c in problem.conversions if placed in c.placed and made.issuperset(c.needs)]
            for placed in missing
        )
        costs += [problem.cycles((*chosen, *used)) for used in product(*ways)]
    return min(costs)


def cheapest(graph: Graph, offered: Offered = EVERYTHING) -> float:
    return plan_layouts(graph, Setup(ON, warps=4, offered=offered)).cycles


SMALL = {
    "one step": product_kernel(),
    "a loop": product_kernel(64, 256),
    "scaled weights": product_kernel(scaled=True),
}


@pytest.mark.parametrize("offered", [FEW, Offered((Copy.CP_ASYNC,), (Swizzle.NONE,))])
@pytest.mark.parametrize("name", SMALL)
def test_no_choice_of_layouts_is_cheaper(name: str, offered: Offered) -> None:
    graph = SMALL[name]
    best = brute_force(problem_of(graph, Setup(ON, warps=4, offered=offered)))
    assert cheapest(graph, offered) <= best + 1.0  # of a cycle, what the order is worth


@pytest.fixture(scope="module")
def gated_mlp() -> Graph:
    path = ROOT / "kernels/sm_90a/gated_mlp/K4096_N4096_fp16.json"
    graph = from_json(json.loads(path.read_text())["mugraph"])
    return retile(graph, {"M": 8, "N": 32, "K": 512})


def planned(graph: Graph, offered: Offered = EVERYTHING) -> Solution:
    return plan_layouts(graph, Setup(ON, offered=offered))


def test_the_same_mugraph_has_the_same_layouts(gated_mlp: Graph) -> None:
    first, second = (planned(gated_mlp) for _ in range(2))
    assert first == second


def test_few_tokens_take_the_n_side_and_warps_add_up_after_the_loop(gated_mlp: Graph) -> None:
    plan = planned(gated_mlp)
    assert plan.operators["gate_product"].needs[0][0] == "gate_weight_tile"
    (made,) = plan.layouts("gate_product")
    partial, whole = plan.layouts("gate_product_total")
    assert isinstance(whole, Fragment)
    assert (made.partial, partial.partial, whole.partial) == ("K", "K", "")


@pytest.mark.parametrize(
    ("lanes", "swizzle"), [(Lanes.VECTORS, Swizzle.HALVES), (Lanes.MMA, Swizzle.XOR)]
)
def test_each_lane_map_takes_the_swizzle_without_conflicts(
    gated_mlp: Graph, lanes: Lanes, swizzle: Swizzle
) -> None:
    plan = planned(gated_mlp, Offered((Copy.CP_ASYNC,), lanes=(lanes,)))
    stored = plan.layouts("gate_weight_tile")[0]
    assert isinstance(stored, Stored)
    assert stored.swizzle is swizzle


def test_rows_that_are_not_16_byte_aligned_take_plain_loads() -> None:
    graph = product_kernel(60, 4100)
    plan = plan_layouts(graph, Setup(ON, offered=Offered(tuple(Copy))))
    stored = plan.layouts("w_tile")[0]
    assert isinstance(stored, Stored)
    assert stored.copy is Copy.PLAIN
    with pytest.raises(PlanError, match="no layout of x_tile: nothing that is offered"):
        plan_layouts(graph, Setup(ON, offered=Offered((Copy.CP_ASYNC, Copy.TENSOR))))


def test_the_cheapest_layouts_are_those_that_the_writers_know(fused: Callable[..., Graph]) -> None:
    graph = fused(shape=Shape("a test", {"K": 4096, "N": 6144}))
    graph = retile(graph, {"M": 8, "N": 48, "K": 512})
    everything = replace(WRITTEN, swizzles=tuple(Swizzle), any_m_side=True)
    cheapest, written = (
        plan_layouts(graph, Setup(ON, offered=offered)).cycles for offered in (everything, WRITTEN)
    )
    assert cheapest == written
