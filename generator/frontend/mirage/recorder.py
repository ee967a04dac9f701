"""What kernel and block graphs record alike: the operators' methods, by Mirage's names."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Generic, TypeVar

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.mirage.program import Block, Extents, Step, Tensor
from mirage_kernels.generator.frontend.mirage.shapes import result_extents
from mirage_kernels.generator.ir import DType


class UnsupportedError(MirageError, AttributeError):
    """Something of Mirage's interface that has no counterpart here."""


def absence(name: str, about: str) -> UnsupportedError:
    """Return the error for a name of Mirage that `mirage_kernels.generator` does not have."""
    return UnsupportedError(
        f"mirage_kernels.generator has no {name}: {about} are not made here",
        "it has new_kernel_graph, new_threadblock_graph, superoptimize, generate_triton_program "
        "and generate_cuda_program (docs/mirage.md)",
    )


class Handle:
    """A tensor of a graph under construction; operators are methods of the graph."""

    def __init__(self, graph: object, tensor: Tensor) -> None:
        self.graph, self.tensor = graph, tensor

    @property
    def guid(self) -> int:
        """Number of the tensor in its graph."""
        return self.tensor.number

    @property
    def num_dims(self) -> int:
        """Number of dims."""
        return len(self.tensor.extents)

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.tensor.dtype

    @property
    def dims(self) -> Extents:
        """Extents of all dims."""
        return self.tensor.extents

    def dim(self, index: int) -> int:
        """Return the extent of one dim."""
        return self.tensor.extents[index]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.tensor.dtype.value}{list(self.tensor.extents)})"


class DTensor(Handle):
    """A tensor in device memory: of a kernel graph."""


class STensor(Handle):
    """A tile of a block graph."""


T = TypeVar("T", bound=Handle)


def position(dim: int, handle: Handle) -> int:
    """Return the position of a dim that may be counted from the end."""
    return dim + handle.num_dims if -handle.num_dims <= dim < 0 else dim


class Recorder(Generic[T]):
    """A graph under construction: its steps so far, and operators that add one each."""

    handle: type[T]
    kind = "graph"

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.numbers = itertools.count()

    def new_tensor(self, extents: Extents, dtype: DType, strides: Extents = ()) -> Tensor:
        """Return a tensor with a number of its own in this graph."""
        return Tensor(next(self.numbers), extents, dtype, strides)

    @property
    def frame(self) -> Block | None:
        """Grid and loop of a block graph."""
        return None

    def record(self, step: Step, operands: Sequence[T]) -> list[T]:
        """Add a step applied to operands of this graph and return its results."""
        for operand in operands:
            if not isinstance(operand, Handle) or operand.graph is not self:
                raise MirageError(
                    f"{step.op} of {operand!r}: it is no tensor of this {self.kind}",
                    "operands are what new_input and the graph's own operators return",
                )
        extents = result_extents(step, [o.tensor.extents for o in operands], self.frame)
        outs = tuple(self.new_tensor(e, operands[0].dtype) for e in extents)
        args = tuple(o.tensor.number for o in operands)
        self.steps.append(Step(**{**vars(step), "args": args, "outs": outs}))
        return [self.handle(self, tensor) for tensor in outs]

    def one(self, step: Step, *operands: T) -> T:
        """Add a step with one result."""
        return self.record(step, operands)[0]

    def matmul(self, A: T, B: T) -> T:  # noqa: N803
        """[..., M, K] times [..., K, N]."""
        return self.one(Step("matmul"), A, B)

    def exp(self, A: T) -> T:  # noqa: N803
        """e to the power A."""
        return self.one(Step("exp"), A)

    def log(self, A: T) -> T:  # noqa: N803
        """Natural logarithm."""
        return self.one(Step("log"), A)

    def silu(self, A: T) -> T:  # noqa: N803
        """A * sigmoid(A)."""
        return self.one(Step("silu"), A)

    def sigmoid(self, A: T) -> T:  # noqa: N803
        """1 / (1 + exp(-A))."""
        return self.one(Step("sigmoid"), A)

    def gelu(self, A: T) -> T:  # noqa: N803
        """A times the normal distribution function of A."""
        return self.one(Step("gelu"), A)

    def relu(self, A: T) -> T:  # noqa: N803
        """max(A, 0)."""
        return self.one(Step("relu"), A)

    def tanh(self, A: T) -> T:  # noqa: N803
        """Hyperbolic tangent."""
        return self.one(Step("tanh"), A)

    def sqrt(self, A: T) -> T:  # noqa: N803
        """Square root."""
        return self.one(Step("sqrt"), A)

    def square(self, A: T) -> T:  # noqa: N803
        """A * A."""
        return self.one(Step("square"), A)

    def clamp(self, A: T, min_val: float, max_val: float) -> T:  # noqa: N803
        """max(min(A, max_val), min_val)."""
        return self.one(Step("clamp", numbers=(float(min_val), float(max_val))), A)

    def mul_scalar(self, A: T, scalar: float) -> T:  # noqa: N803
        """A times a number."""
        return self.one(Step("mul_scalar", numbers=(float(scalar),)), A)

    def add(self, A: T, B: T) -> T:  # noqa: N803
        """A + B; dims of extent 1 broadcast."""
        return self.one(Step("add"), A, B)

    def sub(self, A: T, B: T) -> T:  # noqa: N803
        """A - B; dims of extent 1 broadcast."""
        return self.one(Step("sub"), A, B)

    def mul(self, A: T, B: T) -> T:  # noqa: N803
        """A * B; dims of extent 1 broadcast."""
        return self.one(Step("mul"), A, B)

    def div(self, A: T, B: T) -> T:  # noqa: N803
        """A / B; dims of extent 1 broadcast."""
        return self.one(Step("div"), A, B)

    def reduction(self, A: T, dim: int) -> T:  # noqa: N803
        """Sum along a dim, which keeps the extent 1."""
        return self.one(Step("reduction", dim=position(dim, A)), A)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        known = sorted(n for n in dir(type(self)) if not n.startswith("_"))
        raise UnsupportedError(f"a {self.kind} has no {name!r}", f"it has {', '.join(known)}")
