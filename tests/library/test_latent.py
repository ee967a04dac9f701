"""mla_decode on CPU tensors: every form of its arguments, wrong ones, and torch.compile."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attention_cases import error, same_lse
from latent_cases import Case, made
from torch import Tensor

from mirage_kernels import kernel_table, mla_decode, supports
from mirage_kernels.errors import InferenceOnlyError

PAGED = Case()
CASES = {
    "paged": PAGED,
    "a dim of one head": replace(PAGED, with_head=True),
    "two tensors each": replace(PAGED, apart=True),
    "two tensors with a dim of one head": replace(PAGED, apart=True, with_head=True),
    "lengths around a page": replace(PAGED, lengths=(0, 1, 15, 16, 17, 0)),
    "pages of one": replace(PAGED, page_size=1),
    "several tokens": replace(PAGED, lengths=(5, 40), tokens=(3,)),
    "several tokens see all": replace(PAGED, tokens=(2,), options={"causal": False}),
    "varlen": replace(PAGED, tokens=(2, 0, 7), lengths=(3, 40, 16)),
    "dense": replace(PAGED, page_size=0, lengths=(33, 33)),
    "dense, lengths": replace(PAGED, page_size=0, apart=True),
    "wide": replace(PAGED, spread=30.0, dtype=torch.bfloat16),
    "DeepSeek's": replace(PAGED, sizes=(512, 64), heads=16),
}


@pytest.mark.parametrize("name", CASES)
def test_is_close_to_float64(name: str) -> None:
    call = made(CASES[name])
    exact, exact_lse = call.exact()
    out, lse = call.run(return_lse=True)
    tolerance = 2 * call.case.tolerance
    assert error(out, exact) < tolerance
    assert same_lse(lse, exact_lse, tolerance)
    given = torch.full_like(out, torch.nan)
    assert call.run(out=given) is given
    assert torch.equal(given, out)


def test_results_are_as_long_as_the_latent() -> None:
    call = made(replace(PAGED, tokens=(2,)))
    assert call.run().shape == (3, 2, 4, 32)


Q = torch.ones(2, 4, 48).half()
CACHE = torch.ones(9, 16, 48).half()
GOOD = {
    "q": Q,
    "kv_cache": CACHE,
    "block_table": torch.zeros(2, 3).int(),
    "seq_lens": torch.ones(2).int(),
    "scale": 1.0,
    "latent_dim": 32,
}
WRONG = {
    (
        "q has lines of 32 elements and latent_dim is 32; a positive one that is shorter works, or "
        "the pair of its parts"
    ): {"q": Q[..., :32]},
    "latent cache has dtype bfloat16, but q has float16; give both the same dtype": {
        "kv_cache": CACHE.bfloat16()
    },
    (
        "latent cache has shape [16, 32], but q of shape [2, 4, 32] needs [pages, page size, 1, C] "
        "= [any, any, any, 32]"
    ): {"kv_cache": CACHE[0]},
    (
        "rope part of the cache has shape [9, 16, 1, 8], but rope part of q of shape [2, 4, 16] "
        "needs [pages, page size, 1, P] = [9, 16, 1, 16]"
    ): {"kv_cache": CACHE[..., :40]},
    (
        "rope part of q has shape [2, 2, 16], but q of shape [2, 4, 32] needs [tokens, Hq, P] = "
        "[2, 4, any]"
    ): {"q": (Q[..., :32], Q[:, :2, 32:])},
    "the rope part of q has size 4; multiples of 8 work": {
        "q": Q[..., :36],
        "kv_cache": CACHE[..., :36],
    },
    "seq_lens is missing; with block_table the keys of each sequence [B] are needed": {
        "seq_lens": None
    },
    "out shares memory with latent cache; give it memory of its own": {
        "out": CACHE.view(-1)[:256].view(2, 4, 32)
    },
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_argument_gets_a_sentence(sentence: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        mla_decode(**GOOD | WRONG[sentence])  # type: ignore[arg-type]
    assert str(raised.value) == f"mirage_kernels::mla_decode: {sentence}"


@pytest.mark.parametrize("name", ["q", "kv_cache"])
def test_input_that_requires_grad_is_refused_by_name(name: str) -> None:
    given = GOOD | {name: GOOD[name].clone().requires_grad_()}
    with pytest.raises(InferenceOnlyError, match=f"mla_decode: {name} requires grad"):
        mla_decode(**given)  # type: ignore[arg-type]


def test_supports_asks_for_both_sizes() -> None:
    compiled = {(e.dims["C"], e.dims["P"]) for e in kernel_table() if e.recipe == "mla_decode"}
    assert supports("mla_decode", C=512, P=64) is ((512, 64) in compiled)
    assert not supports("mla_decode", C=512, P=72)
    assert supports("mla_decode", C=32, P=16, B=4, Hq=8, L=100, device="cpu")
    assert not supports("mla_decode", D=64, device="cpu")


@pytest.mark.parametrize("name", ["paged", "two tensors each", "several tokens", "varlen"])
def test_compiles_without_a_graph_break(name: str) -> None:
    torch.compiler.reset()
    call = made(CASES[name])
    compiled = torch.compile(call.run, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(), call.run())


@pytest.mark.parametrize("overload", ["default", "lse", "out", "lse_out"])
def test_passes_opcheck(overload: str) -> None:
    call = made(replace(PAGED, tokens=(2, 1, 4)))
    q, cache = call.q, call.cache.nan_to_num().unsqueeze(2)
    lengths = (call.given[n] for n in ("block_table", "seq_lens", "cu_seqlens_q"))
    parts = (q[..., :32], q[..., 32:], cache[..., :32], cache[..., 32:])
    outs: dict[str, Tensor] = {}
    if "out" in overload:
        outs["out"] = torch.zeros_like(q[..., :32])
    if overload == "lse_out":
        outs["lse"] = torch.zeros(q.shape[:2])
    op = getattr(torch.ops.mirage_kernels.mla_decode, overload)
    torch.library.opcheck(op, (*parts, *lengths, -1, -1, 0.125, True), outs)
