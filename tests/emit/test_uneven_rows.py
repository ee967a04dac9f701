"""General kernels read rows that are no multiples of 16 bytes up to the ends of their tensors."""

from __future__ import annotations

import re

import torch

from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.pipeline import generate
from mirage_kernels.generator.recipe import Recipe, Shape, load_recipe
from mirage_kernels.generator.request import Request


def widened(x: torch.Tensor) -> torch.Tensor:
    return x.float() * 2 + 1


def text_of(recipe: Recipe, shape: Shape, dtype: DType) -> str:
    made = generate(Request(recipe, shape, dtype, "sm_90a"), jobs=1, progress=lambda event: None)
    assert {v.schedule for v in made.record.variants} == {"general"}
    (text,) = (text for name, text in made.files.items() if name.endswith(".cu"))
    return text


def test_a_kernel_is_told_every_end_that_it_reads_up_to() -> None:
    dtype = DType.FP16
    odd = text_of(load_recipe("rms_norm_linear"), Shape("odd", {"K": 33, "N": 7}), dtype)
    given = {"x": torch.empty(64, 12, dtype=torch.bfloat16)}
    recipe = from_torch(widened, given)
    for text in (odd, text_of(recipe, recipe.shapes[0], dtype)):
        read = {*re.findall(r"args\.(\w+_end)\b", text)}
        assert read == {*re.findall(r"const void\* (\w+_end);", text)}
        assert {*re.findall(r"args_\d+\.(\w+_end) =", text)} == read
    assert "read_uneven<" in odd
