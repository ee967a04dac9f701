"""The buffers at which candidates are measured by number of tokens, and the measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch

from mirage_kernels.generator.bench.measure import (
    Inputs,
    as_tuple,
    cold_microseconds,
    graph_microseconds,
    largest_error,
    rotation_count,
    total_bytes,
)
from mirage_kernels.generator.bench.workloads.tokens import Workload
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.ir.text import Json
from mirage_kernels.generator.recipe import Recipe, load_recipe
from mirage_kernels.generator.tuning.library import LaunchArgs, Library
from mirage_kernels.generator.tuning.library_program import calls_of, library_program
from mirage_kernels.generator.tuning.manifest import Compiled

SHARED_BYTES = 16 << 30  # of input sets that serve all numbers of tokens
SEED = 20260


def tokens_of(call: str) -> int:
    """Return the number of tokens of a call, by its name; see `tokens_call`."""
    return int(call.rpartition("=")[2])


@dataclass(frozen=True)
class Sets:
    """Input sets that together exceed the cache often enough; the first's results in float64."""

    inputs: list[Inputs]
    oracle: Inputs


@dataclass
class TokensBench:
    """One kernel's buffers, shared by all its candidates, and what they are compared with."""

    kernel: Compiled
    device: str = "cuda"
    arguments: ClassVar[type[LaunchArgs]] = LaunchArgs
    made: dict[int, Sets] = field(default_factory=dict)

    def workload(self, tokens: int) -> Workload:
        """Return the recipe at the kernel's shape with so many tokens."""
        key = self.kernel.key
        sizes = {**key.shape, self.kernel.dim: tokens}
        return Workload(load_recipe(key.recipe), DType(key.dtype), sizes, self.device)

    @cached_property
    def recipe(self) -> Recipe:
        """The kernel's recipe."""
        return self.workload(1).recipe

    @cached_property
    def shared(self) -> bool:
        """Say whether one lot of input sets serves all numbers of tokens, cut.

        It does where weights are what there is to read. Else enough sets for few tokens would be
        too large for many.
        """
        first = self.workload(max(self.kernel.tokens)).inputs(SEED)
        count = rotation_count(total_bytes(self._cut(first, min(self.kernel.tokens))))
        return count * total_bytes(first) <= SHARED_BYTES

    def sets(self, tokens: int) -> Sets:
        """Return input sets with at least so many tokens; those of the last question are kept."""
        drawn = max(self.kernel.tokens) if self.shared else tokens
        if drawn not in self.made:
            self.made.clear()
            first = self.workload(drawn).inputs(SEED)
            fewest = min(self.kernel.tokens) if self.shared else tokens
            count = rotation_count(total_bytes(self._cut(first, fewest)))
            self.made[drawn] = self._made(drawn, first, count)
        return self.made[drawn]

    def _made(self, tokens: int, first: Inputs, count: int) -> Sets:
        workload = self.workload(tokens)
        wide = (t.double() if t.is_floating_point() else t for t in first)
        oracle = as_tuple(workload.reference(*wide))
        return Sets([first, *(workload.inputs(SEED + n) for n in range(1, count))], oracle)

    def inputs(self, tokens: int) -> list[Inputs]:
        """Return the input sets cut to so many tokens; nothing is copied."""
        return [self._cut(tensors, tokens) for tensors in self.sets(tokens).inputs]

    def _cut(self, tensors: Inputs, tokens: int) -> Inputs:
        dims = [text.partition(":")[0].split() for text in self.recipe.inputs.values()]
        kept = zip((d for d in dims if d), tensors, strict=True)
        axis = self.kernel.dim
        return tuple(t.narrow(d.index(axis), 0, tokens) if axis in d else t for d, t in kept)

    def new_outs(self, tokens: int) -> Inputs:
        """Return results full of NaN: elements that nobody writes show."""
        sizes = self.workload(tokens).sizes
        like = self.sets(tokens).inputs[0][0]
        shapes = [[sizes[d] for d in dims.split()] for dims in self.recipe.results]
        return tuple(like.new_full(shape, float("nan")) for shape in shapes)

    def bytes_read(self, call: str) -> int:
        """Return the bytes of the inputs: what the floor reads."""
        return total_bytes(self.inputs(tokens_of(call))[0])

    def peers(self, call: str) -> dict[str, Json]:
        """Measure PyTorch eager, and what the library runs where no kernel serves."""
        tokens = tokens_of(call)
        return {"eager_us": self.eager_us(tokens)} | self.library_us(tokens)

    def eager_us(self, tokens: int) -> float:
        """Measure PyTorch eager."""
        return cold_microseconds(self.workload(tokens).reference, self.inputs(tokens))

    def library_us(self, tokens: int) -> dict[str, Json]:
        """Measure what the library runs where no kernel serves; nothing where it has no program."""
        program = library_program(self.recipe)
        if program is None:
            return {}
        inputs = self.inputs(tokens)
        outs = [self.new_outs(tokens)[0] for _ in inputs]
        return {"library_us": self.time(calls_of(program, inputs, outs))}

    def candidate(
        self, call: str, library: Library[LaunchArgs], *, assumed: bool
    ) -> dict[str, Json]:
        """Compare a candidate's result with float64; where it is right, measure its time."""
        tokens = tokens_of(call)
        inputs, made = self.inputs(tokens), self.new_outs(tokens)
        self._call(library, made, inputs[0], assumed=assumed)()
        error, eager = self.errors(made, inputs[0], tokens)
        if not error <= self.recipe.tolerance * eager:
            return {"failed": f"its error is {error:.2e}, PyTorch's {eager:.2e}"}
        outs = [made, *(tuple(map(torch.empty_like, made)) for _ in inputs[1:])]
        pairs = zip(outs, inputs, strict=True)
        calls = [self._call(library, o, i, assumed=assumed) for o, i in pairs]
        return {"us": self.time(calls), "error": error}

    def _call(
        self, library: Library[LaunchArgs], outs: Inputs, tensors: Inputs, *, assumed: bool
    ) -> Callable[[], None]:
        """Return a launch on fixed buffers."""
        args = library.args()
        args.constant_weights = assumed
        for i, tensor in enumerate(tensors):
            args.inputs[i] = tensor.data_ptr()
            args.row_strides[i] = tensor.stride(0) if tensor.dim() > 1 else tensor.shape[-1]
        names = [n for n, dims in self.recipe.inputs.items() if not dims.partition(":")[0]]
        for i, name in enumerate(names):
            args.scalars[i] = self.recipe.scalars[name]
        for i, out in enumerate(outs):
            args.outputs[i] = out.data_ptr()
        args.dims[0] = outs[0].shape[0]
        return library.call(args, outs[0])

    def time(self, calls: Sequence[Callable[[], None]]) -> float:
        """Return the time of a call, rotating over them."""
        return graph_microseconds(calls)

    def errors(self, made: Inputs, inputs: Inputs, tokens: int) -> tuple[float, float]:
        """Return the largest relative errors of results and of eager's."""
        whole = self.sets(tokens).oracle
        oracle = tuple(o[: m.shape[0]] for o, m in zip(whole, made, strict=True))
        eager = self.workload(tokens).reference(*inputs)
        return largest_error(made, oracle), largest_error(eager, oracle)
