"""Every check of a graph names what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.ir import (
    Axis,
    Dim,
    DType,
    Graph,
    Level,
    Node,
    Space,
    TensorType,
    Value,
    check,
)

M, K, N = Dim("M", 8, dynamic=True), Dim("K", 12), Dim("N", 6)


def fp16(*dims: Dim) -> TensorType:
    return TensorType(dims, DType.FP16)


def fp32(*dims: Dim) -> TensorType:
    return TensorType(dims, DType.FP32)


def given(name: str, *dims: Dim) -> Node:
    return Node("input", (), (Value(name, fp16(*dims)),))


def op(name: str, text: str, type_: TensorType, over: str = "") -> Node:
    kind, *args = text.split()
    return Node(kind, tuple(args), (Value(name, type_),), over=over)


def kernel(*nodes: Node) -> Graph:
    return Graph(Level.KERNEL, nodes, (nodes[-1].name,))


TILE = fp16(Dim("M", 4, dynamic=True), Dim("K", 5))
SUM = fp32(Dim("M", 4, dynamic=True))


def block_nodes() -> dict[str, Node]:
    """Sum x [M, K] over K: the grid cuts M by 4, the loop cuts K by 5."""
    return {
        "x_tile": Node("input", (), (Value("x_tile", TILE),), cuts=("M",), loop_cut="K"),
        "sum_x": op("sum_x", "sum x_tile", SUM, over="K"),
        "total": op("total", "accum sum_x", SUM),
        "stored": Node("output", ("total",), (Value("stored", fp32(M)),), cuts=("M",)),
    }


def summing(**changed: Node | None) -> Graph:
    """The kernel graph of that sum, with nodes of its block changed, left out or added."""
    nodes = tuple(n for n in (block_nodes() | changed).values() if n is not None)
    space = Space((Axis("x", "M", 4),), Axis("loop", "K", 5))
    body = Graph(Level.BLOCK, nodes, ("stored",), space)
    return kernel(given("x", M, K), Node("block", ("x",), (Value("out", fp32(M)),), body=body))


def without_loop(graph: Graph) -> Graph:
    block = graph.nodes[-1]
    assert block.body is not None
    assert block.body.space is not None
    body = replace(block.body, space=Space(block.body.space.grid))
    return replace(graph, nodes=(*graph.nodes[:-1], replace(block, body=body)))


def refusal(graph: Graph) -> str:
    with pytest.raises(GraphError) as caught:
        check(graph)
    return caught.value.sentence


def test_a_well_formed_kernel_graph_passes() -> None:
    graph = kernel(given("x", M, K), op("y", "sum x", fp32(M), over="K"))
    assert check(graph) is graph


def test_a_well_formed_block_graph_passes() -> None:
    assert check(summing())


def test_an_undefined_operand_is_named() -> None:
    assert refusal(kernel(given("x", M), op("y", "neg z", fp16(M)))) == (
        "y = neg(...): operand 'z' is not defined before"
    )


def test_an_operand_defined_later_is_undefined() -> None:
    y, z = op("y", "neg z", fp16(M)), op("z", "neg x", fp16(M))
    assert "'z' is not defined before" in refusal(kernel(given("x", M), y, z))


def test_an_unknown_op_is_named_and_the_ops_listed() -> None:
    graph = kernel(given("x", M), op("y", "softplus x", fp16(M)))
    with pytest.raises(GraphError) as caught:
        check(graph)
    assert "there is no op called 'softplus'" in caught.value.sentence
    assert "silu" in caught.value.hint


def test_a_name_that_is_defined_twice_is_named() -> None:
    twice = op("x", "neg x", fp16(M))
    assert refusal(kernel(given("x", M), twice)) == "value 'x' is defined twice"


def test_a_graph_output_that_nothing_computes_is_named() -> None:
    graph = Graph(Level.KERNEL, (given("x", M),), ("y",))
    assert refusal(graph) == "output 'y' is not computed by the graph"


def test_operands_that_disagree_on_a_dim_are_refused_with_both_extents() -> None:
    b = given("b", Dim("K", 3))
    words = refusal(kernel(given("a", M, K), b, op("c", "mul a b", fp16(M, K))))
    assert "disagree on dim K: K=12 against K=3" in words


def test_a_reduced_dim_that_the_operand_lacks_is_named() -> None:
    graph = kernel(given("x", M, K), op("y", "sum x", fp32(M), over="N"))
    assert "x has no dim 'N', only ['M', 'K']" in refusal(graph)


def test_a_contracted_dim_must_be_in_both_operands() -> None:
    product = op("c", "contract a b", fp32(M, N), over="K")
    graph = kernel(given("a", M, K), given("b", N), product)
    assert "b has no dim 'K', only ['N']" in refusal(graph)


def test_a_wrong_number_of_operands_is_named() -> None:
    graph = kernel(given("x", M), op("y", "add x", fp16(M)))
    assert "add takes 2 operands, not 1" in refusal(graph)


def test_a_where_needs_a_condition_that_is_true_or_false() -> None:
    graph = kernel(given("x", M), op("y", "where x x x", fp16(M)))
    assert "the condition must be bool, not fp16" in refusal(graph)


def test_a_declared_type_that_is_not_what_the_op_computes_is_refused() -> None:
    graph = kernel(given("x", M, K), op("y", "sum x", fp32(K), over="K"))
    words = refusal(graph)
    assert "is declared fp32[K=12]" in words
    assert "computes fp32[M<=8]" in words


@pytest.mark.parametrize("name", ["accum", "output", "thread"])
def test_an_op_of_block_graphs_does_not_belong_in_a_kernel_graph(name: str) -> None:
    graph = kernel(given("x", M), op("y", f"{name} x", fp16(M)))
    assert refusal(graph) == f"y: {name} does not belong in a kernel graph"


def test_a_block_does_not_belong_in_a_block_graph() -> None:
    inner = op("inner", "block x_tile", SUM)
    assert refusal(summing(inner=inner)) == "inner: block does not belong in a block graph"


def test_an_accum_outside_a_loop_is_refused() -> None:
    looped = replace(block_nodes()["x_tile"], loop_cut=None)
    whole = fp16(Dim("M", 4, dynamic=True), K)
    x_tile = replace(looped, outs=(Value("x_tile", whole),))
    assert "total = accum(sum_x)" in refusal(summing(x_tile=x_tile))


def test_an_accum_of_an_accum_is_refused() -> None:
    again = op("again", "accum total", SUM)
    stored = replace(block_nodes()["stored"], args=("again",))
    nodes = block_nodes()
    graph = summing(stored=None, again=again, late=stored)
    assert nodes["total"].args == ("sum_x",)
    assert "again = accum(total)" in refusal(graph)


def test_a_value_of_one_iteration_cannot_be_used_after_the_loop() -> None:
    mixed = op("mixed", "add sum_x total", SUM)
    with pytest.raises(GraphError) as caught:
        check(summing(stored=None, mixed=mixed, late=block_nodes()["stored"]))
    assert "mixed = add(sum_x, total): mixes values of one loop iteration" in caught.value.sentence
    assert "accum" in caught.value.hint


def test_a_value_of_one_iteration_cannot_be_stored() -> None:
    stored = replace(block_nodes()["stored"], args=("sum_x",))
    assert refusal(summing(stored=stored)) == "output stored is a value of one loop iteration"


def test_an_imap_has_one_entry_per_grid_axis() -> None:
    x_tile = replace(block_nodes()["x_tile"], cuts=("M", None))
    assert refusal(summing(x_tile=x_tile)) == "x_tile: its imap must have one entry per grid axis"


def test_an_imap_that_cuts_a_dim_the_tensor_lacks_is_refused() -> None:
    x_tile = replace(block_nodes()["x_tile"], cuts=("N",))
    assert "axis x cuts dim 'N', which fp16[M<=8, K=12] does not have" in refusal(
        summing(x_tile=x_tile)
    )


def test_an_fmap_that_cuts_a_dim_the_tensor_lacks_is_refused() -> None:
    x_tile = replace(block_nodes()["x_tile"], loop_cut="N")
    assert "axis loop cuts dim 'N'" in refusal(summing(x_tile=x_tile))


def test_an_fmap_needs_a_loop() -> None:
    assert refusal(without_loop(summing())) == (
        "x_tile: has an fmap, but the block graph has no loop"
    )


def test_a_tile_that_is_declared_with_other_dims_is_refused() -> None:
    x_tile = replace(block_nodes()["x_tile"], outs=(Value("x_tile", SUM),))
    assert "x_tile: is declared fp32[M<=4], but is bound to fp16[M<=4, K=5]" in refusal(
        summing(x_tile=x_tile)
    )


def test_a_tile_that_is_declared_with_other_extents_is_refused() -> None:
    wide = fp16(Dim("M", 4, dynamic=True), Dim("K", 6))
    x_tile = replace(block_nodes()["x_tile"], outs=(Value("x_tile", wide),))
    assert "x_tile: is declared" in refusal(summing(x_tile=x_tile))


def test_an_omap_has_one_entry_per_grid_axis() -> None:
    stored = replace(block_nodes()["stored"], cuts=())
    assert refusal(summing(stored=stored)) == "stored: its omap must have one entry per grid axis"


def test_an_omap_that_cuts_a_dim_the_result_lacks_is_refused() -> None:
    stored = replace(block_nodes()["stored"], cuts=("K",))
    assert refusal(summing(stored=stored)) == "stored: its omap cuts 'K' by x, a dim it lacks"


def test_a_result_stored_with_other_dims_is_refused() -> None:
    stored = replace(block_nodes()["stored"], outs=(Value("stored", fp32(N)),))
    assert "stores a tile fp32[M<=4] into fp32[N=6], the dims differ" in refusal(
        summing(stored=stored)
    )


def test_a_kernel_node_declared_with_another_type_than_its_block_computes_is_refused() -> None:
    graph = summing()
    block = replace(graph.nodes[-1], outs=(Value("out", fp16(M)),))
    words = refusal(replace(graph, nodes=(*graph.nodes[:-1], block)))
    assert "its graph computes ['fp32[M<=8]'], declared are ['fp16[M<=8]']" in words


def test_a_block_with_more_inputs_than_operands_is_refused() -> None:
    graph = summing()
    block = replace(graph.nodes[-1], args=("x", "x"))
    words = refusal(replace(graph, nodes=(*graph.nodes[:-1], block)))
    assert words == "a block graph with 1 inputs is given 2"


def test_a_block_without_operands_is_refused() -> None:
    graph = summing()
    block = replace(graph.nodes[-1], args=())
    words = refusal(replace(graph, nodes=(*graph.nodes[:-1], block)))
    assert words == "a block graph with 1 inputs is given 0"


def test_a_thread_input_declared_with_another_type_than_its_operand_is_refused() -> None:
    half = replace(SUM, dtype=DType.FP16)
    nodes = (Node("input", (), (Value("x", half),)), op("y", "neg x", SUM))
    thread = Node(
        "thread", ("total",), (Value("minus", SUM),), body=Graph(Level.THREAD, nodes, ("y",))
    )
    stored = replace(block_nodes()["stored"], args=("minus",))
    words = refusal(summing(stored=None, minus=thread, late=stored))
    assert words == "x: is declared fp16[M<=4], but is bound to fp32[M<=4]"


def test_a_block_node_needs_a_block_graph() -> None:
    graph = summing()
    block = replace(graph.nodes[-1], body=None)
    words = refusal(replace(graph, nodes=(*graph.nodes[:-1], block)))
    assert words == "out: a block node needs a block-level graph"


def test_the_fused_mugraph_passes(fused: Callable[..., Graph]) -> None:
    assert check(fused())
