"""PyTorch functions cut into programs of really made kernels, which are compiled and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mirage_kernels
from mirage_kernels import constant_weights
from mirage_kernels.generator.cli import main
from mirage_kernels.generator.ir import DType, dumps
from mirage_kernels.generator.partition.document import document_path
from mirage_kernels.generator.partition.program import Program, partitioned
from mirage_kernels.generator.partition.trace import Function
from mirage_kernels.generator.pipeline import Result, generate
from mirage_kernels.generator.plan.lower import lowered
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.records.folder import write
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.request import Request
from mirage_kernels.generator.schedules.run import require_runs
from mirage_kernels.program_steps import SteppedProgram

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
UNIT = {"bf16": 2.0**-8, "fp16": 2.0**-11}  # half the distance of two numbers, relative


def program_of(
    run: Callable[..., Any],
    name: str,
    dtype: str,
    shapes: Mapping[str, tuple[int, ...]],
    rows: tuple[str, ...],
    dims: tuple[str, ...] = ("M",),
    types: Mapping[str, torch.dtype] | None = None,
) -> Program:
    """Return the program of a function; the first dims of inputs in `rows` are dynamic: `dims`.

    Some inputs are of other `types`.
    """

    def make(recipe: Recipe) -> Result:
        request = Request(recipe, recipe.shapes[0], DType(dtype), "sm_90a")
        return generate(request, jobs=1, progress=lambda event: None)

    kinds = dict.fromkeys(shapes, TYPES[dtype]) | dict(types or {})
    given = {n: torch.empty(shape, dtype=kinds[n]) for n, shape in shapes.items()}
    dynamic = {n: dict(enumerate(dims)) for n in rows if n in given}
    return partitioned(Function(run, given, dynamic, name), DType(dtype), "sm_90a", make)


def taken(
    run: Callable[..., Any], known: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the extents of the tensors that a function takes, of those that are known."""
    return {name: known[name] for name in run.__annotations__ if name in known}


def only_kernel(program: Program) -> KernelRecord:
    """Return the record of the kernel that alone is the first way of a program."""
    assert ["kernel" in step for step in program.ways[0].steps] == [True]
    return program.results[0].record


def drawn_at(
    rows: int,
    shapes: Mapping[str, tuple[int, ...]],
    type_of: Callable[[str], torch.dtype],
) -> dict[str, Tensor]:
    """Draw small tensors on the GPU, in order, the same whenever there are so many rows."""
    generator = torch.Generator().manual_seed(rows)
    drawn = {n: torch.randn(shape, generator=generator) / 16 for n, shape in shapes.items()}
    return {name: x.to(type_of(name)).cuda() for name, x in drawn.items()}


def require_blocks(record: KernelRecord) -> None:
    """Run a block of every variant in the interpreter, unless another kernel makes its rows."""
    for variant in record.variants:
        if not variant.knobs.prologue_warps:
            require_runs(lowered(record.recipe, record.graph), record.graph, variant.knobs)


def compiled(program: Program, folder: Path) -> SteppedProgram:
    """Write a program and its kernels into a folder, compile and load them."""
    write(program.results, folder)
    path = folder / document_path(program.document)
    path.write_text(f"{dumps(program.document)}\n")
    assert main(["compile", str(folder)]) == 0
    mirage_kernels.load(folder)
    return mirage_kernels.program(program.name)


def require_right(
    kernels: SteppedProgram, run: Callable[..., Any], given: Mapping[str, Tensor], dtype: str
) -> tuple[Tensor, ...]:
    """Compare results with float64, and with a call's where weights are constant; return them."""
    doubles = {name: x.double() if x.is_floating_point() else x for name, x in given.items()}
    exact = _several(run(**doubles))
    made = _several(kernels(**given))
    with constant_weights():
        again = _several(kernels(**given))
    for mine, same, wanted in zip(made, again, exact, strict=True):
        assert mine.shape == wanted.shape
        assert torch.equal(mine, same)
        assert (mine.double() - wanted).norm() <= UNIT[dtype] * wanted.norm()
    return made


def _several(made: Any) -> tuple[Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)
