"""Arguments of a wrong type, kinds of tensors that no program reads, gradients: one sentence each.

PyTorch's dispatcher would refuse them in a page, or take them and drop the gradient.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

import mirage_kernels
from mirage_kernels import rms_norm_linear
from mirage_kernels.errors import ExtensionMissingError, InferenceOnlyError, TorchTooOldError

K, N = 64, 96
X, NORM_WEIGHT, WEIGHT = (torch.ones(*sizes).half() for sizes in ((3, K), (K,), (N, K)))
Q = torch.ones(2, 4, 64).half()
CACHE = torch.ones(9, 16, 2, 64).half()
TABLE, LENGTHS = torch.zeros(2, 3, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
LONG = torch.ones(1, 200, 2, 64).half()
LISTS = (torch.tensor([0, 1, 2]), torch.tensor([3, 4]), torch.tensor([1, 16]))
LATENT = torch.ones(9, 16, 576).half()
QKV = torch.ones(2, 8 * 64).half()
ROPE = (NORM_WEIGHT, NORM_WEIGHT, torch.ones(5, 64), LENGTHS, CACHE, CACHE + 1, LENGTHS)

NORMED = ("rms_norm_linear", (X, NORM_WEIGHT, WEIGHT))
PAGED = ("gqa", (Q, CACHE, CACHE, TABLE, LENGTHS))
DENSE = ("gqa", (LONG, LONG, LONG))  # PyTorch's attention computes it
CSR = ("block_table_from_csr", LISTS)
MLA = ("mla_decode", (LATENT[:2], LATENT, TABLE, LENGTHS))
APPEND = ("qk_norm_rope_append", (QKV, *ROPE))

WRONG = {
    "x is of type ndarray; a tensor works": (
        ("rms_norm", (np.ones((3, K), np.float16), NORM_WEIGHT)),
        {},
    ),
    "weight is of type list; a tensor works": (("rms_norm_linear", (X, NORM_WEIGHT, [1.0])), {}),
    "bias is of type float; a tensor or None works": (NORMED, {"bias": 1.0}),
    "residual is of type int; a tensor works": (NORMED, {"residual": 0}),
    "eps is of type str; a number works": (NORMED, {"eps": "1e-6"}),
    "eps is None; a number works": (NORMED, {"eps": None}),
    "eps is of type ndarray; a number works": (NORMED, {"eps": np.ones(3)}),
    "eps is of type int; a number works": (NORMED, {"eps": 10**400}),
    "eps is 1e+39; a number that fits float32 works": (NORMED, {"eps": 1e39}),
    "weight_offset is -1e+39; a number that fits float32 works": (NORMED, {"weight_offset": -1e39}),
    "out is of type ndarray; a tensor works": (NORMED, {"out": np.ones(3)}),
    "activation is of type builtin_function_or_method; a string works": (
        ("gated_mlp", (X, WEIGHT, WEIGHT)),
        {"activation": torch.relu},
    ),
    "norm_bias is of type float; a tensor or None works": (
        ("layer_norm", (X, NORM_WEIGHT, 1e-5)),
        {},
    ),
    "x has layout torch.sparse_coo; a dense tensor on cpu or cuda works": (
        ("rms_norm_linear", (X.to_sparse(), NORM_WEIGHT, WEIGHT)),
        {},
    ),
    "x has dtype complex64; float16 and bfloat16 work": (
        ("rms_norm", (X.to(torch.complex64), NORM_WEIGHT)),
        {},
    ),
    "x is nested; a dense tensor on cpu or cuda works": (
        ("rms_norm", (torch.nested.nested_tensor([X, X], layout=torch.jagged), NORM_WEIGHT)),
        {},
    ),
    "sinks is of type list; a tensor or None works": (PAGED, {"sinks": [0.0]}),
    "window_left is of type str; an integer of 64 bits works": [
        (PAGED, {"window_left": "3"}),
        (DENSE, {"window_left": "3"}),
    ],
    "window_left is of type int; an integer of 64 bits works": (PAGED, {"window_left": 2**63}),
    "max_seq_len is of type float; an integer of 64 bits works": (PAGED, {"max_seq_len": 4096.0}),
    "causal is of type str; True or False works": (PAGED, {"causal": "yes"}),
    "kv_layout is ['NHD']; 'NHD' and 'HND' work": (PAGED, {"kv_layout": ["NHD"]}),
    "q has 0 dims; [B, T, Hq, D] works": (("gqa", (Q[0, 0, 0], CACHE, CACHE, TABLE, LENGTHS)), {}),
    "out has elements that share memory; a tensor from torch.empty has none": [
        (PAGED, {"out": torch.ones(600).half().as_strided((2, 4, 64), (8, 64, 1))}),
        (PAGED, {"out": torch.ones(1, 4, 64).half().expand(2, 4, 64)}),
    ],
    "scale is of type str; a number works": (DENSE, {"scale": "1"}),
    "page_size is of type str; an integer works": (CSR, {"page_size": "16"}),
    "page_size is None; an integer works": (CSR, {"page_size": None}),
    "max_seq_len is of type float; an integer works": (CSR, {"page_size": 16, "max_seq_len": 40.0}),
    "indices is on meta, but last_page_len on cpu; one device works": (
        ("block_table_from_csr", (LISTS[0], LISTS[1].to("meta"), LISTS[2])),
        {"page_size": 16},
    ),
    "scale is None; a number works": (MLA, {"scale": None}),
    "latent_dim is of type float; an integer works": (MLA, {"scale": 1.0, "latent_dim": 512.0}),
    "q has 0 dims; [..., latent_dim + rope] works": (
        ("mla_decode", (LATENT[0, 0, 0], LATENT, TABLE, LENGTHS)),
        {"scale": 1.0},
    ),
    "num_heads is of type float; an integer of 64 bits works": (
        APPEND,
        {"num_heads": 4.0, "num_kv_heads": 2},
    ),
    "k_cache and v_cache start at one address; each needs memory of its own": (
        ("qk_norm_rope_append", (QKV, *ROPE[:4], CACHE, CACHE, LENGTHS)),
        {"num_heads": 4, "num_kv_heads": 2},
    ),
    "v_cache has elements that share memory; a tensor from torch.empty has none": (
        ("qk_norm_rope_append", (QKV, *ROPE[:5], CACHE[:1].expand(9, 16, 2, 64), LENGTHS)),
        {"num_heads": 4, "num_kv_heads": 2},
    ),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_argument_gets_a_sentence(sentence: str) -> None:
    calls = WRONG[sentence]
    for (op, args), options in calls if isinstance(calls, list) else [calls]:
        with pytest.raises(RuntimeError) as raised:
            getattr(mirage_kernels, op)(*args, **options)
        assert str(raised.value) == f"mirage_kernels::{op}: {sentence}"


def test_a_promise_of_a_wrong_type_gets_a_sentence() -> None:
    with pytest.raises(RuntimeError, match=r"constant is of type str; True or False works$"):
        mirage_kernels.constant_weights("no")  # type: ignore[arg-type]


def test_numbers_may_be_numpys_and_tensors_of_one_element() -> None:
    expected = rms_norm_linear(X, NORM_WEIGHT, WEIGHT, 0.5)
    for eps in (np.float32(0.5), torch.tensor(0.5)):
        assert torch.equal(rms_norm_linear(X, NORM_WEIGHT, WEIGHT, eps), expected)


@pytest.mark.parametrize("call", [NORMED, PAGED, DENSE, ("rms_norm", (X, NORM_WEIGHT))])
def test_result_that_requires_grad_is_refused(call) -> None:
    op, args = call
    out = torch.empty_like(getattr(mirage_kernels, op)(*args)).requires_grad_()
    with pytest.raises(InferenceOnlyError, match="out requires grad"):
        getattr(mirage_kernels, op)(*args, out=out)
    with torch.no_grad():
        assert getattr(mirage_kernels, op)(*args, out=out) is out


def test_forward_mode_is_refused() -> None:
    with forward_ad.dual_level(), pytest.raises(InferenceOnlyError, match="x requires grad"):
        rms_norm_linear(forward_ad.make_dual(X, X), NORM_WEIGHT, WEIGHT)


@pytest.mark.parametrize("tokens", [1, 2])
def test_a_batch_of_no_sequences_is_fine(tokens: int) -> None:
    q, table, lengths = Q.new_ones(0, tokens, 4, 64), TABLE[:0], LENGTHS[:0]
    out, lse = mirage_kernels.gqa(q, CACHE, CACHE, table, lengths, return_lse=True)
    assert (out.shape, lse.shape) == (q.shape, q.shape[:-1])


def test_sequences_without_tokens_are_fine() -> None:
    q = Q.new_ones(2, 0, 4, 64)
    out, lse = torch.empty_like(q), q.new_empty(2, 0, 4, dtype=torch.float32)
    assert mirage_kernels.gqa(q, CACHE, CACHE, TABLE, LENGTHS, out=out, lse=lse) is out


@pytest.mark.parametrize("error", [ExtensionMissingError, TorchTooOldError, InferenceOnlyError])
def test_errors_can_be_pickled(error: type[Exception]) -> None:
    assert str(pickle.loads(pickle.dumps(error("a sentence")))) == "a sentence"
