"""Kernel graphs and block graphs, as Mirage's `new_kernel_graph` and `new_threadblock_graph` do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.mirage.running import TORCH_NAMES, Runnable, Signature
from mirage_kernels.generator.frontend.mirage.tensors import DTensor, MirageGraph, STensor
from mirage_kernels.generator.frontend.positional.lower import Lowered, lower
from mirage_kernels.generator.frontend.positional.program import (
    AXES,
    NOWHERE,
    Block,
    Extents,
    Program,
    Step,
    Tensor,
    Three,
)
from mirage_kernels.generator.frontend.positional.recorder import Recorder, check_strides
from mirage_kernels.generator.ir import DType

if TYPE_CHECKING:
    import torch

    from mirage_kernels.generator.frontend.mirage.optimize import MuGraphs

float16, bfloat16, float32 = DType.FP16, DType.BF16, DType.FP32


class BlockGraph(MirageGraph[STensor]):
    """What every block of a grid computes; its loop runs until values are accumulated."""

    handle = STensor
    kind = "block graph"

    def __init__(self, frame: Block) -> None:
        super().__init__(Recorder(frame))
        self.dimx = frame.dimx
        self.tensors: list[DTensor] = []  # what the inputs are tiles of, in order

    def new_input(
        self,
        dtensor: DTensor,
        input_map: Sequence[int],
        forloop_dim: int,
        store_in_dmem: bool = False,
    ) -> STensor:
        """Take the tile of a tensor that the input map and the loop give each block.

        The map says for the grid's x, y and z which dim they cut, -1 for none. Where the tile is
        kept (`store_in_dmem`) is the planner's business here.
        """
        if not isinstance(dtensor, DTensor):
            raise MirageError(
                f"a block graph's input is {dtensor!r}", "give a tensor of a kernel graph"
            )
        dim = NOWHERE if forloop_dim == NOWHERE else dtensor.position(forloop_dim)
        tile = self.recorder.tile(dtensor.tensor, _three(input_map, "input_map"), dim)
        self.tensors.append(dtensor)
        return STensor(self, tile)

    def new_output(
        self,
        stensor: STensor,
        output_map: Sequence[int],
        forloop_dim: int = NOWHERE,
        epilogue: str | None = None,
    ) -> None:
        """Store a tile where the output map puts it."""
        if forloop_dim != NOWHERE or epilogue is not None:
            raise MirageError(
                "an output that stores every iteration or ends in a communication has no form here",
                "accumulate over the loop and store once",
            )
        self.require_own([stensor], "new_output")
        self.recorder.store(stensor.tensor, _three(output_map, "output_map"))

    def rms_norm(self, A: STensor) -> STensor:  # noqa: N803
        """A / sqrt(mean(A^2)) along the last dim of the tile."""
        return self.one(self.over("rms_norm", A, -1), A)

    def reduction_to_dimx(self, A: STensor, dim: int) -> STensor:  # noqa: N803
        """Sum along a dim until `reduction_dimx` elements are left."""
        return self.one(self.over("reduction", A, dim, self.dimx), A)

    def reduction_max(self, A: STensor, dim: int) -> list[STensor]:  # noqa: N803
        """Return the running maximum along a dim and how much it grew in this iteration."""
        return self.record(self.over("reduction_max", A, dim), [A])

    def concat(self, A: STensor, B: STensor, dim: int) -> STensor:  # noqa: N803
        """Put two tiles side by side, for a matmul with another concat."""
        return self.one(self.over("concat", A, dim), A, B)

    def forloop_accum(self, A: STensor, acc: str | None = None) -> STensor:  # noqa: N803
        """Sum over the loop's iterations.

        With "sum" along the last dim too; "mean" and "rms" (root of the mean of squares) likewise;
        "sum_todimx" along the last dim until `reduction_dimx` columns are left.
        """
        return self.one(Step("accum", kind=acc or ""), A)

    def forloop_accum_rescale(self, A: STensor, B: STensor, acc: str | None = None) -> STensor:  # noqa: N803
        """Sum over the loop's iterations, what is summed so far times B = exp(growth)."""
        return self.one(Step("accum_rescale", kind=acc or ""), A, B)

    def forloop_accum_max(self, A: STensor) -> STensor:  # noqa: N803
        """Return the running maximum after the loop."""
        return self.one(Step("accum_max"), A)


class KernelGraph(MirageGraph[DTensor], Runnable):
    """A tensor program: library operators and hand-written block graphs on positional tensors."""

    handle = DTensor
    kind = "kernel graph"

    def __init__(self) -> None:
        super().__init__(Recorder())
        self.results: list[Tensor] = []  # as mark_output named them, with their strides
        self._lowered: tuple[Program, Lowered] | None = None

    def new_input(
        self, dims: Sequence[int], strides: Sequence[int] | None = None, dtype: DType = float16
    ) -> DTensor:
        """Add an input of the given extents; strides (in elements) default to row-major."""
        if dtype not in TORCH_NAMES:
            raise MirageError(f"new_input of {dtype!r}", "dtypes: float16, bfloat16, float32")
        extents = _whole(dims, "dims")
        return DTensor(self, self.recorder.input(extents, dtype, _layout(strides)))

    def mark_output(self, A: DTensor, strides: Sequence[int] | None = None) -> None:  # noqa: N803
        """Make a tensor a result; without any, tensors that nothing takes are the results."""
        self.require_own([A], "mark_output")
        self.results.append(replace(A.tensor, strides=check_strides(_layout(strides), A.dims)))

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
        normed = self.one(self.over("rms_norm", A, -len(shape)), A)
        return normed if weight is None else self.mul(normed, weight)

    def softmax(self, A: DTensor, dim: int = -1) -> DTensor:  # noqa: N803
        """exp(A) / sum(exp(A)) along a dim: keeping exp in range is the optimizer's task."""
        weights = self.exp(A)
        return self.div(weights, self.reduction(weights, dim))

    def customized(self, inputs: Sequence[DTensor], bgraph: BlockGraph) -> list[DTensor]:
        """Apply a hand-written block graph to the tensors that its inputs were made for."""
        if not bgraph.recorder.stored or not bgraph.tensors:
            raise MirageError("a block graph needs inputs and outputs", "new_input, new_output")
        if [t.guid for t in bgraph.tensors] != [t.guid for t in inputs]:
            raise MirageError(
                "customized is given other tensors than the block graph's new_input were",
                "give the same tensors in the same order",
            )
        self.require_own(inputs, "customized")
        made = self.recorder.customized(bgraph.recorder, [t.tensor for t in inputs])
        return [DTensor(self, tensor) for tensor in made]

    def program(self) -> Program:
        """Return what was recorded."""
        program = self.recorder.program([t.number for t in self.results])
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
        chosen.recorder = self.recorder
        chosen.results = [t.tensor for t in outputs]
        return Runnable.__call__(chosen, inputs)

    def superoptimize(self, config: str | None = None, **options: object) -> MuGraphs:
        """Search for the fastest muGraphs equal to this graph; see docs/mirage.md for options."""
        from mirage_kernels.generator.frontend.mirage.optimize import superoptimize

        return superoptimize(self, **{"config": config, **options})

    def to_json(self, filename: str) -> None:
        """Write the graph as a checkpoint of one graph."""
        from mirage_kernels.generator.frontend.mirage.checkpoints import checkpoint_text

        Path(filename).write_text(checkpoint_text([self.program()]))

    def from_json(self, filename: str) -> None:
        """Read the first graph of a checkpoint into this one, which is empty so far."""
        from mirage_kernels.generator.frontend.mirage.checkpoints import read_checkpoint

        found = read_checkpoint(Path(filename))
        program = found[0].program if found else None
        if program is None:
            why = found[0].reason if found else "it is an empty list"
            raise MirageError(f"{filename} holds no graph to read: {why}")
        if self.recorder.steps:
            raise MirageError("from_json into a graph that is not empty", "new_kernel_graph()")
        self.recorder = Recorder.of(program)
        self.results = [program.tensor(n) for n in program.outputs]


def _whole(values: Sequence[int], what: str) -> Extents:
    try:
        found = tuple(values)
    except TypeError:
        raise MirageError(f"{what} is {values!r}", "give a tuple of whole numbers") from None
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in found):
        raise MirageError(f"{what} is {values!r}", "give a tuple of whole numbers")
    return found


def _layout(strides: Sequence[int] | None) -> Extents:
    return () if strides is None else _whole(strides, "strides")


def _three(values: Sequence[int], what: str) -> Three:
    found = _whole(values, what)
    if len(found) != len(AXES):
        raise MirageError(f"{what} is {values!r}", "it is three whole numbers, for x, y and z")
    x, y, z = found
    return (x, y, z)


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
    grid, threads = _three(grid_dim, "grid_dim"), _three(block_dim, "block_dim")
    return BlockGraph(Block(grid, threads, forloop_range, reduction_dimx, ()))
