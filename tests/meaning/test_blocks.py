"""Block graphs are really run block by block, and give what the whole tensors give."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import numpy as np
import pytest

from mirage_kernels.generator.errors import GraphError
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
    retile,
)
from mirage_kernels.generator.meaning import blocks
from mirage_kernels.generator.meaning.arrays import Arithmetic, Array, array_reading
from mirage_kernels.generator.meaning.field import draw_field, field_arithmetic
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.recipe import Recipe, Shape, trace

Fused = Callable[..., Graph]
Sizes = Mapping[str, int]
UNEVEN = {"M": 5, "K": 11, "N": 7}
TILES = [
    {"M": 2, "K": 3, "N": 4},  # uneven edges everywhere
    {"M": 1, "K": 1, "N": 1},  # a block per result, a step per element
    {"M": 5, "K": 11, "N": 7},  # one block, one step
    {"M": 8, "K": 32, "N": 16},  # one block that reaches beyond every edge
    {"M": 4, "K": 10, "N": 3},  # a last step of one element
]


def some(type_: TensorType, sizes: Sizes, seed: int) -> Array:
    shape = [sizes[d] for d in type_.names]
    return Array(type_.names, (np.random.default_rng(seed).uniform(0.5, 2.0, shape),))


def run(graph: Graph, sizes: Sizes, arithmetic: Arithmetic = FLOAT64) -> np.ndarray:
    inputs = [some(n.out.type, sizes, i) for i, n in enumerate(graph.inputs)]
    return results(graph, inputs, array_reading(arithmetic, sizes))[0].parts[0]


@pytest.mark.parametrize("tiles", TILES, ids=str)
@pytest.mark.parametrize("scales", ["w", "x"])
def test_block_by_block_equals_whole(
    fused: Fused, rms_norm_linear: Recipe, scales: str, tiles: Sizes
) -> None:
    spec = trace(rms_norm_linear, Shape("small", {"K": 11, "N": 7}), DType.FP16)
    graph = retile(fused(scales), tiles)
    np.testing.assert_allclose(run(graph, UNEVEN), run(spec, UNEVEN), rtol=1e-12)


@pytest.mark.parametrize("tokens", [1, 2, 3, 8])
def test_any_number_of_tokens_runs(fused: Fused, rms_norm_linear: Recipe, tokens: int) -> None:
    sizes = UNEVEN | {"M": tokens}
    spec = trace(rms_norm_linear, Shape("small", {"K": 11, "N": 7}), DType.FP16)
    graph = retile(fused(), TILES[0])
    np.testing.assert_allclose(run(graph, sizes), run(spec, sizes), rtol=1e-12)


def test_thread_graphs_change_nothing(fused: Fused) -> None:
    graph = retile(fused(), TILES[0])
    np.testing.assert_array_equal(run(with_threads(graph), UNEVEN), run(graph, UNEVEN))


M, K, N = Dim("M", 6), Dim("K", 10), Dim("N", 9)
SCALAR = TensorType((), DType.FP32)


def typed(*dims: Dim) -> TensorType:
    return TensorType(dims, DType.FP32)


def block(body: Builder, args: Mapping[str, TensorType], result: TensorType) -> Graph:
    """Return the kernel graph that runs the finished block graph `body` on inputs `args`."""
    kernel = Builder(Level.KERNEL)
    for name, type_ in args.items():
        kernel.input(name, type_)
    inner = body.graph([body.nodes[-1].name])
    kernel.add(Node("block", tuple(args), (Value("out", result),), body=inner))
    return kernel.graph(["out"])


def tile(
    body: Builder, name: str, type_: TensorType, *cuts: str | None, loop_cut: str | None = None
) -> str:
    value = Value(name, type_)
    return body.add(Node("input", (), (value,), cuts=tuple(cuts), loop_cut=loop_cut))


def store(body: Builder, name: str, type_: TensorType, *cuts: str | None) -> None:
    body.add(Node("output", (name,), (Value("stored", type_),), cuts=tuple(cuts)))


def summing(grid: int, step: int) -> Graph:
    """Sum x [M, K] over K: blocks of `grid` rows, `step` columns per iteration."""
    body = Builder(Level.BLOCK, Space((Axis("x", "M", grid),), Axis("loop", "K", step)))
    tile(body, "x", typed(M, K), "M", loop_cut="K")
    part = body.add(Node("sum", ("x",), (Value("part", SCALAR),), over="K"))
    store(body, body.add(Node("accum", (part,), (Value("total", SCALAR),))), typed(M), "M")
    return block(body, {"x_whole": typed(M, K)}, typed(M))


@pytest.mark.parametrize("step", range(1, 12))
def test_a_loop_of_any_length_sums_all(step: int) -> None:
    sizes = {"M": 6, "K": 10}
    whole = some(typed(M, K), sizes, 0).parts[0].sum(axis=1)
    np.testing.assert_allclose(run(summing(4, step), sizes), whole, rtol=1e-14)


@pytest.mark.parametrize("rows", range(1, 8))
def test_a_grid_of_any_length_covers_all(rows: int) -> None:
    sizes = {"M": 6, "K": 10}
    whole = some(typed(M, K), sizes, 0).parts[0].sum(axis=1)
    np.testing.assert_allclose(run(summing(rows, 3), sizes), whole, rtol=1e-14)


def test_a_result_may_be_stored_with_its_dims_in_another_order() -> None:
    body = Builder(Level.BLOCK, Space((Axis("x", "M", 4),)))
    tile(body, "x", typed(M, K), "M")
    store(body, "x", typed(K, M), "M")
    sizes = {"M": 6, "K": 10}
    np.testing.assert_array_equal(
        run(block(body, {"whole": typed(M, K)}, typed(K, M)), sizes),
        some(typed(M, K), sizes, 0).parts[0].T,
    )


def test_three_grid_axes_cut_three_dims() -> None:
    axes = (Axis("x", "M", 4), Axis("y", "K", 3), Axis("z", "N", 2))
    body = Builder(Level.BLOCK, Space(axes))
    tile(body, "x", typed(M, K, N), "M", "K", "N")
    minus = body.add(Node("neg", ("x",), (Value("minus", SCALAR),)))
    store(body, minus, typed(M, K, N), "M", "K", "N")
    sizes = {"M": 6, "K": 10, "N": 9}
    graph = block(body, {"whole": typed(M, K, N)}, typed(M, K, N))
    np.testing.assert_array_equal(run(graph, sizes), -some(typed(M, K, N), sizes, 0).parts[0])


def test_a_replicated_input_is_whole_in_every_block() -> None:
    body = Builder(Level.BLOCK, Space((Axis("x", "M", 4),)))
    tile(body, "x", typed(M, K), "M")
    tile(body, "g", typed(K), None)
    scaled = body.add(Node("mul", ("x", "g"), (Value("scaled", SCALAR),)))
    store(body, scaled, typed(M, K), "M")
    sizes = {"M": 6, "K": 10}
    x, g = some(typed(M, K), sizes, 0).parts[0], some(typed(K), sizes, 1).parts[0]
    graph = block(body, {"x_whole": typed(M, K), "g_whole": typed(K)}, typed(M, K))
    np.testing.assert_array_equal(run(graph, sizes), x * g)


def replicating_what_it_must_cut() -> Graph:
    body = Builder(Level.BLOCK, Space((Axis("x", "M", 4),)))
    tile(body, "x", typed(M, K), None)
    store(body, "x", typed(M, K), "M")
    return block(body, {"whole": typed(M, K)}, typed(M, K))


def test_a_tile_that_is_too_big_for_its_place_is_refused() -> None:
    with pytest.raises(GraphError, match=r"a tile of shape \(6, 10\) does not fit \(4, 10\)"):
        run(replicating_what_it_must_cut(), {"M": 6, "K": 10})


@pytest.fixture
def last_block_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = SimpleNamespace(product=lambda *grid: list(itertools.product(*grid))[:-1])
    monkeypatch.setattr(blocks, "itertools", fewer)


@pytest.mark.usefixtures("last_block_missing")
def test_a_place_that_no_block_writes_stays_nan() -> None:
    made = run(summing(4, 3), {"M": 6, "K": 10})
    assert np.isnan(made).tolist() == [False] * 4 + [True] * 2


@pytest.mark.usefixtures("last_block_missing")
def test_a_place_that_no_block_writes_is_no_element_of_the_field() -> None:
    field = draw_field(0, exponents=True)
    x = np.arange(60).reshape(6, 10)
    reading = array_reading(field_arithmetic(field), {"M": 6, "K": 10})
    (made,) = results(summing(4, 3), [Array(("M", "K"), (x, x))], reading)
    assert [part[4:].tolist() for part in made.parts] == [[-1, -1], [-1, -1]]


@pytest.mark.parametrize("edge", [1, 3])
def test_tiles_of_different_extents_do_not_meet(edge: int) -> None:
    operands = [Array(("M",), (np.ones(4),)), Array(("M",), (np.ones(edge),))]
    node = Node("add", ("a", "b"), (Value("c", typed(M)),))
    with pytest.raises(GraphError, match=f"c: tiles of 4 and {edge} along M meet"):
        array_reading(FLOAT64, {}).rules["add"](node, operands)


def test_a_step_of_another_shape_does_not_accumulate() -> None:
    body = Builder(Level.BLOCK, Space((Axis("x", "M", 6),), Axis("loop", "K", 4)))
    tile(body, "x", typed(M, K), "M", loop_cut="K")
    total = body.add(Node("accum", ("x",), (Value("total", SCALAR),)))
    store(body, total, typed(M, K), "M")
    with pytest.raises(GraphError, match="accumulates tiles of different shapes"):
        run(block(body, {"whole": typed(M, K)}, typed(M, K)), {"M": 6, "K": 10})


def test_a_wrong_number_of_inputs_is_refused() -> None:
    with pytest.raises(GraphError, match="1 inputs are expected, 0 are given"):
        results(summing(4, 3), [], array_reading(FLOAT64, {}))
