"""Small calls of the kernel that writes the cache, for compute-sanitizer to watch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from mirage_kernels import qk_norm_rope_append
from mirage_kernels.generator.commands.workload import TORCH_DTYPES
from mirage_kernels.generator.ir.dtypes import DType

NAME = "qk_norm_rope_append"
DEPTHS = (64, 96, 128, 192, 256)
HEADS = (7, 3)  # of queries, of keys and values
TOKENS, PAGES, PAGE_SIZE, POSITIONS = 9, 3, 4, 50


def names() -> list[str]:
    """Return a name for each type."""
    return [f"{NAME}/{dtype.value}" for dtype in TORCH_DTYPES]


def results(name: str) -> Iterator[Tensor]:
    """Call each head size with each norm and rotation; yield the queries and the lines written."""
    dtype = TORCH_DTYPES[DType(name.partition("/")[2])]
    for depth, norm, rope in product(DEPTHS, ("rms", "layer"), ("neox", "interleaved")):
        yield from _of_call(depth, dtype, norm, rope)


def _of_call(depth: int, dtype: torch.dtype, norm: str, rope: str) -> Iterator[Tensor]:
    queries, kv = HEADS

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda").to(dtype)

    caches = [torch.empty(PAGES, PAGE_SIZE, kv, depth, dtype=dtype, device="cuda") for _ in "kv"]
    slots = torch.randperm(PAGES * PAGE_SIZE, device="cuda")[:TOKENS]
    slots[::3] = -1
    biases = {"q_bias": drawn(depth), "k_bias": drawn(depth)} if norm == "layer" else {}
    yield qk_norm_rope_append(
        *(drawn(TOKENS, (queries + 2 * kv) * depth), drawn(depth), drawn(depth)),
        torch.randn(POSITIONS, depth, device="cuda"),
        torch.arange(TOKENS, device="cuda"),
        *(*caches, slots),
        num_heads=queries,
        num_kv_heads=kv,
        norm=norm,
        rope=rope,
        **biases,
    )
    for cache in caches:
        yield cache.flatten(0, 1)[slots[slots >= 0]]
