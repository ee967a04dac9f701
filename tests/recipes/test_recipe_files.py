"""A user's recipe file: it loads and traces, and what is wrong in it is said in a sentence."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest

from mirage_kernels.generator.errors import MirageError, RecipeError
from mirage_kernels.generator.ir import DType, Graph, dumps, from_json, to_json
from mirage_kernels.generator.recipe import catalog, load_recipe, trace

MY_RECIPE = '''
from mirage_kernels.generator.language import contract, gelu, mean, sqrt, sum, where, positions
from mirage_kernels.generator.recipe import recipe, shape

def reference(x, weight):
    import torch
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, weight))

@recipe(
    inputs={"x": "M K", "weight": "N K"},
    output="M N",
    dynamic={"M": 64},
    reference=reference,
    shapes=(shape("my model", K=32, N=48),),
)
def my_recipe(x, weight):
    """gelu(linear(x, weight))."""
    return gelu(contract(x, weight, over="K"))
'''


def load_and_trace(folder: Path, text: str) -> Graph:
    path = folder / "bad_recipe.py"
    path.write_text(text)
    loaded = load_recipe(str(path))
    return trace(loaded, loaded.shapes[0], DType.FP16)


def refusal(folder: Path, text: str) -> str:
    """Return sentence and hint of the error that a bad recipe file must raise."""
    with pytest.raises(RecipeError) as caught:
        load_and_trace(folder, text)
    assert caught.value.hint
    return f"{caught.value.sentence}; {caught.value.hint}"


def mine_with(body: str) -> str:
    """Return the text of a recipe file whose matmul is replaced by `body`."""
    return MY_RECIPE.replace('contract(x, weight, over="K")', body)


def test_a_users_own_recipe_file_loads_and_traces(tmp_path: Path) -> None:
    path = tmp_path / "my_recipe.py"
    path.write_text(MY_RECIPE)
    mine = load_recipe(str(path))
    assert (mine.name, mine.static_dims, mine.summary) == (
        "my_recipe",
        ("K", "N"),
        "gelu(linear(x, weight))",
    )
    spec = trace(mine, mine.shapes[0], DType.FP16)
    assert [n.op for n in spec.nodes] == ["input", "input", "contract", "gelu"]


MY_SUM = (
    MY_RECIPE.replace('"x": "M K"', '"x": "M K", "y": "M K"')
    .replace("(x, weight)", "(x, y, weight)")
    .replace('output="M N",', 'output="M N", also={"total": "M K"},')
    .replace('return gelu(contract(x, weight, over="K"))', "total = x + y\n    RETURN")
)


def test_a_result_beside_the_output_is_named_and_comes_behind_it(tmp_path: Path) -> None:
    text = MY_SUM.replace("RETURN", 'return contract(total, weight, over="K"), total')
    spec = load_and_trace(tmp_path, text)
    assert spec.outputs == ("weight_product", "total")
    assert spec.producers["total"].args == ("x", "y")
    assert [n.args for n in spec.of("contract")] == [("total", "weight")]


@pytest.mark.parametrize(
    "returned",
    [
        'contract(total, weight, over="K"), sum(total, over="K") + x',  # no function of elements
        'contract(x, weight, over="K"), total',  # the output does not need it
        'contract(total, weight, over="K"), x',  # an input
    ],
)
def test_a_result_beside_the_output_that_is_no_part_of_it_is_refused(
    tmp_path: Path, returned: str
) -> None:
    said = refusal(tmp_path, MY_SUM.replace("RETURN", f"return {returned}"))
    assert "as total beside its output; it must be an elementwise function of inputs" in said


def test_a_result_that_is_left_out_is_missed(tmp_path: Path) -> None:
    text = MY_SUM.replace("RETURN", 'return contract(total, weight, over="K")')
    assert "not 2 tensors; return (output, total)" in refusal(tmp_path, text)


def test_a_name_of_the_catalog_loads() -> None:
    assert load_recipe("gqa").name == "gqa"


def test_an_unknown_name_is_answered_with_the_nearest_ones() -> None:
    with pytest.raises(RecipeError, match="'gqqa'") as caught:
        load_recipe("gqqa")
    assert "gqa" in caught.value.hint


def test_a_missing_file_is_named() -> None:
    with pytest.raises(RecipeError, match=r"nowhere/my_recipe\.py") as caught:
        load_recipe("nowhere/my_recipe.py")
    assert caught.value.hint


def test_a_syntax_error_is_named_with_its_line(tmp_path: Path) -> None:
    bad = MY_RECIPE.replace("def my_recipe(x, weight):", "def my_recipe(x")
    assert "bad_recipe.py, line 16: SyntaxError" in refusal(tmp_path, bad)


def test_an_error_while_the_file_runs_is_named_with_its_line(tmp_path: Path) -> None:
    bad = "size = 1\nhalf = size / 0\n"
    assert "bad_recipe.py, line 2: ZeroDivisionError" in refusal(tmp_path, bad)


def test_a_file_without_a_recipe_is_refused(tmp_path: Path) -> None:
    assert "defines 0 recipes" in refusal(tmp_path, "x = 1\n")


def test_a_file_with_two_recipes_is_refused(tmp_path: Path) -> None:
    bad = MY_RECIPE + MY_RECIPE.replace("my_recipe", "my_other_recipe")
    assert "defines 2 recipes" in refusal(tmp_path, bad)


def test_an_import_the_language_lacks_is_answered_with_its_operators(tmp_path: Path) -> None:
    said = refusal(tmp_path, MY_RECIPE.replace("gelu", "softplus"))
    assert re.search("'softplus'.*operators: .*silu", said)


def test_a_method_that_tensors_lack_is_answered_with_the_operators(tmp_path: Path) -> None:
    said = refusal(tmp_path, MY_RECIPE.replace("return gelu(", "return x.softplus("))
    assert re.search("'softplus'.*operators: .*silu", said)


def test_a_python_operator_that_tensors_lack_is_named_with_its_line(tmp_path: Path) -> None:
    said = refusal(tmp_path, mine_with("x @ weight"))
    assert re.search(r"for @: .*bad_recipe\.py:18", said)


def test_a_result_with_other_dims_than_declared_is_refused(tmp_path: Path) -> None:
    bad = MY_RECIPE.replace('output="M N"', 'output="M K"')
    with pytest.raises(RecipeError, match=r"output is \[M K\], but computes \[M N\]"):
        load_and_trace(tmp_path, bad)


def test_a_result_that_is_no_tensor_is_refused(tmp_path: Path) -> None:
    bad = MY_RECIPE.replace("return gelu(", "return print(")
    with pytest.raises(RecipeError, match="returns None, not a tensor"):
        load_and_trace(tmp_path, bad)


@pytest.mark.parametrize("branch", ["x if positions(x, 'K') < 3 else weight", "x and weight"])
def test_a_branch_on_a_tensor_is_refused(tmp_path: Path, branch: str) -> None:
    said = refusal(tmp_path, mine_with(f"contract({branch}, weight, over='K')"))
    assert re.search("one truth value; .*where", said)


@pytest.mark.parametrize("asked", ['positions(x, "Q")', 'mean(x, over="Q")', 'sum(x, over="Q")'])
def test_a_dim_that_a_tensor_lacks_is_named(tmp_path: Path, asked: str) -> None:
    with pytest.raises(MirageError, match="no dim 'Q'"):
        load_and_trace(tmp_path, mine_with(asked))


def test_constants_that_print_alike_stay_apart(tmp_path: Path) -> None:
    spec = load_and_trace(
        tmp_path, mine_with('contract(x * 0.30000001 + x * 0.3, weight, over="K")')
    )
    assert sorted(n.value for n in spec.of("const")) == [0.3, 0.30000001]


def test_the_language_can_be_inspected_like_any_module() -> None:
    """What pickles or compiles a program looks for attributes that modules and tensors may lack."""
    import mirage_kernels.generator.language as language

    assert not hasattr(language, "torch")
    assert copy.copy(catalog()["gqa"]).name == "gqa"


OPTIONAL = MY_RECIPE.replace(
    'inputs={"x": "M K", "weight": "N K"}',
    'inputs={"x": "M K", "weight": "N K", "bias": "N"}, optional=("bias",)',
).replace("(x, weight)", "(x, weight, bias)")


def optional_with(body: str) -> str:
    """Return the text of a recipe file with an optional bias that is used as `body` says."""
    product = 'contract(x, weight, over="K")'
    return OPTIONAL.replace(f"return gelu({product})", f"return {body.format(product)}")


@pytest.mark.parametrize("body", ["gelu({} + bias)", "gelu({} - bias)", "{} + bias + bias"])
def test_what_is_added_or_subtracted_may_be_left_out(tmp_path: Path, body: str) -> None:
    spec = load_and_trace(tmp_path, optional_with(body))
    assert [n.name for n in spec.inputs if n.optional] == ["bias"]


@pytest.mark.parametrize("body", ["{} * bias", "bias - {}", "gelu({}) + gelu(bias)", "{} / bias"])
def test_what_zeros_would_change_is_not_optional(tmp_path: Path, body: str) -> None:
    said = refusal(tmp_path, optional_with(body))
    assert re.search("of its optional bias; .*only be added or subtracted", said)


def test_an_optional_input_that_is_none_is_refused(tmp_path: Path) -> None:
    bad = OPTIONAL.replace('optional=("bias",)', 'optional=("basis",)')
    said = refusal(tmp_path, bad.replace("weight, over", "weight, over"))
    assert "optional of recipe my_recipe names basis, which is none of its inputs" in said


def test_an_optional_input_reads_back_from_json(tmp_path: Path) -> None:
    spec = load_and_trace(tmp_path, optional_with("gelu({} + bias)"))
    assert from_json(json.loads(dumps(to_json(spec)))) == spec
