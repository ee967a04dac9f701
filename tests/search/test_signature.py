"""What a muGraph declares must be what its recipe declares: a kernel is emitted with that."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import Dim, DType, Graph, Value
from mirage_kernels.generator.recipe import Recipe, Shape, catalog, trace
from mirage_kernels.generator.search.cases import small_cases
from mirage_kernels.generator.search.gate import Gate
from mirage_kernels.generator.search.verify import prove

SHAPE = Shape("a test", {"K": 16, "N": 8})


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return catalog()["rms_norm_linear_full"]


@pytest.fixture(scope="module")
def spec(recipe: Recipe) -> Graph:
    return trace(recipe, SHAPE, DType.FP16)


def changed(graph: Graph, name: str, **fields: object) -> Graph:
    """Return the graph with another declaration of one input, or of its type."""
    node = next(n for n in graph.nodes if n.name == name)
    type_ = {f: fields.pop(f) for f in ("dims", "dtype") if f in fields}
    new = replace(node, outs=(Value(name, replace(node.out.type, **type_)),), **fields)
    return replace(graph, nodes=tuple(new if n is node else n for n in graph.nodes))


def refused(spec: Graph, candidate: Graph) -> str:
    with pytest.raises(VerifyError) as caught:
        prove(spec, candidate, small_cases(spec), seed=1)
    return caught.value.sentence


def test_another_extent_is_refused(spec: Graph) -> None:
    """A draw has extents of its own: it does not see those that a kernel would be made for."""
    assert refused(spec, changed(spec, "norm_weight", dims=(Dim("K", 8),))) == (
        "its input norm_weight [K=8] is norm_weight [K=16] in the recipe"
    )


@pytest.mark.parametrize("name", ["norm_weight", "bias"])
def test_another_choice_of_what_may_be_left_out_is_refused(spec: Graph, name: str) -> None:
    optional = next(n for n in spec.inputs if n.name == name).optional
    flipped = changed(spec, name, optional=not optional)
    assert re.search(rf"optional {name} \[", refused(spec, flipped))


def test_inputs_in_another_order_are_refused(spec: Graph) -> None:
    """Both are numbers: the proof alone would give each the other's."""
    names = {"eps": "weight_offset", "weight_offset": "eps"}
    nodes = tuple(
        replace(
            n,
            args=tuple(names.get(a, a) for a in n.args),
            outs=tuple(replace(v, name=names.get(v.name, v.name)) for v in n.outs),
        )
        for n in spec.nodes
    )
    exchanged = replace(spec, nodes=nodes)
    for node in spec.inputs:
        exchanged = changed(exchanged, node.name, optional=node.optional)
    assert "in the recipe" in refused(spec, exchanged)


def test_a_result_that_is_stored_in_another_order_is_refused(spec: Graph) -> None:
    (name,) = spec.outputs
    said = refused(spec, changed(spec, name, dims=spec.values[name].type.dims[::-1]))
    assert said.startswith(f"its result {name} has dims N=8, M<=4096, in the recipe M<=4096, N=8")


def test_too_few_inputs_are_refused(spec: Graph) -> None:
    unused = spec.inputs[-1]
    fewer = replace(spec, nodes=tuple(n for n in spec.nodes if n is not unused))
    assert refused(spec, fewer) == f"{len(spec.inputs) - 1} inputs instead of {len(spec.inputs)}"


@pytest.mark.parametrize("dtype", [DType.BF16, DType.FP32])
def test_the_gate_refuses_inputs_that_are_stored_otherwise(
    recipe: Recipe, spec: Graph, dtype: DType
) -> None:
    words = f"its input norm_weight is {dtype.value}, in the recipe fp16"
    with pytest.raises(VerifyError, match=words):
        Gate(spec, recipe, DType.FP16).measure(changed(spec, "norm_weight", dtype=dtype))


def test_the_gate_refuses_results_that_are_stored_otherwise(recipe: Recipe, spec: Graph) -> None:
    assert spec.values[spec.outputs[0]].type.dtype is DType.FP32
    with pytest.raises(VerifyError, match=r"its result \w+ is fp32, not fp16"):
        Gate(spec, recipe, DType.FP16).measure(spec)
