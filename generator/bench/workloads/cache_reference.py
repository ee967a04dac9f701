"""PyTorch's unfused program of a call over a dense cache, and the same in float64."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from mirage_kernels.generator.bench.workloads.cache_inputs import EPS, CacheInputs
from mirage_kernels.generator.recipe import load_recipe

if TYPE_CHECKING:
    from mirage_kernels.generator.bench.workloads.cache import CacheWorkload

Attended = tuple[Tensor, Tensor, Tensor]  # q [B, T, Hq, D], k and v [B, Hkv, L, D]
_recipe = cache(load_recipe)


def prepared(workload: CacheWorkload, given: CacheInputs) -> Attended:
    """Return q, k and v of dense inputs as attention takes them: normed, or with the new token."""
    if given.norms is None:
        return given.q, given.k, given.v
    if given.append is not None:
        return _appended(workload, given), given.k, given.v
    if given.biases is None:
        q, k = (
            functional.rms_norm(x, x.shape[-1:], weight, EPS)
            for x, weight in zip((given.q, given.k), given.norms, strict=True)
        )
        return q, k, given.v
    q, k = (functional.layer_norm(x, x.shape[-1:], eps=EPS) for x in (given.q, given.k))
    weight, bias = (x[1][:, None] for x in (given.norms, given.biases))  # k is [B, Hkv, L, D]
    return q * given.norms[0] + given.biases[0], k * weight + bias, given.v


def _appended(workload: CacheWorkload, given: CacheInputs) -> Tensor:
    """Write the new token to the dense cache and return its queries."""
    from mirage_kernels import append_library

    assert given.append is not None
    assert given.norms is not None
    new, q = given.append, torch.empty_like(given.q)
    append_library.qk_norm_rope_append(
        *(new.qkv, *given.norms, None, None, new.cos_sin, new.positions),
        *(given.k.transpose(1, 2), given.v.transpose(1, 2), new.slots),
        *workload.heads,
        EPS,
        0.0,
        "rms",
        "neox",
        q=q[:, 0],
    )
    return q


def eager(workload: CacheWorkload, given: CacheInputs) -> Tensor:
    """Compute it as PyTorch's own unfused program on dense inputs."""
    lengths = given.seq_lens
    if lengths is None:
        lengths = given.q.new_full((workload.sequences,), workload.longest, dtype=torch.int32)
    return _unfused(workload, prepared(workload, given), lengths)


def exact(workload: CacheWorkload, given: CacheInputs) -> Tensor:
    """Compute it in float64 from dense inputs, a sequence at a time; with tokens also by head."""
    if given.norms is not None:
        given = _in_float64(given)
    q, k, v = prepared(workload, given)
    heads = k.shape[1]
    at_once = heads if workload.tokens == 1 else 1
    out = q.new_zeros(*q.shape[:-1], v.shape[-1], dtype=torch.float64)
    for b, length in enumerate(workload.lengths):
        lengths = torch.tensor([length], device=q.device)
        for head in range(0, heads, at_once) if length else ():
            rows = slice(head * workload.group, (head + at_once) * workload.group)
            keys = (slice(b, b + 1), slice(head, head + at_once), slice(length))
            part = (q[b : b + 1, :, rows].double(), k[keys].double(), v[keys].double())
            out[b : b + 1, :, rows] = _unfused(workload, part, lengths)
    return out


def _unfused(workload: CacheWorkload, qkv: Attended, seq_lens: Tensor) -> Tensor:
    """Run the reference of the recipe that has the workload's mask and cap, `[B, T, Hq, D]`."""
    q, k, v = qkv
    recipe = _recipe(_scoring(workload))
    if workload.more:
        latent, rope = slice(workload.depth), slice(workload.depth, None)
        queries, keys = q[:, 0], k[:, 0]
        parts = (queries[..., latent], queries[..., rope], keys[..., latent], keys[..., rope])
        return recipe.reference_results(*parts, seq_lens, workload.scale)[0][:, None]
    grouped = q.view(*q.shape[:2], k.shape[1], -1, q.shape[3])  # [B, T, Hkv, G, D]
    shape = grouped.transpose(1, 2).shape
    has_tokens = "T" in recipe.inputs["q"].split()
    named = {
        "q": grouped if has_tokens else grouped.transpose(1, 2).flatten(2, 3),  # rows of a head
        "k": k.transpose(1, 2),
        "v": v.transpose(1, 2),
        "seq_lens": seq_lens,
        "scale": workload.depth**-0.5 if workload.scale is None else workload.scale,
        "window": workload.longest if workload.window_left < 0 else workload.window_left + 1,
        "cap": workload.logits_soft_cap,
    }
    (result,) = recipe.reference_results(*(named[name] for name in recipe.inputs))
    by_token = result if has_tokens else result.view(shape).transpose(1, 2)
    return by_token.reshape(q.shape)


def _scoring(workload: CacheWorkload) -> str:
    """Return the name of the plain recipe with the workload's mask and cap."""
    if workload.more:
        return workload.recipe
    if workload.logits_soft_cap:
        return "gqa_full"
    if workload.window_left >= 0:
        return "sliding_window_attention"
    return "causal_attention" if workload.is_causal and workload.tokens > 1 else "gqa"


def _in_float64(given: CacheInputs) -> CacheInputs:
    """Return copies; rotation angles stay as they are."""
    norms, append, biases = given.norms, given.append, given.biases
    if biases is not None:
        biases = (biases[0].double(), biases[1].double())
    if norms is not None:
        norms = (norms[0].double(), norms[1].double())
    if append is not None:
        append = replace(append, qkv=append.qkv.double())
    q, k, v = given.q.double(), given.k.double(), given.v.double()
    return replace(given, q=q, k=k, v=v, norms=norms, append=append, biases=biases)
