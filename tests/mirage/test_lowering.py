"""Positional programs in named dims: the same numbers as by position, and natural dims."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import mirage_kernels.generator as mi
from mirage_kernels.generator.errors import GraphError, MirageError
from mirage_kernels.generator.frontend.mirage.builder import BlockGraph, KernelGraph
from mirage_kernels.generator.frontend.positional.lower import lower
from mirage_kernels.generator.frontend.positional.program import Program, Step, Tensor
from mirage_kernels.generator.ir import DType, to_text

Three = tuple[int, int, int]


def test_hand_written_kernels_compute_what_they_compute_by_position(
    named_program: tuple[str, KernelGraph], assert_agrees: Callable
) -> None:
    assert_agrees(named_program[1].program)


ACCUMULATIONS = [None, "sum", "mean", "rms", "sum_todimx"]


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("cut", [-1, 0, 1])
@pytest.mark.parametrize("kind", ACCUMULATIONS)
def test_accumulations_agree_with_their_definition(
    kind: str | None, cut: int, steps: int, assert_agrees: Callable
) -> None:
    graph = mi.new_kernel_graph()
    x, w = graph.new_input(dims=(6, 24)), graph.new_input(dims=(6, 12))
    block = mi.new_threadblock_graph((2, 1, 1), (128, 1, 1), steps, 4)
    tile = block.new_input(x, (0, -1, -1), cut if steps > 1 else -1)
    looped = block.new_input(w, (0, -1, -1), 1)  # x may be the same in every iteration
    block.new_output(block.forloop_accum(tile, kind), (0, -1, -1))
    block.new_output(block.forloop_accum(looped, "sum"), (0, -1, -1))
    for made in graph.customized([x, w], block):
        graph.mark_output(made)
    assert_agrees(graph.program)


@pytest.mark.parametrize(("first", "second"), [(4, 8), (8, 3), (3, 16), (6, 4)])
def test_two_kernels_may_cut_one_dim_at_different_places(
    first: int, second: int, programs: dict[str, Callable], assert_agrees: Callable
) -> None:
    graph = programs["two_kernels"](first, second)
    assert_agrees(graph.program)
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
    assert_agrees(graph.program)


def test_a_dim_of_one_element_keeps_its_name_unless_it_broadcasts() -> None:
    graph = mi.new_kernel_graph()
    x, g, w = (graph.new_input(dims=d) for d in ((1, 8), (1, 8), (8, 4)))
    graph.matmul(graph.mul(graph.rms_norm(x), g), w)
    assert graph.lowered().outputs == ((("M",), ("N",)),)
    graph = mi.new_kernel_graph()
    x, g, w = (graph.new_input(dims=d) for d in ((3, 8), (1, 8), (8, 4)))
    graph.matmul(graph.mul(graph.rms_norm(x), g), w)
    assert graph.lowered().inputs[1] == ((), ("K",))


def test_other_front_ends_record_programs_in_the_ops_of_the_one_table() -> None:
    program = Program()
    x, y = program.input((4, 8), DType.BF16), program.input((4, 1), DType.BF16)
    (larger,) = program.apply(Step("max"), [x, y])
    program.apply(Step("rsqrt"), [larger])
    lowered = lower(program)
    assert [n.op for n in lowered.graph.nodes] == ["input", "input", "max", "rsqrt"]
    assert lowered.inputs == ((("D",), ("D2",)), (("D",), ()))


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


def stored(inputs: Three, step: Callable, outputs: Three, cut: int = -1) -> Callable:
    """Return how to build a block graph: one input, some operators, one output."""

    def build(block, x) -> None:
        block.new_output(step(block, block.new_input(x, inputs, cut)), outputs)

    return build


ROWS, NONE = (0, -1, -1), (-1, -1, -1)
LOOPED = {"steps": 2}
WRONG_BLOCKS = [
    (stored((1, -1, -1), lambda b, x: x, NONE), {"grid": (3, 1, 1)}, "not fall into 3 equal tiles"),
    (stored(ROWS, lambda b, x: b.exp(x), NONE), {}, "hold different values"),
    (stored(NONE, lambda b, x: b.exp(x), ROWS), {}, "hold the same values"),
    (stored(ROWS, lambda b, x: b.exp(x), ROWS, 1), LOOPED, "stores a value of one iteration"),
    (stored((0, 0, -1), lambda b, x: x, NONE), {"grid": (2, 2, 1)}, "two grid axes cut the same"),
    (stored((2, -1, -1), lambda b, x: x, NONE), {}, "names dim 2"),
    (stored(ROWS, lambda b, x: b.forloop_accum(x, "max"), ROWS), {}, "no accum of the kind 'max'"),
    (
        stored(ROWS, lambda b, x: b.forloop_accum_rescale(x, x), ROWS, 1),
        LOOPED,
        "exp of the growth",
    ),
    (
        stored(ROWS, lambda b, x: b.forloop_accum(b.mul(x, b.reduction_max(x, 1)[1])), ROWS, 1),
        LOOPED,
        "mul takes the growth",
    ),
    (
        stored(ROWS, lambda b, x: b.forloop_accum(b.concat(x, x, 1)), ROWS),
        {},
        "accum takes a concat",
    ),
]


@pytest.mark.parametrize(
    ("build", "options", "sentence"), WRONG_BLOCKS, ids=[w[2] for w in WRONG_BLOCKS]
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


def exp_of(other: KernelGraph):
    """Return a block graph made for another kernel graph's tensor of the same number."""
    block = mi.new_threadblock_graph((1, 1, 1), (128, 1, 1), 1, 4)
    block.new_output(block.exp(block.new_input(other.new_input(dims=(2, 2)), NONE, -1)), NONE)
    return block


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
    (lambda g, x: g.customized([x], exp_of(mi.new_kernel_graph())), "other tensors than"),
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


SEEDS, ATTEMPTS = 90, 60  # most attempts are refused: their maps do not fit
UNARY = ("exp", "silu", "square", "rms_norm", "sqrt")
BINARY = ("add", "mul", "div", "matmul")
KINDS = (None, None, "sum", "rms", "mean", "sum_todimx")


def chosen(rng: np.random.Generator, items: Sequence) -> object:
    return items[int(rng.integers(len(items)))]


def random_block(
    graph: KernelGraph, tensors: list[Tensor], rng: np.random.Generator
) -> list[Tensor]:
    """Add a random block graph on some tensors; raises where its pieces do not fit."""
    grid = tuple(int(n) for n in rng.choice([1, 1, 2, 2, 3], 3))
    steps = int(rng.choice([1, 2, 4]))
    block = mi.new_threadblock_graph(grid, (128, 1, 1), steps, int(rng.choice([2, 4])))
    used, tiles = [], []
    for tensor in tensors:
        dims = list(rng.permutation([-1, -1, *range(tensor.num_dims)])[:3])
        maps = tuple(int(d) for d in dims)
        cut = int(rng.integers(-1, tensor.num_dims)) if steps > 1 else -1
        tiles.append(block.new_input(tensor, maps, cut))
        used.append(tensor)
    random_steps(block, tiles, rng)
    done = [block.forloop_accum(tiles[-1], chosen(rng, KINDS))]
    done.append(block.forloop_accum(tiles[-2], chosen(rng, KINDS)))
    last = random_steps(block, done, rng, times=1)[-1]
    for stored in {last.guid: last, done[0].guid: done[0]}.values():
        places = list(rng.permutation([-1, *range(stored.num_dims), -1])[:3])
        block.new_output(stored, tuple(int(d) for d in places))
    return graph.customized(used, block)


def random_steps(
    block: BlockGraph, tiles: list[Tensor], rng: np.random.Generator, times: int = 3
) -> list[Tensor]:
    for _ in range(times):
        op = str(chosen(rng, (*UNARY, *BINARY)))
        args = [chosen(rng, tiles[-3:]) for _ in range(1 if op in UNARY else 2)]
        try:
            tiles.append(getattr(block, op)(*args))
        except MirageError:
            tiles.append(block.square(args[0]))
    return tiles


def random_program(seed: int, attempt: int) -> KernelGraph:
    rng = np.random.default_rng((seed, attempt))
    graph = mi.new_kernel_graph()
    m, k, n = (int(x) for x in rng.choice([4, 6, 12, 24], 3))
    shapes = [[(m, k), (k, n)], [(m, k), (m, k)], [(2, m, k), (2, k, n)]][seed % 3]
    tensors = [graph.new_input(dims=d) for d in shapes]
    made = random_block(graph, tensors, rng)
    if seed % 2:
        made = random_block(graph, made[:2], rng)
    for tensor in made:
        graph.mark_output(tensor)
    return graph


def accepted(seed: int) -> KernelGraph | None:
    """Return the first random program of a seed that is accepted."""
    for attempt in range(ATTEMPTS):
        with contextlib.suppress(MirageError):
            graph = random_program(seed, attempt)
            graph.lowered()
            return graph
    return None


def test_accepted_programs_compute_what_they_compute_by_position(assert_agrees: Callable) -> None:
    graphs = {seed: accepted(seed) for seed in range(SEEDS)}
    found = {seed: graph for seed, graph in graphs.items() if graph is not None}
    assert len(found) >= SEEDS // 2
    for seed, graph in found.items():
        assert_agrees(graph.program, seed)


def test_a_sum_times_one_over_its_extent_is_a_mean_at_any_extent(assert_agrees: Callable) -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input(dims=(4, 6, 8))
    total = graph.reduction(graph.reduction(x, 2), 1)
    graph.mark_output(graph.mul_scalar(total, 1 / 48))
    graph.mark_output(graph.mul_scalar(total, 1 / 47))
    assert [n.op for n in graph.lowered().graph.nodes].count("const") == 1
    assert_agrees(graph.program)
