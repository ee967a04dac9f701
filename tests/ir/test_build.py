"""Making graphs: typing rules, free names, precision, phases, and other tile sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirage_kernels.generator.ir import (
    Axis,
    Builder,
    Dim,
    DType,
    Graph,
    Level,
    Node,
    Phase,
    TensorType,
    Value,
    check,
    count,
    join_phases,
    retile,
)
from mirage_kernels.generator.plan.threads import with_threads

M, K, N = Dim("M", 8, dynamic=True), Dim("K", 12), Dim("N", 6)
TILES = {"M": 3, "N": 5, "K": 7}


def built(op: str, *types: TensorType, over: str = "") -> TensorType:
    """Return the type the builder gives to one op on inputs of these types."""
    builder = Builder(Level.KERNEL)
    args = tuple(builder.input(f"x{i}", t) for i, t in enumerate(types))
    return builder.types[builder.add(Node(op, args, (Value("y", types[0]),), over=over))]


def fp16(*dims: Dim) -> TensorType:
    return TensorType(dims, DType.FP16)


def body_of(graph: Graph) -> Graph:
    body = graph.blocks[0].body
    assert body is not None
    return body


INTS = TensorType((M,), DType.INT32)
TYPED: dict[str, tuple[TensorType, TensorType]] = {
    "an elementwise result has the dims of both operands": (
        built("mul", fp16(M, K), fp16(N, K)),
        fp16(M, K, N),
    ),
    "a sum loses its dim and is wider than stored numbers": (
        built("sum", fp16(M, K), over="K"),
        TensorType((M,), DType.FP32),
    ),
    "a contraction keeps every other dim": (
        built("contract", fp16(M, K), fp16(N, K), over="K"),
        TensorType((M, N), DType.FP32),
    ),
    "a comparison is true or false": (built("less", INTS, INTS), TensorType((M,), DType.BOOL)),
    "mixed precision is computed in fp32": (
        built("add", fp16(M), TensorType((M,), DType.BF16)),
        TensorType((M,), DType.FP32),
    ),
}


@pytest.mark.parametrize("rule", TYPED)
def test_results_have_the_types_of_the_rules(rule: str) -> None:
    made, wanted = TYPED[rule]
    assert made == wanted


def test_a_free_name_is_the_wanted_one_or_gets_the_smallest_suffix() -> None:
    builder = Builder(Level.KERNEL)
    builder.input("x", fp16(M))
    builder.input("x_2", fp16(M))
    assert (builder.free_name("y"), builder.free_name("x")) == ("y", "x_3")


@pytest.mark.parametrize(("extent", "tiles"), [(1, 1), (8, 1), (9, 2), (16, 2), (17, 3)])
def test_an_uneven_extent_needs_one_more_tile(extent: int, tiles: int) -> None:
    assert count(Axis("x", "M", 8), extent) == tiles


def test_a_retiled_graph_with_threads_is_well_formed(fused: Callable[..., Graph]) -> None:
    assert check(retile(with_threads(fused()), TILES))


def test_retiling_back_gives_the_same_graph(fused: Callable[..., Graph]) -> None:
    graph = with_threads(fused())
    space = body_of(graph).space
    assert space is not None
    assert retile(retile(graph, TILES), {a.dim: a.tile for a in space.axes}) == graph


def test_operands_of_a_contraction_are_stored_narrow(fused: Callable[..., Graph]) -> None:
    assert body_of(fused(dtype=DType.BF16)).values["scaled_weight"].type.dtype is DType.BF16


def test_accumulators_are_fp32(fused: Callable[..., Graph]) -> None:
    body = body_of(fused())
    assert {n.out.type.dtype for n in body.of("accum", "contract")} == {DType.FP32}


@pytest.mark.parametrize(
    ("ready", "phase"),
    [
        ([], Phase.BEFORE),
        ([Phase.BEFORE], Phase.BEFORE),
        ([Phase.BEFORE, Phase.LOOP], Phase.LOOP),
        ([Phase.BEFORE, Phase.AFTER], Phase.AFTER),
        ([Phase.LOOP, Phase.AFTER], None),
    ],
)
def test_a_value_is_ready_when_all_operands_are(ready: list[Phase], phase: Phase | None) -> None:
    assert join_phases(ready) is phase
