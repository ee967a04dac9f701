"""Checking mode: lengths, tables and ids whose values break a bound, each named in a sentence.

On for CPU tensors always, and for all others with MIRAGE_KERNELS_CHECK=1 in the environment of the
process (csrc/torch/checking.cpp). A look at values waits for the GPU, so that it is off by default;
a call that a CUDA graph captures is not looked at. The compiled ops call these programs before they
compute anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from mirage_kernels.errors import value_sentence
from mirage_kernels.signatures import Signature

Given = Mapping[str, object]  # arguments by name


@dataclass(frozen=True)
class Values:
    """A tensor of integers that a call brings, under the name that its caller knows."""

    op: str
    name: str
    tensor: Tensor

    def refuse(self, wrong: Tensor, works: str) -> None:
        """Raise the sentence of the first element that is wrong."""
        if not bool(wrong.any()):
            return
        place = wrong.nonzero()[0].tolist()
        found = int(self.tensor[tuple(place)])
        raise RuntimeError(value_sentence(self.op, self.name, (place, found), works))

    def check(self, least: int, most: int, works: str) -> None:
        """Refuse elements below `least` or above `most`."""
        self.refuse((self.tensor < least) | (self.tensor > most), works)


def looks_at(tensor: Tensor) -> bool:
    """Say whether Python may look at a tensor's values, and should."""
    if torch.compiler.is_compiling() or isinstance(tensor, FakeTensor) or tensor.is_meta:
        return False
    checks: bool = tensor.is_cpu or torch.ops.mirage_kernels._is_checking()
    return checks and not _is_captured(tensor)


def _is_captured(tensor: Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


@dataclass(frozen=True)
class Sequences:
    """Lengths and pages of one call of attention."""

    op: str
    capacity: int  # keys that a row of the table, or a dense sequence, has room for
    page_size: int
    pages: int  # of the cache
    block_table: Tensor | None
    seq_lens: Tensor | None
    cu_seqlens_q: Tensor | None
    tokens: int
    max_q_len: int  # -1: no bound
    max_seq_len: int

    def check(self, window_left: int) -> None:
        """Refuse lengths, token ranges and pages that are out of bounds."""
        if self.cu_seqlens_q is not None:
            self._check_tokens(self.cu_seqlens_q)
        if self.seq_lens is None:
            return
        lens = Values(self.op, "seq_lens", self.seq_lens)
        room = f"0 to {self.capacity}, the keys that "
        where = "a row of block_table" if self.block_table is not None else "a sequence of k_cache"
        lens.check(0, self.capacity, f"{room}{where} has room for, work")
        if self.max_seq_len >= 0:
            lens.check(0, self.max_seq_len, f"0 to {self.max_seq_len}, max_seq_len, work")
        if self.block_table is not None:
            self._check_pages(self.block_table, self.seq_lens, window_left)

    def _check_tokens(self, starts: Tensor) -> None:
        given = Values(self.op, "cu_seqlens_q", starts)
        given.check(0, self.tokens, f"0 to {self.tokens}, the tokens of q, work")
        counts = starts.diff(prepend=starts[:1])
        given.refuse(counts < 0, "numbers work that are not below the one before")
        if self.max_q_len < 0:
            return
        works = f"up to {self.max_q_len}, max_q_len, more than the number before work"
        given.refuse(counts > self.max_q_len, works)

    def _check_pages(self, table: Tensor, lens: Tensor, window_left: int) -> None:
        """Refuse pages that some token of their sequence may look at and that are none."""
        if table.numel() == 0:
            return
        places = torch.arange(table.shape[1], device=table.device) * self.page_size
        used = places < lens[:, None]
        if window_left >= 0:  # pages before every token's window may hold anything
            first = lens - self._counts(lens) - window_left
            used = used & (places + self.page_size > first[:, None])
        outside = (table < 0) | (table >= self.pages)
        works = f"0 to {self.pages - 1}, the pages of the cache, work"
        Values(self.op, "block_table", table).refuse(used & outside, works)

    def _counts(self, lens: Tensor) -> Tensor:
        if self.cu_seqlens_q is not None:
            return self.cu_seqlens_q.diff().clamp(min=0)
        return torch.full_like(lens, self.tokens // max(lens.shape[0], 1))


def _attention(op: str, given: Given) -> None:
    """Check the lengths and pages of gqa, qk_norm_attention and mla_decode."""
    cache, table = _tensor(given, "k"), _maybe(given, "block_table")
    pages, page_size = cache.shape[:2]
    sequences = Sequences(
        op=op,
        capacity=page_size if table is None else table.shape[1] * page_size,
        page_size=page_size,
        pages=pages,
        block_table=table,
        seq_lens=_maybe(given, "seq_lens"),
        cu_seqlens_q=_maybe(given, "cu_seqlens_q"),
        tokens=_tensor(given, "q").shape[0],
        max_q_len=_integer(given, "max_q_len"),
        max_seq_len=_integer(given, "max_seq_len"),
    )
    sequences.check(_integer(given, "window_left") if "window_left" in given else -1)


def _append(op: str, given: Given) -> None:
    """Check positions and slots; a token with a negative slot is padding and has no position."""
    cache, positions = _tensor(given, "k_cache"), _tensor(given, "positions")
    slots, rows = _tensor(given, "slot_mapping"), _tensor(given, "cos_sin_cache").shape[0]
    written = slots >= 0
    works = f"0 to {rows - 1}, the rows of cos_sin_cache, work" if rows else "no position works"
    outside = (positions < 0) | (positions >= rows)
    Values(op, "positions", positions).refuse(written & outside, works)
    end = cache.shape[0] * cache.shape[1]
    works = f"slots below {end}, the pages of k_cache times their size, work, or -1 for none"
    Values(op, "slot_mapping", slots).refuse(slots >= end, works)
    order = torch.argsort(slots, stable=True)
    sorted_slots = slots[order]
    same = torch.zeros_like(written)
    same[order[1:]] = (sorted_slots[1:] == sorted_slots[:-1]) & (sorted_slots[1:] >= 0)
    Values(op, "slot_mapping", slots).refuse(same, "a slot that no token before has works")


def _adapters(op: str, given: Given) -> None:
    """Check the ids of adapters."""
    adapters = _tensor(given, "lora_a").shape[0]
    works = f"0 to {adapters - 1}, the adapters of lora_a, work, or -1 for none"
    Values(op, "adapter_ids", _tensor(given, "adapter_ids")).check(-1, adapters - 1, works)


def check_page_lists(op: str, lists: tuple[Tensor, Tensor, Tensor], page_size: int) -> None:
    """Check FlashInfer's page lists: indptr, indices, last_page_len."""
    indptr, indices, last = lists
    if not looks_at(indptr):
        return
    starts = Values(op, "indptr", indptr)
    starts.check(0, indices.shape[0], f"0 to {indices.shape[0]}, the pages of indices, work")
    counts = indptr.diff(prepend=indptr[:1])
    starts.refuse(counts < 0, "numbers work that are not below the one before")
    used = counts[1:] > 0
    outside = (last < 1) | (last > page_size)
    works = f"1 to {page_size}, the keys of a page, work"
    Values(op, "last_page_len", last).refuse(used & outside, works)
    in_use = Values(op, "indices", indices[: int(indptr[-1])])  # behind them anything may stand
    in_use.check(0, 2**31 - 1, "page numbers from 0 on work")


def _tensor(given: Given, name: str) -> Tensor:
    tensor = given[name]
    assert isinstance(tensor, Tensor)
    return tensor


def _maybe(given: Given, name: str) -> Tensor | None:
    return None if given[name] is None else _tensor(given, name)


def _integer(given: Given, name: str) -> int:
    number = given[name]
    assert isinstance(number, int)
    return number


CHECKS: Mapping[str, Callable[[str, Given], None]] = {
    "gqa": _attention,
    "qk_norm_attention": _attention,
    "mla_decode": _attention,
    "qk_norm_rope_append": _append,
    "lora_linear": _adapters,
}


def program(signature: Signature) -> Callable[..., None] | None:
    """Return what the compiled op calls with its arguments; None where no value can be wrong."""
    if signature.op not in CHECKS or not has_values(signature):
        return None
    names = [parameter.name for parameter in signature.parameters]

    def run(x: Tensor, *args: object) -> None:
        if not _is_captured(x):
            CHECKS[signature.op](signature.op, dict(zip(names, (x, *args), strict=False)))

    return run


def has_values(signature: Signature) -> bool:
    """Say whether a call has lengths, tables or ids, as the compiled ops see it."""
    return any(parameter.kind in ("indices", "own") for parameter in signature.parameters)
