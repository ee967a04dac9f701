"""Element types: their names in every language the generator speaks, and their sizes."""

from __future__ import annotations

from enum import Enum


class DType(Enum):
    """An element type; the value is its name in JSON, on the command line and in file names."""

    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"
    INT32 = "int32"
    BOOL = "bool"

    @property
    def bytes(self) -> int:
        """Size of one element in bytes."""
        return {"fp16": 2, "bf16": 2, "fp32": 4, "int32": 4, "bool": 1}[self.value]

    @property
    def is_real(self) -> bool:
        """Whether elements stand for real numbers (and not for positions or truth values)."""
        return self not in (DType.INT32, DType.BOOL)


STORAGE_DTYPES = (DType.FP16, DType.BF16)


def wider(a: DType, b: DType) -> DType:
    """Return the type that holds the result of arithmetic on `a` and `b`."""
    if a is b:
        return a
    if a.is_real and b.is_real:
        return DType.FP32
    return a if a.is_real else b
