"""Calls every compiled kernel variant once, for compute-sanitizer to watch.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python benchmarks/sanitize.py

Tokens fill every bucket unevenly; x ends where its allocation ends, so that reading past it shows.
`initcheck` watches for reads of memory that nothing wrote, `racecheck` and `synccheck` the ring and
the sums that meet in shared memory.
"""

from __future__ import annotations

import sys

import torch

from mirage_kernels import kernel_table, rms_norm_linear

TOKENS = (1, 8, 13, 29, 61, 67)
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def main() -> int:
    """Run every variant of every kernel; return 1 if a result is not finite."""
    bad = 0
    for entry in kernel_table():
        depth, features, dtype = entry.dims["K"], entry.dims["N"], DTYPES[entry.dtype]
        weight = torch.randn(features, depth, device="cuda").to(dtype) / depth**0.5
        norm_weight = torch.ones(depth, device="cuda", dtype=dtype)
        for tokens in TOKENS:
            x = torch.randn(tokens, depth, device="cuda").to(dtype)
            y = rms_norm_linear(x, norm_weight, weight, 1e-6)
            bad += not bool(torch.isfinite(y).all())
    print(f"{len(kernel_table())} kernels at {len(TOKENS)} token counts each, {bad} not finite")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
