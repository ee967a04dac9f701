"""Numbers and elementwise operators in CUDA: in fp32, of whole numbers as such."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_kernels.generator.emit.statements import vocabulary
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import OPS, DType, Kind, Node

_ON_NUMBERS = {  # truth values are 1 and 0
    "less": "{0} < {1} ? 1.0f : 0.0f",
    "both": "{0} != 0.0f && {1} != 0.0f ? 1.0f : 0.0f",
    "where": "{0} != 0.0f ? {1} : {2}",
    "last": "{0}",
}
_ON_WHOLE = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "max": "max({0}, {1})",
    "last": "{0}",
}


def computed_in(dtype: DType) -> str:
    """Return the type that values are computed in."""
    return "int" if dtype is DType.INT32 else "float"


def constant(value: float, dtype: DType = DType.FP32) -> str:
    """Return a number of a type."""
    if dtype is DType.INT32:
        return f"{int(value)}"
    if value in (float("inf"), -float("inf")):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{float(value)!r}f"


def operation(node: Node, args: Sequence[str]) -> str:
    """Return what a node computes of operands; raises PlanError for one that is no formula."""
    whole = node.out.type.dtype is DType.INT32
    table, op = _ON_WHOLE if whole else _ON_NUMBERS, node.op
    if op in table:
        return table[op].format(*args)
    if whole or OPS[op].kind is not Kind.ELEMENTWISE:
        raise PlanError(f"no statement of a tile program computes {op!r}")
    return f"{'general' if op == 'exp' else 'tile'}::{vocabulary(op)}({', '.join(args)})"
