"""Calls every compiled kernel variant once, for compute-sanitizer to watch.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python benchmarks/sanitize.py

`--kernel-name kernel_substring=mirage` keeps racecheck from watching PyTorch's own kernels. Tokens
fill every bucket unevenly, up to what a kernel serves; x ends where its allocation ends, so that
reading past it shows. `initcheck` watches for reads of memory that nothing wrote, `racecheck` and
`synccheck` the ring and the sums that meet in shared memory. `--largest N` leaves out kernels with
weights of more elements, `--only TEXT` those without TEXT in their names. Attention
kernels get calls of their own, small ones: `sanitize_attention.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from math import prod

import sanitize_attention
import torch

from mirage_kernels import KernelEntry, constant_weights, kernel_table, lora_linear
from mirage_kernels.generator.attention_workloads import ATTENTION
from mirage_kernels.generator.commands.workload import Workload
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.recipe import catalog

TOKENS = (1, 8, 13, 29, 61)


def main() -> int:
    """Run every variant of every kernel; return 1 if a result is not finite."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=1 << 40, metavar="N")
    parser.add_argument("--only", default="", metavar="TEXT")
    arguments = parser.parse_args()
    small = [k for k in kernel_table() if prod(k.dims.values()) <= arguments.largest]
    chosen = [k for k in small if arguments.only in k.name]
    constant_weights()
    finite = [bool(torch.isfinite(y).all()) for kernel in chosen for y in results(kernel)]
    bad = finite.count(False)
    print(f"{len(chosen)} kernels, {len(finite)} calls, {bad} not finite")
    return int(bad > 0)


def results(kernel: KernelEntry) -> Iterator[torch.Tensor]:
    """Run all variants of a kernel and yield what they compute."""
    if kernel.recipe in ATTENTION:
        yield from sanitize_attention.results(kernel)
        return
    if kernel.recipe not in catalog():
        yield from of_stacks(kernel)
        return
    source, dtype = catalog()[kernel.recipe], DType(kernel.dtype)
    for tokens in (m for m in TOKENS if m <= (kernel.max_tokens or m)):
        work = Workload(source, dtype, {**kernel.dims, "M": tokens}, "cuda")
        found = work.subject().ours(*work.inputs(0))
        yield from found if isinstance(found, tuple) else (found,)


def of_stacks(kernel: KernelEntry) -> Iterator[torch.Tensor]:
    """Run all variants of a kernel for stacked adapters, some tokens without one."""
    rows, depth, rank = (kernel.dims[name] for name in "NKR")
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[kernel.dtype]
    for tokens in (*TOKENS, 67):
        x, weight = (torch.randn(n, depth, device="cuda").to(dtype) for n in (tokens, rows))
        lora_a = torch.randn(3, rank, depth, device="cuda").to(dtype)
        lora_b = torch.randn(3, rows, rank, device="cuda").to(dtype)
        ids = torch.arange(tokens, device="cuda") % 4 - 1
        yield lora_linear(x, weight, lora_a, lora_b, 0.01, adapter_ids=ids)


if __name__ == "__main__":
    sys.exit(main())
