"""A user's recipe file: it loads and traces, and what is wrong in it is said in a sentence."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from mirage_kernels.generator.errors import MirageError, RecipeError, ShapeError
from mirage_kernels.generator.ir import DType, Graph, dumps, from_json, to_json
from mirage_kernels.generator.recipe import Recipe, catalog, load_recipe, trace

FILE = '''
from mirage_kernels.generator.language import contract, gelu, mean, relu, sqrt, sum, positions
from mirage_kernels.generator.recipe import recipe, shape

@recipe(
    inputs={"x": "M K", "weight": "N K"},
    output="M N",
    dynamic={"M": 64},
    reference=None,
    shapes=(shape("my model", K=32, N=48),),
)
def mine(x, weight):
    """gelu(linear(x, weight))."""
    return gelu(contract(x, weight, over="K"))
'''
INPUTS, DYNAMIC = 'inputs={"x": "M K", "weight": "N K"}', 'dynamic={"M": 64}'
SHAPES, MORE = 'shapes=(shape("my model", K=32, N=48),)', "reference=None"
BODY, PRODUCT = 'return gelu(contract(x, weight, over="K"))', 'contract(x, weight, over="K")'


def load(folder: Path, *changes: tuple[str, str], text: str = FILE) -> Recipe:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "mine.py"
    path.write_text(text)
    return load_recipe(str(path))


def traced(source: Recipe) -> Graph:
    return trace(source, source.shapes[0], DType.FP16)


def refusal(folder: Path, *changes: tuple[str, str], text: str = FILE) -> str:
    """Return sentence and hint of the error that a bad recipe file must raise."""
    with pytest.raises(RecipeError) as caught:
        traced(load(folder, *changes, text=text))
    assert caught.value.hint
    return f"{caught.value.sentence}; {caught.value.hint}"


def test_a_users_own_recipe_file_loads_and_traces(tmp_path: Path) -> None:
    mine = load(tmp_path)
    told = (mine.name, mine.static_dims, mine.summary)
    assert told == ("mine", ("K", "N"), "gelu(linear(x, weight))")
    assert [n.op for n in traced(mine).nodes] == ["input", "input", "contract", "gelu"]


# What is replaced, by what, and words of the sentence and the hint.
MISTAKES = [
    (INPUTS, 'inputs={"x", "weight"}', "inputs of recipe mine cannot be", '"x": "M K"'),
    (INPUTS, 'inputs={"x": ("M", "K")}', "inputs of recipe mine cannot be", '"M K"'),
    (INPUTS, 'inputs={"x": "M,K", "weight": "N,K"}', "dim 'M,K'", "letters, digits and _"),
    (INPUTS, 'inputs={"x": "M K K", "weight": "N K"}', "input x of recipe mine has dim K", "name"),
    (INPUTS, 'inputs={"out": "M K", "weight": "N K"}', "input 'out'", "choose another name"),
    (INPUTS, 'inputs={"double": "M K", "weight": "N K"}', "input 'double'", "another name"),
    (INPUTS, 'inputs={"x": "M T", "weight": "N T"}', "dim 'T'", "choose another name"),
    (INPUTS, 'inputs={"x": "M x", "weight": "N x"}', "'x' of recipe mine is a dim", "upper case"),
    ("def mine", "def naïve", "recipe 'naïve'", "letters, digits and _"),
    ('output="M N"', 'output=("M", "N")', "output of recipe mine cannot be", 'output="M N"'),
    ('output="M N"', 'output="M K"', "output is [M K], but computes [M N]", "correct output="),
    (DYNAMIC, 'dynamic=["M"]', "dynamic of recipe mine cannot be ['M']", '{"M": 4096}'),
    (DYNAMIC, 'dynamic={"M": "64"}', "dynamic of recipe mine cannot be", '{"M": 4096}'),
    (DYNAMIC, 'dynamic={"Q": 4, "M": 64}', "no input with its dynamic dim Q", "K, M, N"),
    (SHAPES, 'shapes=shape("mine", K=32, N=48)', "shapes of recipe mine cannot be", "its comma"),
    (SHAPES, "shapes=((32, 48),)", "shapes of recipe mine hold (32, 48)", "shape("),
    (SHAPES, 'shapes=(shape("m", K="32", N=48),)', "dim K of the shape 'm'", "K=4096"),
    (SHAPES, 'shapes=(shape("m", K=32.0, N=48),)', "a whole number, not 32.0", "K=4096"),
    (SHAPES, "shapes=(shape(5, K=32, N=48),)", "a shape's source is a text, not 5", "shape("),
    (MORE, 'reference=None, optional="weight"', "optional of recipe mine cannot be", "comma"),
    (MORE, 'reference=None, optional=("b",)', "optional of recipe mine names b", "x, weight"),
    (MORE, 'reference=None, scalars={"s": 1.0}', "scalars of recipe mine names s", "there are"),
    (MORE, 'reference=None, ranges={"s": "1..M"}', "ranges of recipe mine names s", "x, weight"),
    (MORE, 'reference=None, tolerance="big"', "tolerance of recipe mine cannot be 'big'", "1.1"),
    (MORE, "reference=None, tolerance=0.0", "tolerance of recipe mine cannot be 0.0", "1.1"),
    ("x, weight):", "x, *, weight):", "takes (x, *, weight)", "in the same order"),
    ("def mine(x, weight):", "def mine(x", "mine.py, line 12: SyntaxError", "run as Python"),
    ("def mine", "half = 1 / 0\ndef mine", "mine.py, line 12: ", "run as Python"),
    ("gelu, mean", "cumsum, mean", "no operator 'cumsum'", "silu"),
    (BODY, "return x.cumsum()", "no operator 'cumsum'", "silu"),
    (BODY, "return x @ weight", "for @: ", "mine.py:14"),
    (BODY, "exit(3)", "recipe mine fails: SystemExit: 3", "mine.py:14: exit(3)"),
    (BODY, "print(x)", "returns None, not a tensor", "return its one result"),
    (BODY, "return relu(x)", "[M N], but computes [M K]", "correct output="),
    (f"{PRODUCT}", "relu(weight)", "[M N], but computes [N K]", "correct output="),
    ("contract(x", "contract(x and weight", "one truth value", "where"),
    ("contract(x", "contract(x if positions(x, 'K') < 3 else x", "one truth value", "where"),
]


@pytest.mark.parametrize(("old", "new", "sentence", "hint"), MISTAKES)
def test_a_mistake_is_told(tmp_path: Path, old: str, new: str, sentence: str, hint: str) -> None:
    said = refusal(tmp_path, (old, new))
    assert sentence in said
    assert hint in said


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return relu(x)", "does not use its input weight"),
        ("return x", "returns its input x as it is"),
    ],
)
def test_a_program_without_use_is_refused(tmp_path: Path, body: str, sentence: str) -> None:
    assert sentence in refusal(tmp_path, (BODY, body), ('output="M N"', 'output="M K"'))


def test_lists_do_where_tuples_do(tmp_path: Path) -> None:
    source = load(tmp_path, (SHAPES, 'shapes=[shape("my model", K=32, N=48)]'))
    assert [dict(s.dims) for s in source.shapes] == [{"K": 32, "N": 48}]
    traced(source)


@pytest.mark.parametrize(
    ("old", "new"),
    [(SHAPES, 'shapes=(shape("m", K=10**30, N=8),)'), (DYNAMIC, 'dynamic={"M": 10**13}')],
)
def test_an_extent_that_no_kernel_counts_is_refused(tmp_path: Path, old: str, new: str) -> None:
    with pytest.raises(ShapeError, match="must be at most"):
        traced(load(tmp_path, (old, new)))


@pytest.mark.parametrize("asked", ['positions(x, "Q")', 'mean(x, over="Q")', 'sum(x, over="Q")'])
def test_a_dim_that_a_tensor_lacks_is_named(tmp_path: Path, asked: str) -> None:
    with pytest.raises(MirageError, match="no dim 'Q'"):
        traced(load(tmp_path, (PRODUCT, asked)))


def test_constants_that_print_alike_stay_apart(tmp_path: Path) -> None:
    sums = 'contract(x * 0.30000001 + x * 0.3, weight, over="K")'
    spec = traced(load(tmp_path, (PRODUCT, sums)))
    assert sorted(n.value for n in spec.of("const")) == [0.3, 0.30000001]


SUMMED = FILE.replace(
    INPUTS, 'inputs={"x": "M K", "y": "M K", "weight": "N K"}, also={"total": "M K"}'
).replace("mine(x,", "mine(x, y,")


def returning(results: str) -> tuple[str, str]:
    return BODY, f"total = x + y\n    return {results}"


def test_a_result_beside_the_output_is_named_and_comes_behind_it(tmp_path: Path) -> None:
    change = returning('contract(total, weight, over="K"), total')
    spec = traced(load(tmp_path, change, text=SUMMED))
    assert spec.outputs == ("weight_product", "total")
    assert spec.producers["total"].args == ("x", "y")
    assert [n.args for n in spec.of("contract")] == [("total", "weight")]


def test_an_input_is_no_result_beside_the_output(tmp_path: Path) -> None:
    said = refusal(tmp_path, returning('contract(total, weight, over="K"), x'), text=SUMMED)
    assert "as total beside its output; it must be computed from the inputs, once" in said


def test_a_result_that_is_left_out_is_missed(tmp_path: Path) -> None:
    said = refusal(tmp_path, returning('contract(total, weight, over="K")'), text=SUMMED)
    assert "not 2 tensors; return (output, total)" in said


def test_an_unknown_name_is_answered_with_the_nearest_ones() -> None:
    assert load_recipe("gqa").name == "gqa"
    with pytest.raises(RecipeError, match="'gqqa'") as caught:
        load_recipe("gqqa")
    assert "gqa" in caught.value.hint


def test_a_missing_file_is_named() -> None:
    with pytest.raises(RecipeError, match=r"nowhere/my_recipe\.py") as caught:
        load_recipe("nowhere/my_recipe.py")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "count"), [("x = 1\n", 0), (FILE + FILE.replace("mine", "m2"), 2)]
)
def test_a_file_of_no_recipe_or_several_is_refused(tmp_path: Path, text: str, count: int) -> None:
    assert f"defines {count} recipes, not one" in refusal(tmp_path, text=text)


def test_the_language_can_be_inspected_like_any_module() -> None:
    """What pickles or compiles a program looks for attributes that modules and tensors may lack."""
    import mirage_kernels.generator.language as language

    assert not hasattr(language, "torch")
    assert copy.copy(catalog()["gqa"]).name == "gqa"


OPTIONAL = FILE.replace(
    INPUTS, 'inputs={"x": "M K", "weight": "N K", "bias": "N"}, optional=("bias",)'
).replace("mine(x, weight)", "mine(x, weight, bias)")


@pytest.mark.parametrize("body", ["gelu({} + bias)", "gelu({} - bias)", "{} + bias + bias"])
def test_what_is_added_or_subtracted_may_be_left_out(tmp_path: Path, body: str) -> None:
    change = (BODY, f"return {body.format(PRODUCT)}")
    spec = traced(load(tmp_path, change, text=OPTIONAL))
    assert [n.name for n in spec.inputs if n.optional] == ["bias"]
    assert from_json(json.loads(dumps(to_json(spec)))) == spec


@pytest.mark.parametrize("body", ["{} * bias", "bias - {}", "gelu({}) + gelu(bias)", "{} / bias"])
def test_what_zeros_would_change_is_not_optional(tmp_path: Path, body: str) -> None:
    said = refusal(tmp_path, (BODY, f"return {body.format(PRODUCT)}"), text=OPTIONAL)
    assert "of its optional bias; left out it counts as zeros" in said
