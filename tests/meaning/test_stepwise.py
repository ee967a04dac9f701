"""Results that a loop stores step by step: what they mean, and what is refused of them."""

from __future__ import annotations

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
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results

M, K = Dim("M", 6, dynamic=True), Dim("K", 10)
SIZES = {"M": 6, "K": 10}


def typed(*dims: Dim, dtype: DType = DType.FP16) -> TensorType:
    return TensorType(dims, dtype)


def negated(*, fmap: str | None = "K", cuts: tuple[str | None, ...] = ("M", None)) -> Graph:
    """Store -x [M, K] step by step, and the sums of its rows; both grid axes cut M in x."""
    space = Space((Axis("x", "M", 4), Axis("y", "K", 10)), Axis("loop", "K", 3))
    body = Builder(Level.BLOCK, space)
    tile = typed(Dim("M", 4, dynamic=True), Dim("K", 3))
    body.add(Node("input", (), (Value("x_tile", tile),), cuts=("M", None), loop_cut="K"))
    body.add(Node("neg", ("x_tile",), (Value("minus", typed()),)))
    body.add(Node("sum", ("minus",), (Value("part", typed()),), over="K"))
    body.add(Node("accum", ("part",), (Value("total", typed()),)))
    sums, whole = typed(M, dtype=DType.FP32), typed(M, K)
    body.add(Node("output", ("total",), (Value("sums_stored", sums),), cuts=("M", None)))
    stored = (Value("minus_stored", whole),)
    body.add(Node("output", ("minus",), stored, cuts=cuts, loop_cut=fmap))
    kernel = Builder(Level.KERNEL)
    kernel.input("x", whole)
    inner = body.graph(("sums_stored", "minus_stored"))
    kernel.add(Node("block", ("x",), (Value("sums", sums), Value("negative", whole)), body=inner))
    return kernel.graph(("sums", "negative"))


def run(graph: Graph, x: np.ndarray) -> list[np.ndarray]:
    inputs = [Array(("M", "K"), (x,))]
    return [np.asarray(a.parts[0]) for a in results(graph, inputs, array_reading(FLOAT64, SIZES))]


@pytest.mark.parametrize("tiles", [{"M": 4, "K": 3}, {"M": 1, "K": 1}, {"M": 8, "K": 32}], ids=str)
def test_a_result_is_stored_step_by_step(tiles: dict[str, int]) -> None:
    x = np.random.default_rng(0).standard_normal((6, 10))
    sums, negative = run(retile(check(negated()), tiles), x)
    np.testing.assert_array_equal(negative, -x)
    np.testing.assert_allclose(sums, -x.sum(axis=1))


def test_without_its_fmap_it_is_a_value_of_one_iteration() -> None:
    with pytest.raises(GraphError, match="minus_stored is a value of one loop iteration"):
        check(negated(fmap=None))


def test_an_fmap_along_a_dim_that_it_lacks_is_named() -> None:
    with pytest.raises(GraphError, match="minus_stored: its fmap cuts 'N', a dim it lacks"):
        check(negated(fmap="N"))


def test_what_the_loop_does_not_compute_has_no_fmap() -> None:
    graph = negated()
    body = graph.blocks[0].body
    assert body is not None
    nodes = [
        Node("output", ("total",), n.outs, cuts=n.cuts, loop_cut="M")
        if n.name == "sums_stored"
        else n
        for n in body.nodes
    ]
    inner = Graph(body.level, tuple(nodes), body.outputs, body.space)
    block = Node("block", ("x",), graph.blocks[0].outs, body=inner)
    whole = Graph(graph.level, (*graph.inputs, block), graph.outputs)
    with pytest.raises(GraphError, match="sums_stored has an fmap, but is no value of the loop"):
        check(whole)
