"""Options of a recipe: one declaration, a program for each form that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.recipe import catalog, load_recipe, trace

FILE = """
from mirage_kernels.generator.language import contract, gelu, relu
from mirage_kernels.generator.recipe import form, options, recipe, shape

SHAPES = (shape("my model", K=32, N=48),)

@options(
    {"bias": "", "residual": "total", "activation=relu": ""},
    form("plain", summary="linear(x, weight)", shapes=SHAPES),
    form("with_bias", "bias", "activation=relu", summary="relu(linear)", shapes=SHAPES),
    form("summed", "residual", summary="linear(x + residual, weight)", shapes=SHAPES),
)
@recipe(
    inputs={"x": "M K", "weight": "N K", "bias": "N", "residual": "M K"},
    output="M N",
    also={"total": "M K"},
    dynamic={"M": 64},
    optional=("bias",),
    reference=None,
)
def mine(x, weight, bias=None, residual=None, activation=""):
    total = x if residual is None else x + residual
    product = contract(total, weight, over="K")
    product = product if bias is None else product + bias
    product = relu(product) if activation == "relu" else product
    return product if residual is None else (product, total)
"""


def written(folder: Path, text: str = FILE) -> str:
    path = folder / "mine.py"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("name", "inputs", "results"),
    [
        ("plain", ["x", "weight"], 1),
        ("with_bias", ["x", "weight", "bias"], 1),
        ("summed", ["x", "weight", "residual"], 2),
    ],
)
def test_a_form_has_the_inputs_and_results_of_its_options(
    tmp_path: Path, name: str, inputs: list[str], results: int
) -> None:
    found = load_recipe(f"{written(tmp_path)}:{name}")
    spec = trace(found, found.shapes[0], DType.FP16)
    assert [n.name for n in spec.inputs] == inputs
    assert len(spec.outputs) == len(found.results) == results
    assert any(n.op == "relu" for n in spec.nodes) is (name == "with_bias")
    assert found.optional == tuple(n for n in ("bias",) if n in inputs)


def test_a_file_of_several_forms_is_answered_with_their_names(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="defines 3 recipes, not one") as caught:
        load_recipe(written(tmp_path))
    assert "mine.py:with_bias" in caught.value.hint


def test_a_form_that_a_file_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="defines no recipe called other"):
        load_recipe(f"{written(tmp_path)}:other")


def test_an_option_that_is_not_declared_is_named(tmp_path: Path) -> None:
    wrong = FILE.replace('"with_bias", "bias"', '"with_bias", "basis"')
    with pytest.raises(RecipeError, match="takes 'basis', which is none of its options"):
        load_recipe(f"{written(tmp_path, wrong)}:plain")


def test_a_program_that_does_not_take_an_options_input_is_refused(tmp_path: Path) -> None:
    found = load_recipe(f"{written(tmp_path, FILE.replace('bias=None, ', ''))}:with_bias")
    with pytest.raises(RecipeError, match="declares the inputs x, weight, bias"):
        trace(found, found.shapes[0], DType.FP16)


def test_a_dim_that_comes_with_an_option_is_left_out_of_the_others() -> None:
    gqa, causal = catalog()["gqa"], catalog()["causal_attention"]
    assert (gqa.inputs["q"], causal.inputs["q"]) == ("B Hkv G D", "B T Hkv G D")
    assert (gqa.ranges["seq_lens"], causal.ranges["seq_lens"]) == ("1..L", "T..L")
    assert "T" not in gqa.dynamic
    assert (gqa.family, dict(causal.choices)) == ("attention", {"mask": "causal"})


def test_typical_extents_are_of_the_dims_that_a_form_has() -> None:
    recipes = catalog()
    assert "S" in recipes["rope_cache_write"].typical
    static = recipes["static_rope_cache_write"]
    assert {*static.typical} == {*static.dynamic} == {"M", "Hq", "Hkv"}
