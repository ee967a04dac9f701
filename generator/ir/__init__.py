"""What a tensor program is: element types, the op table, one Graph type for every level."""

from mirage_kernels.generator.ir.build import Builder, retile, with_precision
from mirage_kernels.generator.ir.check import check
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.ir.graph import (
    Axis,
    Dim,
    Graph,
    Level,
    Node,
    Phase,
    Space,
    TensorType,
    Value,
    join_phases,
    parts_of,
    phases_of,
)
from mirage_kernels.generator.ir.infer import count, result_type, tile_type
from mirage_kernels.generator.ir.ops import OPS, Kind, ops_of_kind
from mirage_kernels.generator.ir.text import (
    Json,
    dumps,
    expression,
    from_json,
    number_text,
    to_json,
    to_text,
)

__all__ = [
    "OPS",
    "Axis",
    "Builder",
    "DType",
    "Dim",
    "Graph",
    "Json",
    "Kind",
    "Level",
    "Node",
    "Phase",
    "Space",
    "TensorType",
    "Value",
    "check",
    "count",
    "dumps",
    "expression",
    "from_json",
    "join_phases",
    "number_text",
    "ops_of_kind",
    "parts_of",
    "phases_of",
    "result_type",
    "retile",
    "tile_type",
    "to_json",
    "to_text",
    "with_precision",
]
