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
    INT8 = "int8"
    UINT8 = "uint8"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"

    @property
    def bytes(self) -> int:
        """Size of one element in bytes."""
        return {DType.FP16: 2, DType.BF16: 2, DType.FP32: 4, DType.INT32: 4}.get(self, 1)

    @property
    def is_real(self) -> bool:
        """Whether elements stand for real numbers (and not for positions or truth values)."""
        return self not in (DType.INT32, DType.BOOL)


STORAGE_DTYPES = (DType.FP16, DType.BF16)
# Real numbers, each of which fp16 and bf16 hold: of quantized weights, and of results but uint8.
EIGHT_BITS = (DType.INT8, DType.UINT8, DType.FP8_E4M3, DType.FP8_E5M2)


def wider(a: DType, b: DType) -> DType:
    """Return the type that holds the result of arithmetic on `a` and `b`."""
    if a is b:
        return a
    if a.is_real and b.is_real:
        return DType.FP32
    return a if a.is_real else b
