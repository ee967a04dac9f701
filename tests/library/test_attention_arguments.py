"""A wrong call of attention gets one sentence: the argument, what was given, what would work."""

from __future__ import annotations

import typing

import pytest
import torch
from torch.autograd import forward_ad
from wrong_calls import GOOD, LENGTHS, LISTS, LONG_K, TABLE, K, Q

import mirage_kernels
from mirage_kernels import gqa, gqa_csr
from mirage_kernels.errors import InferenceOnlyError


def test_page_lists_are_refused_by_the_op_that_takes_them() -> None:
    with pytest.raises(RuntimeError, match="block_table_from_csr: indices is None; a tensor works"):
        gqa_csr(Q, K, K, **LISTS | {"indices": None})


@pytest.mark.parametrize("name", ["block_table", "seq_lens"])
def test_page_lists_go_without_a_table(name: str) -> None:
    with pytest.raises(RuntimeError, match=f"gqa_csr: {name} is given, but the page lists say"):
        gqa_csr(Q, K, K, **LISTS | {name: LENGTHS})


@pytest.mark.parametrize("given", ["no", 1, None])
def test_what_is_neither_true_nor_false_asks_for_no_lse(given: object) -> None:
    with pytest.raises(RuntimeError, match=r"gqa: return_lse is .*; True or False works"):
        gqa(Q, K, K, TABLE, LENGTHS, return_lse=given)  # type: ignore[call-overload]


def test_dense_keys_are_called_what_they_are() -> None:
    with pytest.raises(RuntimeError, match=r"k_cache .* needs \[B, L, Hkv, D\] = \[any, any, any"):
        gqa(Q, K[:2, ..., :56], K[:2, ..., :56])


def test_results_of_sequences_with_gaps_are_refused() -> None:
    q = torch.ones(2, 3, 4, 64).half()
    gaps = torch.ones(2, 4, 4, 64).half()[:, :3]
    with pytest.raises(RuntimeError, match=r"gqa: out is no tensor \[B, T, ...\] whose sequences"):
        gqa(q, K[:2], K[:2], out=gaps)


def test_queries_of_other_strides_are_checked_without_a_copy() -> None:
    q = torch.ones(2, 4, 256, 64).half().transpose(1, 2)
    k = LONG_K.expand(2, 256, 2, 64).contiguous()
    assert torch.equal(gqa(q, k, k), torch.ones(2, 256, 4, 64).half())
    with pytest.raises(RuntimeError, match="q has 512 tokens, which is not 256 for each of 1"):
        gqa(q, LONG_K, LONG_K)


@pytest.mark.parametrize("tokens", [1, 2])
def test_a_batch_of_no_sequences_is_fine(tokens: int) -> None:
    q, table, lengths = Q.new_ones(0, tokens, 4, 64), TABLE[:0], LENGTHS[:0]
    out, lse = gqa(q, K, K, table, lengths, return_lse=True)
    assert (out.shape, lse.shape) == (q.shape, q.shape[:-1])


def test_sequences_without_tokens_are_fine() -> None:
    q = Q.new_ones(2, 0, 4, 64)
    out, lse = torch.empty_like(q), q.new_empty(2, 0, 4, dtype=torch.float32)
    assert gqa(q, K, K, TABLE, LENGTHS, out=out, lse=lse) is out


@pytest.mark.parametrize(
    ("op", "name"),
    [
        *(("qk_norm_attention", n) for n in ("q", "k_cache", "v_cache", "q_weight", "k_weight")),
        *(("mla_decode", n) for n in ("q", "kv_cache")),
        *((call, "out") for call in ("gqa", "gqa dense")),
    ],
)
def test_what_requires_grad_is_refused_by_name(op: str, name: str) -> None:
    call, good = getattr(mirage_kernels, op.partition(" ")[0]), GOOD[op]
    tensor = torch.empty_like(good["q"]) if name == "out" else good[name].clone()
    given = good | {name: tensor.requires_grad_()}
    with pytest.raises(InferenceOnlyError, match=f": {name} requires grad"):
        call(**given)
    with torch.no_grad():
        call(**given)


@pytest.mark.parametrize(
    ("op", "name"),
    [
        *((op, "q") for op in ("gqa", "gqa dense", "qk_norm_attention", "mla_decode")),
        ("mla_decode", "kv_cache"),
        ("qk_norm_rope_append", "qkv"),
    ],
)
def test_forward_mode_is_refused_where_nothing_is_recorded(op: str, name: str) -> None:
    call, good = getattr(mirage_kernels, op.partition(" ")[0]), GOOD[op]
    with torch.no_grad(), forward_ad.dual_level():
        call(**good)
        given = good | {name: forward_ad.make_dual(good[name], good[name])}
        with pytest.raises(InferenceOnlyError, match=f": {name} carries a tangent"):
            call(**given)


@pytest.mark.skipif(not hasattr(typing, "get_overloads"), reason="needs Python >= 3.11")
@pytest.mark.parametrize("op", ["gqa", "gqa_csr", "qk_norm_attention", "mla_decode"])
def test_the_type_of_a_result_follows_return_lse_where_it_is_known(op: str) -> None:
    forms = typing.get_overloads(getattr(mirage_kernels, op))
    results = {f.__annotations__["return_lse"]: f.__annotations__["return"] for f in forms}
    assert results == {"Literal[False]": "Tensor", "Literal[True]": "Pair", "bool": "Tensor | Pair"}
