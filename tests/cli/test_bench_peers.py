"""The peers of attention give the right result; libraries that need a GPU are stood in."""

from __future__ import annotations

import importlib.machinery
import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen

from mirage_kernels.generator.bench.workload import Peer, largest_error, poisoned
from mirage_kernels.generator.bench.workloads.cache import APPEND, CacheWorkload

MIXED = CacheWorkload("gqa", (3, 40, 1, 17), (8, 2), depth=32, page_size=16)


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend from `[tokens, Hq, D]` to all of `[L, Hkv, D]`."""
    group = q.shape[1] // k.shape[1]
    heads = (x.transpose(0, 1).repeat_interleave(group, 0).float() for x in (k, v))
    keys, values = heads
    scores = q.transpose(0, 1).float() @ keys.transpose(1, 2) * q.shape[2] ** -0.5
    return (scores.softmax(-1) @ values).transpose(0, 1).to(q.dtype)


def packed_attention(
    q: Tensor, k: Tensor, v: Tensor, rows: Tensor, ends: Tensor, most: int, longest: int
) -> Tensor:
    out = torch.empty_like(q)
    for b in range(len(rows) - 1):
        own, keys = slice(rows[b], rows[b + 1]), slice(ends[b], ends[b + 1])
        out[own] = attended(q[own], k[keys], v[keys])
    return out


class PagedDecode:
    """FlashInfer's wrapper as far as it is used."""

    def __init__(self, workspace: Tensor, layout: str, **options: object) -> None:
        assert layout == "NHD"
        assert options["use_cuda_graph"]

    def plan(self, *lists: object, **types: object) -> None:
        self.indptr, self.indices, self.last = lists[:3]
        assert lists[3:] == (*MIXED.heads, MIXED.depth, MIXED.page_size)

    def run(self, q: Tensor, caches: tuple[Tensor, Tensor]) -> Tensor:
        out = torch.empty_like(q)
        for b, last in enumerate(self.last):
            own = self.indices[self.indptr[b] : self.indptr[b + 1]].long()
            length = (len(own) - 1) * MIXED.page_size + int(last)
            k, v = (cache[own].flatten(0, 1)[:length] for cache in caches)
            out[b : b + 1] = attended(q[b : b + 1], k, v)
        return out


def with_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cache_seqlens: Tensor,
    softmax_scale: float | None,
    page_table: Tensor | None = None,
) -> Tensor:
    out = torch.empty_like(q)
    for b, length in enumerate(cache_seqlens):
        own = torch.tensor([b]) if page_table is None else page_table[b].long()
        lines = (cache[own].flatten(0, 1)[:length] for cache in (k, v))
        out[b] = attended(q[b], *lines)
    return out


def pretend(monkeypatch: pytest.MonkeyPatch, name: str, **members: object) -> None:
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def every(monkeypatch: pytest.MonkeyPatch) -> dict[str, Peer]:
    monkeypatch.setattr(varlen, "varlen_attn", packed_attention)
    pretend(monkeypatch, "flashinfer", BatchDecodeWithPagedKVCacheWrapper=PagedDecode)
    pretend(monkeypatch, "flash_attn_interface", flash_attn_with_kvcache=with_cache)
    pretend(monkeypatch, "flash_attn", flash_attn_with_kvcache=with_cache)
    return {peer.name: peer for peer in MIXED.peers()}


NAMES = ("SDPA flash", "SDPA flash, grouped", "PyTorch varlen, grouped")
LIBRARIES = ("FlashInfer", "FlashAttention-3", "FlashAttention-2")


@pytest.mark.parametrize("name", [*NAMES, *LIBRARIES])
def test_a_peer_computes_uneven_lengths(every: dict[str, Peer], name: str) -> None:
    for seed in (0, 1):
        given = MIXED.draw(seed, "cpu")
        dense = MIXED.dense(given)
        result = every[name].run(given if every[name].paged else dense)
        assert largest_error(result, MIXED.exact(dense)) < 1e-3


def test_what_is_not_installed_is_no_peer() -> None:
    assert not {peer.name for peer in MIXED.peers()} & set(LIBRARIES)


@pytest.mark.parametrize(
    "workload",
    [
        CacheWorkload("sliding_window_attention", (40,), window_left=5),
        CacheWorkload("gqa_full", (40,), logits_soft_cap=20.0),
        CacheWorkload("gqa", (40,), tokens=4, page_size=0),  # PyTorch's causal tokens are the first
    ],
)
def test_masks_and_caps_that_no_peer_takes_have_none(workload: CacheWorkload) -> None:
    assert list(workload.peers()) == []


def test_the_new_token_is_seen_by_ours_and_by_peers() -> None:
    workload = CacheWorkload("gqa", (40, 40), (8, 2), depth=32, setting=APPEND)
    given = workload.draw(0, "cpu")
    dense, outs = workload.dense(given), poisoned(workload.new_outs(given))
    exact = workload.exact(dense)
    workload.ours(given, outs)
    found = {peer.name: peer for peer in workload.peers()}
    for result in (outs, workload.eager()(dense), found["SDPA flash"].run(dense)):
        assert largest_error(result, exact) < 1e-3


def test_tokens_that_see_all_keys_are_rows_of_their_heads() -> None:
    workload = CacheWorkload("gqa", (40, 7), (8, 2), 32, page_size=0, tokens=3, is_causal=False)
    given = workload.draw(0, "cpu")
    one = CacheWorkload("gqa", (40, 7), (8, 2), 32, page_size=0)
    for token in range(3):
        exact = one.exact(given | {"q": given["q"][:, token : token + 1]})
        assert largest_error(workload.exact(given)[:, token : token + 1], exact) < 1e-12
    assert largest_error(workload.ours(given), workload.exact(given)) < 1e-3
