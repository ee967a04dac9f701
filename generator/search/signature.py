"""What a muGraph declares to the world must be what its recipe declares: emission bakes it in.

The proof gives both sides the same inputs in order and evaluates them at extents of its own, so it
sees neither names nor declared extents.
"""

from __future__ import annotations

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import DType, Graph, Node, TensorType


def require_signature(spec: Graph, candidate: Graph) -> None:
    """Raise VerifyError unless inputs and results are declared as the recipe's, in order.

    Names, dims with their extents and what may be left out are compared, and whether inputs are
    real numbers; storage types are the numeric gate's to compare.
    """
    wanted = [_declared(n) for n in spec.inputs]
    found = [_declared(n) for n in candidate.inputs]
    for ours, theirs in zip(wanted, found, strict=False):
        if ours != theirs:
            raise VerifyError(f"its input {theirs} is {ours} in the recipe")
    if len(found) != len(wanted):
        raise VerifyError(f"{len(found)} inputs instead of {len(wanted)}")
    if len(candidate.outputs) != len(spec.outputs):
        raise VerifyError(f"{len(candidate.outputs)} results instead of {len(spec.outputs)}")
    for ours, theirs in zip(spec.outputs, candidate.outputs, strict=True):
        dims, given = spec.values[ours].type, candidate.values[theirs].type
        if dims.dims != given.dims:
            raise VerifyError(
                f"its result {theirs} has dims {_dims(given)}, in the recipe {_dims(dims)}"
            )


def require_storage(spec: Graph, candidate: Graph, dtype: DType) -> None:
    """Raise VerifyError unless inputs are stored as the recipe's, and results as `dtype`."""
    for ours, theirs in zip(spec.inputs, candidate.inputs, strict=True):
        if ours.out.type.dtype is not theirs.out.type.dtype:
            raise VerifyError(
                f"its input {theirs.name} is {theirs.out.type.dtype.value}, "
                f"in the recipe {ours.out.type.dtype.value}"
            )
    for name in candidate.outputs:
        stored = candidate.values[name].type.dtype
        if stored is not dtype:
            raise VerifyError(f"its result {name} is {stored.value}, not {dtype.value}")


def _declared(node: Node) -> str:
    """Return what is compared of an input, as it is shown: `optional bias [N=4096]`."""
    type_ = node.out.type
    kind = "" if type_.dtype.is_real else f" {type_.dtype.value}"
    return f"{'optional ' * node.optional}{node.name}{kind} [{_dims(type_)}]"


def _dims(type_: TensorType) -> str:
    return ", ".join(map(str, type_.dims))
