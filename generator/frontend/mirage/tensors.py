"""What kernel and block graphs have in common: tensors as handles, operators as methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.positional.program import Extents, Step, Tensor
from mirage_kernels.generator.frontend.positional.recorder import Recorder
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

    def position(self, dim: int) -> int:
        """Return the position of a dim that may be counted from the end."""
        return dim + self.num_dims if -self.num_dims <= dim < 0 else dim

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.tensor.dtype.value}{list(self.tensor.extents)})"


class DTensor(Handle):
    """A tensor in device memory: of a kernel graph."""


class STensor(Handle):
    """A tile of a block graph."""


T = TypeVar("T", bound=Handle)


def _unary(op: str, meaning: str) -> Callable[[MirageGraph[T], T], T]:
    def method(self: MirageGraph[T], A: T) -> T:  # noqa: N803
        return self.one(Step(op), A)

    method.__name__, method.__doc__ = op, meaning
    return method


def _binary(op: str, meaning: str) -> Callable[[MirageGraph[T], T, T], T]:
    def method(self: MirageGraph[T], A: T, B: T) -> T:  # noqa: N803
        return self.one(Step(op), A, B)

    method.__name__, method.__doc__ = op, meaning
    return method


class MirageGraph(Generic[T]):
    """A graph under construction: a recorder, and operators that add one step each."""

    handle: type[T]
    kind = "graph"

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def require_own(self, tensors: Sequence[Handle], what: str, hint: str = "") -> None:
        """Raise MirageError for a tensor of another graph, or none at all."""
        for tensor in tensors:
            if not isinstance(tensor, Handle) or tensor.graph is not self:
                raise MirageError(
                    f"{what} of {tensor!r}: it is no tensor of this {self.kind}", hint
                )

    def record(self, step: Step, operands: Sequence[T]) -> list[T]:
        """Add a step applied to operands of this graph and return its results."""
        hint = "operands are what new_input and the graph's own operators return"
        self.require_own(operands, step.op, hint)
        made = self.recorder.apply(step, [o.tensor for o in operands])
        return [self.handle(self, tensor) for tensor in made]

    def one(self, step: Step, *operands: T) -> T:
        """Add a step with one result."""
        return self.record(step, operands)[0]

    def over(self, op: str, A: T, dim: int, size: int = 1) -> Step:  # noqa: N803
        """Return an operator over one dim of a tensor of this graph."""
        return Step(op, dim=A.position(dim) if isinstance(A, Handle) else dim, size=size)

    matmul = _binary("matmul", "[..., M, K] times [..., K, N].")
    add = _binary("add", "A + B; dims of extent 1 broadcast.")
    sub = _binary("sub", "A - B; dims of extent 1 broadcast.")
    mul = _binary("mul", "A * B; dims of extent 1 broadcast.")
    div = _binary("div", "A / B; dims of extent 1 broadcast.")
    exp = _unary("exp", "e to the power A.")
    log = _unary("log", "Natural logarithm.")
    silu = _unary("silu", "A * sigmoid(A).")
    sigmoid = _unary("sigmoid", "1 / (1 + exp(-A)).")
    gelu = _unary("gelu", "A times the normal distribution function of A.")
    relu = _unary("relu", "max(A, 0).")
    tanh = _unary("tanh", "Hyperbolic tangent.")
    sqrt = _unary("sqrt", "Square root.")
    square = _unary("square", "A * A.")

    def clamp(self, A: T, min_val: float, max_val: float) -> T:  # noqa: N803
        """max(min(A, max_val), min_val)."""
        return self.one(Step("clamp", numbers=(float(min_val), float(max_val))), A)

    def mul_scalar(self, A: T, scalar: float) -> T:  # noqa: N803
        """A times a number."""
        return self.one(Step("mul_scalar", numbers=(float(scalar),)), A)

    def reduction(self, A: T, dim: int) -> T:  # noqa: N803
        """Sum along a dim, which keeps the extent 1."""
        return self.one(self.over("reduction", A, dim), A)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        known = sorted(n for n in dir(type(self)) if not n.startswith("_"))
        raise UnsupportedError(f"a {self.kind} has no {name!r}", f"it has {', '.join(known)}")
