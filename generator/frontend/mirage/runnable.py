"""What can be called, drawn and written: a recorded kernel graph, or a muGraph that was found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.mirage.drawing import write_drawing
from mirage_kernels.generator.frontend.mirage.lower import Lowered
from mirage_kernels.generator.frontend.mirage.program import Extents, row_major
from mirage_kernels.generator.frontend.mirage.recorder import DTensor
from mirage_kernels.generator.frontend.mirage.running import Signature, check_arguments, run_on_cpu

if TYPE_CHECKING:
    import torch

    from mirage_kernels.generator.frontend.mirage.compiled import Run


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

    def get_input_dtensors(self) -> list[DTensor]:
        """Return the inputs in order."""
        return [DTensor(self, t) for t in self.signature().inputs]

    def get_num_inputs(self) -> int:
        """Return the number of inputs."""
        return len(self.signature().inputs)

    def get_num_outputs(self) -> int:
        """Return the number of results."""
        return len(self.signature().outputs)

    def get_input_dtensor_shape_and_stride(self, A: DTensor) -> tuple[Extents, Extents]:  # noqa: N803
        """Return extents and strides of an input."""
        return A.dims, A.tensor.strides or row_major(A.dims)

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
