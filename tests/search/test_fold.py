"""Parts of specs and results beside the output: searched as inputs, computed where read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small import ONE_KERNEL, Small, drawn, found, graphs, programs_of, search_of, spec_of

from mirage_kernels.generator.errors import SearchError, VerifyError
from mirage_kernels.generator.ir import DType, Graph, Node
from mirage_kernels.generator.language import Tensor, contract, exp, sum
from mirage_kernels.generator.meaning.arrays import array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.recipe import load_recipe
from mirage_kernels.generator.search.cases import small_cases
from mirage_kernels.generator.search.fold import beside, folded, part, shifted
from mirage_kernels.generator.search.gate import Gate
from mirage_kernels.generator.search.lower import lower
from mirage_kernels.generator.search.sketch import Limits, ProgramSketch
from mirage_kernels.generator.search.superoptimizer import goal_of, reason_against, superoptimize
from mirage_kernels.generator.search.verify import Prover

LAYER_NORM = "qk_layer_norm_attention"
SIZES = {"B": 2, "Hkv": 2, "G": 3, "L": 7, "D": 4}


def parts_of(spec: Graph, shorter: Graph) -> dict[str, list[Node]]:
    """Return the parts that a shorter spec has as inputs, by their names."""
    whole = {n.name for n in spec.inputs}
    return {n.name: part(spec, n.name) for n in shorter.inputs if n.name not in whole}


@pytest.mark.parametrize("recipe", [LAYER_NORM, "qk_norm_attention"])
def test_the_shorter_spec_over_the_parts_is_the_spec(recipe: str) -> None:
    spec, reading = spec_of(recipe), array_reading(FLOAT64, SIZES)
    shorter = folded(spec, {"L"})
    assert shorter != spec
    given = {n.name: a for n, a in zip(spec.inputs, drawn(spec, SIZES), strict=True)}
    for name, nodes in parts_of(spec, shorter).items():
        made = Graph(spec.level, tuple(nodes), (name,))
        given[name] = results(made, [given[n.name] for n in made.inputs], reading)[0]
    (found,) = results(shorter, [given[n.name] for n in shorter.inputs], reading)
    (wanted,) = results(spec, drawn(spec, SIZES), reading)
    np.testing.assert_allclose(found.over(wanted.dims).parts[0], wanted.parts[0], rtol=1e-9)


@pytest.mark.parametrize("recipe", ["gqa", "layer_norm_linear", "mla_decode"])
def test_what_sums_along_dims_that_are_cut_is_no_part(recipe: str) -> None:
    problem = search_of(spec_of(recipe), Limits()).problem
    assert folded(problem.spec, problem.roles.long) == problem.spec


def late(x: Tensor, v: Tensor) -> Tensor:
    return contract(exp(sum(x, over="J")), v, over="K")


def test_a_part_ends_before_exp() -> None:
    spec = Small({"x": "MKJ", "v": "NK"}, late).spec()
    (nodes,) = parts_of(spec, folded(spec, {"K"})).values()
    assert [n.op for n in nodes] == ["input", "sum"]


def test_only_specs_with_long_sums_or_sums_of_inputs_are_made_shorter() -> None:
    for recipe in ("gqa", "gqa_full", "rms_norm_linear_full"):
        problem = search_of(spec_of(recipe), Limits()).problem
        assert problem.shortened() is problem
    problem = search_of(spec_of(LAYER_NORM), Limits()).problem
    assert problem.shortened() is not problem


def test_sums_of_inputs_that_are_never_cut_are_parts() -> None:
    spec = spec_of("qk_norm_attention")
    shorter = search_of(spec, Limits()).problem.shortened().spec
    made = [[n.op for n in nodes] for nodes in parts_of(spec, shorter).values()]
    assert made == [["input", "input", "add"]] * 2
    assert shifted(spec, {"D"}) == spec


def test_programs_with_parts_prove_equal_to_the_whole_spec() -> None:
    assert found(LAYER_NORM).programs
    assert not found(LAYER_NORM).counts.rejected


def test_programs_read_the_inputs_of_the_spec_alone_and_in_its_order() -> None:
    spec = spec_of(LAYER_NORM)
    names = [n.name for n in (*spec.inputs, *spec.of("iota"))]
    for program in found(LAYER_NORM).programs:
        (block,) = lower(program, goal_of(spec, DType.FP16)).blocks
        assert list(block.args) == sorted(block.args, key=names.index)


def test_the_library_multiplies_no_part() -> None:
    tensors = {"x": "MK", "y": "MK", "w": "JK", "a": "J", "b": "J"}
    spec = Small(tensors, lambda x, y, w, a, b: contract(x + y, w, over="K") + (a + b)).spec()
    several = replace(spec, outputs=(*spec.outputs, "x_plus_y"))
    assert any("x_plus_y" in getattr(p.kernels[0], "args", ()) for p in shorter_programs(several))
    programs = superoptimize(several, Limits(), "sm_90a").programs
    assert programs
    assert not any("x_plus_y" in getattr(p.kernels[0], "args", ()) for p in programs)


def shorter_programs(spec: Graph) -> list[ProgramSketch]:
    return programs_of(search_of(spec, Limits()).problem.shortened().spec, Limits())


RECIPE = load_recipe("rms_norm_linear_residual")


SPEC = spec_of(RECIPE.name)


def test_the_shorter_spec_takes_the_result_as_an_input() -> None:
    shorter = beside(SPEC, {"K", "N"})
    assert [n.op for n in part(SPEC, "total")] == ["input", "input", "add"]
    names = [n.name for n in shorter.inputs]
    assert "total" in names
    assert not {"x", "residual"} & {*names}
    assert shorter.outputs == SPEC.outputs[:1]


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
    for graph in graphs(RECIPE.name):
        (block,) = graph.blocks
        assert graph.outputs == ("out", "total")
        assert block.body is not None
        assert block.body.space is not None
        stored = next(n for n in block.body.nodes if n.name == "total_stored")
        made, loop = block.body.producers[stored.args[0]], block.body.space.loop
        assert (made.op, len(made.args)) == ("add", 2)
        assert stored.loop_cut == (loop.dim if loop else None)


def test_a_program_whose_blocks_would_all_store_a_result_is_refused() -> None:
    program = found("rms_norm_linear_full").programs[0]
    with pytest.raises(SearchError, match="the blocks along N would all store total"):
        lower(program, goal_of(SPEC, DType.FP16))
    assert "would all store total" in reason_against(program, Prover(SPEC))


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
    graph = next(g for g in graphs(RECIPE.name) if g.blocks[0].body.space.loop)  # type: ignore[union-attr]
    prover.prove(graph, cases, seed=1)
    for op, args in (("sub", ("x_tile", "residual_tile")), ("add", ("x_tile", "x_tile"))):
        with pytest.raises(VerifyError, match="not equal to its recipe"):
            prover.prove(with_sum(graph, op, args), cases, seed=1)


def test_the_gate_judges_every_result() -> None:
    gate = Gate(SPEC, RECIPE, DType.FP16)
    (reference, *_) = gate.references
    ((_, beside),) = reference.wanted.values()
    assert 1e-4 < beside.unfused < 3e-4  # one rounding
