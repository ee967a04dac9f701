"""What tensors fast schedules take and store: those of the kernel's own type."""

from __future__ import annotations

from collections.abc import Collection

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.ir.dtypes import EIGHT_BITS, STORAGE_DTYPES
from mirage_kernels.generator.plan.program import Do, TileProgram

CHUNK_DEPTH = 32  # elements of a row that a block's lanes have at once
_INPUTS = (Do.LOAD, Do.FETCH, Do.READ)  # what takes elements of inputs


def require_own_type(recipe: str, graph: Graph, taken: Collection[DType] = ()) -> None:
    """Raise PlanError for tensors of types that are neither the kernel's own nor `taken`."""
    for name in graph.outputs:
        stored = graph.values[name].type.dtype
        if stored not in STORAGE_DTYPES:
            raise PlanError(f"{recipe}: only general kernels store {stored.value}, as {name} is")
    others = {DType.FP32, DType.INT32, *EIGHT_BITS} - {*taken}
    for node in graph.inputs:
        if node.out.type.dims and node.out.type.dtype in others:
            kind = node.out.type.dtype.value
            raise PlanError(f"{recipe}: only general kernels take {kind}, as {node.name} is")
    if graph.masks:
        raise PlanError(f"{recipe}: only general kernels take masks, as {graph.masks[0]} is")


def require_places(program: TileProgram) -> None:
    """Raise PlanError where inputs of other types than the kernel's own are not read as such.

    Tensors of 8 bits are rows that a loop streams; of fp32 the epilogue reads elements, and such
    rows have an element for several in a group.
    """
    read = (*program.loop, *program.lines, *program.fetches, *program.epilogue)
    for o in program.inputs:
        uses = [s for s in read if s.do in _INPUTS and o.name in s.args]
        if o.type.dtype in EIGHT_BITS and not {*uses} <= {*program.byte_rows}:
            raise PlanError(f"{program.recipe}: only weights have 8 bits here, {o.name} is none")
        if o.grouped and not program.byte_rows:
            raise PlanError(
                f"{program.recipe}: groups are of weights of 8 bits, {o.name} has others"
            )
        if o.grouped and dict(o.grouped).get(program.roles.depth, 1) % CHUNK_DEPTH:
            raise PlanError(
                f"{program.recipe}: {o.name} has groups of no whole {CHUNK_DEPTH} elements"
            )
        if o.type.dtype is DType.FP32 and not {*uses} <= {*program.epilogue, *program.group_reads}:
            raise PlanError(f"{program.recipe}: only epilogues read fp32, as {o.name} is")
