"""Parts of long specs are searched as inputs; what is found computes them where it reads them."""

from __future__ import annotations

import numpy as np
import pytest
from small import Small, found, search_of, spec_of

from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.language import Tensor, contract, exp, sum
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.search.fold import Parts, folded, shifted, unfolded
from mirage_kernels.generator.search.problem import Limits
from mirage_kernels.generator.search.sketch import LibrarySketch, ProgramSketch
from mirage_kernels.generator.search.superoptimizer import goal_of

LAYER_NORM = "qk_layer_norm_attention"
SIZES = {"B": 2, "Hkv": 2, "G": 3, "L": 7, "D": 4}


def drawn(spec: Graph) -> list[Array]:
    rng = np.random.default_rng(0)
    made = []
    for node in spec.inputs:
        names, shape = node.out.type.names, [SIZES[d] for d in node.out.type.names]
        if node.out.type.dtype is DType.INT32:
            made.append(Array(names, (rng.integers(1, SIZES["L"] + 1, shape),), real=False))
        else:
            made.append(Array(names, (1 + rng.random(shape),)))
    return made


@pytest.mark.parametrize("recipe", [LAYER_NORM, "qk_norm_attention"])
def test_the_shorter_spec_over_the_parts_is_the_spec(recipe: str) -> None:
    spec, reading = spec_of(recipe), array_reading(FLOAT64, SIZES)
    shorter, parts = folded(spec, {"L"})
    assert parts is not None
    given = {n.name: a for n, a in zip(spec.inputs, drawn(spec), strict=True)}
    for name, nodes in parts.nodes.items():
        part = Graph(spec.level, nodes, (name,))
        given[name] = results(part, [given[n.name] for n in part.inputs], reading)[0]
    (made,) = results(shorter, [given[n.name] for n in shorter.inputs], reading)
    (wanted,) = results(spec, drawn(spec), reading)
    np.testing.assert_allclose(made.over(wanted.dims).parts[0], wanted.parts[0], rtol=1e-9)


@pytest.mark.parametrize("recipe", ["gqa", "layer_norm_linear", "mla_decode"])
def test_what_sums_along_dims_that_are_cut_is_no_part(recipe: str) -> None:
    problem = search_of(spec_of(recipe), Limits()).problem
    assert folded(problem.spec, problem.roles.long) == (problem.spec, None)


def late(x: Tensor, v: Tensor) -> Tensor:
    return contract(exp(sum(x, over="J")), v, over="K")


def test_a_part_ends_before_exp() -> None:
    spec = Small({"x": "MKJ", "v": "NK"}, late).spec()
    _, parts = folded(spec, {"K"})
    assert parts is not None
    assert [n.op for nodes in parts.nodes.values() for n in nodes] == ["input", "sum"]


def test_only_specs_with_long_sums_or_sums_of_inputs_are_made_shorter() -> None:
    for recipe in ("gqa", "gqa_full", "rms_norm_linear_full"):
        problem = search_of(spec_of(recipe), Limits()).problem
        assert problem.shortened() is problem
    assert search_of(spec_of(LAYER_NORM), Limits()).problem.shortened().parts


def test_sums_of_inputs_that_are_never_cut_are_parts() -> None:
    (parts,) = search_of(spec_of("qk_norm_attention"), Limits()).problem.shortened().parts
    made = [[n.op for n in nodes] for nodes in parts.nodes.values()]
    assert made == [["input", "input", "add"]] * 2
    _, none = shifted(spec_of("qk_norm_attention"), {"D"})
    assert none is None


def test_programs_with_parts_prove_equal_to_the_whole_spec() -> None:
    assert found(LAYER_NORM).programs
    assert not found(LAYER_NORM).counts.rejected


def test_programs_read_the_inputs_of_the_spec_alone_and_in_its_order() -> None:
    spec = spec_of(LAYER_NORM)
    names = [n.name for n in (*spec.inputs, *spec.of("iota"))]
    goal = goal_of(spec, DType.FP16)
    for program in found(LAYER_NORM).programs:
        (kernel,) = program.kernels
        read = [v.tensor for v in getattr(kernel, "views", ())]
        assert read == sorted(read, key=names.index)
    assert goal.spec.inputs == spec.inputs


def test_the_library_multiplies_no_part() -> None:
    spec = spec_of(LAYER_NORM)
    (product,) = [n for n in spec.of("contract") if n.over == "D"]
    parts = Parts(spec, dict.fromkeys(product.args, ()))
    a, b = product.args
    assert unfolded(ProgramSketch((LibrarySketch((a, b), "D", ("G", "L")),)), parts) is None
    other = ProgramSketch((LibrarySketch(("q", "k"), "D", ("G", "L")),))
    assert unfolded(other, parts) == other
