"""Rotation of queries and keys by position (RoPE), and the write of keys and values to a cache.

What rotates with each other are two inputs, so that a kernel serves both orders of their elements:
`q_first` and `q_second` are views of one tensor, of its halves (neox) or of every other element
(interleaved). `q_rest` is not rotated; it may have no elements. Heads, head sizes and how many
elements rotate are known at run time only: one kernel of a type serves all models.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mirage_kernels.generator.ir import Dim, Indexed
from mirage_kernels.generator.language import Tensor
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch

MOST_ROWS = 2**31 - 1  # of the table and of the caches
Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _count(name: str) -> Dim:
    return Dim(name, MOST_ROWS, dynamic=True)


def _by_position(table: str) -> Indexed:
    """Return how rows of a table are found; NaN shows a position outside of it."""
    rows = _count("table_rows")
    return Indexed(table, ("M",), 0, rows, "positions", "int", unknown_is_nan=True)


def _by_slot(result: int) -> Indexed:
    """Return how rows of a cache are found: a slot is page * page size + offset, -1 is padding."""
    pages, page = _count("pages"), _count("page_size")
    return Indexed(f"result_{result}", ("M",), 0, pages, "slots", "int", page=page)


def reference(
    q_first: torch.Tensor,
    q_second: torch.Tensor,
    q_rest: torch.Tensor,
    k_first: torch.Tensor,
    k_second: torch.Tensor,
    k_rest: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """PyTorch's own unfused program, of the rows of the table and for those of the caches."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    q = (q_first * cos - q_second * sin, q_second * cos + q_first * sin, q_rest * 1.0)
    k = (k_first * cos - k_second * sin, k_second * cos + k_first * sin, k_rest * 1.0)
    return tuple(x.to(v.dtype) for x in (*q, *k, v * 1.0))


@recipe(
    inputs={
        "q_first": "M Hq P",
        "q_second": "M Hq P",
        "q_rest": "M Hq S",
        "k_first": "M Hkv P",
        "k_second": "M Hkv P",
        "k_rest": "M Hkv S",
        "v": "M Hkv D",
        "cos": "M P",
        "sin": "M P",
    },
    output="M Hq P",
    also={
        "q_turned": "M Hq P",
        "q_kept": "M Hq S",
        "k_written": "M Hkv P",
        "k_turned": "M Hkv P",
        "k_kept": "M Hkv S",
        "v_written": "M Hkv D",
    },
    dynamic={"M": MOST_ROWS, "Hq": 1024, "Hkv": 256, "P": 512, "S": 1024, "D": 1024},
    typical={"M": 64, "Hq": 32, "Hkv": 8, "P": 64, "S": 64, "D": 128},
    strided=True,
    indexed=(_by_position("cos"), _by_position("sin"), *map(_by_slot, (3, 4, 5, 6))),
    independent=(2, 1, 2, 1, 1),
    reference=reference,
    shapes=(shape("Llama, Mistral, Qwen2, Phi-3: every model with rotary positions"),),
)
def rope_cache_write(
    q_first: Tensor,
    q_second: Tensor,
    q_rest: Tensor,
    k_first: Tensor,
    k_second: Tensor,
    k_rest: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
) -> Results:
    """q and k rotated by position; k and v written to a paged cache."""
    q = (q_first * cos - q_second * sin, q_second * cos + q_first * sin, q_rest * 1.0)
    k = (k_first * cos - k_second * sin, k_second * cos + k_first * sin, k_rest * 1.0)
    return (*q, *k, v * 1.0)


rope_cache_write_fp32 = replace(
    rope_cache_write,
    name="rope_cache_write_fp32",
    inputs={**rope_cache_write.inputs, "cos": "M P:fp32", "sin": "M P:fp32"},
    summary="the same, by cosines and sines in fp32",
)
