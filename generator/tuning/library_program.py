"""The library's own program of a recipe: what an op runs above `max_tokens`.

It is the library's matrix product with kernels of ours around it (kernels/library.py), faster than
PyTorch eager, so it is what a kernel has to be compared with where the other could serve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import Parameter, signature

import torch
from torch import Tensor

import mirage_kernels
from mirage_kernels.generator.bench.op_calls import op_call
from mirage_kernels.generator.recipe import Recipe

Program = Callable[[Sequence[Tensor], Tensor], None]


def library_program(recipe: Recipe) -> Program | None:
    """Return the program of a recipe's tensors and its result; None where the library has none.

    A recipe with results beside its output has none: above its kernel's tokens another one runs.
    """
    call = op_call(recipe.name)
    if call is None or len(recipe.results) > 1:
        return None
    parameters = signature(getattr(mirage_kernels, call.op)).parameters.values()
    usual = {p.name: p.default for p in parameters if p.default is not Parameter.empty}
    op = getattr(torch.ops.mirage_kernels, f"_{call.op}_library").default
    names = [a.name for a in op._schema.arguments if not a.is_out]
    fixed = {n: v for n, v in (usual | call.keywords | dict(recipe.scalars)).items() if n in names}
    tensors = [name for name, text in recipe.inputs.items() if text.partition(":")[0]]

    def run(inputs: Sequence[Tensor], out: Tensor) -> None:
        op(**fixed | dict(zip(tensors, inputs, strict=True)), out=out)

    return run


def calls_of(
    program: Program, inputs: Sequence[Sequence[Tensor]], outs: Sequence[Tensor]
) -> list[Callable[[], None]]:
    """Return a call for every set of inputs."""
    return [partial(program, i, out) for i, out in zip(inputs, outs, strict=True)]
