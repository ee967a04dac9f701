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
    check,
    retile,
)
from mirage_kernels.generator.meaning import blocks
from mirage_kernels.generator.meaning.arrays import Arithmetic, Array, array_reading
from mirage_kernels.generator.meaning.field import draw_field, field_arithmetic, random_parts
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results
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
        array_reading(FLOAT64, {})["add"](node, operands)


def test_a_step_of_another_shape_does_not_accumulate() -> None:
    body = Builder(Level.BLOCK, Space((Axis("x", "M", 6),), Axis("loop", "K", 4)))
    tile(body, "x", typed(M, K), "M", loop_cut="K")
    total = body.add(Node("accum", ("x",), (Value("total", SCALAR),)))
    store(body, total, typed(M, K), "M")
    with pytest.raises(GraphError, match="accumulates tiles of different shapes"):
        run(block(body, {"whole": typed(M, K)}, typed(M, K)), {"M": 6, "K": 10})


def summing_parts(part: int, step: int, *carried: tuple[str, str]) -> Builder:
    """Start a block graph over x [M, K] whose blocks share K, a loop inside each part.

    Lines of `carried` are a node's op and operands, named by their op: ("exp", "lowered").
    """
    axes = (Axis("x", "M", 4), Axis("split", "K", part, reduced=True))
    body = Builder(Level.BLOCK, Space(axes, Axis("loop", "K", step)))
    tile(body, "x", typed(M, K), "M", "K", loop_cut="K")
    for op, args in carried:
        over = "K" if op in ("sum", "peak", "combine", "combine_rescaled") else ""
        body.add(Node(op, tuple(args.split()), (Value(op, SCALAR),), over=over))
    return body


PLAIN = (("sum", "x"), ("accum", "sum"))
SAFE = (
    ("peak", "x"),
    ("sub", "x peak"),
    ("exp", "sub"),
    ("sum", "exp"),
    ("accum_rescaled", "sum peak"),
    ("last", "peak"),
)
COMBINED = (*SAFE, ("combine_rescaled", "accum_rescaled last"))
CUTS = list(itertools.product((1, 3, 4, 7, 10, 12), (1, 2, 3, 10)))


@pytest.mark.parametrize(("part", "step"), CUTS)
def test_blocks_that_share_a_sum_combine_it_or_store_their_parts(part: int, step: int) -> None:
    sizes, parts = {"M": 6, "K": 10}, Dim("K_parts", -(-10 // part))
    x = some(typed(M, K), sizes, 0).parts[0]
    wanted = {
        (*PLAIN, ("combine", "accum")): ((M,), x.sum(axis=1)),
        PLAIN: ((parts, M), [x[:, i : i + part].sum(axis=1) for i in range(0, 10, part)]),
        # rescaled sums are relative to the last peak
        COMBINED: ((M,), np.exp(x - x.max(axis=1, keepdims=True)).sum(axis=1)),
    }
    for carried, (dims, whole) in wanted.items():
        body = summing_parts(part, step, *carried)
        store(body, carried[-1][0], typed(*dims), "M", "K_parts" if parts in dims else None)
        made = run(block(body, {"x_whole": typed(M, K)}, typed(*dims)), sizes)
        np.testing.assert_allclose(made, whole, rtol=1e-14)


def ratio(part: int, step: int) -> Graph:
    """Return sum(exp(x) * y) / sum(exp(x)) over K, in blocks that share K."""
    axes = (Axis("x", "M", 4), Axis("split", "K", part, reduced=True))
    body = Builder(Level.BLOCK, Space(axes, Axis("loop", "K", step)))
    for name in "xy":
        tile(body, name, typed(M, K), "M", "K", loop_cut="K")
    for line in (
        *("m peak x K", "d sub x,m", "e exp d", "s sum e K", "c contract e,y K"),
        *("s_all accum_rescaled s,m", "c_all accum_rescaled c,m", "last_m last m"),
        *("below combine_rescaled s_all,last_m K", "above combine_rescaled c_all,last_m K"),
        "q div above,below",
    ):
        name, op, args, over = (*line.split(), "")[:4]
        body.add(Node(op, tuple(args.split(",")), (Value(name, SCALAR),), over=over))
    store(body, "q", typed(M), "M", None)
    return block(body, {"x_whole": typed(M, K), "y_whole": typed(M, K)}, typed(M))


@pytest.mark.parametrize(("part", "step"), CUTS)
def test_arbitrary_peaks_cancel(part: int, step: int) -> None:
    field = draw_field(3, exponents=True)
    rng = np.random.default_rng(0)
    x, y = (random_parts(field, (6, 10), rng) for _ in range(2))
    reading = array_reading(field_arithmetic(field), {"M": 6, "K": 10})
    inputs = [Array(("M", "K"), x), Array(("M", "K"), y)]
    made = results(ratio(part, step), inputs, reading)[0].parts[0]
    powers = [[pow(field.root, int(e), field.p) for e in row] for row in x[1]]
    for row, weights, got in zip(y[0], powers, made, strict=True):
        above = sum(w * int(v) for w, v in zip(weights, row, strict=True))
        assert above % field.p == int(got) * sum(weights) % field.p


def peaks_of_two_kernels() -> Graph:
    """Return two kernels alike, each storing the peak of x along K."""
    kernel = Builder(Level.KERNEL)
    kernel.input("x_whole", typed(M, K))
    for out in ("one", "other"):
        body = Builder(Level.BLOCK, Space((Axis("x", "M", 4),)))
        tile(body, "x", typed(M, K), "M")
        body.add(Node("peak", ("x",), (Value("m", SCALAR),), over="K"))
        store(body, "m", typed(M), "M")
        outs = (Value(out, typed(M)),)
        kernel.add(Node("block", ("x_whole",), outs, body=body.graph(["stored"])))
    return kernel.graph(["one", "other"])


def test_every_block_of_every_kernel_has_peaks_of_its_own() -> None:
    field = draw_field(0, exponents=True)
    x = random_parts(field, (6, 10), np.random.default_rng(0))
    reading = array_reading(field_arithmetic(field), {"M": 6, "K": 10})
    made = results(peaks_of_two_kernels(), [Array(("M", "K"), x)], reading)
    drawn = np.concatenate([a.parts[0] for a in made])
    assert len({*drawn.tolist()}) == 12


def test_a_result_that_only_some_blocks_rescale_has_the_parts_of_those() -> None:
    field = draw_field(0, exponents=True)
    body = summing_parts(7, 4, ("peak", "x"), ("sum", "x"), ("accum_rescaled", "sum peak"))
    parts = Dim("K_parts", 2)
    store(body, "accum_rescaled", typed(parts, M), "M", "K_parts")
    graph = block(body, {"x_whole": typed(M, K)}, typed(parts, M))
    x = random_parts(field, (6, 10), np.random.default_rng(0))
    reading = array_reading(field_arithmetic(field), {"M": 6, "K": 10})
    made = results(graph, [Array(("M", "K"), x)], reading)[0]
    assert [part.shape for part in made.parts] == [(2, 6)]


def test_positions_belong_to_their_dim() -> None:
    builder = Builder(Level.KERNEL)
    type_ = TensorType((K,), DType.INT32)
    builder.add(Node("iota", (), (Value("p", type_),), over="M"))
    with pytest.raises(GraphError, match="p: positions along M are"):
        results(builder.graph(["p"]), [], array_reading(FLOAT64, {"M": 6, "K": 10}))


def negated(*, fmap: str | None = "K", sums_fmap: str | None = None) -> Graph:
    """Store -x [M, K] step by step, and the sums of its rows; both grid axes cut M in x."""
    space = Space((Axis("x", "M", 4), Axis("y", "K", 10)), Axis("loop", "K", 3))
    body = Builder(Level.BLOCK, space)
    tile(body, "x", typed(Dim("M", 4), Dim("K", 3)), "M", None, loop_cut="K")
    for op, args in (("neg", "x"), ("sum", "neg"), ("accum", "sum")):
        over = "K" if op == "sum" else ""
        body.add(Node(op, (args,), (Value(op, SCALAR),), over=over))
    for stored, what, dims, loop_cut in (
        ("sums_stored", "accum", (M,), sums_fmap),
        ("minus_stored", "neg", (M, K), fmap),
    ):
        value = Value(stored, typed(*dims))
        body.add(Node("output", (what,), (value,), cuts=("M", None), loop_cut=loop_cut))
    kernel = Builder(Level.KERNEL)
    kernel.input("whole", typed(M, K))
    outs = (Value("sums", typed(M)), Value("negative", typed(M, K)))
    inner = body.graph(("sums_stored", "minus_stored"))
    kernel.add(Node("block", ("whole",), outs, body=inner))
    return kernel.graph(("sums", "negative"))


@pytest.mark.parametrize("tiles", [{"M": 4, "K": 3}, {"M": 1, "K": 1}, {"M": 8, "K": 32}], ids=str)
def test_a_result_is_stored_step_by_step(tiles: Sizes) -> None:
    x = np.random.default_rng(0).standard_normal((6, 10))
    reading = array_reading(FLOAT64, {"M": 6, "K": 10})
    made = results(retile(check(negated()), tiles), [Array(("M", "K"), (x,))], reading)
    np.testing.assert_allclose(made[0].parts[0], -x.sum(axis=1))
    np.testing.assert_array_equal(made[1].parts[0], -x)


@pytest.mark.parametrize(
    ("fmaps", "words"),
    [
        ({"fmap": None}, "minus_stored is a value of one loop iteration"),
        ({"fmap": "N"}, "minus_stored: its fmap cuts 'N', a dim it lacks"),
        ({"sums_fmap": "M"}, "sums_stored has an fmap, but is no value of the loop"),
    ],
)
def test_a_wrong_fmap_of_a_result_is_refused(fmaps: dict[str, str | None], words: str) -> None:
    with pytest.raises(GraphError, match=words):
        check(negated(**fmaps))
