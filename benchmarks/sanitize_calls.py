"""Calls every variant of the kernels named, for compute-sanitizer to watch.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck \
        python benchmarks/sanitize_calls.py rms_norm_linear/K4096_N6144_fp16

benchmarks/sanitize.py starts it for all of them, with nothing promised and then with both promises.
Tokens fill every bucket unevenly, up to what a
kernel serves; x ends where its allocation ends, so that reading past it shows. Results lie in
memory that nothing has written. With `--filled` an op's workspace, which alone it allocates itself,
has been: its flags are read before anyone writes them, and a nonce tells whether they are valid.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext

import sanitize_append
import sanitize_attention
import torch
from sanitize_reports import BEGIN, END
from sanitize_watch import Around, filled_workspaces

from mirage_kernels import (
    KernelEntry,
    constant_history,
    constant_weights,
    kernel_table,
    lora_linear,
)
from mirage_kernels.generator.bench.attention_workloads import ATTENTION
from mirage_kernels.generator.commands.workload import TORCH_DTYPES, Workload
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.recipe import catalog

TOKENS = (1, 8, 13, 29, 61, 100)


def main() -> int:
    """Call the kernels, each between two lines that say so; return 1 if a result is not finite."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--filled", action="store_true", help="fill workspaces before each call")
    arguments = parser.parse_args()
    kernels = {kernel.name: kernel for kernel in kernel_table()}
    around = filled_workspaces if arguments.filled else nullcontext
    bad = 0
    for name in arguments.names:
        print(BEGIN, name, flush=True)
        made: list[torch.Tensor] = []
        for promised in (False, True):
            constant_weights(promised)
            constant_history(promised)
            made += results(name, kernels, around)
        bad += sum(not bool(torch.isfinite(y).all()) for y in made)
        torch.cuda.synchronize()
        print(END, name, f"{len(made)} results, {bad} wrong", flush=True)
    return int(bad > 0)


def results(
    name: str, kernels: Mapping[str, KernelEntry], around: Around
) -> Iterator[torch.Tensor]:
    """Run all variants of a kernel and yield what they compute."""
    if name not in kernels:
        yield from sanitize_append.results(name)
        return
    kernel = kernels[name]
    if kernel.recipe in ATTENTION:
        yield from sanitize_attention.results(kernel, around)
    elif kernel.recipe in catalog():
        yield from of_recipe(kernel, around)
    else:
        yield from of_stacks(kernel, around)


def of_recipe(kernel: KernelEntry, around: Around) -> Iterator[torch.Tensor]:
    """Run all variants of a kernel that serves a recipe, with weights given once."""
    source, dtype = catalog()[kernel.recipe], DType(kernel.dtype)
    for tokens in (m for m in TOKENS if m <= (kernel.max_tokens or m)):
        work = Workload(source, dtype, {**kernel.dims, "M": tokens}, "cuda")
        inputs = work.inputs(0)
        shapes = [[work.sizes[dim] for dim in dims.split()] for dims in source.results]
        out = tuple(inputs[0].new_empty(shape) for shape in shapes)
        ours_into = work.subject().ours_into
        assert ours_into is not None
        with around():
            ours_into(out if len(out) > 1 else out[0], *inputs)
        yield from out


def of_stacks(kernel: KernelEntry, around: Around) -> Iterator[torch.Tensor]:
    """Run all variants of a kernel for stacked adapters, some tokens without one."""
    rows, depth, rank = (kernel.dims[name] for name in "NKR")
    dtype = TORCH_DTYPES[DType(kernel.dtype)]
    for tokens in TOKENS:
        x, weight = (torch.randn(n, depth, device="cuda").to(dtype) for n in (tokens, rows))
        lora_a = torch.randn(3, rank, depth, device="cuda").to(dtype)
        lora_b = torch.randn(3, rows, rank, device="cuda").to(dtype)
        ids = torch.arange(tokens, device="cuda") % 4 - 1
        out = x.new_empty(tokens, rows)
        with around():
            lora_linear(x, weight, lora_a, lora_b, 0.01, adapter_ids=ids, out=out)
        yield out


if __name__ == "__main__":
    sys.exit(main())
