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
LONG = torch.ones(1, 256, 4, 64).half()
LONG_K = LONG[:, :, :2].contiguous()
WEIGHT = torch.ones(64).half()
LATENT_Q, LATENT = torch.ones(2, 4, 48).half(), torch.ones(9, 16, 48).half()
INDICES = torch.zeros(2).int()

PAGED = {"q": Q, "k_cache": K, "v_cache": K, "block_table": TABLE, "seq_lens": LENGTHS}
DENSE = {"q": LONG, "k_cache": LONG_K, "v_cache": LONG_K}  # PyTorch's attention computes it
NORMED = {**PAGED, "q_weight": WEIGHT, "k_weight": WEIGHT}
LISTS = {"indptr": STARTS, "indices": INDICES, "last_page_len": LENGTHS}
MLA = {"block_table": TABLE, "seq_lens": LENGTHS, "scale": 1.0}
CACHES = {"k_cache": K, "v_cache": K + 1, "slot_mapping": LENGTHS}
ROPE = {"cos_sin_cache": torch.ones(5, 64), "positions": LENGTHS, "q_weight": WEIGHT}
APPEND = {"qkv": torch.ones(2, 8 * 64).half(), "k_weight": WEIGHT} | CACHES | ROPE
GOOD = {
    "gqa": PAGED,
    "gqa dense": DENSE,
    "qk_norm_attention": NORMED,
    "block_table_from_csr": LISTS | {"page_size": 16},
    "mla_decode": MLA | {"q": LATENT_Q, "kv_cache": LATENT, "latent_dim": 32},
    "qk_norm_rope_append": APPEND | {"num_heads": 4, "num_kv_heads": 2},
}


def odd(tensor: Tensor) -> Tensor:
    """Return the same values, starting two bytes behind an aligned address."""
    return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)


# A sentence, and the arguments that get it, or several such.
WRONG_GQA = {
    "q has dtype float32; float16 and bfloat16 work": {"q": Q.float()},
    "q has 2 dims; [tokens, Hq, D] works": {"q": Q[0]},
    "q has heads of size 60; multiples of 8 work": {"q": Q[..., :60]},
    "k_cache has dtype bfloat16, but q has float16; give both the same dtype": {
        "k_cache": K.bfloat16()
    },
    (
        "k_cache has shape [9, 16, 2, 56], but q of shape [2, 4, 64] needs [pages, page size, Hkv, "
        "D] = [any, any, any, 64]"
    ): {"k_cache": K[..., :56]},
    (
        "v_cache has shape [8, 16, 2, 64], but k_cache of shape [9, 16, 2, 64] needs [pages, page "
        "size, Hkv, D] = [9, 16, 2, 64]"
    ): {"v_cache": K[:8]},
    (
        "k_cache has 3 heads, but q has 4; a divisor of that works (which dim holds the heads "
        "follows from kv_layout)"
    ): {"k_cache": torch.ones(9, 16, 3, 64).half(), "v_cache": torch.ones(9, 16, 3, 64).half()},
    (
        "k_cache has stride 2 in its last dim; a view works whose last dim is contiguous (stride 1)"
    ): {"k_cache": torch.ones(9, 16, 2, 128).half()[..., ::2]},
    "v_cache has stride 68 in dim 2; multiples of 8 elements (16 bytes) work": {
        "v_cache": torch.ones(9, 16, 2, 68).half()[..., :64]
    },
    (
        "k_cache does not start at a multiple of 16 bytes; a tensor from torch.empty does, and so "
        "do its slices at multiples of 8 elements"
    ): {"k_cache": odd(K)},
    "block_table has dtype int64; int32 works": {"block_table": TABLE.long()},
    "block_table has 1 dims; [B, most pages of a sequence] works": {"block_table": TABLE[0]},
    (
        "block_table has stride 2 in its last dim; a tensor works whose last dim is contiguous "
        "(stride 1)"
    ): {"block_table": torch.zeros(3, 2).int().t()},
    "seq_lens is missing; with block_table the keys of each sequence [B] are needed": {
        "seq_lens": None
    },
    "seq_lens has dtype int64; int32 works": {"seq_lens": LENGTHS.long()},
    "seq_lens has shape [1], but block_table of shape [2, 3] needs [B] = [2]": {
        "seq_lens": LENGTHS[:1]
    },
    "cu_seqlens_q has shape [2], but block_table of shape [2, 3] needs [B + 1] = [3]": {
        "cu_seqlens_q": STARTS[:2]
    },
    (
        "q has 3 tokens, which is not as many for each of 2 sequences; without cu_seqlens_q it "
        "must be"
    ): {"q": torch.ones(3, 4, 64).half()},
    "q has 2 tokens, which is not 2 for each of 2 sequences; without cu_seqlens_q it must be": {
        "max_q_len": 2
    },
    "sinks has shape [3], but q of shape [2, 4, 64] needs [Hq] = [4]": {
        "sinks": torch.ones(3).half()
    },
    "sinks has dtype float32, but q has float16; give both the same dtype": {
        "sinks": torch.ones(4)
    },
    "scale is inf; a finite number works": {"scale": torch.inf},
    "logits_soft_cap is -1; a finite number that is not negative works, such as 1e-6": {
        "logits_soft_cap": -1.0
    },
    (
        "window_left is -2; the number of keys before its own that a token sees works, or -1 for "
        "all"
    ): {"window_left": -2},
    "q is None; a tensor works": {"q": None},
    "q has 5 dims; [B, T, Hq, D] works": {"q": Q[:, None, None]},
    "q has heads of size 0; multiples of 8 work": {"q": Q[..., :0]},
    "k_cache is None; a tensor works": {"k_cache": None},
    "k_cache has 3 dims; [pages, page size, Hkv, D] works": {"k_cache": K[0]},
    "v_cache has 3 dims; [pages, Hkv, page size, D] works": {
        "v_cache": K[0],
        "kv_layout": "HND",
    },
    "q is on cpu, another tensor is not; one device works": [
        {"k_cache": K.to("meta")},
        {"block_table": TABLE.to("meta")},
    ],
    "max_q_len is -3; 0 or more works, or None": {"max_q_len": -3},
    "max_seq_len is -2; 0 or more works, or None": {"max_seq_len": -2},
    "out is of type tuple; a tensor works": {"out": (Q, Q)},
    "kv_layout is 'DNH'; 'NHD' and 'HND' work": {"kv_layout": "DNH"},
    "out has shape [1, 4, 64], but q of shape [2, 4, 64] needs [tokens, Hq, D] = [2, 4, 64]": {
        "out": Q[:1].clone()
    },
    "out shares memory with q; give it memory of its own": {"out": Q},
    "out shares memory with k_cache; give it memory of its own": {
        "out": K.view(-1)[:512].view(2, 4, 64)
    },
    "lse is no contiguous float32 tensor of shape [2, 4]; one from torch.empty is": [
        {"lse": torch.ones(2, 4).half()},
        {"lse": torch.ones(4, 2)},
    ],
    "sinks is of type list; a tensor or None works": {"sinks": [0.0]},
    "window_left is of type str; an integer of 64 bits works": {"window_left": "3"},
    "window_left is of type int; an integer of 64 bits works": {"window_left": 2**63},
    "max_seq_len is of type float; an integer of 64 bits works": {"max_seq_len": 4096.0},
    "causal is of type str; True or False works": {"causal": "yes"},
    "kv_layout is ['NHD']; 'NHD' and 'HND' work": {"kv_layout": ["NHD"]},
    "q has 0 dims; [B, T, Hq, D] works": {"q": Q[0, 0, 0]},
    "out has elements that share memory; a tensor from torch.empty has none": [
        {"out": torch.ones(600).half().as_strided((2, 4, 64), (8, 64, 1))},
        {"out": torch.ones(1, 4, 64).half().expand(2, 4, 64)},
    ],
}
WRONG_DENSE = {
    "q has dtype float32; float16 and bfloat16 work": {
        "q": LONG.float(),
        "k_cache": LONG_K.float(),
        "v_cache": LONG_K.float(),
    },
    (
        "window_left is -7; the number of keys before its own that a token sees works, or -1 for "
        "all"
    ): {"window_left": -7},
    "scale is nan; a finite number works": {"scale": torch.nan},
    "q has 256 tokens, which is not 3 for each of 1 sequences; without cu_seqlens_q it must be": {
        "max_q_len": 3
    },
    "out has dtype float32, but q has float16; give both the same dtype": {"out": LONG.float()},
    "out shares memory with q; give it memory of its own": {"out": LONG},
    "window_left is of type str; an integer of 64 bits works": {"window_left": "3"},
    "scale is of type str; a number works": {"scale": "1"},
}
WRONG_NORMS = {
    (
        "q_weight has shape [56], but q of shape [2, 4, 64] needs [D] or [heads, D] = [64] or "
        "[4, 64]"
    ): {"q_weight": WEIGHT[:56]},
    (
        "k_weight has shape [4, 64], but q of shape [2, 4, 64] needs [D] or [heads, D] = [64] or "
        "[2, 64]"
    ): {"k_weight": torch.ones(4, 64).half()},
    "q_weight of shape [64] is not contiguous; pass q_weight.contiguous(), made once and kept": {
        "q_weight": torch.ones(128).half()[::2]
    },
    "k_weight is None; a tensor works": {"k_weight": None},
    "norm is 'l2'; 'rms' and 'layer' work": {"norm": "l2"},
    "norm 'rms' takes no q_bias and no k_bias; 'layer' does": {"q_bias": WEIGHT},
    "eps is -1; a finite number that is not negative works, such as 1e-6": {"eps": -1.0},
}
WRONG_LISTS = {
    "indices is None; a tensor works": {"indices": None},
    "indices has shape [2] and dtype float32; one dim works, int32 or int64": {
        "indices": torch.zeros(2)
    },
    "last_page_len has shape [1, 2] and dtype int32; one dim works, int32 or int64": {
        "last_page_len": torch.ones(1, 2).int()
    },
    (
        "indptr has shape [2] and dtype int32; [B + 1] = [3] beside last_page_len [B] works, int32 "
        "or int64"
    ): {"indptr": torch.tensor([0, 2]).int()},
    "max_seq_len is -1; 0 or more works": {"max_seq_len": -1},
    "page_size is of type str; an integer works": {"page_size": "16"},
    "page_size is None; an integer works": {"page_size": None},
    "max_seq_len is of type float; an integer works": {"max_seq_len": 40.0},
    "indices is on meta, but last_page_len on cpu; one device works": {
        "indices": INDICES.to("meta")
    },
}
WRONG_LATENT = {
    (
        "q has lines of 32 elements and latent_dim is 32; a positive one that is shorter works, or "
        "the pair of its parts"
    ): {"q": LATENT_Q[..., :32]},
    "latent cache has dtype bfloat16, but q has float16; give both the same dtype": {
        "kv_cache": LATENT.bfloat16()
    },
    (
        "latent cache has shape [16, 32], but q of shape [2, 4, 32] needs [pages, page size, 1, C] "
        "= [any, any, any, 32]"
    ): {"kv_cache": LATENT[0]},
    (
        "rope part of the cache has shape [9, 16, 1, 8], but rope part of q of shape [2, 4, 16] "
        "needs [pages, page size, 1, P] = [9, 16, 1, 16]"
    ): {"kv_cache": LATENT[..., :40]},
    (
        "rope part of q has shape [2, 2, 16], but q of shape [2, 4, 32] needs [tokens, Hq, P] = "
        "[2, 4, any]"
    ): {"q": (LATENT_Q[..., :32], LATENT_Q[:, :2, 32:])},
    "the rope part of q has size 4; multiples of 8 work": {
        "q": LATENT_Q[..., :36],
        "kv_cache": LATENT[..., :36],
    },
    "seq_lens is missing; with block_table the keys of each sequence [B] are needed": {
        "seq_lens": None
    },
    "out shares memory with latent cache; give it memory of its own": {
        "out": LATENT.view(-1)[:256].view(2, 4, 32)
    },
    "q is of type tuple; a tensor works": {"q": (Q,)},
    "scale is None; a number works": {"scale": None},
    "latent_dim is of type float; an integer works": {"latent_dim": 512.0},
    "q has 0 dims; [..., latent_dim + rope] works": {"q": Q[0, 0, 0]},
}
WRONG_APPEND = {
    "num_heads is of type float; an integer of 64 bits works": {"num_heads": 4.0},
    "k_cache and v_cache start at one address; each needs memory of its own": {"v_cache": K},
    "v_cache has elements that share memory; a tensor from torch.empty has none": {
        "v_cache": K[:1].expand(9, 16, 2, 64)
    },
}
WRONG = {
    "gqa": WRONG_GQA,
    "gqa dense": WRONG_DENSE,
    "qk_norm_attention": WRONG_NORMS,
    "block_table_from_csr": WRONG_LISTS,
    "mla_decode": WRONG_LATENT,
    "qk_norm_rope_append": WRONG_APPEND,
}


@pytest.mark.parametrize(("call", "sentence"), [(c, s) for c in WRONG for s in WRONG[c]])
def test_wrong_argument_gets_a_sentence(call: str, sentence: str) -> None:
    op, given = call.partition(" ")[0], WRONG[call][sentence]
    for wrong in given if isinstance(given, list) else [given]:
        with pytest.raises(RuntimeError) as raised:
            getattr(mirage_kernels, op)(**GOOD[call] | wrong)
        assert str(raised.value) == f"mirage_kernels::{op}: {sentence}"


@pytest.mark.parametrize("sentence", WRONG_NORMS)
def test_wrong_norms_are_refused_in_front_of_pytorchs_attention(sentence: str) -> None:
    given = NORMED | DENSE | {"block_table": None, "seq_lens": None}
    with pytest.raises(RuntimeError) as raised:
        qk_norm_attention(**given | WRONG_NORMS[sentence])
    said = sentence.replace("[2, 4, 64] needs", "[256, 4, 64] needs")
    assert str(raised.value) == "mirage_kernels::qk_norm_attention: " + said


def test_page_lists_are_refused_by_the_op_that_takes_them() -> None:
    with pytest.raises(RuntimeError, match="block_table_from_csr: indices is None; a tensor works"):
        gqa_csr(Q, K, K, **LISTS | {"indices": None})


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


def test_supports_asks_for_both_sizes() -> None:
    compiled = {(e.dims["C"], e.dims["P"]) for e in kernel_table() if e.recipe == "mla_decode"}
    assert supports("mla_decode", C=512, P=64) is ((512, 64) in compiled)
    assert not supports("mla_decode", C=512, P=72)
    assert supports("mla_decode", C=32, P=16, B=4, Hq=8, L=100, device="cpu")
    assert not supports("mla_decode", D=64, device="cpu")


@pytest.mark.skipif(not hasattr(typing, "get_overloads"), reason="needs Python >= 3.11")
@pytest.mark.parametrize("op", ["gqa", "gqa_csr", "qk_norm_attention", "mla_decode"])
def test_the_type_of_a_result_follows_return_lse_where_it_is_known(op: str) -> None:
    forms = typing.get_overloads(getattr(mirage_kernels, op))
    results = {f.__annotations__["return_lse"]: f.__annotations__["return"] for f in forms}
    assert results == {"Literal[False]": "Tensor", "Literal[True]": "Pair", "bool": "Tensor | Pair"}
