"""Attention on CPU tensors, every option, against loops in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attention_cases import Case, error, latent_case, made, same_lse

from mirage_kernels import block_table_from_csr, gqa, gqa_csr, qk_norm_attention

DENSE = Case(page_size=0, lengths=(33, 33))
PAGED = Case()
SEVERAL = replace(PAGED, lengths=(5, 40, 16), tokens=(3,))
VARLEN = replace(PAGED, lengths=(5, 40, 16, 7), tokens=(2, 0, 16, 1))
NORMED = replace(PAGED, norm="rms")

CASES = {
    "paged": PAGED,
    "lengths around a page": replace(PAGED, lengths=(0, 1, 15, 16, 17, 0)),
    "all lengths zero": replace(PAGED, lengths=(0, 0)),
    "pages of one token": replace(PAGED, page_size=1),
    "pages of 256 tokens": replace(PAGED, page_size=256, lengths=(300, 2)),
    "heads first": replace(PAGED, layout="HND"),
    "halves of one tensor": replace(PAGED, packed=True),
    "halves, heads first": replace(PAGED, packed=True, layout="HND"),
    "multi-head": replace(PAGED, heads=(3, 3)),
    "multi-query": replace(PAGED, heads=(7, 1)),
    "groups of 32": replace(PAGED, heads=(64, 2)),
    "a head of 8": replace(PAGED, depth=8),
    "scale": replace(PAGED, options={"scale": 0.3}),
    "window": replace(PAGED, options={"window_left": 7}),
    "window of one key": replace(PAGED, options={"window_left": 0}),
    "window beyond all": replace(PAGED, options={"window_left": 10**9}),
    "cap": replace(PAGED, options={"logits_soft_cap": 2.0}),
    "sinks": replace(PAGED, sinks=True, lengths=(0, 40)),
    "large inputs": replace(PAGED, spread=30.0),
    "several tokens": SEVERAL,
    "several tokens that see all": replace(SEVERAL, options={"causal": False}),
    "several tokens and a window": replace(SEVERAL, options={"window_left": 4}),
    "a window without causality": replace(SEVERAL, options={"window_left": 4, "causal": False}),
    "more tokens than keys": replace(SEVERAL, lengths=(2, 0, 16)),
    "varlen": VARLEN,
    "varlen, all options": replace(
        VARLEN, sinks=True, options={"window_left": 6, "logits_soft_cap": 3.0}
    ),
    "varlen, large": replace(VARLEN, spread=30.0),
    "dense": DENSE,
    "dense, one token each": replace(DENSE, tokens=(1,)),
    "dense, several tokens": replace(DENSE, tokens=(9,)),
    "dense, causal": replace(DENSE, tokens=(9,), options={"causal": True}),
    "dense, heads first": replace(DENSE, tokens=(9,), layout="HND"),
    "dense, lengths": replace(DENSE, lengths=(0, 33, 8), tokens=(4,)),
    "dense, sinks and cap": replace(DENSE, sinks=True, options={"logits_soft_cap": 5.0}),
    "prefill": replace(DENSE, lengths=(150, 150), tokens=(150,), options={"causal": True}),
    "prefill of a part": replace(DENSE, lengths=(200, 200), tokens=(130,)),
    "causal prefill of a part": replace(
        DENSE, lengths=(200, 200), tokens=(130,), options={"causal": True}
    ),
    "prefill of more tokens than keys": replace(
        DENSE, lengths=(50, 50), tokens=(130,), options={"causal": True}
    ),
    "prefill with a window": replace(
        DENSE, lengths=(150, 150), tokens=(150,), options={"causal": True, "window_left": 20}
    ),
    "paged prefill": replace(PAGED, lengths=(150, 200), tokens=(150,)),
    "rms norm": NORMED,
    "rms norm, 1 + w": replace(NORMED, options={"weight_offset": 1.0, "eps": 1e-3}),
    "rms norm, large": replace(NORMED, spread=30.0),
    "layer norm": replace(NORMED, norm="layer"),
    "layer norm by head": replace(NORMED, norm="layer", per_head=True),
    "rms norm by head": replace(NORMED, per_head=True, heads=(8, 2)),
    "layer norm, varlen": replace(VARLEN, norm="layer", options={"weight_offset": 1.0}),
    "rms norm, all options": replace(
        VARLEN, norm="rms", sinks=True, options={"window_left": 6, "logits_soft_cap": 3.0}
    ),
    "rms norm, dense": replace(DENSE, norm="rms", tokens=(4,)),
    "rms norm, prefill": replace(DENSE, norm="rms", lengths=(150, 150), tokens=(150,)),
}
LATENT = latent_case()
LATENTS = {
    "paged": LATENT,
    "a dim of one head": replace(LATENT, with_head=True),
    "two tensors each": replace(LATENT, apart=True),
    "two tensors with a dim of one head": replace(LATENT, apart=True, with_head=True),
    "lengths around a page": replace(LATENT, lengths=(0, 1, 15, 16, 17, 0)),
    "pages of one": replace(LATENT, page_size=1),
    "several tokens": replace(LATENT, lengths=(5, 40), tokens=(3,)),
    "several tokens see all": replace(LATENT, tokens=(2,), options={"causal": False}),
    "varlen": replace(LATENT, tokens=(2, 0, 7), lengths=(3, 40, 16)),
    "dense": replace(LATENT, page_size=0, lengths=(33, 33)),
    "dense, lengths": replace(LATENT, page_size=0, apart=True),
    "wide": replace(LATENT, spread=30.0, dtype=torch.bfloat16),
    "DeepSeek's": latent_case((512, 64), 16),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_is_close_to_float64(name: str, dtype: torch.dtype) -> None:
    case = replace(CASES[name], dtype=dtype)
    call = made(case)
    exact, exact_lse = call.exact()
    out, lse = call.run(return_lse=True)
    assert out.dtype == dtype
    assert out.shape == call.q.shape
    assert error(out, exact) < case.tolerance
    assert same_lse(lse, exact_lse, case.lse_tolerance)
    assert error(call.run(), exact) < 4 * case.tolerance  # PyTorch's own attention rounds more


@pytest.mark.parametrize("name", LATENTS)
def test_latents_are_close_to_float64(name: str) -> None:
    call = made(LATENTS[name])
    exact, exact_lse = call.exact()
    out, lse = call.run(return_lse=True)
    assert out.shape[-1] == call.case.latent
    assert error(out, exact) < 2 * call.case.tolerance
    assert same_lse(lse, exact_lse, call.case.lse_tolerance)
    given, _ = call.poisoned()
    assert call.run(out=given) is given
    assert torch.equal(given, out)


@pytest.mark.parametrize("name", ["paged", "prefill", "causal prefill of a part", "rms norm"])
def test_autocast_changes_nothing(name: str) -> None:
    call = made(CASES[name])
    expected = call.run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = call.run()
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["paged", "several tokens", "varlen", "dense", "prefill", "sinks"])
def test_writes_given_results_and_returns_them(name: str) -> None:
    call = made(CASES[name])
    out, lse = torch.full_like(call.q, torch.nan), torch.full(call.q.shape[:-1], torch.nan)
    expected, expected_lse = call.run(return_lse=True)
    both = call.run(out=out, lse=lse, return_lse=True)
    assert both[0] is out
    assert both[1] is lse
    assert torch.equal(out, expected)
    assert torch.equal(lse, expected_lse)
    assert call.run(out=out.fill_(torch.nan)) is out
    assert torch.allclose(out, expected, atol=2e-3)
    assert call.run(lse=lse.fill_(torch.nan)).shape == out.shape
    assert torch.equal(lse, expected_lse)
    assert torch.equal(call.run(out=out, return_lse=True)[1], expected_lse)


def test_results_may_be_strided_heads() -> None:
    call = made(CASES["paged"])
    wide = torch.zeros(3, 6, 96).half()
    call.run(out=wide[:, 1:5, 16:80])
    assert torch.equal(wide[:, 1:5, 16:80], call.run())
    assert not wide[:, 0].any()
    assert not wide[..., :16].any()


def test_tokens_of_no_sequence_are_left_alone() -> None:
    """As a padded batch of a CUDA graph has them."""
    call = made(CASES["varlen"])
    padded = torch.cat([call.q, torch.full_like(call.q, torch.nan)])
    expected = call.run()
    call.q = padded
    out, lse = call.run(out=torch.full_like(padded, 3.0), return_lse=True)
    tokens = len(expected)
    assert torch.equal(out[:tokens], expected)
    assert (out[tokens:] == 3).all()
    assert torch.isfinite(lse[:tokens]).all()


def test_bounds_change_nothing_while_they_hold() -> None:
    call = made(CASES["varlen"])
    expected = call.run()
    assert torch.equal(call.run(max_q_len=16, max_seq_len=40), expected)
    assert torch.equal(call.run(max_q_len=29, max_seq_len=10**6), expected)


def test_keys_before_every_window_are_not_read() -> None:
    call = made(replace(PAGED, lengths=(40,), options={"window_left": 7}))
    expected = call.run()
    first_page = call.given["block_table"][0, 0]
    call.k[first_page], call.v[first_page] = torch.nan, torch.nan
    assert torch.equal(call.run(), expected)


def test_queries_may_be_a_slice_of_a_packed_tensor() -> None:
    call = made(PAGED)
    expected = call.run()
    wide = torch.full((3, 9, 64), torch.nan).half()
    wide[:, 2:6] = call.q
    call.q = wide[:, 2:6]
    assert torch.equal(call.run(), expected)


def test_a_cache_without_pages_serves_empty_sequences() -> None:
    q, cache = torch.randn(2, 4, 64).half(), torch.empty(0, 16, 2, 64).half()
    table, lengths = torch.zeros(2, 0).int(), torch.zeros(2).int()
    out, lse = gqa(q, cache, cache, table, lengths, return_lse=True)
    assert not out.any()
    assert torch.isneginf(lse).all()


def test_norm_weights_may_differ_by_head() -> None:
    call = made(replace(NORMED, norm="layer"))
    expected = call.run()
    for name, heads in {"q_weight": 4, "q_bias": 4, "k_weight": 2, "k_bias": 2}.items():
        call.norms[name] = call.norms[name].expand(heads, -1).contiguous()
    assert torch.equal(call.run(), expected)
    call.norms["q_weight"][1] *= 2
    changed = (call.run() != expected).flatten(2).any(-1).any(0)
    assert changed.tolist() == [False, True, False, False]


def page_lists(call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return FlashInfer's page lists of a paged call."""
    size, lengths = call.case.page_size, call.case.lengths
    pages = [-(-n // size) for n in lengths]
    rows = [row[:n] for row, n in zip(call.given["block_table"], pages, strict=True)]
    last = [n - (p - 1) * size if p else 0 for n, p in zip(lengths, pages, strict=True)]
    starts = torch.tensor([0, *pages]).cumsum(0)
    return starts.int(), torch.cat(rows).int(), torch.tensor(last).int()


@pytest.mark.parametrize("max_seq_len", [None, 40, 64])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_page_lists_are_as_good_as_a_table(max_seq_len: int | None, layout: str) -> None:
    call = made(replace(PAGED, lengths=(0, 1, 16, 40, 0), layout=layout))
    lists = page_lists(call)
    y = gqa_csr(call.q, call.k, call.v, *lists, kv_layout=layout, max_seq_len=max_seq_len)
    assert torch.equal(y, call.run())
    table, lengths = block_table_from_csr(*lists, page_size=16, max_seq_len=max_seq_len)
    assert lengths.tolist() == [0, 1, 16, 40, 0]
    assert table.dtype == lengths.dtype == torch.int32


def test_changes_no_input() -> None:
    call = made(CASES["varlen, all options"])
    tensors = [call.q, call.k, call.v, *(t for t in call.given.values() if torch.is_tensor(t))]
    before = [t.clone() for t in tensors]
    call.run(return_lse=True)
    assert all(
        torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(tensors, before, strict=True)
    )


def test_parts_of_a_large_batch_are_computed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from mirage_kernels import attention_library

    call = made(CASES["varlen, all options"])
    expected = call.run()
    monkeypatch.setattr(attention_library, "_SCORE_BYTES", 1)
    assert torch.allclose(call.run(), expected, atol=1e-3)


def test_qk_norm_is_gqa_of_normed_tensors() -> None:
    call = made(replace(DENSE, tokens=(3,)))
    weight = torch.rand(64).half() + 0.5
    q, k = (torch.nn.functional.rms_norm(t, (64,), weight, 1e-6) for t in (call.q, call.k))
    y = qk_norm_attention(call.q, call.k, call.v, weight, weight)
    assert torch.allclose(y, gqa(q, k, call.v), atol=4e-3)
