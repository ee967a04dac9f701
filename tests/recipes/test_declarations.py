"""What a recipe declares: mistakes are told where they are made, before anything is searched."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_kernels.generator.errors import RecipeError, ShapeError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.recipe import Recipe, load_recipe, trace

FILE = """
from mirage_kernels.generator.language import contract, relu
from mirage_kernels.generator.recipe import recipe, shape

@recipe(
    inputs={"x": "M K", "weight": "N K"},
    output="M N",
    dynamic={"M": 64},
    reference=None,
    shapes=(shape("my model", K=32, N=48),),
)
def mine(x, weight):
    return contract(x, weight, over="K")
"""
INPUTS, DYNAMIC = 'inputs={"x": "M K", "weight": "N K"}', 'dynamic={"M": 64}'
SHAPES, MORE = 'shapes=(shape("my model", K=32, N=48),)', "reference=None"
BODY = 'return contract(x, weight, over="K")'

# What is replaced, by what, and words of the sentence and the hint.
MISTAKES = [
    (INPUTS, 'inputs={"x", "weight"}', "inputs of recipe mine cannot be", '"x": "M K"'),
    (
        INPUTS,
        'inputs={"x": ("M", "K"), "weight": "N K"}',
        "inputs of recipe mine cannot be",
        '"M K"',
    ),
    (INPUTS, 'inputs={"x": "M,K", "weight": "N,K"}', "dim 'M,K'", "letters, digits and _"),
    (INPUTS, 'inputs={"x": "M K K", "weight": "N K"}', "input x of recipe mine has dim K", "name"),
    (INPUTS, 'inputs={"out": "M K", "weight": "N K"}', "input 'out'", "choose another name"),
    (INPUTS, 'inputs={"double": "M K", "weight": "N K"}', "input 'double'", "another name"),
    (INPUTS, 'inputs={"x": "M T", "weight": "N T"}', "dim 'T'", "choose another name"),
    (INPUTS, 'inputs={"x": "M x", "weight": "N x"}', "'x' of recipe mine is a dim", "upper case"),
    (INPUTS, 'inputs={"x": "M K", "weight": "N K", "m": ""}', "'m' of recipe mine is a", "Triton"),
    (INPUTS, 'inputs={"x": "M TL", "weight": "N TL"}', "dim 'TL'", "choose another name"),
    ("def mine", "def naïve", "recipe 'naïve'", "letters, digits and _"),
    ('output="M N"', 'output=("M", "N")', "output of recipe mine cannot be", 'output="M N"'),
    (DYNAMIC, 'dynamic=["M"]', "dynamic of recipe mine cannot be ['M']", '{"M": 4096}'),
    (DYNAMIC, 'dynamic={"M": "64"}', "dynamic of recipe mine cannot be", '{"M": 4096}'),
    (DYNAMIC, 'dynamic={"Q": 4, "M": 64}', "no input with its dynamic dim Q", "K, M, N"),
    (SHAPES, 'shapes=shape("mine", K=32, N=48)', "shapes of recipe mine cannot be", "its comma"),
    (SHAPES, "shapes=((32, 48),)", "shapes of recipe mine hold (32, 48)", "shape("),
    (SHAPES, 'shapes=(shape("m", K="32", N=48),)', "dim K of the shape 'm'", "K=4096"),
    (SHAPES, 'shapes=(shape("m", K=32.0, N=48),)', "a whole number, not 32.0", "K=4096"),
    (SHAPES, "shapes=(shape(5, K=32, N=48),)", "a shape's source is a text, not 5", "shape("),
    (MORE, 'reference=None, optional="weight"', "optional of recipe mine cannot be", "comma"),
    (MORE, 'reference=None, scalars={"s": 1.0}', "scalars of recipe mine names s", "there are"),
    (MORE, 'reference=None, ranges={"s": "1..M"}', "ranges of recipe mine names s", "x, weight"),
    (MORE, 'reference=None, tolerance="big"', "tolerance of recipe mine cannot be 'big'", "1.1"),
    (MORE, "reference=None, tolerance=0.0", "tolerance of recipe mine cannot be 0.0", "1.1"),
    ("x, weight):", "x, *, weight):", "takes (x, *, weight)", "in the same order"),
    (BODY, "exit(3)", "recipe mine fails: SystemExit: 3", "mine.py:13: exit(3)"),
]


def load(folder: Path, old: str = "", new: str = "") -> Recipe:
    assert old in FILE
    path = folder / "mine.py"
    path.write_text(FILE.replace(old, new))
    return load_recipe(str(path))


def traced(source: Recipe) -> None:
    trace(source, source.shapes[0], DType.FP16)


@pytest.mark.parametrize(("old", "new", "sentence", "hint"), MISTAKES)
def test_a_mistake_is_told(tmp_path: Path, old: str, new: str, sentence: str, hint: str) -> None:
    with pytest.raises(RecipeError) as caught:
        traced(load(tmp_path, old, new))
    assert sentence in caught.value.sentence
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return relu(x)", "does not use its input weight"),
        ("return x", "returns its input x as it is"),
    ],
)
def test_a_program_without_use_is_refused(tmp_path: Path, body: str, sentence: str) -> None:
    text = FILE.replace(BODY, body).replace('output="M N"', 'output="M K"')
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(RecipeError, match=sentence):
        traced(load_recipe(str(tmp_path / "mine.py")))


def test_lists_do_where_tuples_do(tmp_path: Path) -> None:
    source = load(tmp_path, SHAPES, 'shapes=[shape("my model", K=32, N=48)]')
    assert [dict(s.dims) for s in source.shapes] == [{"K": 32, "N": 48}]
    traced(source)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (SHAPES, 'shapes=(shape("m", K=10**30, N=8),)'),
        (DYNAMIC, 'dynamic={"M": 10**13}'),
    ],
)
def test_an_extent_that_no_kernel_counts_is_refused(tmp_path: Path, old: str, new: str) -> None:
    with pytest.raises(ShapeError, match="must be at most"):
        traced(load(tmp_path, old, new))
