"""Element types of tensors: what ops take, and what signatures of programs call them."""

from __future__ import annotations

import torch

HALVES = (torch.float16, torch.bfloat16)
INDICES = (torch.int32, torch.int64)
TYPES = {  # by their names in signatures
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "int32": torch.int32,
    "int64": torch.int64,
    "bool": torch.bool,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
