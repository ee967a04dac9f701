"""Rotation of queries and keys by position (RoPE), and the write of keys and values to a cache.

What rotates with each other are two inputs, so that a kernel serves both orders of their elements:
`q_first` and `q_second` are views of one tensor, of its halves (neox) or of every other element
(interleaved). `q_rest` is not rotated; it may have no elements. Heads, head sizes and how many
elements rotate are known at run time only: one kernel of a type serves all models.

Where all elements of a head rotate and its size is static, the kernel has no ends of rows to look
for. So it is where models norm each head of queries and keys first, as the sum of squares is over a
head (Qwen3; Gemma 3, whose weights are stored less 1: `weight_offset` is 1 there).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mirage_kernels.generator.ir import Dim, Indexed
from mirage_kernels.generator.language import Tensor, mean, sqrt, square
from mirage_kernels.generator.recipe import Recipe, form, options, recipe, shape

if TYPE_CHECKING:
    import torch

MOST_ROWS = 2**31 - 1  # of the table and of the caches
Halves = tuple[Tensor, Tensor]
MaybeHalves = tuple[Tensor | None, Tensor | None]


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


def addressed(forms: Sequence[Recipe]) -> tuple[Recipe, ...]:
    """Return forms whose tables and caches have their rows by index, with tables of both types."""
    return tuple(one for plain in forms for one in _of_both_types(plain))


def _of_both_types(plain: Recipe) -> tuple[Recipe, Recipe]:
    names = ("q_written", *plain.also)
    caches = [i for i, name in enumerate(names) if not name.startswith("q_")]
    tables = (_by_position("cos"), _by_position("sin"))
    own = replace(plain, indexed=(*tables, *map(_by_slot, caches)))
    if "q_rest" in plain.inputs:
        own = replace(own, independent=(2, 1, 2, 1, 1))
    else:
        dynamic = {dim: bound for dim, bound in own.dynamic.items() if dim not in ("P", "D")}
        typical = {dim: own.typical[dim] for dim in dynamic}
        own = replace(own, independent=(2, 2, 1), dynamic=dynamic, typical=typical)
    wide = replace(
        own,
        name=f"{own.name}_fp32",
        inputs={**own.inputs, "cos": "M P:fp32", "sin": "M P:fp32"},
        summary=f"{own.summary}; cosines and sines are fp32",
    )
    return own, wide


def reference(
    q_first: torch.Tensor,
    q_second: torch.Tensor,
    k_first: torch.Tensor,
    k_second: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_rest: torch.Tensor | None = None,
    k_rest: torch.Tensor | None = None,
    q_first_weight: torch.Tensor | None = None,
    q_second_weight: torch.Tensor | None = None,
    k_first_weight: torch.Tensor | None = None,
    k_second_weight: torch.Tensor | None = None,
    eps: float = 0.0,
    weight_offset: float = 0.0,
) -> tuple[torch.Tensor, ...]:
    """PyTorch's own unfused program, of the rows of the table and for those of the caches."""
    from torch import cat
    from torch.nn.functional import rms_norm

    c, s = cos.unsqueeze(1), sin.unsqueeze(1)
    made: list[torch.Tensor] = []
    for halves, rest, weights in (
        ((q_first, q_second), q_rest, (q_first_weight, q_second_weight)),
        ((k_first, k_second), k_rest, (k_first_weight, k_second_weight)),
    ):
        first, second = halves
        if weights[0] is not None and weights[1] is not None:
            scale = cat([weights[0], weights[1]]) + weight_offset
            first, second = rms_norm(cat(halves, -1), scale.shape, scale, eps).chunk(2, -1)
        made += [first * c - second * s, second * c + first * s]
        made += [] if rest is None else [rest * 1.0]
    return tuple(x.to(v.dtype) for x in (*made, v * 1.0))


@addressed
@options(
    {
        "q_rest": "q_kept k_rest k_kept S",
        "q_first_weight": "q_second_weight k_first_weight k_second_weight eps weight_offset",
    },
    form(
        "rope_cache_write",
        "q_rest",
        summary="q and k rotated by position; k and v written to a paged cache",
        shapes=(shape("Llama, Mistral, Qwen2, Phi-3: every model with rotary positions"),),
    ),
    form(
        "static_rope_cache_write",
        summary="q and k, all of their elements, rotated by position; k and v written to a paged "
        "cache",
        shapes=(
            shape("Llama-3-8B, Mistral-7B, Qwen2-7B", P=64, D=128),
            shape("Llama-3.2-1B", P=32, D=64),
        ),
    ),
    form(
        "rms_norm_rope_cache_write",
        "q_first_weight",
        summary="heads of q and k divided by sqrt(mean of squares + eps), times weight + "
        "weight_offset, then rotated by position; k and v written to a paged cache",
        shapes=(
            shape("Qwen3-8B and Qwen3-32B; Gemma-3-27B (weight_offset is 1)", P=64, D=128),
            shape("Gemma-3-4B and Gemma-3-12B (weight_offset is 1)", P=128, D=256),
        ),
    ),
)
@recipe(
    inputs={
        "q_first": "M Hq P",
        "q_second": "M Hq P",
        "k_first": "M Hkv P",
        "k_second": "M Hkv P",
        "v": "M Hkv D",
        "cos": "M P",
        "sin": "M P",
        "q_rest": "M Hq S",
        "k_rest": "M Hkv S",
        "q_first_weight": "P",
        "q_second_weight": "P",
        "k_first_weight": "P",
        "k_second_weight": "P",
        "eps": "",
        "weight_offset": "",
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
    scalars={"eps": 1e-6, "weight_offset": 1.0},
    strided=True,
    reference=reference,
)
def rope_cache_write(
    q_first: Tensor,
    q_second: Tensor,
    k_first: Tensor,
    k_second: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_rest: Tensor | None = None,
    k_rest: Tensor | None = None,
    q_first_weight: Tensor | None = None,
    q_second_weight: Tensor | None = None,
    k_first_weight: Tensor | None = None,
    k_second_weight: Tensor | None = None,
    eps: Tensor | None = None,
    weight_offset: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """q and k rotated by position, after a norm of each head or not; k and v written to a cache."""
    by = (eps, weight_offset)
    q = _normed((q_first, q_second), (q_first_weight, q_second_weight), by)
    k = _normed((k_first, k_second), (k_first_weight, k_second_weight), by)
    q_kept, k_kept = (() if rest is None else (rest * 1.0,) for rest in (q_rest, k_rest))
    return (*_turned(q, cos, sin), *q_kept, *_turned(k, cos, sin), *k_kept, v * 1.0)


def _normed(halves: Halves, weights: MaybeHalves, by: MaybeHalves) -> Halves:
    """Return heads divided by sqrt(mean of squares + eps), times weight + offset, if they are."""
    (first, second), (eps, offset) = halves, by
    if weights[0] is None or weights[1] is None or eps is None or offset is None:
        return halves
    size = sqrt(mean(square(first) + square(second), over="P") * 0.5 + eps)
    return first / size * (weights[0] + offset), second / size * (weights[1] + offset)


def _turned(halves: Halves, cos: Tensor, sin: Tensor) -> Halves:
    first, second = halves
    return first * cos - second * sin, second * cos + first * sin
