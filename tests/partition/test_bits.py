"""Bits of 8-bit weights as numbers: kernels unpack what has 4 or 2 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cutting import Given, cut_given, drawn, really_made, require_same_memory, ways
from torch import Tensor

HALF = torch.bfloat16
GIVEN: Given = {"q": torch.arange(256, dtype=torch.uint8).view(8, 32), "s": drawn(8, 1)}
SIGNED: Given = {**GIVEN, "q": GIVEN["q"].view(torch.int8)}


def interleaved(q: Tensor, s: Tensor) -> Tensor:
    return torch.stack([(q & 15).to(HALF), (q >> 4).to(HALF)], -1).flatten(-2) * s


def joined(q: Tensor, s: Tensor) -> Tensor:
    return torch.cat([((q << 4) >> 4).to(HALF), (q >> 4).to(HALF)], -1) * s


def cast_behind(q: Tensor, s: Tensor) -> Tensor:
    whole = torch.stack([q & 15, q >> 4], -1).flatten(-2)
    return (whole.view(8, 4, 16).to(HALF) - 8) * s[..., None]


def of_two_bits(q: Tensor, s: Tensor) -> Tensor:
    return (((q >> 2) & 3).float() - (q >> 6).float()) * s.float()


KERNELS = {interleaved: 1, joined: 1, of_two_bits: 1, cast_behind: 2}  # groups lie across pieces


@pytest.mark.parametrize("given", [GIVEN, SIGNED], ids=["uint8", "int8"])
@pytest.mark.parametrize("run", KERNELS, ids=lambda run: run.__name__)
def test_bits_are_parts_of_kernels(run: Callable[..., Tensor], given: Given) -> None:
    program = cut_given(run, given)
    (steps,) = ways(program)
    assert len(steps) == KERNELS[run]
    assert not any("[" in step for step in steps)
    require_same_memory(program, run, given)


def test_a_kernel_of_bits_is_found_and_proved() -> None:
    program = cut_given(interleaved, GIVEN, make=really_made)
    assert not program.reasons
    assert program.results[0].record.graph is not None


def no_mask(q: Tensor, s: Tensor) -> Tensor:
    return (q & 10).to(HALF) * s


def returned(q: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    low = q & 15
    return low, s * 2


def written_over(q: Tensor, s: Tensor) -> Tensor:
    low = q & 15
    q.zero_()
    return low.to(HALF) * s


@pytest.mark.parametrize("run", [no_mask, returned, written_over], ids=lambda run: run.__name__)
def test_other_bits_are_pytorchs(run: Callable[..., Any]) -> None:
    program = cut_given(run, GIVEN)
    assert "[and]" in ways(program)[0]
    require_same_memory(program, run, GIVEN)
