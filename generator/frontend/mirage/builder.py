"""Kernel graphs and block graphs, as Mirage's `new_kernel_graph` and `new_threadblock_graph` do."""

# ruff: noqa: N803  (tensors have the names that they have in Mirage's interface)

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.mirage.running import TORCH_NAMES, Runnable
from mirage_kernels.generator.frontend.positional.lower import Lowered, lower
from mirage_kernels.generator.frontend.positional.ops import POSITIONAL
from mirage_kernels.generator.frontend.positional.program import (
    NOWHERE,
    Extents,
    Frame,
    Program,
    Step,
    Tensor,
    Three,
)
from mirage_kernels.generator.ir import DType

if TYPE_CHECKING:
    import torch

    from mirage_kernels.generator.frontend.mirage.optimize import MuGraph

float16, bfloat16, float32 = DType.FP16, DType.BF16, DType.FP32


class UnsupportedError(MirageError, AttributeError):
    """Something of Mirage's interface that has no counterpart here."""


def absence(name: str, about: str) -> UnsupportedError:
    """Return the error for a name of Mirage that `mirage_kernels.generator` does not have."""
    return UnsupportedError(
        f"mirage_kernels.generator has no {name}: {about} are not made here",
        "it has new_kernel_graph, new_threadblock_graph, superoptimize, generate_triton_program "
        "and generate_cuda_program (docs/mirage.md)",
    )


def _operator(op: str, meaning: str) -> Callable[..., Tensor]:
    """Return the method of an operator on one or two tensors, `A` and `B`."""

    def unary(self: MirageGraph, A: Tensor) -> Tensor:
        return self.one(Step(op), A)

    def binary(self: MirageGraph, A: Tensor, B: Tensor) -> Tensor:
        return self.one(Step(op), A, B)

    method = (unary, binary)[POSITIONAL[op].arity - 1]
    method.__name__, method.__doc__ = op, meaning
    return method


class MirageGraph:
    """A positional program under construction, and operators that add one step each."""

    kind = "graph"

    def __init__(self, program: Program) -> None:
        self.program = program

    def require_own(self, tensors: Sequence[Tensor], what: str) -> None:
        """Raise MirageError for a tensor of another graph, or none at all."""
        for tensor in tensors:
            if not any(tensor is own for own in self.program.tensors):
                raise MirageError(
                    f"{what} of {tensor!r}: it is no tensor of this {self.kind}",
                    "operands are what new_input and the graph's own operators return",
                )

    def record(self, step: Step, *operands: Tensor) -> list[Tensor]:
        """Add a step applied to operands of this graph and return its results."""
        self.require_own(operands, step.op)
        if POSITIONAL[step.op].over_dim:
            step = replace(step, dim=operands[0].position(step.dim))
        return self.program.apply(step, operands)

    def one(self, step: Step, *operands: Tensor) -> Tensor:
        """Add a step with one result."""
        return self.record(step, *operands)[0]

    matmul = _operator("matmul", "[..., M, K] times [..., K, N].")
    add = _operator("add", "A + B; dims of extent 1 broadcast.")
    sub = _operator("sub", "A - B; dims of extent 1 broadcast.")
    mul = _operator("mul", "A * B; dims of extent 1 broadcast.")
    div = _operator("div", "A / B; dims of extent 1 broadcast.")
    exp = _operator("exp", "e to the power A.")
    log = _operator("log", "Natural logarithm.")
    silu = _operator("silu", "A * sigmoid(A).")
    sigmoid = _operator("sigmoid", "1 / (1 + exp(-A)).")
    gelu = _operator("gelu", "A times the normal distribution function of A.")
    relu = _operator("relu", "max(A, 0).")
    tanh = _operator("tanh", "Hyperbolic tangent.")
    sqrt = _operator("sqrt", "Square root.")
    square = _operator("square", "A * A.")

    def clamp(self, A: Tensor, min_val: float, max_val: float) -> Tensor:
        """max(min(A, max_val), min_val)."""
        return self.one(Step("clamp", numbers=(float(min_val), float(max_val))), A)

    def mul_scalar(self, A: Tensor, scalar: float) -> Tensor:
        """A times a number."""
        return self.one(Step("mul_scalar", numbers=(float(scalar),)), A)

    def reduction(self, A: Tensor, dim: int) -> Tensor:
        """Sum along a dim, which keeps the extent 1."""
        return self.one(Step("reduction", dim=dim), A)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        known = sorted(n for n in dir(type(self)) if not n.startswith("_"))
        raise UnsupportedError(f"a {self.kind} has no {name!r}", f"it has {', '.join(known)}")


class BlockGraph(MirageGraph):
    """What every block of a grid computes; its loop runs until values are accumulated."""

    kind = "block graph"

    def __init__(self, frame: Frame) -> None:
        super().__init__(Program(frame))
        self.dimx = frame.dimx
        self.tensors: list[Tensor] = []  # what the inputs are tiles of, in order

    def new_input(
        self,
        dtensor: Tensor,
        input_map: Sequence[int],
        forloop_dim: int,
        store_in_dmem: bool = False,
    ) -> Tensor:
        """Take the tile of a tensor that the input map and the loop give each block.

        The map says for the grid's x, y and z which dim they cut, -1 for none. Where the tile is
        kept (`store_in_dmem`) is the planner's business here.
        """
        if not isinstance(dtensor, Tensor):
            hint = "give a tensor of a kernel graph"
            raise MirageError(f"a block graph's input is {dtensor!r}", hint)
        dim = NOWHERE if forloop_dim == NOWHERE else dtensor.position(forloop_dim)
        self.tensors.append(dtensor)
        return self.program.tile(dtensor, _three(input_map, "input_map"), dim)

    def new_output(
        self,
        stensor: Tensor,
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
        self.program.store(stensor, _three(output_map, "output_map"))

    def rms_norm(self, A: Tensor) -> Tensor:
        """A / sqrt(mean(A^2)) along the last dim of the tile."""
        return self.one(Step("rms_norm", dim=-1), A)

    def reduction_to_dimx(self, A: Tensor, dim: int) -> Tensor:
        """Sum along a dim until `reduction_dimx` elements are left."""
        return self.one(Step("reduction", dim=dim, size=self.dimx), A)

    def reduction_max(self, A: Tensor, dim: int) -> list[Tensor]:
        """Return the running maximum along a dim and how much it grew in this iteration."""
        return self.record(Step("reduction_max", dim=dim), A)

    def concat(self, A: Tensor, B: Tensor, dim: int) -> Tensor:
        """Put two tiles side by side, for a matmul with another concat."""
        return self.one(Step("concat", dim=dim), A, B)

    def forloop_accum(self, A: Tensor, acc: str | None = None) -> Tensor:
        """Sum over the loop's iterations.

        With "sum" along the last dim too; "mean" and "rms" (root of the mean of squares) likewise;
        "sum_todimx" along the last dim until `reduction_dimx` columns are left.
        """
        return self.one(Step("accum", kind=acc or ""), A)

    def forloop_accum_rescale(self, A: Tensor, B: Tensor, acc: str | None = None) -> Tensor:
        """Sum over the loop's iterations, what is summed so far times B = exp(growth)."""
        return self.one(Step("accum_rescale", kind=acc or ""), A, B)

    def forloop_accum_max(self, A: Tensor) -> Tensor:
        """Return the running maximum after the loop."""
        return self.one(Step("accum_max"), A)


class KernelGraph(MirageGraph, Runnable):
    """A tensor program: library operators and hand-written block graphs on positional tensors."""

    kind = "kernel graph"

    def __init__(self) -> None:
        super().__init__(Program())
        self._lowered: tuple[object, Lowered] | None = None  # with what it was made of

    def new_input(
        self, dims: Sequence[int], strides: Sequence[int] | None = None, dtype: DType = float16
    ) -> Tensor:
        """Add an input of the given extents; strides (in elements) default to row-major."""
        if dtype not in TORCH_NAMES:
            raise MirageError(f"new_input of {dtype!r}", "dtypes: float16, bfloat16, float32")
        return self.program.input(_whole(dims, "dims"), dtype, _whole(strides or (), "strides"))

    def mark_output(self, A: Tensor, strides: Sequence[int] | None = None) -> None:
        """Make a tensor a result; without any, tensors that nothing takes are the results."""
        self.require_own([A], "mark_output")
        self.program.results.append(replace(A, strides=_whole(strides or (), "strides")))

    def rms_norm(
        self,
        A: Tensor,
        normalized_shape: Sequence[int] | Tensor | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """A / sqrt(mean(A^2)) over the last dims, those of `normalized_shape`; times a weight."""
        if isinstance(normalized_shape, Tensor):
            normalized_shape, weight = None, normalized_shape
        shape = A.dims[-1:] if normalized_shape is None else _whole(normalized_shape, "the shape")
        if not shape or A.dims[-len(shape) :] != shape:
            raise MirageError(
                f"rms_norm over {list(shape)} of a tensor {list(A.dims)}",
                "normalized_shape is the extents of its last dims",
            )
        normed = self.one(Step("rms_norm", dim=-len(shape)), A)
        return normed if weight is None else self.mul(normed, weight)

    def softmax(self, A: Tensor, dim: int = -1) -> Tensor:
        """exp(A) / sum(exp(A)) along a dim: keeping exp in range is the optimizer's task."""
        weights = self.exp(A)
        return self.div(weights, self.reduction(weights, dim))

    def customized(self, inputs: Sequence[Tensor], bgraph: BlockGraph) -> list[Tensor]:
        """Apply a hand-written block graph to the tensors that its inputs were made for."""
        if not bgraph.program.of("output") or not bgraph.tensors:
            raise MirageError("a block graph needs inputs and outputs", "new_input, new_output")
        if list(map(id, bgraph.tensors)) != list(map(id, inputs)):
            raise MirageError(
                "customized is given other tensors than the block graph's new_input were",
                "give the same tensors in the same order",
            )
        self.require_own(inputs, "customized")
        return self.program.customized(bgraph.program, inputs)

    def lowered(self) -> Lowered:
        """Return the graph with named dims, made anew when the program has grown."""
        program = self.program
        if not program.inputs or not program.outputs:
            raise MirageError("the graph computes nothing yet", "new_input, then operators")
        now = ([*program.steps], program.outputs)
        if self._lowered is None or self._lowered[0] != now:
            self._lowered = (now, lower(program))
        return self._lowered[1]

    def __call__(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[Tensor] = ()
    ) -> list[torch.Tensor]:
        """Run on torch tensors; `outputs` names results that were not marked."""
        if not outputs:
            return super().__call__(inputs)
        chosen = KernelGraph()
        chosen.program = replace(self.program, results=list(outputs))
        return chosen(inputs)

    def superoptimize(self, config: str | None = None, **options: object) -> MuGraph:
        """Search for the fastest muGraphs equal to this graph; see docs/mirage.md for options."""
        from mirage_kernels.generator.frontend.mirage.optimize import superoptimize

        return superoptimize(self, config=config, **options)

    def to_json(self, filename: str) -> None:
        """Write the graph as a checkpoint of one graph."""
        from mirage_kernels.generator.frontend.mirage.checkpoints import checkpoint_text

        Path(filename).write_text(checkpoint_text([self.program]))

    def from_json(self, filename: str) -> None:
        """Read the first graph of a checkpoint into this one, which is empty so far."""
        from mirage_kernels.generator.frontend.mirage.checkpoints import read_checkpoint

        first = next(iter(read_checkpoint(Path(filename))), "it is an empty list")
        if isinstance(first, str):
            raise MirageError(f"{filename} holds no graph to read: {first}")
        if self.program.steps:
            raise MirageError("from_json into a graph that is not empty", "new_kernel_graph()")
        self.program = first


def _whole(values: Sequence[int], what: str) -> Extents:
    if not isinstance(values, Sequence) or any(type(v) is not int for v in values):
        raise MirageError(f"{what} is {values!r}", "give a tuple of whole numbers")
    return tuple(values)


def _three(values: Sequence[int], what: str) -> Three:
    try:
        x, y, z = _whole(values, what)
    except ValueError:
        hint = "it is three whole numbers, for x, y and z"
        raise MirageError(f"{what} is {values!r}", hint) from None
    return (x, y, z)


def set_gpu_device_id(device: int) -> None:
    """Do nothing: graphs run where their inputs are."""


def bypass_compile_errors(value: bool = True) -> None:
    """Do nothing: graphs are not compiled when they are called."""


new_kernel_graph = new_graph = KernelGraph  # `new_graph` is the older name


def new_threadblock_graph(
    grid_dim: Sequence[int], block_dim: Sequence[int], forloop_range: int, reduction_dimx: int = 64
) -> BlockGraph:
    """Return an empty block graph for a grid, a loop, and what "sum_todimx" reduces to.

    The threads of a block are the planner's choice here: `block_dim` is kept, not used.
    """
    grid, threads = _three(grid_dim, "grid_dim"), _three(block_dim, "block_dim")
    return BlockGraph(Frame(grid, threads, forloop_range, reduction_dimx))
