"""The recipes say what they mean: specs, PyTorch references, shapes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mirage_kernels.generator.errors import RecipeError, ShapeError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.recipe import Recipe, Shape, catalog, output_type, trace

RECIPES = catalog()
SMALL = {"M": 3, "K": 6, "N": 5, "R": 2, "B": 3, "T": 2, "L": 7} | {
    **{"Hkv": 2, "Hq": 6, "G": 3, "D": 4, "C": 5, "P": 2, "S": 3}
}
TORCH_DTYPES = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}


def every_recipe() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", RECIPES)


def drawn(recipe: Recipe, sizes: Mapping[str, int], seed: int = 0) -> dict[str, torch.Tensor]:
    """Draw every input of a recipe in float64, int32 inputs from their range."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, text in recipe.inputs.items():
        dims, _, kind = text.partition(":")
        extents = [sizes[d] for d in dims.split()]
        if kind == "int32":
            least, largest = recipe.range_of(name, sizes)
            tensors[name] = torch.tensor(rng.integers(least, largest + 1, extents, np.int32))
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
    found = results(spec, arguments, array_reading(FLOAT64, sizes))
    pairs = zip(found, recipe.results, strict=True)
    return joined([torch.from_numpy(np.array(a.over(d.split()).parts[0])) for a, d in pairs])


def catalog_inputs(family: str) -> set[str]:
    """Return every input and choice of the recipes that the options of one declaration yield."""
    of_family = [r for r in RECIPES.values() if r.family == family]
    return {name for r in of_family for name in (*r.inputs, *r.choices)}


def joined(made: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a result as it is, several as one."""
    return made[0] if len(made) == 1 else torch.cat([tensor.flatten() for tensor in made])


def reference_result(recipe: Recipe, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Call the PyTorch reference the way the library does: tensors, scalars as floats."""
    given = (t if t.dim() else t.item() for t in tensors.values())
    return joined(recipe.reference_results(*given))


def test_the_table_of_recipes_lists_the_catalog() -> None:
    readme = (Path(__file__).parents[2] / "recipes" / "README.md").read_text()
    table = readme.partition("## What there is")[2]
    rows = [row.split("|")[2] for row in table.splitlines() if row.startswith("| `")]
    named = [re.sub(r"\(.*?\)", "", row) for row in rows]
    assert sorted(re.findall(r"`(\w+)`", " ".join(named))) == sorted(RECIPES)


@every_recipe()
@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=lambda d: d.value)
def test_recipe_traces_at_every_shape(name: str, dtype: DType) -> None:
    recipe = RECIPES[name]
    for shape in recipe.shapes:
        spec = trace(recipe, shape, dtype)
        declared = output_type(recipe, shape, dtype)
        assert set(spec.values[spec.outputs[0]].type.dims) == set(declared.dims)
        assert spec.outputs[1:] == tuple(recipe.also)
        assert [n.name for n in spec.inputs] == list(recipe.inputs)


@every_recipe()
def test_program_and_reference_take_the_declared_inputs_in_order(name: str) -> None:
    recipe = RECIPES[name]
    others = {*recipe.choices, *(catalog_inputs(recipe.family) if recipe.family else ())}
    program = list(inspect.signature(recipe.program).parameters)
    assert [n for n in program if n in recipe.inputs] == list(recipe.inputs)
    taken = set(inspect.signature(recipe.reference).parameters)
    assert set(recipe.inputs) <= taken <= {*recipe.inputs, *others}


def test_every_extent_is_at_least_one() -> None:
    recipe = replace(RECIPES["rms_norm_linear"], dynamic={"M": 0})
    with pytest.raises(ShapeError, match="dim M of rms_norm_linear must be at least 1, not 0"):
        recipe.dims(recipe.shapes[0])


@every_recipe()
def test_a_recipe_declares_all_that_tests_and_files_need(name: str) -> None:
    recipe = RECIPES[name]
    assert len({s.stem for s in recipe.shapes}) == len(recipe.shapes)
    assert all(s.source for s in recipe.shapes)
    assert all(tuple(s.dims) == recipe.static_dims for s in recipe.shapes)  # one file name each
    assert set(recipe.scalars) == {n for n, t in recipe.inputs.items() if not t.partition(":")[0]}
    assert set(recipe.ranges) == {n for n, text in recipe.inputs.items() if ":int32" in text}
    for least, largest in (recipe.range_of(n, SMALL) for n in recipe.ranges):
        assert 1 <= least < largest
    assert re.fullmatch(r"\w.*[\w)]", recipe.summary)
    weights = {n for n in recipe.inputs if recipe.is_weight(n)}
    matrices = {n for n in recipe.inputs if re.search("weight|bias|lora|alpha", n)}
    assert weights == {n for n in matrices if recipe.inputs[n]}
    if any("Hkv" in text for text in recipe.inputs.values()):
        assert {*recipe.static_dims} <= {"D", "P"}  # generic in heads


@every_recipe()
@pytest.mark.parametrize(
    "heads", [{}, {"G": 1}, {"Hkv": 1, "Hq": 1}, {"M": 1, "B": 1, "T": 1}], ids=str
)
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
        if (name, changed) == ("qk_layer_norm_attention", "k_bias"):
            continue  # the softmax ignores it
        drawn_anew = tensor.dim() or not tensor.is_floating_point()
        value = tensor if drawn_anew else torch.tensor(0.5, dtype=torch.float64)
        after = spec_result(recipe, SMALL, tensors | {changed: value})
        assert not torch.allclose(after, before), changed


@pytest.mark.parametrize("name", [n for n in RECIPES if "seq_lens" in RECIPES[n].inputs])
def test_keys_behind_the_length_do_not_matter(name: str) -> None:
    recipe = RECIPES[name]
    tensors = drawn(recipe, SMALL) | {"seq_lens": torch.tensor([2, 4, 7], dtype=torch.int32)}
    cached = [n for n, text in recipe.inputs.items() if text.startswith("B L ")]
    other = {n: tensors[n].clone() for n in cached}
    for tensor in other.values():
        tensor[0, 2:] = 3.0
        tensor[1, 4:] = -2.0
    before = spec_result(recipe, SMALL, tensors)
    assert torch.equal(spec_result(recipe, SMALL, tensors | other), before)
    torch.testing.assert_close(reference_result(recipe, tensors | other), before)


def test_no_query_token_sees_the_keys_of_later_ones() -> None:
    tensors = drawn(RECIPES["causal_attention"], SMALL)
    tensors["seq_lens"] = torch.tensor([2, 4, 7], dtype=torch.int32)
    last = tensors["seq_lens"].long() - 1
    other = tensors["v"].clone()
    other[torch.arange(3), last] += 1.0
    before = spec_result(RECIPES["causal_attention"], SMALL, tensors)
    after = spec_result(RECIPES["causal_attention"], SMALL, tensors | {"v": other})
    assert torch.equal(after[:, 0], before[:, 0])
    assert (after[:, 1] > before[:, 1]).all()


@pytest.mark.parametrize("text", ["1", "1..Q", "1..2..L", "..L", "-1..L"])
def test_a_range_that_does_not_read_is_named(text: str) -> None:
    bad = replace(RECIPES["gqa"], ranges={"seq_lens": text})
    with pytest.raises(RecipeError, match=re.escape(f"gives seq_lens the range {text!r}")):
        bad.range_of("seq_lens", SMALL)


def test_without_a_range_lengths_are_between_one_and_the_largest_extent() -> None:
    assert replace(RECIPES["gqa"], ranges={}).range_of("seq_lens", SMALL) == (1, 7)


@pytest.mark.parametrize("name", [n for n in RECIPES if RECIPES[n].optional])
def test_an_optional_input_that_is_left_out_counts_as_zeros(name: str) -> None:
    recipe = RECIPES[name]
    tensors = drawn(recipe, SMALL)
    zeros = {n: torch.zeros_like(tensors[n]) for n in recipe.optional}
    given = [t if t.dim() else t.item() for t in tensors.values()]
    left_out = dict(zip(tensors, given, strict=True))
    for option in recipe.optional:
        left_out[option] = None if tensors[option].dim() else 0.0
    found = joined(recipe.reference_results(*left_out.values()))
    torch.testing.assert_close(spec_result(recipe, SMALL, tensors | zeros), found)
