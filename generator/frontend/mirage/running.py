"""What can be called, drawn and written: a recorded kernel graph, or a muGraph that was found.

CPU tensors run in the interpreter, block by block: it computes in fp32 and rounds where the graph
stores. GPU tensors run the library's compiled op that computes the same, if there is one. A recipe
may have inputs that the graph lacks: they are held at the value that makes them do nothing (eps 0,
a weight of 1). That graph and recipe are then equal is proved, not assumed.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.declarations import dims_of
from mirage_kernels.generator.frontend.mirage.proofs import Bound, Held, Terms, prove
from mirage_kernels.generator.frontend.positional.lower import Lowered, flat, sizes_of
from mirage_kernels.generator.frontend.positional.program import Extents, Program, Tensor
from mirage_kernels.generator.ir import DType, with_precision
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import STORAGE, round_to
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.recipe import Recipe, catalog

if TYPE_CHECKING:
    import torch

TORCH_NAMES = {DType.FP16: "float16", DType.BF16: "bfloat16", DType.FP32: "float32"}


class Runnable(ABC):
    """A program with a graph: run on torch tensors, drawn, written as Triton or CUDA."""

    program: Program  # whose inputs and results it takes and gives

    @abstractmethod
    def lowered(self) -> Lowered:
        """Return the graph with named dims, and which dims inputs and results have."""

    def mathematics(self) -> Lowered:
        """Return the simplest graph that this one is equal to."""
        return self.lowered()

    def choices(self) -> Iterator[Runnable]:
        """Yield the graphs that compute this, best first: the first that can be planned counts."""
        yield self

    @property
    def cygraph(self) -> Runnable:
        """The graph itself: what Mirage's functions over graphs are given."""
        return self

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run on torch tensors: CPU tensors in the interpreter, GPU tensors in a compiled kernel.

        Raises MirageError for tensors of other shapes or types than `new_input` said, and where no
        compiled kernel computes this graph.
        """
        _check_arguments(inputs, self.program.inputs)
        lowered = self.lowered()
        if inputs[0].device.type == "cpu":
            return run_on_cpu(lowered, inputs, self.program)
        known: tuple[Lowered, Run] | None = self.__dict__.get("_compiled")
        if known is None or known[0] is not lowered:  # which op computes it is found once
            known = (lowered, find_compiled(self.mathematics(), self.program))
            self.__dict__["_compiled"] = known
        return known[1](inputs)

    def get_input_dtensors(self) -> list[Tensor]:
        """Return the inputs in order."""
        return self.program.inputs

    def get_num_inputs(self) -> int:
        """Return the number of inputs."""
        return len(self.program.inputs)

    def get_num_outputs(self) -> int:
        """Return the number of results."""
        return len(self.program.outputs)

    def get_input_dtensor_shape_and_stride(self, A: Tensor) -> tuple[Extents, Extents]:  # noqa: N803
        """Return extents and strides of an input."""
        return A.dims, A.layout

    def visualize(self, file_name: str) -> list[Path]:
        """Draw the graph: writes `file_name`.dot and .txt (and .svg where graphviz is there)."""
        from mirage_kernels.generator.frontend.mirage.sources import write_drawing

        return write_drawing(self.lowered().graph, Path(file_name))

    def generate_triton_program(self, file_path: str) -> None:
        """Write the graph as a Triton program of its kernels."""
        from mirage_kernels.generator.frontend.mirage.sources import generate_triton_program

        path = Path(file_path)
        if not path.parent.is_dir():
            raise MirageError(f"folder {path.parent} does not exist", f"mkdir -p {path.parent}")
        path.write_text(generate_triton_program(self)["code"])


def convert_dtype_to_torch_type(dtype: DType) -> torch.dtype:
    """Return torch's element type."""
    import torch

    if dtype not in TORCH_NAMES:
        raise MirageError(f"torch tensors of {dtype.value} are not supported here")
    found: torch.dtype = getattr(torch, TORCH_NAMES[dtype])
    return found


def _check_arguments(given: Sequence[torch.Tensor], wanted: Sequence[Tensor]) -> None:
    """Raise MirageError for tensors that are not what a program takes."""
    import torch

    if len(given) != len(wanted):
        raise MirageError(
            f"the graph takes {len(wanted)} tensors, {len(given)} are given",
            "call it as graph(inputs=[...]) with the tensors in the order of new_input",
        )
    for i, (x, tensor) in enumerate(zip(given, wanted, strict=True), start=1):
        if not isinstance(x, torch.Tensor):
            raise MirageError(f"input {i} is {type(x).__name__}, not a torch tensor")
        if [n for n in x.shape if n != 1] != [n for n in tensor.dims if n != 1]:
            raise MirageError(f"input {i} has the shape {list(x.shape)}, not {list(tensor.dims)}")
        dtype = convert_dtype_to_torch_type(tensor.dtype)
        if x.dtype != dtype:
            hint = "convert the tensor, or give new_input another dtype"
            raise MirageError(f"input {i} holds {x.dtype}, not {dtype}", hint)
        if x.device != given[0].device:
            raise MirageError(f"input {i} is on {x.device}, input 1 on {given[0].device}")


def run_on_cpu(
    lowered: Lowered, given: Sequence[torch.Tensor], program: Program
) -> list[torch.Tensor]:
    """Return a program's results on CPU tensors, in memory as `mark_output` wants them."""
    import torch

    graph = with_precision(lowered.graph, program.inputs[0].dtype)
    sizes = sizes_of(graph)
    arrays = []
    for x, names in zip(given, map(flat, lowered.inputs), strict=True):
        data = x.detach().float().reshape([sizes[n] for n in names])
        arrays.append(Array(names, (np.asarray(data.numpy()),)))
    made = results(graph, arrays, array_reading(STORAGE, sizes))
    found = []
    for array, layout, wanted in zip(made, lowered.outputs, program.outputs, strict=True):
        parts = np.asarray(array.over(flat(layout)).parts[0], np.float32)
        whole = torch.from_numpy(np.ascontiguousarray(round_to(parts, wanted.dtype)))
        stored = whole.reshape(wanted.dims).to(convert_dtype_to_torch_type(wanted.dtype))
        if wanted.strides:
            last = sum((n - 1) * s for n, s in zip(wanted.dims, wanted.strides, strict=True))
            room = torch.empty(max(1 + last, math.prod(wanted.dims)), dtype=stored.dtype)
            stored = torch.as_strided(room, wanted.dims, wanted.strides).copy_(stored)
        found.append(stored)
    return found


# What inputs of the catalog's recipes do nothing at; L: every sequence is as long as its keys.
NEUTRAL: Held = {
    **dict.fromkeys(("scale", "norm_weight", "q_weight", "k_weight"), 1.0),
    "eps": 0.0,
    "seq_lens": "L",
}
Run = Callable[[Sequence["torch.Tensor"]], list["torch.Tensor"]]


def find_compiled(lowered: Lowered, program: Program) -> Run:
    """Return a function that runs a graph on GPU tensors; raise MirageError where none can."""
    import mirage_kernels

    for recipe, bound in matches(lowered, catalog()):
        if recipe.name in mirage_kernels.__all__:
            return partial(call, recipe, bound, program)
    raise MirageError(
        "no compiled kernel of this build computes the graph on GPU tensors",
        "CPU tensors run in the interpreter; `mirage-kernels list` shows the compiled kernels",
    )


def matches(lowered: Lowered, recipes: Mapping[str, Recipe]) -> Iterator[tuple[Recipe, Bound]]:
    """Yield the recipes that a graph provably computes, bound to it, inputs that it lacks held."""
    for recipe in recipes.values():
        lacking = len(recipe.inputs) - len(lowered.inputs)
        neutral = [name for name in recipe.inputs if name in NEUTRAL]
        for names in itertools.combinations(neutral, max(0, lacking)):
            held = {name: NEUTRAL[name] for name in names}
            with contextlib.suppress(MirageError):  # other numbers of inputs or dims
                for bound in list(Terms(recipe, held).bindings(lowered)):
                    with contextlib.suppress(MirageError):  # not equal
                        prove(bound)
                        yield recipe, bound
                        break


def call(
    recipe: Recipe, bound: Bound, program: Program, given: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Call a compiled op in place of a graph; the op raises for what its kernels do not cover."""
    import torch

    import mirage_kernels

    arguments: dict[str, torch.Tensor | float] = {}
    sizes: dict[str, int] = {}
    for x, tensor, (name, dims) in zip(given, program.inputs, bound.choice.inputs, strict=True):
        stated = dims_of(recipe.inputs[name])
        arguments[name] = y = _turned(x.reshape(tensor.dims), dims, stated).contiguous()
        sizes.update(zip(stated, y.shape, strict=True))
    for name, value in bound.held.items():
        number = sizes[value] if isinstance(value, str) else value
        text, like = recipe.inputs[name], given[0]
        arguments[name] = float(number)
        if dims_of(text):  # the same number everywhere
            shape = [sizes[d] for d in dims_of(text)]
            dtype = torch.int32 if text.endswith("int32") else like.dtype
            arguments[name] = torch.full(shape, number, dtype=dtype, device=like.device)
    made = getattr(mirage_kernels, recipe.name)(*(arguments[name] for name in recipe.inputs))
    (dims,), (tensor,) = bound.choice.outputs, program.outputs
    wanted = [d for d in dims if d is not None]
    ours = [d if d in wanted else None for d in recipe.output.split()]
    return [_turned(made, ours, wanted).reshape(tensor.dims)]


def _turned(x: torch.Tensor, dims: Sequence[str | None], wanted: Sequence[str]) -> torch.Tensor:
    """Return a tensor with its dims in another order; those that it lacks, or None, are of 1."""
    named = [d for d in dims if d is not None]
    x = x.reshape([n for n, d in zip(x.shape, dims, strict=True) if d is not None])
    index = tuple(slice(None) if d in named else None for d in wanted)
    return x.permute([named.index(d) for d in wanted if d in named])[index]
