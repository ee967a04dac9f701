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
from mirage_kernels.generator.bench.workloads.calls import ATTENTION, CallWorkload
from mirage_kernels.generator.bench.workloads.tensors import Tensors, drawn, ours
from mirage_kernels.generator.bench.workloads.tokens import TORCH_DTYPES, Workload
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.recipe import catalog

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
        made: list[torch.Tensor] = []
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


def results(
    name: str, kernels: Mapping[str, KernelEntry], around: Around
) -> Iterator[torch.Tensor]:
    """Run all variants of a kernel and yield what they compute."""
    if name not in kernels:
        yield from of_append(name)
        return
    kernel = kernels[name]
    if kernel.recipe in ATTENTION:
        yield from of_calls(kernel, around)
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


def workloads(kernel: KernelEntry) -> Iterator[CallWorkload]:
    """Yield calls that the kernel serves: short and long, paged and dense, with each window."""
    places = cycle(PAGE_SIZES)
    by_place = kernel.recipe in ("sliding_window_attention", "gqa_full")
    for (tokens, group), window in zip(ROWS, WINDOWS, strict=True):
        claims = (tokens, group) == ROWS[0] and kernel.name.startswith(CLAIM)
        many = [(MANY, MANY_HEADS)] if claims else []
        for lengths, kv_heads in [(SHORT, 2), (LONG, 4), (ALONE, 2), *many]:
            rows = group if by_place else tokens * group
            more = kernel.dims.get("P", 0)
            yield CallWorkload(
                kernel.recipe,
                "sanitizer",
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
            )


def of_calls(
    kernel: KernelEntry, around: Around = nullcontext, device: str = "cuda"
) -> Iterator[Tensor]:
    """Call the kernel and yield what it computes: alone, with lse and sinks, with uneven tokens."""
    for place, workload in enumerate(workloads(kernel)):
        given = drawn(workload, place, device)
        shape = given.q.shape if workload.tokens > 1 else given.q[:, 0].shape
        out = given.q.new_empty(*shape[:-1], workload.depth)
        extra = {"out": out}
        if place % 2 == 0:
            extra["lse"] = out.new_empty(shape[:-1], dtype=torch.float32)
            if not workload.more:
                extra["sinks"] = given.q[0, 0, :, 0].contiguous()
        with around():
            ours(workload, given, **extra)
        yield out
        if "lse" in extra:
            yield extra["lse"].exp()  # that of no keys is minus infinity
    yield _uneven(workload, around, device)


def _uneven(workload: CallWorkload, around: Around, device: str) -> Tensor:
    """Call it with as many query tokens per sequence as STARTS says."""
    paged = replace(workload, lengths=SHORT, page_size=16)
    given = drawn(paged, 0, device)
    q = given.q.new_empty(STARTS[-1], *given.q.shape[2:]).normal_()
    flat: Tensors = replace(given, q=q[None] if workload.tokens > 1 else q[:, None])
    starts = torch.tensor(STARTS, dtype=torch.int32, device=device)
    out = flat.q.new_empty(*q.shape[:-1], workload.depth)
    with around():
        ours(paged, flat, cu_seqlens_q=starts, out=out)
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
        return torch.randn(shape, device="cuda").to(dtype)

    caches = [torch.empty(PAGES, PAGE_SIZE, kv, depth, dtype=dtype, device="cuda") for _ in "kv"]
    slots = torch.randperm(PAGES * PAGE_SIZE, device="cuda")[:APPEND_TOKENS]
    slots[::3] = -1
    biases = {"q_bias": drawn(depth), "k_bias": drawn(depth)} if norm == "layer" else {}
    yield qk_norm_rope_append(
        *(drawn(APPEND_TOKENS, (queries + 2 * kv) * depth), drawn(depth), drawn(depth)),
        torch.randn(POSITIONS, depth, device="cuda"),
        torch.arange(APPEND_TOKENS, device="cuda"),
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
