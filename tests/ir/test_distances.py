"""Whole numbers that stand for larger ones: in their order, neighbours beside each other."""

from __future__ import annotations

import pytest

from mirage_kernels.generator.ir import Dim, DType, Graph, Level, Node, TensorType, Value
from mirage_kernels.generator.ir.distances import Distances


def compared_with(*numbers: int) -> Graph:
    """Positions that are compared with numbers."""
    place = Value("place", TensorType((Dim("N", 4096),), DType.INT32))
    nodes = [Node("iota", (), (place,), over="N")]
    for i, number in enumerate(numbers):
        value = Value(f"n{i}", TensorType((), DType.INT32))
        mask = Value(f"mask{i}", TensorType(place.type.dims, DType.BOOL))
        nodes += [
            Node("const", (), (value,), value=number),
            Node("less", ("place", f"n{i}"), (mask,)),
        ]
    return Graph(Level.KERNEL, tuple(nodes), ("mask0",))


@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([512], [3]),
        ([1, 512, 513], [1, 3, 4]),
        ([3, 64, 200], [3, 4, 6]),
        ([-512, 512, 2], [-3, 3, 2]),
    ],
)
def test_numbers_beyond_what_extents_show_are_smaller(
    numbers: list[int], wanted: list[int]
) -> None:
    graph = compared_with(*numbers)
    short = Distances.of(graph).short(graph)
    assert [int(n.value) for n in short.of("const")] == wanted
    assert short.outputs == graph.outputs


def test_more_than_a_distance_is_as_much_more_than_what_stands_for_it() -> None:
    distances = Distances.of(compared_with(1, 512))
    assert [distances.number(n) for n in (0, 2, 511, 512, 515, -513)] == [0, 2, 511, 3, 6, -4]


def test_sums_of_some_length_show_distances_of_that() -> None:
    graph = compared_with(60, 512)
    assert Distances.of(graph, 85).known == {512: 85}
