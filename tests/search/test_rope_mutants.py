"""Wrong ways to norm, rotate and write to a cache: no proof passes one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import DType, Graph, Node
from mirage_kernels.generator.pipeline import generate, prove_record
from mirage_kernels.generator.plan.threads import without_threads
from mirage_kernels.generator.recipe import catalog, trace
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.request import Request

PLAIN, STATIC, NORMED = (f"{x}rope_cache_write" for x in ("", "static_", "rms_norm_"))


@pytest.fixture(scope="module", params=[PLAIN, STATIC, NORMED])
def record(request: pytest.FixtureRequest) -> KernelRecord:
    source = catalog()[request.param]
    wanted = Request(source, source.shapes[0], DType.BF16, "sm_90a")
    return generate(wanted, jobs=1, progress=lambda event: None).record


def with_block(graph: Graph, number: int, change: Callable[[Node], Node]) -> Graph:
    """Return a muGraph with a kernel changed: 0 is that of queries."""
    old = graph.blocks[number]
    assert old.body is not None
    made = change(replace(old, body=without_threads(old.body)))
    return replace(graph, nodes=tuple(made if n is old else n for n in graph.nodes))


def exchanged(a: str, b: str) -> Callable[[Node], Node]:
    """Return what gives a kernel two of its tensors in each other's place."""
    other = {a: b, b: a}
    return lambda kernel: replace(kernel, args=tuple(other.get(x, x) for x in kernel.args))


def within(change: Callable[[Node], Node]) -> Callable[[Node], Node]:
    """Return what changes the nodes of a kernel's body."""

    def of(kernel: Node) -> Node:
        assert kernel.body is not None
        nodes = tuple(map(change, kernel.body.nodes))
        return replace(kernel, body=replace(kernel.body, nodes=nodes))

    return of


def swapped_results(kernel: Node) -> Node:
    return replace(kernel, outs=kernel.outs[::-1])


def without_norm(node: Node) -> Node:
    return replace(node, op="const", args=(), value=1.0) if node.op == "sqrt" else node


def outside_the_root(kernel: Node) -> Node:
    """sqrt(x + eps)  ->  sqrt(x) + eps"""
    assert kernel.body is not None
    (root,) = kernel.body.of("sqrt")
    (inner,) = (n for n in kernel.body.nodes if n.name in root.args)
    (x,) = (a for a in inner.args if a != "eps")
    made = {inner.name: ("sqrt", (x,)), root.name: ("add", (inner.name, "eps"))}

    def change(node: Node) -> Node:
        op, args = made.get(node.name, (node.op, node.args))
        return replace(node, op=op, args=args)

    return within(change)(kernel)


def without_offset(node: Node) -> Node:
    if node.op != "add" or "weight_offset" not in node.args:
        return node
    return replace(node, args=tuple("eps" if a == "weight_offset" else a for a in node.args))


def refused(record: KernelRecord, graph: Graph) -> bool:
    source = catalog()[record.recipe]
    spec = trace(source, source.shapes[0], DType.BF16)
    with pytest.raises(VerifyError):
        prove_record(replace(record, graph=graph), spec, lambda event: None)
    return True


@pytest.mark.parametrize(
    "change",
    [exchanged("cos", "sin"), exchanged("q_first", "q_second"), swapped_results],
    ids=["sines for cosines", "halves", "results"],
)
def test_a_wrong_rotation_is_rejected(record: KernelRecord, change: Callable[[Node], Node]) -> None:
    assert refused(record, with_block(record.graph, 0, change))


@pytest.mark.parametrize(
    "change",
    [
        within(without_norm),
        outside_the_root,
        within(without_offset),
        exchanged("q_first_weight", "q_second_weight"),
    ],
    ids=["left out", "eps outside the root", "another offset", "halves of weights"],
)
def test_a_wrong_norm_is_rejected(record: KernelRecord, change: Callable[[Node], Node]) -> None:
    if record.recipe == NORMED:
        assert refused(record, with_block(record.graph, 0, change))


def test_keys_by_the_weights_of_queries_are_rejected(record: KernelRecord) -> None:
    number = next(i for i, kernel in enumerate(record.graph.blocks) if "k_first" in kernel.args)
    names = {f"k_{half}_weight": f"q_{half}_weight" for half in ("first", "second")}

    def change(kernel: Node) -> Node:
        return replace(kernel, args=tuple(names.get(x, x) for x in kernel.args))

    if record.recipe == NORMED:
        assert refused(record, with_block(record.graph, number, change))
