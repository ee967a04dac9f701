"""The recipes say what they mean: specs, PyTorch references, shapes, and errors of recipe files."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from mirage_kernels.generator.errors import MirageError, RecipeError
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.recipe import Recipe, Shape, catalog, load_recipe, output_type, trace

RECIPES = catalog()
SMALL = {"M": 3, "K": 6, "N": 5, "R": 2, "B": 3, "L": 7, "Hkv": 2, "G": 3, "D": 4}
TORCH_DTYPES = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}
TRACED = [
    pytest.param(recipe, shape, dtype, id=f"{name}-{shape.stem}-{dtype.value}")
    for name, recipe in RECIPES.items()
    for shape in recipe.shapes
    for dtype in recipe.dtypes
]

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


def every_recipe(*, without: str = "") -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [n for n in RECIPES if n != without])


def drawn(recipe: Recipe, sizes: Mapping[str, int], seed: int = 0) -> dict[str, torch.Tensor]:
    """Draw every input of a recipe in float64; int32 inputs are lengths of at least 1."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, text in recipe.inputs.items():
        dims, _, kind = text.partition(":")
        extents = [sizes[d] for d in dims.split()]
        if kind:
            tensors[name] = torch.from_numpy(rng.integers(1, sizes["L"] + 1, extents, np.int32))
        elif extents:
            tensors[name] = torch.from_numpy(rng.standard_normal(extents))
        else:
            tensors[name] = torch.tensor(recipe.scalars[name], dtype=torch.float64)
    return tensors


def spec_result(
    recipe: Recipe, sizes: Mapping[str, int], tensors: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """Read the traced spec in float64."""
    spec = trace(recipe, Shape("small", {d: sizes[d] for d in recipe.static_dims}), DType.FP16)
    arguments = [
        Array(node.out.type.names, (tensors[node.name].numpy(),), node.out.type.dtype.is_real)
        for node in spec.inputs
    ]
    (result,) = results(spec, arguments, array_reading(FLOAT64, sizes))
    return torch.from_numpy(np.array(result.over(recipe.output.split()).parts[0]))


def reference_result(recipe: Recipe, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Call the PyTorch reference the way the library does: tensors, scalars as floats."""
    return recipe.reference(*(t if t.dim() else t.item() for t in tensors.values()))


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


def test_the_catalog_holds_the_five_recipes_of_the_library() -> None:
    assert set(RECIPES) == {
        *("rms_norm_linear", "lora_linear", "gated_mlp", "gqa", "qk_norm_attention")
    }


@pytest.mark.parametrize(("recipe", "shape", "dtype"), TRACED)
def test_recipe_traces_at_every_shape_and_dtype(recipe: Recipe, shape: Shape, dtype: DType) -> None:
    spec = trace(recipe, shape, dtype)
    (result,) = spec.outputs
    declared = output_type(recipe, shape, dtype)
    assert set(spec.values[result].type.dims) == set(declared.dims)
    assert [n.name for n in spec.inputs] == list(recipe.inputs)


@every_recipe()
def test_program_and_reference_take_the_declared_inputs_in_order(name: str) -> None:
    recipe = RECIPES[name]
    assert list(inspect.signature(recipe.program).parameters) == list(recipe.inputs)
    assert list(inspect.signature(recipe.reference).parameters) == list(recipe.inputs)


@every_recipe()
def test_shapes_are_distinct_and_name_their_model(name: str) -> None:
    shapes = RECIPES[name].shapes
    assert len({s.stem for s in shapes}) == len(shapes)
    assert all(s.source for s in shapes)
    assert all(tuple(s.dims) == RECIPES[name].static_dims for s in shapes)  # one file name each


@every_recipe()
def test_every_run_time_scalar_has_a_value_for_tests(name: str) -> None:
    scalars = {n for n, dims in RECIPES[name].inputs.items() if not dims}
    assert set(RECIPES[name].scalars) == scalars


@every_recipe()
def test_every_recipe_says_its_formula(name: str) -> None:
    assert re.fullmatch(r"\w.*[\w)]", RECIPES[name].summary)


@every_recipe()
@pytest.mark.parametrize("heads", [{}, {"G": 1}, {"Hkv": 1}, {"M": 1, "B": 1}], ids=str)
def test_mathematics_equal_the_reference_in_float64(name: str, heads: dict[str, int]) -> None:
    recipe, sizes = RECIPES[name], SMALL | heads
    tensors = drawn(recipe, sizes)
    found = spec_result(recipe, sizes, tensors)
    torch.testing.assert_close(found, reference_result(recipe, tensors), rtol=1e-12, atol=1e-12)


@every_recipe()
@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=lambda d: d.value)
def test_reference_keeps_the_dtype_and_comes_close_to_the_mathematics(
    name: str, dtype: DType
) -> None:
    recipe = RECIPES[name]
    stored = {
        n: t.to(TORCH_DTYPES[dtype]) if t.dim() and t.is_floating_point() else t
        for n, t in drawn(recipe, SMALL).items()
    }
    exact = {n: t.double() if t.is_floating_point() else t for n, t in stored.items()}
    found = reference_result(recipe, stored)
    wanted = spec_result(recipe, SMALL, exact)
    assert found.dtype == TORCH_DTYPES[dtype]
    assert (found.double() - wanted).norm() < 0.02 * wanted.norm()


@every_recipe()
def test_a_changed_input_changes_the_result(name: str) -> None:
    recipe = RECIPES[name]
    tensors = drawn(recipe, SMALL)
    before = spec_result(recipe, SMALL, tensors)
    other = drawn(recipe, SMALL, seed=1)
    for changed, tensor in other.items():
        value = tensor if tensor.dim() else tensor + 0.5
        after = spec_result(recipe, SMALL, tensors | {changed: value})
        assert not torch.allclose(after, before), changed


@pytest.mark.parametrize("name", ["gqa", "qk_norm_attention"])
def test_keys_behind_the_length_do_not_matter(name: str) -> None:
    recipe = RECIPES[name]
    tensors = drawn(recipe, SMALL) | {"seq_lens": torch.tensor([1, 4, 7], dtype=torch.int32)}
    other = {n: tensors[n].clone() for n in ("k", "v")}
    for tensor in other.values():
        tensor[0, 1:] = 3.0
        tensor[1, 4:] = -2.0
    before = spec_result(recipe, SMALL, tensors)
    assert torch.equal(spec_result(recipe, SMALL, tensors | other), before)
    torch.testing.assert_close(reference_result(recipe, tensors | other), before)


def test_gqa_gives_each_head_group_its_own_keys() -> None:
    tensors = drawn(RECIPES["gqa"], SMALL)
    other = tensors["k"].clone()
    other[:, :, 1] += 1.0 + torch.arange(SMALL["L"])[None, :, None]
    before = spec_result(RECIPES["gqa"], SMALL, tensors)
    after = spec_result(RECIPES["gqa"], SMALL, tensors | {"k": other})
    assert torch.equal(after[:, 0], before[:, 0])
    assert not torch.allclose(after[:, 1], before[:, 1])


def test_a_users_own_recipe_file_loads_and_traces(tmp_path: Path) -> None:
    path = tmp_path / "my_recipe.py"
    path.write_text(MY_RECIPE)
    mine = load_recipe(str(path))
    assert (mine.name, mine.static_dims, mine.summary) == (
        "my_recipe",
        ("K", "N"),
        "gelu(linear(x, weight))",
    )
    tensors = drawn(mine, SMALL)
    torch.testing.assert_close(spec_result(mine, SMALL, tensors), reference_result(mine, tensors))


def test_a_name_of_the_catalog_loads() -> None:
    assert load_recipe("gqa").name == "gqa"


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(RecipeError, match="'gqqa'") as caught:
        load_recipe("gqqa")
    assert ", gqa, " in caught.value.hint


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


@pytest.mark.parametrize("branch", ["x if x < weight else weight", "x and weight"])
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
    assert copy.copy(RECIPES["gqa"]).name == "gqa"
