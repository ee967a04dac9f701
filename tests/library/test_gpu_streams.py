"""Kernels whose blocks wait for one another, side by side on several streams of one GPU.

Blocks of one launch then lack the places that blocks of another have: whoever waits may wait only
for blocks that get a place without it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from attention_cases import Case, made
from torch import Tensor

from mirage_kernels import kernel_table, lora_linear, rms_norm_linear

pytestmark = pytest.mark.gpu

STREAMS, ROUNDS = 3, 6
TAIL = (16384, 9000, 5000, 3000, 2000, 1200, *(i * 37 % 900 for i in range(58)))
ATTENTION = {
    "uneven lengths, cut over blocks": ((32, 8), TAIL, (1,)),
    "one sequence": ((32, 8), (16384,), (1,)),
    "few segments": ((16, 2), (4096,) * 8, (1,)),
    "segments claimed": ((8, 8), (1024,) * 60, (1,)),
    "many rows": ((64, 2), (4096,) * 2, (16,)),
}


def attention_calls() -> dict[str, Callable[[], object]]:
    """Return calls that share their keys out among blocks in every way."""
    found = {k.dtype for k in kernel_table() if k.recipe == "gqa" and k.dims["D"] == 128}
    if "fp16" not in found:
        return {}
    cases = {
        name: Case(lengths, tokens, heads, 128, torch.float16, "cuda", options={"causal": False})
        for name, (heads, lengths, tokens) in ATTENTION.items()
    }
    return {name: made(case).run for name, case in cases.items()}


def weight_calls() -> dict[str, Callable[[], object]]:
    """Return calls whose blocks wait for totals, or for the other half of a depth."""
    calls: dict[str, Callable[[], object]] = {}

    def drawn(*shape: int) -> Tensor:
        return (torch.randn(shape, device="cuda") / shape[-1] ** 0.5).half()

    for kernel in kernel_table():
        if kernel.dtype != "fp16" or kernel.recipe not in ("lora_linear", "rms_norm_linear"):
            continue
        x, weight = drawn(64, kernel.dims["K"]), drawn(kernel.dims["N"], kernel.dims["K"])
        if kernel.recipe == "lora_linear":
            a, b = drawn(kernel.dims["R"], x.shape[1]), drawn(weight.shape[0], kernel.dims["R"])
            calls[kernel.name] = lambda x=x, w=weight, a=a, b=b: lora_linear(x, w, a, b, 0.5)  # type: ignore[misc]
        else:
            norm = drawn(x.shape[1])
            calls[kernel.name] = lambda x=x, n=norm, w=weight: rms_norm_linear(x, n, w, 1e-6)  # type: ignore[misc]
    return calls


def test_calls_on_several_streams_end_and_give_the_same_bits() -> None:
    calls = attention_calls() | weight_calls()
    if not calls:
        pytest.skip("this build has no kernel whose blocks wait for one another")
    expected = {name: call() for name, call in calls.items()}
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    names = list(calls)
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)  # so that launches queue up and run closely together
    made_at_once: list[tuple[str, object]] = []
    for turn in range(ROUNDS * len(names)):
        for number, stream in enumerate(streams):
            name = names[(turn * (number + 1) + number) % len(names)]
            with torch.cuda.stream(stream):
                made_at_once.append((name, calls[name]()))
    torch.cuda.synchronize()
    wrong = {name for name, y in made_at_once if not torch.equal(y, expected[name])}  # type: ignore[arg-type]
    assert not wrong
    assert {name for name, _ in made_at_once} == set(names)
