"""What can be called, drawn and written: a recorded kernel graph, or a muGraph that was found.

CPU tensors run in the interpreter: it computes in fp32 and rounds where the graph stores. Blocks
run one after another, iteration by iteration: this shows what a graph computes, not how fast.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.mirage.drawing import write_drawing
from mirage_kernels.generator.frontend.positional.lower import Lowered, flat, sizes_of
from mirage_kernels.generator.frontend.positional.program import Program
from mirage_kernels.generator.frontend.positional.steps import Extents, Tensor
from mirage_kernels.generator.ir import DType, with_precision
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import STORAGE, round_to
from mirage_kernels.generator.meaning.walk import results

if TYPE_CHECKING:
    import torch

    from mirage_kernels.generator.frontend.mirage.compiled import Run

TORCH_NAMES = {DType.FP16: "float16", DType.BF16: "bfloat16", DType.FP32: "float32"}


class Runnable(ABC):
    """A program with a graph: run on torch tensors, drawn, written as Triton or CUDA."""

    program: Program  # whose inputs and results it takes and gives

    @abstractmethod
    def lowered(self) -> Lowered:
        """Return the graph with named dims, and which dims inputs and results have."""

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
        _check_arguments(inputs, self.program.inputs)
        if inputs[0].device.type == "cpu":
            return run_on_cpu(self.lowered(), inputs, self.program)
        return self.run_compiled(inputs)

    def run_compiled(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run on GPU tensors; which compiled op computes the graph is found once."""
        from mirage_kernels.generator.frontend.mirage.compiled import find_compiled

        lowered = self.lowered()
        known: tuple[Lowered, Run] | None = self.__dict__.get("_compiled")
        if known is None or known[0] is not lowered:
            known = (lowered, find_compiled(self.mathematics(), self.program))
            self.__dict__["_compiled"] = known
        return known[1](inputs)

    def mathematics(self) -> Lowered:
        """Return the simplest graph that this one is equal to."""
        return self.lowered()

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
        if [n for n in x.shape if n != 1] != [n for n in tensor.extents if n != 1]:
            raise MirageError(
                f"input {i} has the shape {list(x.shape)}, not {list(tensor.extents)}"
            )
        dtype = convert_dtype_to_torch_type(tensor.dtype)
        if x.dtype != dtype:
            hint = "convert the tensor, or give new_input another dtype"
            raise MirageError(f"input {i} holds {x.dtype}, not {dtype}", hint)
        if x.device != given[0].device:
            raise MirageError(f"input {i} is on {x.device}, input 1 on {given[0].device}")


def run_on_cpu(
    lowered: Lowered, given: Sequence[torch.Tensor], program: Program
) -> list[torch.Tensor]:
    """Return a program's results on CPU tensors."""
    graph = with_precision(lowered.graph, program.inputs[0].dtype)
    sizes = sizes_of(graph)
    arrays = []
    for x, layout in zip(given, lowered.inputs, strict=True):
        names = flat(layout)
        data = x.detach().float().reshape([sizes[n] for n in names])
        arrays.append(Array(names, (np.asarray(data.numpy()),)))
    made = results(graph, arrays, array_reading(STORAGE, sizes))
    named = zip(made, lowered.outputs, program.outputs, strict=True)
    return [_tensor(x.over(flat(layout)), tensor) for x, layout, tensor in named]


def _tensor(x: Array, wanted: Tensor) -> torch.Tensor:
    """Return a result in its element type, in memory as `mark_output` wants it."""
    import torch

    data = round_to(np.asarray(x.parts[0], np.float32), wanted.dtype)
    whole = torch.from_numpy(np.ascontiguousarray(data)).reshape(wanted.extents)
    stored = whole.to(convert_dtype_to_torch_type(wanted.dtype))
    if not wanted.strides:
        return stored
    last = sum((n - 1) * s for n, s in zip(wanted.extents, wanted.strides, strict=True))
    room = torch.empty(max(1 + last, math.prod(wanted.extents)), dtype=stored.dtype)
    return torch.as_strided(room, wanted.extents, wanted.strides).copy_(stored)
