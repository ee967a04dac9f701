"""Thread graphs by rule: what is fused, what is not, and that the meaning stays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

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
from mirage_kernels.generator.plan.threads import with_threads

Fused = Callable[..., Graph]
M = TensorType((Dim("M", 8),), DType.FP32)
ANY = TensorType((), DType.FP32)


def chain(*steps: str) -> Graph:
    """Return a kernel of elementwise steps on x and y [M]: "a = mul x y"; the last is stored."""
    body = Builder(Level.BLOCK, Space((Axis("x", "M", 3),)))
    for name in ("x", "y"):
        body.add(
            Node("input", (), (Value(name, TensorType((Dim("M", 3),), DType.FP32)),), cuts=("M",))
        )
    for step in steps:
        name, _, right = step.partition(" = ")
        op, *args = right.split()
        body.add(Node(op, tuple(args), (Value(name, ANY),)))
    body.add(Node("output", (body.nodes[-1].name,), (Value("stored", M),), cuts=("M",)))
    kernel = Builder(Level.KERNEL)
    kernel.input("x_whole", M)
    kernel.input("y_whole", M)
    inner = body.graph(["stored"])
    kernel.add(Node("block", ("x_whole", "y_whole"), (Value("out", M),), body=inner))
    return check(kernel.graph(["out"]))


def run(graph: Graph, sizes: dict[str, int]) -> np.ndarray:
    rng = np.random.default_rng(0)
    inputs = [
        Array(t.names, (rng.uniform(0.5, 2, [sizes[d] for d in t.names]),))
        for t in (n.out.type for n in graph.inputs)
    ]
    return results(graph, inputs, array_reading(FLOAT64, sizes))[0].parts[0]


def threads(graph: Graph) -> list[list[str]]:
    """Return the values each thread graph of the block makes."""
    body = with_threads(graph).blocks[0].body
    assert body is not None
    return [[n.name for n in t.body.nodes if n.op != "input"] for t in body.of("thread") if t.body]


CHAINS = {
    "a chain": (["a = neg x", "b = exp a", "c = add b y"], [["a", "b", "c"]]),
    "a value used twice": (["a = neg x", "b = exp a", "c = mul a b"], [["b", "c"]]),
    "an operand used twice by one user": (["a = add x y", "b = mul a a"], [["a", "b"]]),
    "two chains that join": (["a = neg x", "b = exp y", "c = mul a b"], [["a", "b", "c"]]),
    "a single op": (["a = mul x y"], []),
    "a branch that leaves a chain": (
        ["a = neg x", "b = exp a", "c = sqrt b", "d = mul b c"],
        [["a", "b"], ["c", "d"]],
    ),
}


@pytest.mark.parametrize("what", CHAINS)
def test_chains_become_thread_graphs_with_their_meaning(what: str) -> None:
    steps, fused = CHAINS[what]
    graph = chain(*steps)
    assert threads(graph) == fused
    np.testing.assert_array_equal(run(with_threads(graph), {"M": 8}), run(graph, {"M": 8}))


@pytest.mark.parametrize("scales", ["w", "x"])
def test_thread_graphs_keep_the_meaning_of_the_fused_mugraph(fused: Fused, scales: str) -> None:
    graph = retile(fused(scales), {"M": 2, "N": 3, "K": 4})
    sizes = {"M": 5, "N": 7, "K": 9}
    np.testing.assert_array_equal(run(with_threads(graph), sizes), run(graph, sizes))


def test_nothing_before_the_end_of_the_loop_joins_what_comes_after(fused: Fused) -> None:
    assert threads(fused()) == [
        ["mean_x_squared", "mean_x_squared_plus_eps", "root", "normed_scaled_product"]
    ]


def test_operands_of_a_contraction_stay_outside(fused: Fused) -> None:
    body = with_threads(fused()).blocks[0].body
    assert body is not None
    assert "scaled_weight" in body.values


def test_fusing_twice_changes_nothing(fused: Fused) -> None:
    once = with_threads(fused())
    assert with_threads(once) == once
