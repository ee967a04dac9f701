"""Workloads whose tensors are the inputs of their recipe: linear layers, norms, MLPs, LoRA."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from inspect import Parameter, signature
from math import prod

import torch
from torch import Tensor

import mirage_kernels
from mirage_kernels.generator.bench.op_calls import op_call
from mirage_kernels.generator.bench.workload import (
    TORCH_DTYPES,
    Args,
    BaseWorkload,
    Inputs,
    LaunchArgs,
    Program,
    Results,
    in_float64,
    largest_error,
)
from mirage_kernels.generator.recipe import Recipe, load_recipe

_recipe = cache(load_recipe)
TOKENS = "M"


@dataclass(frozen=True)
class TensorWorkload(BaseWorkload):
    """A recipe at given sizes (every dim, the dynamic ones too).

    Its tensors stand in recipe order; run-time scalars take the recipe's values.
    """

    sizes: Mapping[str, int]
    arguments = LaunchArgs

    @cached_property
    def source(self) -> Recipe:
        """The recipe."""
        return _recipe(self.recipe)

    @property
    def name(self) -> str:
        """`rms_norm_linear K=4096, N=6144, M=8, fp16`."""
        dims = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"{self.recipe} {dims}, {self.dtype.value}"

    @property
    def dims(self) -> Mapping[str, int]:
        """Sizes by name."""
        return dict(self.sizes)

    @property
    def kernel_dims(self) -> Mapping[str, int]:
        """The static extents."""
        return {name: size for name, size in self.sizes.items() if name != TOKENS}

    @property
    def rows(self) -> int:
        """The tokens."""
        return self.sizes[TOKENS]

    @property
    def bytes_read(self) -> int:
        """Bytes of all inputs."""
        return sum(prod(shape) * (4 if kind else 2) for _, shape, kind in self._tensors())

    def _tensors(self) -> Iterator[tuple[str, list[int], str]]:
        """Yield name, shape and integer type, if any, of every input but the scalars."""
        for name, text in self.source.inputs.items():
            dims, _, kind = text.partition(":")
            if dims:
                yield name, [self.sizes[dim] for dim in dims.split()], kind

    def draw(self, seed: int, device: str) -> Inputs:
        """Draw the tensors.

        Activations are normal, matrices of weights scaled by the root of the contracted dim, norm
        weights near 1; int32 inputs are lengths, as long as can be.
        """
        source = torch.Generator(device).manual_seed(seed)
        made = {}
        for name, shape, kind in self._tensors():
            if kind:
                _, longest = self.source.range_of(name, self.sizes)
                made[name] = torch.full(shape, longest, dtype=torch.int32, device=device)
                continue
            data = torch.randn(shape, generator=source, device=device)
            if self.source.is_weight(name):
                data = data / shape[-1] ** 0.5 if len(shape) > 1 else 1 + 0.1 * data
            made[name] = data.to(TORCH_DTYPES[self.dtype])
        return made

    def new_outs(self, given: Inputs) -> tuple[Tensor, ...]:
        """Return the results' tensors, in recipe order."""
        first = next(iter(given.values()))
        shapes = ([self.sizes[dim] for dim in dims.split()] for dims in self.source.results)
        return tuple(first.new_empty(shape) for shape in shapes)

    def ours(self, given: Inputs, outs: Sequence[Tensor] | None = None) -> Results:
        """Call the op; raises LookupError where the library has none for the recipe."""
        op, by_name, keywords = self._op
        named = {name: given.get(name, scalar) for name, scalar in self._scalars.items()}
        options = keywords | {name: named.pop(name) for name in by_name}
        if outs is not None:
            options["out"] = outs[0] if len(outs) == 1 else tuple(outs)
        return op(*named.values(), **options)

    @cached_property
    def _scalars(self) -> dict[str, float | None]:
        """The values of the run-time scalars by the names of all inputs, None for tensors."""
        texts, values = self.source.inputs.items(), self.source.scalars
        return {name: None if text.partition(":")[0] else values[name] for name, text in texts}

    @cached_property
    def _op(self) -> tuple[Callable[..., Results], list[str], dict[str, object]]:
        """The op, the inputs that it takes by name, and the keywords that the recipe fixes."""
        found = op_call(self.recipe)
        if found is None:
            raise LookupError(f"the library has no op for recipe {self.recipe}")
        op: Callable[..., Results] = getattr(mirage_kernels, found[0])
        parameters = signature(op).parameters.values()
        by_name = {p.name for p in parameters}
        if not {*self.source.inputs} <= by_name:  # in the op's order, but for what must be named
            by_name = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        return op, [name for name in self.source.inputs if name in by_name], {**found[1]}

    def eager(self) -> Program:
        """Return PyTorch's own unfused program."""
        reference, scalars = self.source.reference, tuple(self._scalars.items())
        return lambda given: reference(
            *[given[n] if value is None else value for n, value in scalars]
        )

    def exact(self, given: Inputs) -> Results:
        """Compute the results in float64."""
        return self.eager()(in_float64(given))

    def error_allowed(self, given: Inputs, exact: Results) -> float:
        """Return the recipe's tolerance times the unfused program's error."""
        return self.source.tolerance * largest_error(self.eager()(given), exact)

    def in_place(self) -> Mapping[str, Program]:
        """Return PyTorch eager, and the library's own program of a recipe with one result.

        That is a matrix product of PyTorch's with kernels of ours around it (kernels/library.py),
        which an op runs above `max_tokens`. Above the tokens of a kernel with several results
        another one runs.
        """
        found, programs = op_call(self.recipe), {"eager_us": self.eager()}
        if found is None or len(self.source.results) > 1:
            return programs
        parameters = signature(getattr(mirage_kernels, found[0])).parameters.values()
        usual = {p.name: p.default for p in parameters if p.default is not Parameter.empty}
        op = getattr(torch.ops.mirage_kernels, f"_{found[0]}_library").default
        names = [a.name for a in op._schema.arguments if not a.is_out]
        options = usual | found[1] | dict(self.source.scalars)
        fixed = {n: v for n, v in options.items() if n in names}

        def run(given: Inputs) -> Results:
            (out,) = self.new_outs(given)
            op(**fixed | given, out=out)
            return out

        return programs | {"library_us": run}

    def fill(self, args: Args, given: Inputs, outs: Sequence[Tensor]) -> None:
        """Write pointers, row strides, scalars and the number of tokens."""
        assert isinstance(args, LaunchArgs)
        for i, tensor in enumerate(given.values()):
            args.inputs[i] = tensor.data_ptr()
            args.row_strides[i] = tensor.stride(0)
        for i, scalar in enumerate(s for s in self._scalars.values() if s is not None):
            args.scalars[i] = scalar
        for i, out in enumerate(outs):
            args.outputs[i] = out.data_ptr()
        args.dims[0] = outs[0].shape[0]

    def assume(self, args: Args) -> None:
        """Say in a launch's arguments that no kernel before it writes the weights."""
        args.constant_weights = True
