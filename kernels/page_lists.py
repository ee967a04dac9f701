"""Attention over FlashInfer's page lists (CSR): made a block table first, on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

import torch
from torch import Tensor

from mirage_kernels.argument_checks import given_integer, given_tensor, nhd
from mirage_kernels.attention import gqa
from mirage_kernels.attention_calls import Pair
from mirage_kernels.checking import check_page_lists
from mirage_kernels.element_types import INDICES
from mirage_kernels.errors import (
    number_sentence,
    page_device_sentence,
    page_list_sentence,
    page_table_sentence,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from mirage_kernels.attention import Options


def block_table_from_csr(
    indptr: Tensor,
    indices: Tensor,
    last_page_len: Tensor,
    *,
    page_size: int,
    max_seq_len: int | None = None,
) -> Pair:
    """Return `(block_table, seq_lens)` of FlashInfer's page lists, without a look at their values.

    indptr `[B + 1]`, indices `[pages]` and last_page_len `[B]`, int32 or int64, lie on one device;
    sequence b has the pages indices[indptr[b] : indptr[b + 1]], of which the last holds
    last_page_len[b] keys. Behind indptr[B] indices may hold anything: a buffer may be longer.
    `max_seq_len` bounds how wide the table becomes; without it the table has room for all pages in
    every row. Make it once per step, for all layers.

    The results are int32, of the same device: block_table `[B, W]`, where W is `max_seq_len` in
    pages, rounded up, or the length of indices, and seq_lens `[B]`. A row holds anything behind its
    sequence's pages.

    Raises RuntimeError, in one sentence, for a list of another shape or type, for lists on several
    devices, and for a page_size below 1 or a max_seq_len below 0; in checking mode
    (`mirage_kernels.checking`) for values that fit neither each other nor the page size.
    """
    _check_page_lists(indptr, indices, last_page_len)
    _check_number("page_size", page_size, 1)
    if max_seq_len is not None:
        _check_number("max_seq_len", max_seq_len, 0)
    check_page_lists("block_table_from_csr", (indptr, indices, last_page_len), page_size)
    pages = indptr.diff()
    most = indices.shape[0]
    if max_seq_len is not None:
        most = -(-max_seq_len // page_size)
    seq_lens = ((pages - 1) * page_size + last_page_len).where(pages > 0, 0)
    if indices.shape[0] == 0:
        return indices.new_zeros(pages.shape[0], most), seq_lens.to(torch.int32)
    places = indptr[:-1, None] + torch.arange(most, device=indices.device)
    table = indices[places.clamp(max=indices.shape[0] - 1)]
    return table.to(torch.int32), seq_lens.to(torch.int32)


def _check_number(name: str, number: int, least: int) -> None:
    op = "block_table_from_csr"
    given_integer(op, name, number)
    if number < least:
        raise RuntimeError(number_sentence(op, name, number, f"{least} or more"))


def _check_page_lists(indptr: Tensor, indices: Tensor, last_page_len: Tensor) -> None:
    lists = {"indptr": indptr, "indices": indices, "last_page_len": last_page_len}
    for name, given in lists.items():
        given_tensor("block_table_from_csr", name, given)
        if given.dim() != 1 or given.dtype not in INDICES:
            raise RuntimeError(page_list_sentence(name, given, "one dim"))
    for name, given in lists.items():
        if given.device != last_page_len.device:
            raise RuntimeError(page_device_sentence(name, given, last_page_len))
    sequences = last_page_len.shape[0]
    if indptr.shape[0] != sequences + 1:
        works = f"[B + 1] = [{sequences + 1}] beside last_page_len [B]"
        raise RuntimeError(page_list_sentence("indptr", indptr, works))


@overload
def gqa_csr(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    indptr: Tensor,
    indices: Tensor,
    last_page_len: Tensor,
    *,
    return_lse: Literal[False] = False,
    **options: Unpack[Options],
) -> Tensor: ...
@overload
def gqa_csr(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    indptr: Tensor,
    indices: Tensor,
    last_page_len: Tensor,
    *,
    return_lse: Literal[True],
    **options: Unpack[Options],
) -> Pair: ...
@overload
def gqa_csr(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    indptr: Tensor,
    indices: Tensor,
    last_page_len: Tensor,
    *,
    return_lse: bool,
    **options: Unpack[Options],
) -> Tensor | Pair: ...
def gqa_csr(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    indptr: Tensor,
    indices: Tensor,
    last_page_len: Tensor,
    *,
    return_lse: bool = False,
    **options: Unpack[Options],
) -> Tensor | Pair:
    """Compute gqa over FlashInfer's page lists: `block_table_from_csr`, then `gqa`.

    Shapes: indptr `[B + 1]`, indices `[pages]` and last_page_len `[B]` as there; q `[B, Hq, D]`,
    `[B, T, Hq, D]` or, with `cu_seqlens_q`, `[tokens, Hq, D]`; the caches
    `[pages, page size, Hkv, D]` or, HND, `[pages, Hkv, page size, D]`. The result is like q.
    Options are those of `gqa`. Give `max_seq_len`, which bounds the table that is made.

    Raises what these two raise, and RuntimeError for a block_table or seq_lens.
    """
    for name in {"block_table", "seq_lens"} & {*options}:
        raise RuntimeError(page_table_sentence(name))
    k = nhd("gqa", "k_cache", k_cache, options.get("kv_layout", "NHD"))
    table, seq_lens = block_table_from_csr(
        indptr,
        indices,
        last_page_len,
        page_size=k.shape[1],
        max_seq_len=options.get("max_seq_len"),
    )
    return gqa(q, k_cache, v_cache, table, seq_lens, return_lse=return_lse, **options)
