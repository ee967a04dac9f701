"""The step in front of gqa as PyTorch's own program: norm, rotation, and the write to the cache."""

from __future__ import annotations

import torch
from torch import Tensor

from mirage_kernels.attention_library import Norm


def _angles(table: Tensor, positions: Tensor) -> Tensor:
    """Return each token's row of the table, NaN for a position outside, `[tokens, rotated]`."""
    end = table.shape[0]
    if end == 0:
        return table.new_full((positions.shape[0], table.shape[1]), torch.nan)
    known = (positions >= 0) & (positions < end)
    return torch.where(known[:, None], table[positions.clamp(0, end - 1)], torch.nan)


def _rotated(x: Tensor, table: Tensor, rope: str) -> Tensor:
    """Return `[tokens, heads, D]` with its first elements rotated by `[tokens, rotated]`."""
    cos, sin = table.float()[:, None].chunk(2, dim=-1)
    rotated, rest = x.tensor_split([table.shape[-1]], dim=-1)
    if rope == "neox":
        a, b = rotated.chunk(2, dim=-1)
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    else:
        a, b = rotated[..., ::2], rotated[..., 1::2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    return torch.cat([turned, rest], dim=-1)


def _append(cache: Tensor, lines: Tensor, slots: Tensor) -> None:
    """Write each token's `[Hkv, D]` to its slot, unless that is outside the cache.

    Without a look at the values: a token that is skipped writes what the first other token writes,
    to the same slot; if all are skipped, each writes what is there.
    """
    page_size = cache.shape[1]
    end = cache.shape[0] * page_size
    if end == 0:
        return
    kept = (slots >= 0) & (slots < end)
    own = torch.arange(slots.shape[0], device=slots.device)
    source = torch.where(kept, own, kept.to(torch.uint8).argmax())
    slot = slots.long()[source].clamp(0, end - 1)
    page, offset = slot // page_size, slot % page_size
    cache[page, offset] = torch.where(kept.any(), lines[source], cache[page, offset])


def qk_norm_rope_append(
    qkv: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    q_bias: Tensor | None,
    k_bias: Tensor | None,
    cos_sin_cache: Tensor,
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
    weight_offset: float,
    norm: str,
    rope: str,
    *,
    q: Tensor,
) -> None:
    lines = qkv.reshape(qkv.shape[0], -1, k_cache.shape[3])
    ends = [num_heads, num_heads + num_kv_heads]
    queries, keys, values = lines.tensor_split(ends, dim=1)
    table = _angles(cos_sin_cache, positions)
    queries, keys = queries.float(), keys.float()
    if q_weight is not None and k_weight is not None:
        queries = Norm(norm, q_weight, q_bias, eps, weight_offset).of(queries)
        keys = Norm(norm, k_weight, k_bias, eps, weight_offset).of(keys)
    q.copy_(_rotated(queries, table, rope))
    _append(k_cache, _rotated(keys, table, rope).to(k_cache.dtype), slot_mapping)
    _append(v_cache, values, slot_mapping)
