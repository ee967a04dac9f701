"""What can be called, drawn and written: a recorded kernel graph, or a muGraph that was found.

CPU tensors run in the interpreter: it computes in fp32 and rounds where the graph stores. Blocks
run one after another, iteration by iteration: this shows what a graph computes, not how fast.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.mirage.drawing import write_drawing
from mirage_kernels.generator.frontend.positional.lower import Layout, Lowered, sizes_of
from mirage_kernels.generator.frontend.positional.program import Extents, Tensor, row_major
from mirage_kernels.generator.ir import DType, with_precision
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import STORAGE, round_to
from mirage_kernels.generator.meaning.walk import results

if TYPE_CHECKING:
    import torch

    from mirage_kernels.generator.frontend.mirage.compiled import Run

TORCH_NAMES = {DType.FP16: "float16", DType.BF16: "bfloat16", DType.FP32: "float32"}


@dataclass(frozen=True)
class Signature:
    """What a program takes and gives, by position."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class Runnable(ABC):
    """A program with a graph: run on torch tensors, drawn, written as Triton or CUDA."""

    @abstractmethod
    def lowered(self) -> Lowered:
        """Return the graph with named dims, and which dims inputs and results have."""

    @abstractmethod
    def signature(self) -> Signature:
        """Return the positional tensors that the program takes and gives."""

    def choices(self) -> Sequence[Runnable]:
        """Return the graphs that compute this, best first: the first that can be planned counts."""
        return [self]

    @property
    def cygraph(self) -> Runnable:
        """The graph itself: what Mirage's functions over graphs are given."""
        return self

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run on torch tensors: CPU tensors in the interpreter, GPU tensors in a compiled kernel.

        Raises MirageError for tensors of other shapes or types than `new_input` said, and where no
        compiled kernel computes this graph.
        """
        signature = self.signature()
        check_arguments(inputs, signature)
        if inputs[0].device.type == "cpu":
            return run_on_cpu(self.lowered(), inputs, signature)
        return self.run_compiled(inputs)

    def run_compiled(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run on GPU tensors; which compiled op computes the graph is found once."""
        from mirage_kernels.generator.frontend.mirage.compiled import find_compiled

        lowered = self.lowered()
        known: tuple[Lowered, Run] | None = self.__dict__.get("_compiled")
        if known is None or known[0] is not lowered:
            known = (lowered, find_compiled(self.mathematics(), self.signature()))
            self.__dict__["_compiled"] = known
        return known[1](inputs)

    def mathematics(self) -> Lowered:
        """Return the simplest graph that this one is equal to."""
        return self.lowered()

    def get_input_dtensors(self) -> list[Tensor]:
        """Return the inputs in order."""
        return list(self.signature().inputs)

    def get_num_inputs(self) -> int:
        """Return the number of inputs."""
        return len(self.signature().inputs)

    def get_num_outputs(self) -> int:
        """Return the number of results."""
        return len(self.signature().outputs)

    def get_input_dtensor_shape_and_stride(self, A: Tensor) -> tuple[Extents, Extents]:  # noqa: N803
        """Return extents and strides of an input."""
        return A.dims, A.strides or row_major(A.dims)

    def visualize(self, file_name: str) -> list[Path]:
        """Draw the graph: writes `file_name`.dot and .txt (and .svg where graphviz is there)."""
        return write_drawing(self.lowered().graph, Path(file_name))

    def generate_triton_program(self, file_path: str) -> None:
        """Write the graph as a Triton program; raise PlanError where the planner cannot."""
        from mirage_kernels.generator.frontend.mirage.sources import triton_text

        path = Path(file_path)
        if not path.parent.is_dir():
            raise MirageError(f"folder {path.parent} does not exist", f"mkdir -p {path.parent}")
        path.write_text(triton_text(self))


def convert_dtype_to_torch_type(dtype: DType) -> torch.dtype:
    """Return torch's element type."""
    import torch

    if dtype not in TORCH_NAMES:
        raise MirageError(f"torch tensors of {dtype.value} are not supported here")
    found: torch.dtype = getattr(torch, TORCH_NAMES[dtype])
    return found


def check_arguments(given: Sequence[torch.Tensor], signature: Signature) -> None:
    """Raise MirageError for tensors that are not what the program takes."""
    import torch

    if len(given) != len(signature.inputs):
        raise MirageError(
            f"the graph takes {len(signature.inputs)} tensors, {len(given)} are given",
            "call it as graph(inputs=[...]) with the tensors in the order of new_input",
        )
    for i, (x, tensor) in enumerate(zip(given, signature.inputs, strict=True), start=1):
        if not isinstance(x, torch.Tensor):
            raise MirageError(f"input {i} is {type(x).__name__}, not a torch tensor")
        if [n for n in x.shape if n != 1] != [n for n in tensor.extents if n != 1]:
            raise MirageError(
                f"input {i} has the shape {list(x.shape)}, not {list(tensor.extents)}"
            )
        if x.dtype != convert_dtype_to_torch_type(tensor.dtype):
            raise MirageError(
                f"input {i} holds {x.dtype}, not {convert_dtype_to_torch_type(tensor.dtype)}",
                "convert the tensor, or give new_input another dtype",
            )
        if x.device != given[0].device:
            raise MirageError(f"input {i} is on {x.device}, input 1 on {given[0].device}")


def run_on_cpu(
    lowered: Lowered, given: Sequence[torch.Tensor], signature: Signature
) -> list[torch.Tensor]:
    """Return the program's results on CPU tensors."""
    graph = with_precision(lowered.graph, signature.inputs[0].dtype)
    sizes = sizes_of(graph)
    arrays = [_array(x, layout, sizes) for x, layout in zip(given, lowered.inputs, strict=True)]
    made = results(graph, arrays, array_reading(STORAGE, sizes))
    return [
        _tensor(x, layout, tensor)
        for x, layout, tensor in zip(made, lowered.outputs, signature.outputs, strict=True)
    ]


def _array(x: torch.Tensor, layout: Layout, sizes: Mapping[str, int]) -> Array:
    names = tuple(name for row in layout for name in row)
    data = x.detach().float().reshape([sizes[n] for n in names])
    return Array(names, (np.asarray(data.numpy()),))


def _tensor(x: Array, layout: Layout, tensor: Tensor) -> torch.Tensor:
    import torch

    names = tuple(name for row in layout for name in row)
    data = round_to(np.asarray(x.over(names).parts[0], np.float32), tensor.dtype)
    whole = torch.from_numpy(np.ascontiguousarray(data)).reshape(tensor.extents)
    stored = whole.to(convert_dtype_to_torch_type(tensor.dtype))
    return stored if not tensor.strides else _strided(stored, tensor.strides)


def _strided(x: torch.Tensor, strides: Extents) -> torch.Tensor:
    """Return the tensor in memory as `mark_output` wants it."""
    import torch

    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True))
    room = torch.empty(max(span, math.prod(x.shape)), dtype=x.dtype)
    laid_out = torch.as_strided(room, x.shape, strides)
    return laid_out.copy_(x)
