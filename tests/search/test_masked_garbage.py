"""Masked positions may hold anything: what is hidden, and refusal of peaks that cover it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from attention import COVERS_THE_MASKED, FORMS, attention, edited
from small import Small

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.language import Tensor, contract, exp, positions, sum, where
from mirage_kernels.generator.meaning.arrays import Array
from mirage_kernels.generator.recipe import Recipe, Shape, catalog, trace
from mirage_kernels.generator.search.cases import small_cases
from mirage_kernels.generator.search.gate import (
    DISTRIBUTIONS,
    STALE,
    Gate,
    hidden_positions,
)
from mirage_kernels.generator.search.verify import Prover

SHAPE = Shape("a test", {"D": 64})


@cache
def gqa() -> Gate:
    recipe = catalog()["gqa"]
    return Gate(trace(recipe, SHAPE, DType.FP16), recipe, DType.FP16)


@pytest.mark.parametrize("form", FORMS)
def test_a_mugraph_that_masks_scores_passes(form: str) -> None:
    found = gqa().measure(attention(gqa().spec, "gqa", form))
    assert [m.distribution for m in found] == [d.name for d in (*DISTRIBUTIONS, STALE)]


@pytest.mark.parametrize("edit", COVERS_THE_MASKED)
@pytest.mark.parametrize("form", FORMS)
def test_a_mugraph_whose_peak_covers_stale_positions_is_refused(form: str, edit: str) -> None:
    """Wide scores show it already, where the unfused program is finite."""
    graph = edited(gqa().spec, "gqa", form, COVERS_THE_MASKED[edit])
    with pytest.raises(VerifyError, match=r"on the distribution '(wide|stale)'"):
        gqa().measure(graph)


@pytest.mark.parametrize("edit", COVERS_THE_MASKED)
def test_such_a_mugraph_is_equal_to_the_recipe_all_the_same(edit: str) -> None:
    spec = gqa().spec
    graph = edited(spec, "gqa", "flash", COVERS_THE_MASKED[edit])
    prover = Prover(spec, range_of=catalog()["gqa"].range_of)
    assert prover.prove(graph, small_cases(spec), seed=1)


def attentions() -> list[Recipe]:
    return [r for r in catalog().values() if any(":int32" in t for t in r.inputs.values())]


@pytest.mark.parametrize("recipe", attentions(), ids=lambda recipe: recipe.name)
def test_what_every_attention_recipe_hides_is_keys_and_values(recipe: Recipe) -> None:
    gate = Gate(trace(recipe, recipe.shapes[0], DType.FP16), recipe, DType.FP16)
    names = [n.name for n in gate.spec.inputs]
    cached = {n.name for n in gate.spec.inputs if "L" in n.out.type.names}
    assert {names[i] for i in gate.hidden} == cached


def test_what_is_hidden_stands_beyond_the_length() -> None:
    lengths = gqa().inputs(STALE)[3].parts[0]
    for hidden in gqa().hidden.values():  # [B, L, Hkv, D]
        for sequence, length in zip(hidden, lengths, strict=True):
            assert not sequence[:length].any()
            assert sequence[length:].all()


def test_a_recipe_without_masks_hides_nothing(rms_norm_linear: Recipe) -> None:
    shape = Shape("a test", {"K": 72, "N": 40})
    gate = Gate(trace(rms_norm_linear, shape, DType.FP16), rms_norm_linear, DType.FP16)
    assert not gate.hidden
    assert STALE.name not in {r.distribution.name for r in gate.references}


def averaged(s: Tensor, v: Tensor, n: Tensor) -> Tensor:
    weights = where(positions(s, "L") < n, exp(s), 0)
    return contract(weights, v, "L") / sum(exp(s), "L")


def hidden_in(spec: Graph, lengths: list[int]) -> set[str]:
    sizes = {"M": len(lengths), "L": 6}
    rng = np.random.default_rng(0)
    inputs = []
    for node in spec.inputs:
        names = node.out.type.names
        if node.out.type.dtype is DType.INT32:
            inputs.append(Array(names, (np.asarray(lengths),), real=False))
        else:
            drawn = rng.standard_normal([sizes[d] for d in names])
            inputs.append(Array(names, (drawn,)))
    found = hidden_positions(spec, inputs, sizes, seed=0)
    return {spec.inputs[i].name for i in found}


def test_what_a_result_depends_on_past_a_mask_is_not_hidden() -> None:
    spec = Small({"s": "ML", "v": "ML", "n": "M:int"}, averaged).spec()
    assert hidden_in(spec, [2, 3]) == {"v"}


def test_what_one_row_sees_is_not_hidden_from_it_by_the_masks_of_others() -> None:
    spec = Small({"s": "ML", "v": "L", "n": "M:int"}, averaged).spec()
    assert hidden_in(spec, [2, 3]) == {"v"}  # beyond both lengths
    assert hidden_in(spec, [2, 6]) == set()
