"""Kernel graphs, as Mirage's `new_kernel_graph` builds them: tensors in, operators, results."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.mirage.blocks import BlockGraph
from mirage_kernels.generator.frontend.mirage.lower import Lowered, lower
from mirage_kernels.generator.frontend.mirage.program import (
    Extents,
    Program,
    Step,
    Tensor,
    row_major,
    unused,
)
from mirage_kernels.generator.frontend.mirage.recorder import DTensor, Recorder, position
from mirage_kernels.generator.frontend.mirage.runnable import Runnable
from mirage_kernels.generator.frontend.mirage.running import TORCH_NAMES, Signature
from mirage_kernels.generator.frontend.mirage.shapes import check_extents
from mirage_kernels.generator.ir import DType

if TYPE_CHECKING:
    import torch

    from mirage_kernels.generator.frontend.mirage.optimize import MuGraphs

float16, bfloat16, float32 = DType.FP16, DType.BF16, DType.FP32


class KernelGraph(Recorder[DTensor], Runnable):
    """A tensor program: library operators and hand-written block graphs on positional tensors."""

    handle = DTensor
    kind = "kernel graph"

    def __init__(self) -> None:
        super().__init__()
        self.results: list[Tensor] = []  # as mark_output named them, with their strides
        self._lowered: tuple[Program, Lowered] | None = None

    def new_input(
        self, dims: Sequence[int], strides: Sequence[int] | None = None, dtype: DType = float16
    ) -> DTensor:
        """Add an input of the given extents; strides (in elements) default to row-major."""
        if dtype not in TORCH_NAMES:
            raise MirageError(f"new_input of {dtype!r}", "dtypes: float16, bfloat16, float32")
        extents = check_extents(_whole(dims, "dims"), "an input")
        layout = () if strides is None else _whole(strides, "strides")
        if layout and len(layout) != len(extents):
            raise MirageError(f"{len(layout)} strides are given for {len(extents)} dims")
        tensor = self.new_tensor(extents, dtype, () if layout == row_major(extents) else layout)
        self.steps.append(Step("input", outs=(tensor,)))
        return DTensor(self, tensor)

    def mark_output(self, A: DTensor, strides: Sequence[int] | None = None) -> None:  # noqa: N803
        """Make a tensor a result; without any, tensors that nothing takes are the results."""
        if not isinstance(A, DTensor) or A.graph is not self:
            raise MirageError(f"mark_output of {A!r}: it is no tensor of this kernel graph")
        layout = () if strides is None else _whole(strides, "strides")
        if layout and len(layout) != A.num_dims:
            raise MirageError(f"{len(layout)} strides are given for {A.num_dims} dims")
        self.results.append(replace(A.tensor, strides=layout))

    def rms_norm(
        self,
        A: DTensor,  # noqa: N803
        normalized_shape: Sequence[int] | DTensor | None = None,
        weight: DTensor | None = None,
    ) -> DTensor:
        """A / sqrt(mean(A^2)) over the last dims, those of `normalized_shape`; times a weight."""
        if isinstance(normalized_shape, DTensor):
            normalized_shape, weight = None, normalized_shape
        shape = A.dims[-1:] if normalized_shape is None else _whole(normalized_shape, "the shape")
        if not shape or A.dims[-len(shape) :] != shape:
            raise MirageError(
                f"rms_norm over {list(shape)} of a tensor {list(A.dims)}",
                "normalized_shape is the extents of its last dims",
            )
        normed = self.one(Step("rms_norm", dim=A.num_dims - len(shape)), A)
        return normed if weight is None else self.mul(normed, weight)

    def softmax(self, A: DTensor, dim: int = -1) -> DTensor:  # noqa: N803
        """exp(A) / sum(exp(A)) along a dim: keeping exp in range is the optimizer's task."""
        weights = self.exp(A)
        return self.div(weights, self.reduction(weights, position(dim, A)))

    def customized(self, inputs: Sequence[DTensor], bgraph: BlockGraph) -> list[DTensor]:
        """Apply a hand-written block graph to the tensors that its inputs were made for."""
        block = bgraph.built()
        if [t.guid for t in bgraph.tensors] != [t.guid for t in inputs]:
            raise MirageError(
                "customized is given other tensors than the block graph's new_input were",
                "give the same tensors in the same order",
            )
        for tensor in inputs:
            if tensor.graph is not self:
                raise MirageError(f"customized of {tensor!r}: it is no tensor of this kernel graph")
        outs = tuple(self.new_tensor(e, inputs[0].dtype) for e in bgraph.extents)
        args = tuple(t.tensor.number for t in inputs)
        self.steps.append(Step("customized", args, outs, block=block))
        return [DTensor(self, tensor) for tensor in outs]

    def program(self) -> Program:
        """Return what was recorded."""
        steps = tuple(self.steps)
        marked = tuple(t.number for t in self.results)
        program = Program(steps, marked or unused(steps))
        if not program.inputs or not program.outputs:
            raise MirageError("the graph computes nothing yet", "new_input, then operators")
        return program

    def lowered(self) -> Lowered:
        """Return the graph with named dims."""
        program = self.program()
        if self._lowered is None or self._lowered[0] != program:
            self._lowered = (program, lower(program))
        return self._lowered[1]

    def signature(self) -> Signature:
        """Return the positional tensors that the program takes and gives."""
        program = self.program()
        strided = {t.number: t for t in self.results}
        outputs = tuple(strided.get(n, program.tensor(n)) for n in program.outputs)
        return Signature(program.inputs, outputs)

    def __call__(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[DTensor] = ()
    ) -> list[torch.Tensor]:
        """Run on torch tensors; `outputs` names results that were not marked."""
        if not outputs:
            return super().__call__(inputs)
        chosen = KernelGraph()
        chosen.steps = self.steps
        chosen.results = [t.tensor for t in outputs]
        return Runnable.__call__(chosen, inputs)

    def superoptimize(self, config: str | None = None, **options: object) -> MuGraphs:
        """Search for the fastest muGraphs equal to this graph; see docs/mirage.md for options."""
        from mirage_kernels.generator.frontend.mirage.optimize import superoptimize

        return superoptimize(self, **{"config": config, **options})

    def to_json(self, filename: str) -> None:
        """Write the graph as a checkpoint of one graph."""
        from mirage_kernels.generator.frontend.mirage.exports import checkpoint_text

        Path(filename).write_text(checkpoint_text([self.program()]))

    def from_json(self, filename: str) -> None:
        """Read the first graph of a checkpoint into this one, which is empty so far."""
        from mirage_kernels.generator.frontend.mirage.imports import read_checkpoint

        found = read_checkpoint(Path(filename))
        if not found or found[0].program is None:
            why = found[0].reason if found else "it is an empty list"
            raise MirageError(f"{filename} holds no graph to read: {why}")
        if self.steps:
            raise MirageError("from_json into a graph that is not empty", "new_kernel_graph()")
        adopt(self, found[0].program)


def adopt(graph: KernelGraph, program: Program) -> None:
    """Fill an empty kernel graph with a program."""
    graph.steps = list(program.steps)
    graph.numbers = itertools.count(1 + max(t.number for t in program.tensors()))
    graph.results = [program.tensor(n) for n in program.outputs]


def _whole(values: Sequence[int], what: str) -> Extents:
    try:
        found = tuple(values)
    except TypeError:
        raise MirageError(f"{what} is {values!r}", "give a tuple of whole numbers") from None
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in found):
        raise MirageError(f"{what} is {values!r}", "give a tuple of whole numbers")
    return found


def set_gpu_device_id(device: int) -> None:
    """Do nothing: graphs run where their inputs are."""


def bypass_compile_errors(value: bool = True) -> None:
    """Do nothing: graphs are not compiled when they are called."""


def new_kernel_graph() -> KernelGraph:
    """Return an empty kernel graph."""
    return KernelGraph()


def new_threadblock_graph(
    grid_dim: Sequence[int], block_dim: Sequence[int], forloop_range: int, reduction_dimx: int = 64
) -> BlockGraph:
    """Return an empty block graph for a grid, a loop, and what "sum_todimx" reduces to.

    The threads of a block are the planner's choice here: `block_dim` is kept, not used.
    """
    return BlockGraph(grid_dim, block_dim, loop_range=forloop_range, dimx=reduction_dimx)
