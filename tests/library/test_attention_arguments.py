"""A wrong call of attention gets one sentence: the argument, what was given, what would work."""

from __future__ import annotations

import typing

import pytest
import torch
from attention_cases import Case, made
from torch import Tensor

import mirage_kernels
from mirage_kernels import gqa, gqa_csr, kernel_table, qk_norm_attention, supports
from mirage_kernels.errors import InferenceOnlyError

Q = torch.ones(2, 4, 64).half()
K = torch.ones(9, 16, 2, 64).half()
TABLE = torch.zeros(2, 3).int()
LENGTHS = torch.ones(2).int()
STARTS = torch.tensor([0, 1, 2]).int()
GOOD = {"q": Q, "k_cache": K, "v_cache": K, "block_table": TABLE, "seq_lens": LENGTHS}
PREFIX = "mirage_kernels::gqa: "


def odd(tensor: Tensor) -> Tensor:
    """Return the same values, starting two bytes behind an aligned address."""
    return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)


WRONG = {
    "q of another dtype": (
        {"q": Q.float()},
        "q has dtype float32; float16 and bfloat16 work",
    ),
    "q without heads": ({"q": Q[0]}, "q has 2 dims; [tokens, Hq, D] works"),
    "heads of an odd size": (
        {"q": Q[..., :60]},
        "q has heads of size 60; multiples of 8 work",
    ),
    "k_cache of another dtype": (
        {"k_cache": K.bfloat16()},
        "k_cache has dtype bfloat16, but q has float16; give both the same dtype",
    ),
    "k_cache of another head size": (
        {"k_cache": K[..., :56]},
        "k_cache has shape [9, 16, 2, 56], but q of shape [2, 4, 64] needs [pages, page size, Hkv, "
        "D] = [any, any, any, 64]",
    ),
    "v_cache of another shape": (
        {"v_cache": K[:8]},
        "v_cache has shape [8, 16, 2, 64], but k_cache of shape [9, 16, 2, 64] needs [pages, page "
        "size, Hkv, D] = [9, 16, 2, 64]",
    ),
    "heads that do not divide": (
        {"k_cache": torch.ones(9, 16, 3, 64).half(), "v_cache": torch.ones(9, 16, 3, 64).half()},
        "k_cache has 3 heads, but q has 4; a divisor of that works (which dim holds the heads "
        "follows from kv_layout)",
    ),
    "cache with strided lines": (
        {"k_cache": torch.ones(9, 16, 2, 128).half()[..., ::2]},
        "k_cache has stride 2 in its last dim; a view works whose last dim is contiguous "
        "(stride 1)",
    ),
    "cache with unaligned lines": (
        {"v_cache": torch.ones(9, 16, 2, 68).half()[..., :64]},
        "v_cache has stride 68 in dim 2; multiples of 8 elements (16 bytes) work",
    ),
    "cache at an odd address": (
        {"k_cache": odd(K)},
        "k_cache does not start at a multiple of 16 bytes; a tensor from torch.empty does, and so "
        "do its slices at multiples of 8 elements",
    ),
    "block_table of another dtype": (
        {"block_table": TABLE.long()},
        "block_table has dtype int64; int32 works",
    ),
    "block_table of one dim": (
        {"block_table": TABLE[0]},
        "block_table has 1 dims; [B, most pages of a sequence] works",
    ),
    "block_table transposed": (
        {"block_table": torch.zeros(3, 2).int().t()},
        "block_table has stride 2 in its last dim; a tensor works whose last dim is contiguous "
        "(stride 1)",
    ),
    "no seq_lens": (
        {"seq_lens": None},
        "seq_lens is missing; with block_table the keys of each sequence [B] are needed",
    ),
    "seq_lens of another dtype": (
        {"seq_lens": LENGTHS.long()},
        "seq_lens has dtype int64; int32 works",
    ),
    "seq_lens of another length": (
        {"seq_lens": LENGTHS[:1]},
        "seq_lens has shape [1], but block_table of shape [2, 3] needs [B] = [2]",
    ),
    "cu_seqlens_q of another length": (
        {"cu_seqlens_q": STARTS[:2]},
        "cu_seqlens_q has shape [2], but block_table of shape [2, 3] needs [B + 1] = [3]",
    ),
    "tokens of no sequence": (
        {"q": torch.ones(3, 4, 64).half()},
        "q has 3 tokens, which is not as many for each of 2 sequences; without cu_seqlens_q it "
        "must be",
    ),
    "another number of tokens": (
        {"max_q_len": 2},
        "q has 2 tokens, which is not 2 for each of 2 sequences; without cu_seqlens_q it must be",
    ),
    "sinks of another length": (
        {"sinks": torch.ones(3).half()},
        "sinks has shape [3], but q of shape [2, 4, 64] needs [Hq] = [4]",
    ),
    "sinks of another dtype": (
        {"sinks": torch.ones(4)},
        "sinks has dtype float32, but q has float16; give both the same dtype",
    ),
    "infinite scale": ({"scale": torch.inf}, "scale is inf; a finite number works"),
    "negative cap": (
        {"logits_soft_cap": -1.0},
        "logits_soft_cap is -1; a finite number that is not negative works, such as 1e-6",
    ),
    "negative window": (
        {"window_left": -2},
        "window_left is -2; the number of keys before its own that a token sees works, or -1 for "
        "all",
    ),
    "no queries": ({"q": None}, "q is None; a tensor works"),
    "queries of too many dims": ({"q": Q[:, None, None]}, "q has 5 dims; [B, T, Hq, D] works"),
    "queries without elements": (
        {"q": Q[..., :0]},
        "q has heads of size 0; multiples of 8 work",
    ),
    "no keys": ({"k_cache": None}, "k_cache is None; a tensor works"),
    "cache of three dims": (
        {"k_cache": K[0]},
        "k_cache has 3 dims; [pages, page size, Hkv, D] works",
    ),
    "cache of three dims, heads first": (
        {"v_cache": K[0], "kv_layout": "HND"},
        "v_cache has 3 dims; [pages, Hkv, page size, D] works",
    ),
    "cache without data": (
        {"k_cache": K.to("meta")},
        "q is on cpu, another tensor is not; one device works",
    ),
    "table without data": (
        {"block_table": TABLE.to("meta")},
        "q is on cpu, another tensor is not; one device works",
    ),
    "negative bound of queries": (
        {"max_q_len": -3},
        "max_q_len is -3; 0 or more works, or None",
    ),
    "negative bound of keys": (
        {"max_seq_len": -2},
        "max_seq_len is -2; 0 or more works, or None",
    ),
    "out that is a pair": ({"out": (Q, Q)}, "out is of type tuple; a tensor works"),
    "unknown layout": ({"kv_layout": "DNH"}, "kv_layout is 'DNH'; 'NHD' and 'HND' work"),
    "out of another shape": (
        {"out": Q[:1].clone()},
        "out has shape [1, 4, 64], but q of shape [2, 4, 64] needs [tokens, Hq, D] = [2, 4, 64]",
    ),
    "out in the memory of q": ({"out": Q}, "out shares memory with q; give it memory of its own"),
    "out in the cache": (
        {"out": K.view(-1)[:512].view(2, 4, 64)},
        "out shares memory with k_cache; give it memory of its own",
    ),
    "lse of another dtype": (
        {"lse": torch.ones(2, 4).half()},
        "lse is no contiguous float32 tensor of shape [2, 4]; one from torch.empty is",
    ),
    "lse of another shape": (
        {"lse": torch.ones(4, 2)},
        "lse is no contiguous float32 tensor of shape [2, 4]; one from torch.empty is",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_argument_gets_a_sentence(name: str) -> None:
    wrong, sentence = WRONG[name]
    with pytest.raises(RuntimeError) as raised:
        gqa(**GOOD | wrong)  # type: ignore[arg-type]
    assert str(raised.value) == PREFIX + sentence


def test_dense_keys_are_called_what_they_are() -> None:
    with pytest.raises(RuntimeError, match=r"k_cache .* needs \[B, L, Hkv, D\] = \[any, any, any"):
        gqa(Q, K[:2, ..., :56], K[:2, ..., :56])


def test_results_of_sequences_with_gaps_are_refused() -> None:
    q = torch.ones(2, 3, 4, 64).half()
    gaps = torch.ones(2, 4, 4, 64).half()[:, :3]
    with pytest.raises(RuntimeError, match=r"gqa: out is no tensor \[B, T, ...\] whose sequences"):
        gqa(q, K[:2], K[:2], out=gaps)


LONG = torch.ones(1, 256, 4, 64).half()
LONG_K = LONG[:, :, :2].contiguous()
WRONG_LONG = {
    "float32": (
        {"q": LONG.float(), "k_cache": LONG_K.float(), "v_cache": LONG_K.float()},
        "q has dtype float32; float16 and bfloat16 work",
    ),
    "another window": (
        {"window_left": -7},
        "window_left is -7; the number of keys before its own that a token sees works, or -1 for "
        "all",
    ),
    "nan scale": ({"scale": torch.nan}, "scale is nan; a finite number works"),
    "another number of tokens": (
        {"max_q_len": 3},
        "q has 256 tokens, which is not 3 for each of 1 sequences; without cu_seqlens_q it must be",
    ),
    "out of another dtype": (
        {"out": LONG.float()},
        "out has dtype float32, but q has float16; give both the same dtype",
    ),
    "out in the memory of q": (
        {"out": LONG},
        "out shares memory with q; give it memory of its own",
    ),
}


@pytest.mark.parametrize("name", WRONG_LONG)
def test_what_pytorchs_attention_computes_is_refused_alike(name: str) -> None:
    wrong, sentence = WRONG_LONG[name]
    with pytest.raises(RuntimeError) as raised:
        gqa(**{"q": LONG, "k_cache": LONG_K, "v_cache": LONG_K} | wrong)  # type: ignore[arg-type]
    assert str(raised.value) == PREFIX + sentence


def test_queries_of_other_strides_are_checked_without_a_copy() -> None:
    q = torch.ones(2, 4, 256, 64).half().transpose(1, 2)
    k = LONG_K.expand(2, 256, 2, 64).contiguous()
    assert torch.equal(gqa(q, k, k), torch.ones(2, 256, 4, 64).half())
    with pytest.raises(RuntimeError, match="q has 512 tokens, which is not 256 for each of 1"):
        gqa(q, LONG_K, LONG_K)


WEIGHT = torch.ones(64).half()
NORMED = {**GOOD, "q_weight": WEIGHT, "k_weight": WEIGHT}
WRONG_NORMS = {
    "q_weight of another length": (
        {"q_weight": WEIGHT[:56]},
        "q_weight has shape [56], but q of shape [2, 4, 64] needs [D] or [heads, D] = [64] or "
        "[4, 64]",
    ),
    "k_weight of query heads": (
        {"k_weight": torch.ones(4, 64).half()},
        "k_weight has shape [4, 64], but q of shape [2, 4, 64] needs [D] or [heads, D] = [64] or "
        "[2, 64]",
    ),
    "strided q_weight": (
        {"q_weight": torch.ones(128).half()[::2]},
        "q_weight of shape [64] is not contiguous; pass q_weight.contiguous(), made once and kept",
    ),
    "no k_weight": ({"k_weight": None}, "k_weight is None; a tensor works"),
    "unknown norm": ({"norm": "l2"}, "norm is 'l2'; 'rms' and 'layer' work"),
    "bias of an rms norm": (
        {"q_bias": WEIGHT},
        "norm 'rms' takes no q_bias and no k_bias; 'layer' does",
    ),
    "negative eps": (
        {"eps": -1.0},
        "eps is -1; a finite number that is not negative works, such as 1e-6",
    ),
}


@pytest.mark.parametrize("name", WRONG_NORMS)
def test_wrong_norm_gets_a_sentence(name: str) -> None:
    wrong, sentence = WRONG_NORMS[name]
    with pytest.raises(RuntimeError) as raised:
        qk_norm_attention(**NORMED | wrong)  # type: ignore[arg-type]
    assert str(raised.value) == "mirage_kernels::qk_norm_attention: " + sentence


@pytest.mark.parametrize("name", WRONG_NORMS)
def test_norms_in_front_of_pytorchs_attention_are_refused_alike(name: str) -> None:
    wrong, sentence = WRONG_NORMS[name]
    given = {"q": LONG, "k_cache": LONG_K, "v_cache": LONG_K} | {
        name: NORMED[name] for name in ("q_weight", "k_weight")
    }
    with pytest.raises(RuntimeError) as raised:
        qk_norm_attention(**given | wrong)  # type: ignore[arg-type]
    said = sentence.replace("[2, 4, 64] needs", "[256, 4, 64] needs")
    assert str(raised.value) == "mirage_kernels::qk_norm_attention: " + said


LISTS = {
    "indptr": torch.tensor([0, 1, 2]).int(),
    "indices": torch.zeros(2).int(),
    "last_page_len": torch.ones(2).int(),
}
WRONG_LISTS = {
    "no list": ({"indices": None}, "indices is None; a tensor works"),
    "list of floats": (
        {"indices": torch.zeros(2)},
        "indices has shape [2] and dtype float32; one dim works, int32 or int64",
    ),
    "list of two dims": (
        {"last_page_len": torch.ones(1, 2).int()},
        "last_page_len has shape [1, 2] and dtype int32; one dim works, int32 or int64",
    ),
    "too short": (
        {"indptr": torch.tensor([0, 2]).int()},
        "indptr has shape [2] and dtype int32; [B + 1] = [3] beside last_page_len [B] works, int32 "
        "or int64",
    ),
    "negative length": ({"max_seq_len": -1}, "max_seq_len is -1; 0 or more works"),
}


@pytest.mark.parametrize("name", WRONG_LISTS)
def test_wrong_page_lists_get_a_sentence(name: str) -> None:
    wrong, sentence = WRONG_LISTS[name]
    with pytest.raises(RuntimeError) as raised:
        gqa_csr(Q, K, K, **LISTS | wrong)  # type: ignore[arg-type]
    assert str(raised.value) == "mirage_kernels::block_table_from_csr: " + sentence


@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache", "q_weight", "k_weight"])
def test_input_that_requires_grad_is_refused_by_name(name: str) -> None:
    given = NORMED | {name: NORMED[name].clone().requires_grad_()}
    with pytest.raises(InferenceOnlyError, match=f"attention: {name} requires grad"):
        qk_norm_attention(**given)  # type: ignore[arg-type]
    with torch.no_grad():
        qk_norm_attention(**given)  # type: ignore[arg-type]


def test_what_fails_in_pytorchs_program_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from mirage_kernels import attention_library

    def fails(*_: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 apples.")

    monkeypatch.setattr(attention_library, "_visible", fails)
    with pytest.raises(RuntimeError) as raised:
        made(Case()).run()
    assert str(raised.value) == (
        "mirage_kernels::gqa: PyTorch's own program failed: CUDA out of memory. Tried to allocate "
        "3 apples."
    )


@pytest.mark.parametrize("op", ["gqa", "qk_norm_attention"])
def test_supports_asks_the_table_of_attention(op: str) -> None:
    compiled = {(e.dims["D"], e.dtype) for e in kernel_table() if e.recipe in (op, f"{op}_full")}
    for depth in (64, 128, 72):
        for name, dtype in {"fp16": torch.float16, "bf16": torch.bfloat16}.items():
            assert supports(op, D=depth, dtype=dtype) is ((depth, name) in compiled)
    assert supports(op, D=72, B=4, Hkv=8, G=4, L=100, T=1, device="cpu")
    assert not supports(op, K=64, device="cpu")
    assert not supports(op, D=64, dtype=torch.float32, device="cpu")


def test_supports_asks_for_the_norm() -> None:
    compiled = {e.dims["D"] for e in kernel_table() if e.recipe == "qk_layer_norm_attention"}
    for depth in (64, 128, 72):
        assert supports("qk_norm_attention", D=depth, norm="layer") is (depth in compiled)
    assert not supports("qk_norm_attention", D=64, norm="l2", device="cpu")


def test_signatures_take_the_cache_by_the_names_of_the_docs() -> None:
    for op in ("gqa", "gqa_csr", "qk_norm_attention", "mla_decode", "qk_norm_rope_append"):
        assert getattr(mirage_kernels, op).__doc__


@pytest.mark.skipif(not hasattr(typing, "get_overloads"), reason="needs Python >= 3.11")
@pytest.mark.parametrize("op", ["gqa", "gqa_csr", "qk_norm_attention", "mla_decode"])
def test_the_type_of_a_result_follows_return_lse_where_it_is_known(op: str) -> None:
    forms = typing.get_overloads(getattr(mirage_kernels, op))
    results = {f.__annotations__["return_lse"]: f.__annotations__["return"] for f in forms}
    assert results == {"Literal[False]": "Tensor", "Literal[True]": "Pair", "bool": "Tensor | Pair"}
