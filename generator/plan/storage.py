"""What tensors fast schedules take and store: those of the kernel's own type."""

from __future__ import annotations

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.ir.dtypes import EIGHT_BITS


def require_own_type(recipe: str, graph: Graph) -> None:
    """Raise PlanError for masks that are inputs, other tensors of another type, fp32 results."""
    wide = [name for name in graph.outputs if graph.values[name].type.dtype is DType.FP32]
    if wide:
        raise PlanError(f"{recipe}: only general kernels store fp32, as {wide[0]} is")
    for node in graph.inputs:
        if node.out.type.dims and node.out.type.dtype in (DType.FP32, *EIGHT_BITS):
            kind = node.out.type.dtype.value
            raise PlanError(f"{recipe}: only general kernels take {kind}, as {node.name} is")
    if graph.masks:
        raise PlanError(f"{recipe}: only general kernels take masks, as {graph.masks[0]} is")
