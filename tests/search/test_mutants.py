"""A verifier is judged by what it rejects: every mutant of the fused muGraph that is wrong.

Whether a mutant is wrong is decided independently of checks and proofs, by running it in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest

from mirage_kernels.generator.errors import GraphError, VerifyError
from mirage_kernels.generator.ir import (
    OPS,
    Axis,
    DType,
    Graph,
    Kind,
    Node,
    Space,
    Value,
    check,
    ops_of_kind,
    retile,
)
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.recipe import Recipe, Shape, trace
from mirage_kernels.generator.search.verify import prove, small_cases, small_tiles

SHAPE = Shape("a test", {"K": 72, "N": 40})
DIMS = ("M", "K", "N")
Mutant = tuple[str, str, Graph]  # kind, what was changed, the changed muGraph


@dataclass(frozen=True)
class Parts:
    """The block of a muGraph with one kernel, in pieces that mutation replaces."""

    graph: Graph
    nodes: tuple[Node, ...]
    space: Space
    args: tuple[str, ...]

    def with_node(self, old: Node, *new: Node) -> Parts:
        at = self.nodes.index(old)
        return replace(self, nodes=(*self.nodes[:at], *new, *self.nodes[at + 1 :]))

    def whole(self) -> Graph:
        block = self.graph.blocks[0]
        assert block.body is not None
        body = replace(block.body, nodes=self.nodes, space=self.space)
        changed = replace(block, args=self.args, body=body)
        return replace(self.graph, nodes=(*self.graph.nodes[:-1], changed))


def parts_of(graph: Graph) -> Parts:
    block = graph.blocks[0]
    assert block.body is not None
    assert block.body.space is not None
    return Parts(graph, block.body.nodes, block.body.space, block.args)


def operators(parts: Parts) -> Iterator[tuple[str, Parts]]:
    for node in parts.nodes:
        if OPS[node.op].kind is Kind.ELEMENTWISE:
            for op in ops_of_kind(Kind.ELEMENTWISE):
                if op != node.op and OPS[op].arity == len(node.args):
                    changed = parts.with_node(node, replace(node, op=op))
                    yield f"{op} instead of {node.op} for {node.name}", changed


def operands(parts: Parts) -> Iterator[tuple[str, Parts]]:
    for at, node in enumerate(parts.nodes):
        for i, old in enumerate(node.args):
            for new in (n.name for n in parts.nodes[:at] if n.name != old):
                args = (*node.args[:i], new, *node.args[i + 1 :])
                changed = parts.with_node(node, replace(node, args=args))
                yield f"{new} instead of {old} in {node.name}", changed


def orders(parts: Parts) -> Iterator[tuple[str, Parts]]:
    for node in parts.nodes:
        if len(node.args) == 2 and node.args[0] != node.args[1]:
            changed = parts.with_node(node, replace(node, args=node.args[::-1]))
            yield f"operands of {node.name} swapped", changed


def omissions(parts: Parts) -> Iterator[tuple[str, Parts]]:
    for node in parts.nodes:
        if node.op != "output":
            for operand in dict.fromkeys(node.args):
                kept = tuple(
                    replace(n, args=tuple(operand if a == node.name else a for a in n.args))
                    for n in parts.nodes
                    if n is not node
                )
                yield f"{operand} in place of {node.name}", replace(parts, nodes=kept)


def doublings(parts: Parts) -> Iterator[tuple[str, Parts]]:
    for at, node in enumerate(parts.nodes):
        for op in ("add", "mul", "div"):
            if node.op != "output":
                twice = Node(op, (node.name,) * 2, (Value(f"{node.name}_twice", node.out.type),))
                users = tuple(
                    replace(n, args=tuple(twice.name if a == node.name else a for a in n.args))
                    for n in parts.nodes[at + 1 :]
                )
                nodes = (*parts.nodes[: at + 1], twice, *users)
                yield f"{op} of {node.name} with itself", replace(parts, nodes=nodes)


def reduced_dims(parts: Parts) -> Iterator[tuple[str, Parts]]:
    for node in parts.nodes:
        for dim in DIMS:
            if node.over and dim != node.over:
                changed = parts.with_node(node, replace(node, over=dim))
                yield f"{node.name} over {dim}", changed


def imaps(parts: Parts) -> Iterator[tuple[str, Parts]]:
    for node in parts.nodes:
        if node.op == "input":
            for i, old in enumerate(node.cuts):
                for new in (*DIMS, None):
                    if new != old:
                        cuts = (*node.cuts[:i], new, *node.cuts[i + 1 :])
                        changed = parts.with_node(node, replace(node, cuts=cuts))
                        yield f"imap {cuts} of {node.name}", changed


def fmaps(parts: Parts) -> Iterator[tuple[str, Parts]]:
    for node in parts.nodes:
        if node.op == "input":
            for new in (*DIMS, None):
                if new != node.loop_cut:
                    changed = parts.with_node(node, replace(node, loop_cut=new))
                    yield f"fmap {new} of {node.name}", changed


def omaps(parts: Parts) -> Iterator[tuple[str, Parts]]:
    (stored,) = (n for n in parts.nodes if n.op == "output")
    for first in (*DIMS, None):
        for second in (*DIMS, None):
            cuts = (first, second)
            if cuts != stored.cuts:
                changed = parts.with_node(stored, replace(stored, cuts=cuts))
                yield f"omap {cuts}", changed


def spaces(parts: Parts) -> Iterator[tuple[str, Parts]]:
    loop, (x, y) = parts.space.loop, parts.space.grid
    assert loop is not None
    yield "no loop", replace(parts, space=Space((x, y)))
    yield "no second grid axis", replace(parts, space=Space((x,), loop))
    for dim in DIMS:
        if dim != loop.dim:
            changed = Space((x, y), Axis(loop.name, dim, loop.tile))
            yield f"a loop along {dim}", replace(parts, space=changed)
        if dim != x.dim:
            changed = Space((Axis(x.name, dim, x.tile), y), loop)
            yield f"the first grid axis along {dim}", replace(parts, space=changed)


def bindings(parts: Parts) -> Iterator[tuple[str, Parts]]:
    for i, old in enumerate(parts.args):
        for new in (n.name for n in parts.graph.inputs if n.name != old):
            args = (*parts.args[:i], new, *parts.args[i + 1 :])
            yield f"{new} for {old}", replace(parts, args=args)


MUTATIONS: Mapping[str, Callable[[Parts], Iterator[tuple[str, Parts]]]] = {
    "another operator": operators,
    "another operand": operands,
    "operands swapped": orders,
    "an op left out": omissions,
    "a value with itself": doublings,
    "another reduced dim": reduced_dims,
    "another imap": imaps,
    "another fmap": fmaps,
    "another omap": omaps,
    "another grid or loop": spaces,
    "another tensor": bindings,
}


def mutants(graph: Graph) -> Iterator[Mutant]:
    """Yield every mutant of a muGraph with one kernel."""
    for kind, mutate in MUTATIONS.items():
        for what, changed in mutate(parts_of(graph)):
            yield kind, what, changed.whole()


@dataclass(frozen=True)
class Judged:
    """A mutant with the two verdicts: is it wrong, and what rejected it ("" for nothing)."""

    kind: str
    what: str
    wrong: bool
    rejected_by: str


def judged(spec: Graph, mutant: Mutant) -> Judged:
    kind, what, graph = mutant
    return Judged(kind, what, differs(spec, graph), rejection(spec, graph))


def differs(spec: Graph, graph: Graph) -> bool:
    """Return whether a muGraph's float64 results are not the spec's, or cannot be computed."""
    for case in small_cases(spec):
        rng = np.random.default_rng(0)
        inputs = []
        for node in spec.inputs:
            shape = [case.sizes[d] for d in node.out.type.names]
            inputs.append(Array(node.out.type.names, (rng.uniform(0.5, 2.0, shape),)))
        reading = array_reading(FLOAT64, case.sizes)
        wanted = results(spec, inputs, reading)[0]
        try:
            made = results(retile(graph, case.tiles), inputs, reading)[0].over(wanted.dims)
        except (GraphError, KeyError, ValueError):  # not checked yet: anything may be wrong
            return True
        if not np.allclose(made.parts[0], wanted.parts[0], rtol=1e-9, atol=0):
            return True
    return False


def rejection(spec: Graph, graph: Graph) -> str:
    """Return what refuses a muGraph: typing, the check, the proof, or nothing."""
    try:
        tiled = retile(graph, small_tiles(spec))
        check(tiled)
    except GraphError:
        return "check"
    try:
        prove(spec, tiled, small_cases(spec), seed=1)
    except VerifyError:
        return "proof"
    return ""


@pytest.fixture(scope="module")
def spec(rms_norm_linear: Recipe) -> Graph:
    return trace(rms_norm_linear, SHAPE, DType.FP16)


@pytest.fixture(scope="module")
def verdicts(fused: Callable[..., Graph], spec: Graph) -> list[Judged]:
    return [judged(spec, mutant) for mutant in mutants(fused("w"))]


@pytest.fixture(scope="module")
def verdicts_of_x(fused: Callable[..., Graph], spec: Graph) -> list[Judged]:
    return [judged(spec, mutant) for mutant in mutants(fused("x"))]


def test_the_golden_mugraph_is_accepted(fused: Callable[..., Graph], spec: Graph) -> None:
    assert not differs(spec, fused("w"))
    assert rejection(spec, fused("w")) == ""


@pytest.mark.parametrize("kind", MUTATIONS)
def test_every_wrong_mutant_is_rejected(verdicts: list[Judged], kind: str) -> None:
    wrong = [v for v in verdicts if v.kind == kind and v.wrong]
    assert [v.what for v in wrong if not v.rejected_by] == []


@pytest.mark.parametrize("kind", MUTATIONS)
def test_every_wrong_mutant_of_the_other_form_is_rejected(
    verdicts_of_x: list[Judged], kind: str
) -> None:
    wrong = [v for v in verdicts_of_x if v.kind == kind and v.wrong]
    assert [v.what for v in wrong if not v.rejected_by] == []


@pytest.mark.parametrize("kind", MUTATIONS)
def test_every_kind_of_mutation_makes_wrong_mutants(verdicts: list[Judged], kind: str) -> None:
    assert any(v.wrong for v in verdicts if v.kind == kind)


def test_a_mutant_that_is_right_is_accepted(verdicts: list[Judged]) -> None:
    assert [v.what for v in verdicts if not v.wrong and v.rejected_by == "proof"] == []


def test_operands_of_a_commutative_op_may_be_swapped(verdicts: list[Judged]) -> None:
    accepted = {v.what for v in verdicts if not v.rejected_by}
    assert "operands of scaled_product swapped" in accepted
    assert "operands of scaled_weight swapped" in accepted


def test_many_mutants_are_well_formed_and_only_the_proof_rejects_them(
    verdicts: list[Judged],
) -> None:
    assert sum(v.rejected_by == "proof" for v in verdicts) >= 50
