"""Positional programs in named dims: the same numbers as by position, and natural dims."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import mirage_kernels.generator as mi
from mirage_kernels.generator.errors import GraphError, MirageError
from mirage_kernels.generator.frontend.mirage.builder import KernelGraph
from mirage_kernels.generator.ir import to_text

Three = tuple[int, int, int]


def test_hand_written_kernels_compute_what_they_compute_by_position(
    named_program: tuple[str, KernelGraph], assert_agrees: Callable
) -> None:
    assert_agrees(named_program[1].program())


ACCUMULATIONS = [None, "sum", "mean", "rms", "sum_todimx"]


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("cut", [-1, 0, 1])
@pytest.mark.parametrize("kind", ACCUMULATIONS)
def test_accumulations_agree_with_their_definition(
    kind: str | None, cut: int, steps: int, assert_agrees: Callable
) -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input(dims=(6, 24))
    block = mi.new_threadblock_graph((2, 1, 1), (128, 1, 1), steps, 4)
    tile = block.new_input(x, (0, -1, -1), cut if steps > 1 else -1)
    block.new_output(block.forloop_accum(tile, kind), (0, -1, -1))
    graph.mark_output(graph.customized([x], block)[0])
    assert_agrees(graph.program())


@pytest.mark.parametrize("kind", ACCUMULATIONS)
def test_a_value_that_no_iteration_changes_is_added_up_all_the_same(
    kind: str | None, assert_agrees: Callable
) -> None:
    graph = mi.new_kernel_graph()
    x, w = graph.new_input(dims=(4, 8)), graph.new_input(dims=(4, 12))
    block = mi.new_threadblock_graph((1, 1, 1), (128, 1, 1), 3, 4)
    bx, bw = block.new_input(x, (-1, -1, -1), -1), block.new_input(w, (-1, -1, -1), 1)
    total = block.forloop_accum(block.square(bx), kind)
    block.new_output(block.mul(total, block.forloop_accum(bw, "sum")), (-1, -1, -1))
    graph.mark_output(graph.customized([x, w], block)[0])
    assert_agrees(graph.program())


MAPS = [(0, 1, -1), (1, 0, -1), (-1, 1, 0), (0, -1, 1), (1, -1, -1), (-1, -1, 0)]


@pytest.mark.parametrize("maps", MAPS)
def test_grids_cut_and_lay_out_tiles_alike(maps: Three, assert_agrees: Callable) -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input(dims=(12, 12))
    grid = tuple(count if dim >= 0 else 1 for count, dim in zip((2, 3, 4), maps, strict=True))
    block = mi.new_threadblock_graph(grid, (128, 1, 1), 1, 4)
    block.new_output(block.exp(block.new_input(x, maps, -1)), maps)
    graph.mark_output(graph.customized([x], block)[0])
    assert_agrees(graph.program())


def test_tiles_may_be_laid_out_along_another_dim(assert_agrees: Callable) -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input(dims=(6, 8))
    block = mi.new_threadblock_graph((2, 1, 1), (128, 1, 1), 1, 4)
    block.new_output(block.square(block.new_input(x, (1, -1, -1), -1)), (0, -1, -1))
    (y,) = graph.customized([x], block)
    assert y.dims == (12, 4)
    graph.mark_output(y)
    assert_agrees(graph.program())


def test_blocks_may_pair_tiles_of_different_dims(assert_agrees: Callable) -> None:
    graph = mi.new_kernel_graph()
    x, y = graph.new_input(dims=(6, 4)), graph.new_input(dims=(3, 8))
    block = mi.new_threadblock_graph((2, 1, 1), (128, 1, 1), 1, 4)
    bx, by = block.new_input(x, (0, -1, -1), -1), block.new_input(y, (1, -1, -1), -1)
    block.new_output(block.add(bx, by), (1, -1, -1))
    graph.mark_output(graph.customized([x, y], block)[0])
    assert_agrees(graph.program())


def two_kernels(first: int, second: int) -> KernelGraph:
    """One kernel cuts a dim into `first` tiles, the next one loops over it `second` times."""
    graph = mi.new_kernel_graph()
    x, w = graph.new_input(dims=(4, 48)), graph.new_input(dims=(48, 6))
    block = mi.new_threadblock_graph((first, 1, 1), (128, 1, 1), 1, 4)
    block.new_output(block.exp(block.new_input(x, (1, -1, -1), -1)), (1, -1, -1))
    (y,) = graph.customized([x], block)
    block = mi.new_threadblock_graph((3, 1, 1), (128, 1, 1), second, 4)
    by, bw = block.new_input(y, (-1, -1, -1), 1), block.new_input(w, (1, -1, -1), 0)
    block.new_output(block.forloop_accum(block.matmul(by, bw)), (1, -1, -1))
    graph.mark_output(graph.customized([y, w], block)[0])
    return graph


@pytest.mark.parametrize(("first", "second"), [(4, 8), (8, 3), (3, 16), (6, 4)])
def test_two_kernels_may_cut_one_dim_at_different_places(
    first: int, second: int, assert_agrees: Callable
) -> None:
    graph = two_kernels(first, second)
    assert_agrees(graph.program())
    assert graph.lowered().inputs[0] == (("M",), ("K",))


def test_dims_that_are_cut_plainly_keep_one_name(programs: dict[str, Callable]) -> None:
    text = to_text(programs["rms_norm"]().lowered().graph)
    assert "grid: x cuts N by 8; loop cuts K by 8" in text


def test_partial_results_side_by_side_have_a_dim_for_the_blocks(
    programs: dict[str, Callable],
) -> None:
    lowered = programs["gqa"]().lowered()
    assert lowered.inputs[1] == (("B",), ("K",), ("N_0", "N_1"))
    assert lowered.outputs == ((("B",), ("M",), ("N2",)),)


def test_operators_of_a_kernel_graph_agree_with_their_definition(assert_agrees: Callable) -> None:
    graph = mi.new_kernel_graph()
    x, w, b = (graph.new_input(dims=d) for d in ((2, 3, 8), (2, 8, 5), (1, 1, 5)))
    y = graph.add(graph.matmul(graph.rms_norm(x, normalized_shape=(3, 8)), w), b)
    z = graph.div(graph.exp(y), graph.reduction(graph.exp(y), -1))
    graph.mark_output(graph.clamp(graph.mul_scalar(z, 3.0), 0.25, 1.5))
    graph.mark_output(graph.relu(graph.sub(y, graph.tanh(y))))
    assert_agrees(graph.program())


def test_a_dim_of_one_element_keeps_its_name_unless_it_broadcasts() -> None:
    graph = mi.new_kernel_graph()
    x, g, w = (graph.new_input(dims=d) for d in ((1, 8), (1, 8), (8, 4)))
    graph.matmul(graph.mul(graph.rms_norm(x), g), w)
    assert graph.lowered().outputs == ((("M",), ("N",)),)
    graph = mi.new_kernel_graph()
    x, g, w = (graph.new_input(dims=d) for d in ((3, 8), (1, 8), (8, 4)))
    graph.matmul(graph.mul(graph.rms_norm(x), g), w)
    assert graph.lowered().inputs[1] == ((), ("K",))


def test_strides_say_which_dim_is_last_in_memory() -> None:
    graph = mi.new_kernel_graph()
    x, w = graph.new_input(dims=(3, 8)), graph.new_input(dims=(8, 4), strides=(1, 8))
    graph.matmul(x, w)
    assert graph.lowered().graph.inputs[1].out.type.names == ("N", "K")
    assert graph.lowered().inputs[1] == (("K",), ("N",))


def one_block(build: Callable, *, grid: Three = (2, 1, 1), steps: int = 1) -> KernelGraph:
    graph = mi.new_kernel_graph()
    x = graph.new_input(dims=(4, 8))
    block = mi.new_threadblock_graph(grid, (128, 1, 1), steps, 4)
    build(block, x)
    graph.mark_output(graph.customized([x], block)[0])
    return graph


def uneven_grid(block, x):
    block.new_input(x, (1, -1, -1), -1)


def overlapping(block, x):
    block.new_output(block.exp(block.new_input(x, (0, -1, -1), -1)), (-1, -1, -1))


def replicated(block, x):
    block.new_output(block.exp(block.new_input(x, (-1, -1, -1), -1)), (0, -1, -1))


def inside_the_loop(block, x):
    block.new_output(block.exp(block.new_input(x, (0, -1, -1), 1)), (0, -1, -1))


def one_axis_twice(block, x):
    block.new_input(x, (0, 0, -1), -1)


def absent_dim(block, x):
    block.new_input(x, (2, -1, -1), -1)


def bad_kind(block, x):
    block.forloop_accum(block.new_input(x, (0, -1, -1), -1), "max")


def rescaled_by_anything(block, x):
    tile = block.new_input(x, (0, -1, -1), 1)
    block.new_output(block.forloop_accum_rescale(tile, tile), (0, -1, -1))


def growth_used_up(block, x):
    tile = block.new_input(x, (0, -1, -1), 1)
    _, growth = block.reduction_max(tile, 1)
    block.new_output(block.forloop_accum(block.mul(tile, growth)), (0, -1, -1))


def concat_stored(block, x):
    tile = block.new_input(x, (0, -1, -1), -1)
    block.new_output(block.forloop_accum(block.concat(tile, tile, 1)), (0, -1, -1))


WRONG_BLOCKS = [
    (uneven_grid, {"grid": (3, 1, 1)}, "does not fall into 3 equal tiles"),
    (overlapping, {}, "hold different values"),
    (replicated, {}, "hold the same values"),
    (inside_the_loop, {"steps": 2}, "stores a value of one iteration"),
    (one_axis_twice, {"grid": (2, 2, 1)}, "two grid axes cut the same dim"),
    (absent_dim, {}, "names dim 2"),
    (bad_kind, {}, "no accum of the kind 'max'"),
    (rescaled_by_anything, {"steps": 2}, "exp of the growth"),
    (growth_used_up, {"steps": 2}, "mul takes the growth"),
    (concat_stored, {}, "accum takes a concat"),
]


@pytest.mark.parametrize(
    ("build", "options", "sentence"), WRONG_BLOCKS, ids=[w[0].__name__ for w in WRONG_BLOCKS]
)
def test_a_block_graph_without_meaning_is_refused_by_name(
    build: Callable, options: dict, sentence: str
) -> None:
    with pytest.raises(MirageError, match=sentence):
        one_block(build, **options).lowered()


def test_a_square_tensor_times_itself_is_refused() -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input(dims=(8, 8))
    graph.mark_output(graph.matmul(x, x))
    with pytest.raises(GraphError, match="one and the same"):
        graph.lowered()


WRONG_KERNELS = [
    (lambda g, x: g.matmul(x, x), "matmul of"),
    (lambda g, x: g.add(x, g.new_input(dims=(2, 8))), "add of"),
    (lambda g, x: g.reduction(x, 2), "over dim 2"),
    (lambda g, x: g.rms_norm(x, normalized_shape=(4,)), "rms_norm over"),
    (lambda g, x: g.new_input(dims=()), "has the dims"),
    (lambda g, x: g.new_input(dims=(4, 0)), "has the dims"),
    (lambda g, x: g.new_input(dims=(4, 2.5)), "dims is"),
    (lambda g, x: g.new_input(dims=4), "dims is 4"),
    (lambda g, x: g.new_input(dims=(4, 8), strides=(1,)), "1 strides"),
    (lambda g, x: g.new_input(dims=(4, 8), dtype="fp8"), "'fp8'"),
    (lambda g, x: g.exp(mi.new_kernel_graph().new_input(dims=(4, 8))), "no tensor of this"),
    (lambda g, x: g.exp(3), "no tensor of this"),
    (lambda g, x: mi.new_threadblock_graph((1, 1), (1, 1, 1), 1, 4), "grid_dim"),
    (lambda g, x: mi.new_threadblock_graph((0, 1, 1), (1, 1, 1), 1, 4), "a block graph with grid"),
    (lambda g, x: mi.new_threadblock_graph((1, 1, 1), (1, 1, 1), 0, 4), "forloop_range 0"),
    (lambda g, x: g.customized([x], mi.new_threadblock_graph((1,) * 3, (1,) * 3, 1, 4)), "inputs"),
    (lambda g, x: g.pow(x, x), "has no 'pow'"),
    (lambda g, x: g.mark_output(3), "mark_output of 3"),
    (lambda g, x: mi.new_kernel_graph().lowered(), "computes nothing yet"),
]


@pytest.mark.parametrize(("build", "sentence"), WRONG_KERNELS, ids=[w[1] for w in WRONG_KERNELS])
def test_a_wrong_call_gets_a_sentence(build: Callable, sentence: str) -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input(dims=(4, 8))
    with pytest.raises(MirageError, match=sentence):
        build(graph, x)
