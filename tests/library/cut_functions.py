"""PyTorch functions cut into programs of really made kernels, in folders that can be compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from mirage_kernels.generator.ir import DType, dumps
from mirage_kernels.generator.partition.document import document_path
from mirage_kernels.generator.partition.program import Program, partitioned
from mirage_kernels.generator.partition.trace import Function
from mirage_kernels.generator.pipeline import Result, generate
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.records.folder import write
from mirage_kernels.generator.request import Request

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
UNIT = {"bf16": 2.0**-8, "fp16": 2.0**-11}  # half the distance of two numbers, relative


def program_of(
    run: Callable[..., Any],
    name: str,
    dtype: str,
    shapes: Mapping[str, tuple[int, ...]],
    rows: tuple[str, ...],
) -> Program:
    """Return the program of a function; inputs in `rows` have a dynamic first dim."""

    def make(recipe: Recipe) -> Result:
        request = Request(recipe, recipe.shapes[0], DType(dtype), "sm_90a")
        return generate(request, jobs=1, progress=lambda event: None)

    given = {n: torch.empty(shape, dtype=TYPES[dtype]) for n, shape in shapes.items()}
    dynamic = {n: {0: "M"} for n in rows if n in given}
    return partitioned(Function(run, given, dynamic, name), DType(dtype), "sm_90a", make)


def written(program: Program, folder: Path) -> None:
    """Write a program and its kernels."""
    write(program.results, folder)
    path = folder / document_path(program.document)
    path.write_text(f"{dumps(program.document)}\n")
