"""Tokens taken whole: kernels without a loop, statistics before one; results beside the output."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handmade_lines import LAYER_NORM_LINEAR, NORM_RESIDUAL, NTRANS, mugraph, record
from msgspec.structs import replace as rewritten

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Graph, Node
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import Do, Layout, Roles, Statement, TileProgram
from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.schedules.choose import BUCKETS_WITH_RESULTS, variants
from mirage_kernels.generator.schedules.cluster_split_k import split
from mirage_kernels.generator.schedules.row_wise import RowWise, elementwise_knobs, row_wise_knobs
from mirage_kernels.generator.schedules.sliced_k import BUCKETS_WITH_STATISTICS, RING, Footprint
from mirage_kernels.generator.search.sketch import Setting, Step, View
from mirage_kernels.generator.target import target


def planned(name: str) -> TileProgram:
    return tile_program(name, mugraph(name))


def words(statements: tuple[Statement, ...]) -> list[str]:
    """Return statements as "do args @ layout"."""
    return [f"{s.op or s.do.value} {' '.join(s.args)} @ {s.layout.value}" for s in statements]


def test_a_kernel_without_a_loop_is_lines_loads_first_and_stores_last() -> None:
    program = planned("ntrans")
    assert program.roles == Roles(rows="", tokens="M", depth="K")
    assert (program.loop, program.reductions, program.epilogue) == ((), (), ())
    assert [s.do for s in program.lines[:3]] == [Do.LOAD] * 3
    assert words(program.lines)[3:6] == [
        "mul x_tile x_tile @ tokens x whole depth",
        "sum x_squared @ tokens",
        "sqrt sum_x_squared @ tokens",
    ]
    assert program.lines[-1].do is Do.STORE
    loads = {s.args[0]: s for s in program.lines if s.do is Do.LOAD}
    assert loads["alpha"].out == "alpha_line"
    assert loads["alpha"].layout is Layout.LINE_VECTOR


def test_a_block_holds_a_token_and_the_tile_follows() -> None:
    made = record("ntrans")
    (variant,) = made.variants
    assert (variant.bucket, made.max_tokens) == (0, 0)
    assert made.tiles(variant) == {"M": 1}
    body = made.graph.blocks[0].body
    assert body is not None
    assert body.space is not None
    assert [a.tile for a in body.space.grid] == [1]


def test_threads_hold_up_to_four_pieces_of_a_line_while_there_are_warps() -> None:
    sizes = {8: (1, 1), 1024: (1, 4), 1280: (2, 3), 4096: (4, 4), 8192: (8, 4), 32768: (16, 8)}
    assert {depth: row_wise_knobs(depth) for depth in sizes} == {
        depth: RowWise(*size) for depth, size in sizes.items()
    }


def test_a_record_without_rows_is_read_back(tmp_path) -> None:
    made = record("ntrans")
    path = tmp_path / "record.json"
    path.write_text(made.text())
    assert load_record(path) == made
    assert '"schedule": "row_wise"' in made.text()
    assert '"rows": ""' not in made.text()


def test_statistics_are_lines_that_keep_a_number_per_token() -> None:
    program = planned("layer_norm_linear")
    assert [s.args[0] for s in program.statistics] == ["mean_x", "root"]
    assert next(s.do for s in program.lines if s.layout is Layout.LINE) is Do.LOAD
    assert program.epilogue[0].do is Do.TOTAL
    reads = [s for s in program.loop if s.do is Do.READ]  # each once
    kept = [("mean_x", ("mean_x_kept",)), ("root", ("root_kept",))]
    assert [(s.out, s.args) for s in reads] == kept


def test_kernels_with_statistics_serve_up_to_32_tokens_and_keep_them_below_the_ring() -> None:
    program = planned("layer_norm_linear")
    made = variants(program, target("sm_90a"))
    assert tuple(v.knobs.tokens for v in made) == BUCKETS_WITH_STATISTICS
    assert record("layer_norm_linear").max_tokens == 32
    places = Footprint.of(program).arrangement(made[0].knobs)
    assert places.offsets["mean_x_kept"] < places.offsets[RING]
    assert places.offsets["root_kept"] < places.offsets[RING]


def test_a_sum_of_what_need_not_vanish_past_the_depth_has_no_plan() -> None:
    steps = list(LAYER_NORM_LINEAR.steps)
    squares = (
        *steps[:9],  # the mean, the deviation, x - mean in the loop
        Step("contract", (15, 15), "K"),
        Step("accum", (16,)),
        Step("contract", (4, 15), "K"),
        Step("accum", (18,)),
        Step("div", (19, 17)),
    )
    summed = rewritten(LAYER_NORM_LINEAR, steps=squares, results=((20, ("M", "N")),))
    assert refusal(mugraph("layer_norm_linear", summed)).endswith(
        "sums what need not end with the depth"
    )


def test_a_number_in_front_of_a_line_has_no_plan() -> None:
    steps = (*NTRANS.steps[:3], Step("sub", (5, 1)))
    graph = mugraph("ntrans", rewritten(NTRANS, steps=steps, results=((6, ("M", "K")),)))
    assert refusal(graph).endswith("broadcasts its first operand")


def test_elementwise_lines_are_cut_into_parts() -> None:
    program = planned("silu_and_mul")
    assert program.parted
    assert program.roles == Roles(rows="", tokens="M", depth="N")
    (variant,) = variants(program, target("sm_90a"))
    made = record("silu_and_mul")
    assert made.tiles(variant) == {"M": 1, "N": variant.knobs.elements}
    assert [case.tiles["N"] for case in made.proof.cases[-3:]] == [variant.knobs.elements] * 3


def test_parts_are_the_longest_that_divide_a_line() -> None:
    sizes = {14336: (4, 1024), 11008: (3, 688), 4096: (4, 1024), 1024: (4, 1024), 40: (1, 40)}
    assert {depth: elementwise_knobs(depth, 3) for depth in sizes} == {
        depth: RowWise(warps, 1, elements) for depth, (warps, elements) in sizes.items()
    }
    assert elementwise_knobs(16384, 2) == RowWise(8, 1, 2048)


def test_sums_of_lines_that_the_grid_cuts_have_no_plan() -> None:
    cuts = {"x": ("M", "K"), "norm_weight": (None, "K"), "residual": ("M", "K")}
    cut_leaves = NORM_RESIDUAL.leaves[:-1]
    views = (View(v.tensor, cuts.get(v.tensor, (None, None)), None) for v in cut_leaves)
    cut = rewritten(NORM_RESIDUAL, setting=Setting(("M", "K"), None), leaves=(*views, "size_K"))
    assert refusal(mugraph("rms_norm_residual", cut)).endswith("the grid cuts are not planned")


def test_lines_store_a_result_beside_the_output() -> None:
    program = planned("rms_norm_residual")
    stores = [s.args for s in program.lines if s.do is Do.STORE]
    assert [o.name for o in program.results] == ["out", "total"]
    assert {tensor for _, tensor in stores} == {"out", "total"}
    assert record("rms_norm_residual").max_tokens == 0


NAME = "rms_norm_linear_residual"


def refusal(graph: Graph) -> str:
    with pytest.raises(PlanError) as caught:
        tile_program("mine", graph)
    return caught.value.sentence


def changed(**stored: object) -> Graph:
    """Return the muGraph with another node that stores the result beside the output."""
    graph = mugraph(NAME)
    (block,) = graph.blocks
    assert block.body is not None

    def node(n: Node) -> Node:
        return replace(n, **stored) if n.name == "total_stored" else n  # type: ignore[arg-type]

    body = replace(block.body, nodes=tuple(map(node, block.body.nodes)))
    inner = replace(block, body=body)
    return replace(graph, nodes=tuple(inner if n is block else n for n in graph.nodes))


def test_the_loop_stores_it_beside_what_it_computes_of_it() -> None:
    program = planned(NAME)
    assert [(o.name, o.index) for o in program.results] == [("out", 0), ("total", 1)]
    (stored,) = (s for s in program.loop if s.do is Do.STORE)
    assert (stored.args, stored.layout) == (("total_tile", "total"), Layout.TOKENS)
    (made,) = (s for s in program.loop if s.out == "total_tile")
    assert (made.op, made.args, made.dtype.value) == ("add", ("x_tile", "residual_tile"), "fp16")
    assert not any(s.barrier for s in program.loop)
    assert [s.layout for s in program.loads].count(Layout.TOKENS) == 2


def test_sliced_k_alone_serves_few_tokens() -> None:
    program = planned(NAME)
    found = variants(program, target("sm_90a"))
    assert [v.knobs.tokens for v in found] == [*BUCKETS_WITH_RESULTS]
    assert [v.bucket for v in found] == [*BUCKETS_WITH_RESULTS[:-1], 0]
    assert {v.schedule for v in found} == {"sliced_k"}
    assert split(program) is None
    assert record(NAME).max_tokens == BUCKETS_WITH_RESULTS[-1]


def test_what_is_only_loaded_is_not_stored() -> None:
    said = refusal(changed(args=("x_tile",)))
    assert said == "mine: the loop computes no lines of tokens for total"
