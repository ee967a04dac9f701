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
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import cycle, product

import torch
from sanitize_reports import BEGIN, END
from torch import Tensor

from mirage_kernels import (
    KernelEntry,
    constant_history,
    constant_weights,
    kernel_table,
    lora_linear,
    qk_norm_rope_append,
)
from mirage_kernels.generator.bench.workload import TORCH_DTYPES, Inputs
from mirage_kernels.generator.bench.workloads.cache import RECIPES, CacheWorkload
from mirage_kernels.generator.bench.workloads.lists import SEVERAL_TOKENS, Workload
from mirage_kernels.generator.bench.workloads.tensors import TensorWorkload
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.recipe import catalog

DEVICE = "cuda"
TOKENS = (1, 8, 13, 29, 61, 100)
# Query tokens and heads of a group: their product fills every bucket of rows unevenly.
ROWS = ((1, 7), (3, 4), (5, 5), (9, 5), (20, 5))
SHORT = (0, 1, 37, 130)  # less than a step, sequences cut over blocks
LONG = (0, 6000, 1, 2100)  # work items of several sequences
ALONE = (9000,)  # a sequence that the blocks of a cluster share, pipelines that wrap around
MANY, MANY_HEADS = (1024,) * 60, 8  # work tiles that blocks claim
CLAIM = ("gqa/D128", "qk_norm_attention/D128")  # kernels with a variant for them
PAGE_SIZES = (16, 1, 0, 16)  # each kind of lengths gets all of them in turn
WINDOWS = (5, -1, 12, 0, 100)
STARTS = (0, 1, 1, 5, 7)  # of the query tokens of four sequences
# Of the kernel that writes the cache.
APPEND = "qk_norm_rope_append"
DEPTHS = (64, 96, 128, 192, 256)
APPEND_HEADS = (7, 3)  # of queries, of keys and values
APPEND_TOKENS, PAGES, PAGE_SIZE, POSITIONS = 9, 3, 4, 50
Around = Callable[[], AbstractContextManager[None]]


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
        made: list[Tensor] = []
        for promised in (False, True):
            constant_weights(promised)
            constant_history(promised)
            made += results(name, kernels, around)
        bad += sum(not bool(torch.isfinite(y).all()) for y in made)
        torch.cuda.synchronize()
        print(END, name, f"{len(made)} results, {bad} wrong", flush=True)
    return int(bad > 0)


@contextmanager
def filled_workspaces() -> Iterator[None]:
    """Have PyTorch fill what it allocates: of an op that is given its results, the workspace."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def results(name: str, kernels: Mapping[str, KernelEntry], around: Around) -> Iterator[Tensor]:
    """Run all variants of a kernel and yield what they compute."""
    if name not in kernels:
        return of_append(name)
    kernel = kernels[name]
    known = kernel.recipe in RECIPES or kernel.recipe in catalog()
    return of_recipe(kernel, around) if known else of_stacks(kernel, around)


def of_recipe(kernel: KernelEntry, around: Around = nullcontext) -> Iterator[Tensor]:
    """Run all variants of a kernel that serves a recipe and yield what they compute.

    Calls over a cache also with lse and sinks, and with uneven tokens.
    """
    for place, workload in enumerate(workloads(kernel)):
        given = workload.draw(place, DEVICE)
        outs, more = workload.new_outs(given), {}
        if isinstance(workload, CacheWorkload) and place % 2 == 0:
            more = _options(workload, given, outs[0])
        with around():
            workload.ours(given, outs, **more)
        yield from outs
        if "lse" in more:
            yield more["lse"].exp()  # that of no keys is minus infinity
    if isinstance(workload, CacheWorkload):
        yield _uneven(workload, around)


def _options(workload: CacheWorkload, given: Inputs, out: Tensor) -> dict[str, Tensor]:
    """Return tensors that a call over a cache may have besides."""
    lse = {"lse": out.new_empty(out.shape[:-1], dtype=torch.float32)}
    return lse if workload.more else lse | {"sinks": given["q"][0, 0, :, 0].contiguous()}


def of_stacks(kernel: KernelEntry, around: Around) -> Iterator[Tensor]:
    """Run all variants of a kernel for stacked adapters, some tokens without one."""
    rows, depth, rank = (kernel.dims[name] for name in "NKR")
    dtype = TORCH_DTYPES[DType(kernel.dtype)]
    for tokens in TOKENS:
        x, weight = (torch.randn(n, depth, device=DEVICE).to(dtype) for n in (tokens, rows))
        lora_a = torch.randn(3, rank, depth, device=DEVICE).to(dtype)
        lora_b = torch.randn(3, rows, rank, device=DEVICE).to(dtype)
        ids = torch.arange(tokens, device=DEVICE) % 4 - 1
        out = x.new_empty(tokens, rows)
        with around():
            lora_linear(x, weight, lora_a, lora_b, 0.01, adapter_ids=ids, out=out)
        yield out


def workloads(kernel: KernelEntry) -> Iterator[Workload]:
    """Yield calls that the kernel serves, which run all of its variants."""
    if kernel.recipe in RECIPES:
        yield from cache_workloads(kernel)
        return
    for tokens in (m for m in TOKENS if m <= (kernel.max_tokens or m)):
        sizes = {**kernel.dims, "M": tokens}
        yield TensorWorkload(kernel.recipe, sizes, dtype=DType(kernel.dtype))


def cache_workloads(kernel: KernelEntry) -> Iterator[CacheWorkload]:
    """Yield calls over a cache: short and long, paged and dense, with each window."""
    places = cycle(PAGE_SIZES)
    by_place, more = kernel.recipe in SEVERAL_TOKENS, kernel.dims.get("P", 0)
    for (tokens, group), window in zip(ROWS, WINDOWS, strict=True):
        claims = (tokens, group) == ROWS[0] and kernel.name.startswith(CLAIM)
        many = [(MANY, MANY_HEADS)] if claims else []
        for lengths, kv_heads in [(SHORT, 2), (LONG, 4), (ALONE, 2), *many]:
            rows = group if by_place else tokens * group
            yield CacheWorkload(
                kernel.recipe,
                lengths,
                (rows, 1) if more else (rows * kv_heads, kv_heads),
                kernel.dims["C"] if more else kernel.dims["D"],
                more,
                scale=0.1 if more else None,
                page_size=next(places),
                tokens=tokens if by_place else 1,
                window_left=window if by_place else -1,
                logits_soft_cap=20.0 if kernel.recipe == "gqa_full" else 0.0,
                dtype=DType(kernel.dtype),
                setting="sanitizer",
            )


def _uneven(workload: CacheWorkload, around: Around) -> Tensor:
    """Call it with as many query tokens per sequence as STARTS says."""
    paged = replace(workload, lengths=SHORT, page_size=16)
    given = paged.draw(0, DEVICE)
    q = given["q"].new_empty(STARTS[-1], *given["q"].shape[2:]).normal_()
    flat = given | {"q": q[None] if workload.tokens > 1 else q[:, None]}
    starts = torch.tensor(STARTS, dtype=torch.int32, device=DEVICE)
    out = q.new_empty(*q.shape[:-1], workload.depth)
    with around():
        paged.ours(flat, [out], cu_seqlens_q=starts)
    return out


def append_names() -> list[str]:
    """Return a name for each type."""
    return [f"{APPEND}/{dtype.value}" for dtype in TORCH_DTYPES]


def of_append(name: str) -> Iterator[Tensor]:
    """Call each head size with each norm and rotation; yield the queries and the lines written."""
    dtype = TORCH_DTYPES[DType(name.partition("/")[2])]
    for depth, norm, rope in product(DEPTHS, ("rms", "layer"), ("neox", "interleaved")):
        yield from _appended(depth, dtype, norm, rope)


def _appended(depth: int, dtype: torch.dtype, norm: str, rope: str) -> Iterator[Tensor]:
    queries, kv = APPEND_HEADS

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, device=DEVICE).to(dtype)

    caches = [torch.empty(PAGES, PAGE_SIZE, kv, depth, dtype=dtype, device=DEVICE) for _ in "kv"]
    slots = torch.randperm(PAGES * PAGE_SIZE, device=DEVICE)[:APPEND_TOKENS]
    slots[::3] = -1
    biases = {"q_bias": drawn(depth), "k_bias": drawn(depth)} if norm == "layer" else {}
    yield qk_norm_rope_append(
        *(drawn(APPEND_TOKENS, (queries + 2 * kv) * depth), drawn(depth), drawn(depth)),
        torch.randn(POSITIONS, depth, device=DEVICE),
        torch.arange(APPEND_TOKENS, device=DEVICE),
        *(*caches, slots),
        num_heads=queries,
        num_kv_heads=kv,
        norm=norm,
        rope=rope,
        **biases,
    )
    for cache in caches:
        yield cache.flatten(0, 1)[slots[slots >= 0]]


if __name__ == "__main__":
    sys.exit(main())
