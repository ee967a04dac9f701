"""A reference that computes something else than its recipe's program is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.references import require_reference
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.pipeline import generate
from mirage_kernels.generator.recipe import Recipe, load_recipe, trace
from mirage_kernels.generator.request import requests

MINE = '''
from mirage_kernels.generator.language import contract, gelu
from mirage_kernels.generator.recipe import recipe, shape

def reference(x, bias, weight):
    import torch
    {body}

@recipe(
    inputs={{"x": "M K", "bias": "K", "weight": "N K"}},
    also={{"total": "M K"}},
    output="M N",
    dynamic={{"M": 64}},
    reference={reference},
    shapes=(shape("my model", K=32, N=48),),
)
def mine(x, bias, weight):
    """gelu(linear(x + bias, weight))."""
    total = x + bias
    return gelu(contract(total, weight, over="K")), total
'''
GELU = "torch.nn.functional.gelu((x + bias) @ weight.T)"
RIGHT = f"return {GELU}, x + bias"
# What the reference does instead, and what is said of it.
WRONG = {
    "another output": (RIGHT.replace("gelu(", "silu("), "computes another output than its program"),
    "another total": (f"return {GELU}, x - bias", "computes another total than its program"),
    "nothing but nan": (RIGHT.replace("x +", "x * torch.nan +", 1), "computes another output"),
    "one result": (f"return {GELU}", "returns 1 results, the recipe has 2"),
    "no tensor": ("return 1.0, x + bias", "returns float"),
    "other inputs": ("return x @ weight, x", "fails on float64 tensors with M=64, K=256"),
}


def loaded(folder: Path, body: str, reference: str = "reference") -> Recipe:
    path = folder / "mine.py"
    path.write_text(MINE.format(body=body, reference=reference))
    return load_recipe(str(path))


def compare(recipe: Recipe) -> None:
    require_reference(recipe, trace(recipe, recipe.shapes[0], DType.FP16), DType.FP16)


@pytest.mark.parametrize(
    "body", [RIGHT, RIGHT.replace("x +", "x.half().float() +", 1)], ids=["exact", "rounding"]
)
def test_the_same_function_is_taken(body: str, tmp_path: Path) -> None:
    compare(loaded(tmp_path, body))


@pytest.mark.parametrize("name", WRONG)
def test_another_function_is_refused(name: str, tmp_path: Path) -> None:
    body, sentence = WRONG[name]
    with pytest.raises(RecipeError) as caught:
        compare(loaded(tmp_path, body))
    assert sentence in caught.value.sentence
    assert caught.value.hint


def test_results_of_another_shape_are_refused(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, f"return {GELU}[:, :1], x + bias")
    with pytest.raises(RecipeError, match=r"shape \(64, 1\), where M N are \(64, 64\)"):
        compare(recipe)


@pytest.mark.parametrize("op", ["sqrt", "relu"])
def test_results_that_are_nan_or_zero_are_compared_where_they_are_not(
    op: str, tmp_path: Path
) -> None:
    """Roots of negative numbers; relu of them alone."""
    path = tmp_path / "mine.py"
    text = MINE.format(
        body=f"return torch.{op}(-(x + bias).square() @ weight.T.square())", reference="reference"
    )
    text = text.replace(
        'return gelu(contract(total, weight, over="K")), total',
        f'return {op}(-contract(total * total, weight * weight, over="K"))',
    )
    text = text.replace('    also={"total": "M K"},\n', "").replace("gelu\nfrom", f"{op}\nfrom")
    path.write_text(text)
    compare(load_recipe(str(path)))


def test_a_program_that_overflows_where_its_reference_does_not_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    text = MINE.format(body="return torch.ones_like(x @ weight.T)", reference="reference")
    exponent = 'contract(x + bias, weight, over="K")'
    text = text.replace(
        'return gelu(contract(total, weight, over="K")), total',
        f"return exp({exponent}) * exp(-{exponent})",
    )
    text = text.replace('    also={"total": "M K"},\n', "").replace("gelu\nfrom", "exp\nfrom")
    path.write_text(text)
    with pytest.raises(RecipeError, match="exponentials of the program of recipe mine overflow"):
        compare(load_recipe(str(path)))


def test_a_recipe_may_have_none(tmp_path: Path) -> None:
    compare(loaded(tmp_path, "pass", reference="None"))


def test_nothing_is_generated_of_a_recipe_with_a_wrong_one(tmp_path: Path) -> None:
    wrong = loaded(tmp_path, WRONG["another output"][0])
    (request,) = requests(wrong, "sm_90a", [DType.FP16], None)
    with pytest.raises(RecipeError, match="computes another output"):
        generate(request, jobs=1, progress=lambda _: None)
