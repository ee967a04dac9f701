"""Calls every compiled kernel variant once, for compute-sanitizer to watch.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python benchmarks/sanitize.py

`--kernel-name kernel_substring=mirage` keeps racecheck from watching PyTorch's own kernels. Tokens
fill every bucket unevenly, up to what a kernel serves; x ends where its allocation ends, so that
reading past it shows. `initcheck` watches for reads of memory that nothing wrote, `racecheck` and
`synccheck` the ring and the sums that meet in shared memory. `--largest N` leaves out kernels with
weights of more elements.
"""

from __future__ import annotations

import argparse
import sys
from math import prod

import torch

from mirage_kernels import KernelEntry, constant_weights, kernel_table
from mirage_kernels.generator.commands.workload import Workload
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.recipe import catalog

TOKENS = (1, 8, 13, 29, 61)


def main() -> int:
    """Run every variant of every kernel; return 1 if a result is not finite."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=1 << 40, metavar="N")
    arguments = parser.parse_args()
    chosen = [k for k in kernel_table() if prod(k.dims.values()) <= arguments.largest]
    constant_weights()
    calls = [(k, m) for k in chosen for m in TOKENS if m <= (k.max_tokens or m)]
    bad = sum(not finite(kernel, tokens) for kernel, tokens in calls)
    print(f"{len(chosen)} kernels, {len(calls)} calls, {bad} not finite")
    return int(bad > 0)


def finite(kernel: KernelEntry, tokens: int) -> bool:
    """Run a kernel and say whether its result is finite."""
    work = Workload(
        catalog()[kernel.recipe], DType(kernel.dtype), {**kernel.dims, "M": tokens}, "cuda"
    )
    return bool(torch.isfinite(work.subject().ours(*work.inputs(0))).all())


if __name__ == "__main__":
    sys.exit(main())
