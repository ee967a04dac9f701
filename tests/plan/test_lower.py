"""Tile programs: the order, place and operands of statements, and muGraphs that have none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType, Graph, Node, Value
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import Do, Layout, Roles, TileProgram, roles_of
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.recipe import Recipe, Shape, output_type, trace
from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.search.lower import Goal, lower
from mirage_kernels.generator.search.sketch import (
    BlockSketch,
    LibrarySketch,
    ProgramSketch,
    Setting,
    Step,
    View,
    middle_name,
)

Fused = Callable[..., Graph]
SHAPE = Shape("a test", {"K": 72, "N": 40})
TILES = {"M": 8, "K": 32, "N": 16}


def lowered(recipe: Recipe, *kernels: BlockSketch | LibrarySketch) -> Graph:
    spec = trace(recipe, SHAPE, DType.FP16)
    goal = Goal(spec, output_type(recipe, SHAPE, DType.FP16), DType.FP16, TILES)
    return lower(ProgramSketch(kernels), goal)


def linear_sketch(loop: str | None, *steps: Step) -> BlockSketch:
    """A kernel of x and weight alone: no norm, for its plan only."""
    views = (View("x", (None, "M"), loop), View("weight", ("N", None), loop))
    results = ((len(views) + len(steps) - 1, ("M", "N")),)
    return BlockSketch(Setting(("N", "M"), loop), views, steps, results)


def words(program: TileProgram) -> list[str]:
    """Return every statement of the loop as "out = do args @ layout"."""
    return [
        f"{s.out} = {s.op or s.do.value} {' '.join(s.args)} @ {s.layout.value}"
        for s in program.loop
        if s.do is not Do.LOAD
    ]


@pytest.fixture(scope="module")
def program(fused: Fused) -> TileProgram:
    return tile_program("rms_norm_linear", with_threads(fused("w")))


def test_the_static_lines_stream_and_the_dynamic_ones_are_tokens(fused: Fused) -> None:
    body = fused().blocks[0].body
    assert body is not None
    assert roles_of(body) == Roles(rows="N", tokens="M", depth="K")


def test_the_loops_of_the_weight_form_and_of_the_x_form(fused: Fused, program: TileProgram) -> None:
    squares = [
        "x_squared_terms = mul x_tile x_tile @ tokens x depth",
        "x_squared = sum x_squared_terms @ tokens",
    ]
    assert words(program) == [
        "scaled_weight = mul weight_tile norm_weight_tile @ rows x depth",
        "scaled_product = contract scaled_weight x_tile @ rows x tokens",
        *squares,
    ]
    assert words(tile_program("rms_norm_linear", fused("x"))) == [
        "scaled_x = mul x_tile norm_weight_tile @ tokens x depth",
        "scaled_x_product = contract weight_tile scaled_x @ rows x tokens",
        *squares,
    ]


def test_loads_partial_sums_and_the_epilogue_come_in_order(program: TileProgram) -> None:
    assert [(s.args[0], s.layout) for s in program.loads] == [
        ("x", Layout.TOKENS),
        ("norm_weight", Layout.DEPTH),
        ("weight", Layout.ROWS),
    ]
    assert [s.out for s in program.reductions] == ["scaled_product", "x_squared"]
    words_ = [s.op or s.do.value for s in program.epilogue]
    assert words_ == ["total", "total", "div", "add", "sqrt", "div", "store"]
    (added,) = (s for s in program.epilogue if s.op == "add")
    assert added.args == ("eps", "mean_x_squared")  # operands stay in order
    narrow = {s.out for s in program.loop if s.dtype is DType.FP16}
    assert narrow == {"x_tile", "norm_weight_tile", "weight_tile", "scaled_weight"}


def test_scalars_are_no_tensors_and_extents_are_literals(
    fused: Fused, program: TileProgram
) -> None:
    assert program.scalars == ("eps",)
    assert [o.name for o in program.inputs] == ["x", "norm_weight", "weight"]
    assert program.literals == {"size_K": "K"}
    assert (program.output.name, program.output.type.names) == ("out", ("M", "N"))
    assert tile_program("rms_norm_linear", fused("w")) == program  # without thread graphs


def test_two_products_of_one_loop_are_two_accumulators() -> None:
    record = load_record(ROOT / "kernels/sm_90a/gated_mlp/K4096_N4096_fp16.json")
    program = tile_program("gated_mlp", record.graph)
    assert [s.layout for s in program.accumulators] == [Layout.ACCUM, Layout.ACCUM]
    assert [s.op for s in program.epilogue if s.do is Do.MAP] == ["silu", "mul"]


def refusal(graph: Graph) -> str:
    with pytest.raises(PlanError) as caught:
        tile_program("mine", graph)
    return caught.value.sentence


def test_a_mugraph_of_two_kernels_has_no_plan(rms_norm_linear: Recipe) -> None:
    views = (View("norm_weight", (None,), None), View("weight", ("N",), None))
    scaling = BlockSketch(Setting(("N",), None), views, (Step("mul", (0, 1)),), ((2, ("N", "K")),))
    graph = lowered(rms_norm_linear, scaling, LibrarySketch((middle_name(0), "x"), "K", ("N", "M")))
    assert refusal(graph) == "mine: the muGraph has several kernels, this plan takes one"


def test_a_product_without_a_loop_has_no_plan(rms_norm_linear: Recipe) -> None:
    graph = lowered(rms_norm_linear, linear_sketch(None, Step("contract", (0, 1), "K")))
    assert refusal(graph) == "without a loop the plan takes a dynamic dim and a static one"


def test_a_loop_without_a_product_has_no_plan(rms_norm_linear: Recipe) -> None:
    views = (View("x", ("M",), "K"),)
    steps = (Step("sum", (0,), "K"), Step("accum", (1,)))
    summing = BlockSketch(Setting(("M",), "K"), views, steps, ((2, ("M",)),))
    graph = lowered(rms_norm_linear, summing, LibrarySketch(("weight", "x"), "K", ("N", "M")))
    body = graph.blocks[0].body
    assert body is not None
    with pytest.raises(PlanError, match="no contraction along the loop has one static and one"):
        roles_of(body)


def edited(graph: Graph, change: Callable[[Node], tuple[Node, ...]]) -> Graph:
    """Return a muGraph with every node of its block replaced."""
    block = graph.blocks[0]
    assert block.body is not None
    nodes = tuple(new for node in block.body.nodes for new in change(node))
    body = replace(block.body, nodes=nodes)
    return replace(graph, nodes=(*graph.nodes[:-1], replace(block, body=body)))


def test_positions_are_not_planned_yet(fused: Fused) -> None:
    graph = edited(fused(), lambda n: (replace(n, op="iota"),) if n.op == "size" else (n,))
    assert refusal(graph) == "mine: positions are not planned yet (size_K)"


REFUSED: dict[str, tuple[str, dict[str, object]]] = {
    "norm_weight_tile is not cut by the loop": ("norm_weight_tile", {"loop_cut": None}),
    "x_squared_total accumulates something else than a sum": (
        *("x_squared_total", {"args": ("scaled_weight",)}),
    ),
    "scaled_weight broadcasts its first operand": ("scaled_weight", {"op": "div"}),
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_node_that_is_not_planned_is_named(fused: Fused, said: str) -> None:
    name, fields = REFUSED[said]

    def change(node: Node) -> tuple[Node, ...]:
        return (replace(node, **fields),) if node.name == name else (node,)  # type: ignore[arg-type]

    assert refusal(edited(fused(), change)) == f"mine: {said}"


@pytest.mark.parametrize("value", [0.1, 1e-6, 0.7071067811865476])
def test_a_constant_is_a_literal_with_every_digit(fused: Fused, value: float) -> None:
    constant = Node("const", (), (Value("size_K", fused().values["eps"].type),), value=value)
    graph = edited(fused(), lambda n: (constant,) if n.op == "size" else (n,))
    assert float(tile_program("mine", graph).literals["size_K"]) == value


@pytest.fixture(scope="module")
def adapter(adapted: Fused) -> TileProgram:
    return tile_program("lora_linear", with_threads(adapted()))


def test_static_lines_that_the_grid_leaves_whole_are_inner_ones(adapted: Fused) -> None:
    body = adapted().blocks[0].body
    assert body is not None
    assert roles_of(body) == Roles(rows="N", tokens="M", depth="K", inner=("R",))


def test_inner_lines_stream_and_are_totalled_and_multiplied_after_the_loop(
    adapter: TileProgram,
) -> None:
    assert [(s.args[0], s.layout) for s in adapter.loads] == [
        ("x", Layout.TOKENS),
        ("weight", Layout.ROWS),
        ("lora_a", Layout.INNER),
    ]
    assert words(adapter) == [
        "lora_a_product = contract lora_a_tile x_tile @ inner x tokens",
        "weight_product = contract weight_tile x_tile @ rows x tokens",
    ]

    (fetched,), (stage,), (product,) = adapter.fetches, adapter.stages, adapter.products
    assert (fetched.do, fetched.args, fetched.layout) == (Do.FETCH, ("lora_b",), Layout.FACTORS)
    assert stage.dim == "R"
    assert [(s.do, s.args) for s in stage.statements] == [
        (Do.TOTAL, ("lora_a_product",)),
        (Do.KEEP, ("lora_a_product_total",)),
    ]
    assert (product.do, product.layout) == (Do.CONTRACT, Layout.ACCUM)
    assert product.args == ("lora_b_tile", "lora_a_product_total_kept")
    assert {s.layout for s in adapter.epilogue} == {Layout.ACCUM}
    left = [s.op or s.do.value for s in adapter.epilogue]
    assert left == ["total", "total", "mul", "add", "store"]


def test_a_stage_makes_anew_what_the_epilogue_needs_too(normed_adapted: Fused) -> None:
    made = tile_program("mine", with_threads(normed_adapted()))
    (stage,) = made.stages
    roots = [[s.op for s in part].count("sqrt") for part in (stage.statements, made.epilogue)]
    assert roots == [1, 1]
    assert stage.statements[-1].do is Do.KEEP
    assert {s.layout for s in made.loop if s.op == "mul"} >= {Layout.ROWS, Layout.INNER}


def test_a_factor_that_is_computed_is_not_planned(adapted: Fused) -> None:
    body = adapted().blocks[0].body
    assert body is not None
    made = replace(body.values["lora_b_tile"], name="scaled_b")
    named = Node("mul", ("scale", "lora_b_tile"), (made,))

    def change(node: Node) -> tuple[Node, ...]:
        if node.op == "contract" and "lora_b_tile" in node.args:
            args = tuple("scaled_b" if a == "lora_b_tile" else a for a in node.args)
            return (named, replace(node, args=args))
        return (node,)

    assert refusal(edited(adapted(), change)).endswith("is no part of a line")


def test_totals_of_four_bytes_are_not_planned(adapted: Fused) -> None:
    def change(node: Node) -> tuple[Node, ...]:
        if node.op != "accum" or "R" not in node.out.type.names:
            return (node,)
        wide = replace(node.out, type=replace(node.out.type, dtype=DType.FP32))
        return (replace(node, outs=(wide,)),)

    assert refusal(edited(adapted(), change)) == (
        "mine: lora_a_product_product contracts fp32 totals"
    )


LAYOUTS = {
    ("N", "K"): Layout.ROWS,
    ("K", "M"): Layout.TOKENS,
    ("K",): Layout.DEPTH,
    ("M", "N"): Layout.ACCUM,
    ("M",): Layout.TOKEN_SUMS,
    ("N",): Layout.ROW_SUMS,
    (): Layout.SCALAR,
    ("R", "K"): Layout.INNER,
    ("M", "R"): Layout.INNER_ACCUM,
    ("N", "R"): Layout.FACTORS,
}


NOWHERE = ["R", "R S", "N R M", "R S K", "M N K", "N B"]


def test_a_values_dims_say_where_it_lives() -> None:
    roles = Roles(rows="N", tokens="M", depth="K", inner=("R", "S"))
    assert {dims: roles.layout(dims) for dims in LAYOUTS} == LAYOUTS
    assert {roles.layout(tuple(dims.split())) for dims in NOWHERE} == {None}
