"""mla_decode on CPU tensors: every form of its arguments, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attention_cases import error, same_lse
from latent_cases import Case, made

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
