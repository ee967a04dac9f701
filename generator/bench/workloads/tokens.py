"""Random inputs for a recipe as tensors, and its compiled op beside its PyTorch reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch

from mirage_kernels.generator.bench.measure import Op, Results, Subject
from mirage_kernels.generator.bench.op_calls import function_of
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.recipe import Recipe

TORCH_DTYPES = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}


@dataclass(frozen=True)
class Workload:
    """A recipe at given sizes (every dim, the dynamic ones too) and dtype, on a device."""

    recipe: Recipe
    dtype: DType
    sizes: Mapping[str, int]
    device: str

    def inputs(self, seed: int) -> tuple[torch.Tensor, ...]:
        """Draw the tensors, in recipe order without the scalars.

        Activations are normal, matrices of weights scaled by the root of the contracted dim, norm
        weights near 1; int32 inputs are lengths, as long as can be.
        """
        draw = torch.Generator(self.device).manual_seed(seed)
        return tuple(
            self._draw(name, draw)
            for name, text in self.recipe.inputs.items()
            if text.partition(":")[0]
        )

    def _draw(self, name: str, draw: torch.Generator) -> torch.Tensor:
        names, _, kind = self.recipe.inputs[name].partition(":")
        dims = names.split()
        shape = [self.sizes[dim] for dim in dims]
        if kind:
            _, longest = self.recipe.range_of(name, self.sizes)
            return torch.full(shape, longest, dtype=torch.int32, device=self.device)
        data = torch.randn(shape, generator=draw, device=self.device)
        if self.recipe.is_weight(name):
            data = data / shape[-1] ** 0.5 if len(dims) > 1 else 1 + 0.1 * data
        return data.to(TORCH_DTYPES[self.dtype])

    def with_scalars(self, function: Op) -> Op:
        """Return `function` over the tensors alone: run-time scalars take the recipe's values."""
        recipe = self.recipe

        def call(*tensors: torch.Tensor) -> Results:
            rest = iter(tensors)
            return function(
                *(
                    next(rest) if text.partition(":")[0] else recipe.scalars[name]
                    for name, text in recipe.inputs.items()
                )
            )

        return call

    def subject(self) -> Subject:
        """Return what `measure` takes: the compiled op, PyTorch's program, the maker of inputs."""
        from mirage_kernels import constant_weights

        op = cast(Op, function_of(self.recipe))

        def ours_into(out: Results, *tensors: torch.Tensor) -> Results:
            return self.with_scalars(partial(op, out=out))(*tensors)

        return Subject(
            workload=self.recipe.name,
            dtype=self.dtype.value,
            dims=dict(self.sizes),
            ours=self.with_scalars(op),
            eager=self.reference,
            oracle=self.reference,
            make_inputs=self.inputs,
            ours_into=ours_into,
            promise=constant_weights,
        )

    @property
    def reference(self) -> Op:
        """PyTorch's own unfused program."""
        return self.with_scalars(self.recipe.reference)
