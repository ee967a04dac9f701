"""Every check of a graph names what is wrong."""

from __future__ import annotations

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


def refusal(graph: Graph) -> GraphError:
    with pytest.raises(GraphError) as caught:
        check(graph)
    return caught.value


def test_a_well_formed_block_graph_passes() -> None:
    assert check(summing())


def changed(name: str, **fields: object) -> Graph:
    """The kernel graph of that sum, with one node of its block changed."""
    return summing(**{name: replace(block_nodes()[name], **fields)})


def outside(**fields: object) -> Graph:
    """The kernel graph of that sum, with its block node changed."""
    graph = summing()
    return replace(graph, nodes=(*graph.nodes[:-1], replace(graph.nodes[-1], **fields)))


def stored_late(stored: str, *nodes: Node) -> Graph:
    """The kernel graph of that sum, with nodes added, one of which is stored."""
    late = replace(block_nodes()["stored"], args=(stored,))
    return summing(stored=None, **{n.name: n for n in nodes}, late=late)


HALF = replace(SUM, dtype=DType.FP16)
THREAD = Graph(
    Level.THREAD,
    (Node("input", (), (Value("x", HALF),)), op("y", "neg x", SUM)),
    ("y",),
)
WHOLE = fp16(Dim("M", 4, dynamic=True), K)
WIDE = fp16(Dim("M", 4, dynamic=True), Dim("K", 6))

MALFORMED: dict[str, tuple[Graph, str]] = {
    "an undefined operand": (
        kernel(given("x", M), op("y", "neg z", fp16(M))),
        "y = neg(...): operand 'z' is not defined before",
    ),
    "a name that is defined twice": (
        kernel(given("x", M), op("x", "neg x", fp16(M))),
        "value 'x' is defined twice",
    ),
    "a graph output that nothing computes": (
        Graph(Level.KERNEL, (given("x", M),), ("y",)),
        "output 'y' is not computed by the graph",
    ),
    **{
        f"{name} in a kernel graph": (
            kernel(given("x", M), op("y", f"{name} x", fp16(M))),
            f"y: {name} does not belong in a kernel graph",
        )
        for name in ("accum", "output", "thread")
    },
    "a block in a block graph": (
        summing(inner=op("inner", "block x_tile", SUM)),
        "inner: block does not belong in a block graph",
    ),
    "a stored value of one iteration": (
        changed("stored", args=("sum_x",)),
        "output stored is a value of one loop iteration",
    ),
    "an imap with two entries for one grid axis": (
        changed("x_tile", cuts=("M", None)),
        "x_tile: its imap must have one entry per grid axis",
    ),
    "an fmap without a loop": (
        without_loop(summing()),
        "x_tile: has an fmap, but the block graph has no loop",
    ),
    "an omap without an entry for the grid axis": (
        changed("stored", cuts=()),
        "stored: its omap must have one entry per grid axis",
    ),
    "an omap that cuts a dim the result lacks": (
        changed("stored", cuts=("K",)),
        "stored: its omap cuts 'K' by x, a dim it lacks",
    ),
    "a block with more operands than inputs": (
        outside(args=("x", "x")),
        "a block graph with 1 inputs is given 2",
    ),
    "a block without operands": (outside(args=()), "a block graph with 1 inputs is given 0"),
    "a thread input declared with another type than its operand": (
        stored_late("minus", Node("thread", ("total",), (Value("minus", SUM),), body=THREAD)),
        "x: is declared fp16[M<=4], but is bound to fp32[M<=4]",
    ),
    "a declared type that is not what the op computes": (
        kernel(given("x", M, K), op("y", "sum x", fp32(K), over="K")),
        "is declared fp32[K=12], computes fp32[M<=8]",
    ),
    "a block node without a block graph": (
        outside(body=None),
        "out: a block node needs a block-level graph",
    ),
    "an operand defined later": (
        kernel(given("x", M), op("y", "neg z", fp16(M)), op("z", "neg x", fp16(M))),
        "'z' is not defined before",
    ),
    "operands that disagree on a dim": (
        kernel(given("a", M, K), given("b", Dim("K", 3)), op("c", "mul a b", fp16(M, K))),
        "disagree on dim K: K=12 against K=3",
    ),
    "a reduced dim that the operand lacks": (
        kernel(given("x", M, K), op("y", "sum x", fp32(M), over="N")),
        "x has no dim 'N', only ['M', 'K']",
    ),
    "a contracted dim that is in one operand": (
        kernel(given("a", M, K), given("b", N), op("c", "contract a b", fp32(M, N), over="K")),
        "b has no dim 'K', only ['N']",
    ),
    "a wrong number of operands": (
        kernel(given("x", M), op("y", "add x", fp16(M))),
        "add takes 2 operands, not 1",
    ),
    "a condition that is a number": (
        kernel(given("x", M), op("y", "where x x x", fp16(M))),
        "the condition must be bool, not fp16",
    ),
    "an accum outside a loop": (
        changed("x_tile", loop_cut=None, outs=(Value("x_tile", WHOLE),)),
        "total = accum(sum_x)",
    ),
    "an accum of an accum": (
        stored_late("again", op("again", "accum total", SUM)),
        "again = accum(total)",
    ),
    "an imap that cuts a dim the tensor lacks": (
        changed("x_tile", cuts=("N",)),
        "axis x cuts dim 'N', which fp16[M<=8, K=12] does not have",
    ),
    "an fmap that cuts a dim the tensor lacks": (
        changed("x_tile", loop_cut="N"),
        "axis loop cuts dim 'N'",
    ),
    "a tile that is declared with other dims": (
        changed("x_tile", outs=(Value("x_tile", SUM),)),
        "x_tile: is declared fp32[M<=4], but is bound to fp16[M<=4, K=5]",
    ),
    "a tile that is declared with other extents": (
        changed("x_tile", outs=(Value("x_tile", WIDE),)),
        "x_tile: is declared",
    ),
    "a result stored with other dims": (
        changed("stored", outs=(Value("stored", fp32(N)),)),
        "stores a tile fp32[M<=4] into fp32[N=6], the dims differ",
    ),
    "a kernel node declared with another type than its block computes": (
        outside(outs=(Value("out", fp16(M)),)),
        "its graph computes ['fp32[M<=8]'], declared are ['fp16[M<=8]']",
    ),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_graph_is_refused_in_these_words(what: str) -> None:
    graph, words = MALFORMED[what]
    assert words in refusal(graph).sentence


def test_an_unknown_op_is_named_and_the_ops_listed() -> None:
    caught = refusal(kernel(given("x", M), op("y", "soft_plus x", fp16(M))))
    assert "there is no op called 'soft_plus'" in caught.sentence
    assert "silu" in caught.hint


def test_a_value_of_one_iteration_cannot_be_used_after_the_loop() -> None:
    mixed = op("mixed", "add sum_x total", SUM)
    caught = refusal(summing(stored=None, mixed=mixed, late=block_nodes()["stored"]))
    assert "mixed = add(sum_x, total): mixes values of one loop iteration" in caught.sentence
    assert "accum" in caught.hint
