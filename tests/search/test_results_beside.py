"""Recipes with a result beside the output: it is searched as an input, computed, stored, proved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small import ONE_KERNEL, Small, found, search_of, spec_of

from mirage_kernels.generator.errors import SearchError, VerifyError
from mirage_kernels.generator.ir import DType, Graph, Node
from mirage_kernels.generator.language import contract
from mirage_kernels.generator.recipe import load_recipe
from mirage_kernels.generator.search.cases import small_cases
from mirage_kernels.generator.search.fold import beside, part
from mirage_kernels.generator.search.gate import Gate
from mirage_kernels.generator.search.lower import lower
from mirage_kernels.generator.search.superoptimizer import Verifier, goal_of, superoptimize
from mirage_kernels.generator.search.verify import Prover

RECIPE = load_recipe("rms_norm_linear_residual")


SPEC = spec_of(RECIPE.name)


def graphs() -> list[Graph]:
    return [lower(p, goal_of(SPEC, DType.FP16)) for p in found(RECIPE.name).programs]


def test_the_shorter_spec_takes_the_result_as_an_input() -> None:
    shorter = beside(SPEC, {"K", "N"})
    assert [n.op for n in part(SPEC, "total")] == ["input", "input", "add"]
    names = [n.name for n in shorter.inputs]
    assert "total" in names
    assert not {"x", "residual"} & {*names}
    assert shorter.outputs == SPEC.outputs[:1]


def test_a_spec_with_one_result_stays_as_it_is() -> None:
    plain = spec_of("rms_norm_linear")
    assert beside(plain, {"K", "N"}) == plain


def test_parts_of_several_kinds_are_all_computed() -> None:
    tensors = {"x": "MK", "y": "MK", "w": "JK", "a": "J", "b": "J"}
    small = Small(tensors, lambda x, y, w, a, b: contract(x + y, w, over="K") + (a + b)).spec()
    several = replace(small, outputs=(*small.outputs, "x_plus_y"))
    problem = search_of(several, ONE_KERNEL).problem.shortened()
    assert {t.name for t in problem.tensors} - {*tensors} == {"x_plus_y", "a_plus_b"}
    (program, *_) = superoptimize(several, ONE_KERNEL, "sm_90a").programs
    assert lower(program, goal_of(several, DType.FP16)).blocks[0].args == (*tensors,)


def test_every_program_stores_the_result_in_every_step_that_computes_it() -> None:
    assert found(RECIPE.name).programs
    for graph in graphs():
        (block,) = graph.blocks
        assert graph.outputs == ("out", "total")
        assert block.body is not None
        assert block.body.space is not None
        stored = next(n for n in block.body.nodes if n.name == "total_stored")
        made, loop = block.body.producers[stored.args[0]], block.body.space.loop
        assert (made.op, len(made.args)) == ("add", 2)
        assert stored.loop_cut == (loop.dim if loop else None)


def test_a_program_that_does_not_compute_the_result_is_refused() -> None:
    program = found("rms_norm_linear_full").programs[0]
    with pytest.raises(SearchError, match="does not compute total, which is a result too"):
        lower(program, goal_of(SPEC, DType.FP16))
    assert "does not compute total" in Verifier(SPEC).reason_against(program)


def with_sum(graph: Graph, op: str, args: tuple[str, ...]) -> Graph:
    """Return the muGraph with another tile stored beside the output."""
    (block,) = graph.blocks
    assert block.body is not None
    stored = next(n for n in block.body.nodes if n.name == "total_stored")
    tile = replace(block.body.values[stored.args[0]], name="other")
    rest = [n for n in block.body.nodes if n is not stored]
    nodes = (*rest, Node(op, args, (tile,)), replace(stored, args=("other",)))
    inner = replace(block, body=replace(block.body, nodes=nodes))
    return replace(graph, nodes=tuple(inner if n is block else n for n in graph.nodes))


def test_a_wrong_result_beside_a_right_output_is_rejected() -> None:
    prover, cases = Prover(SPEC), small_cases(SPEC)
    graph = next(g for g in graphs() if g.blocks[0].body.space.loop)  # type: ignore[union-attr]
    prover.prove(graph, cases, seed=1)
    for op, args in (("sub", ("x_tile", "residual_tile")), ("add", ("x_tile", "x_tile"))):
        with pytest.raises(VerifyError, match="not equal to its recipe"):
            prover.prove(with_sum(graph, op, args), cases, seed=1)


def test_the_gate_judges_every_result() -> None:
    gate = Gate(SPEC, RECIPE, DType.FP16)
    (reference, *_) = gate.references
    _, beside = reference.results
    assert 1e-4 < beside.unfused < 3e-4  # one rounding
