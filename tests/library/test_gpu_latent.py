"""mla_decode on a GPU: its kernels against float64, the same bits each time, replayed graphs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from attention_cases import Call, Case, check, error, latent_case, made, same_lse
from torch import Tensor

from mirage_kernels import kernel_table

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("memory_given_back")]

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
COMPILED = sorted(
    (e.dims["C"], e.dims["P"], e.dtype) for e in kernel_table() if e.recipe == "mla_decode"
)
HEADS = [1, 4, 7, 16, 32, 128]


def some_lengths(draw: random.Random, page: int) -> tuple[int, ...]:
    """Draw lengths that are special to pages and splits, alone or mixed in one batch."""
    special = [0, 1, page - 1, page, page + 1, 1000, 4096]
    kind = draw.choice(["one", "alike", "special", "mixed"])
    if kind == "one":
        return (draw.choice(special),)
    if kind == "alike":
        return (draw.choice(special),) * draw.choice([2, 8])
    if kind == "special":
        draw.shuffle(special)
        return tuple(special)
    return tuple(draw.randrange(600) for _ in range(draw.choice([5, 17, 150])))


def some_case(seed: int) -> Case:
    """Draw a call that a kernel serves."""
    draw = random.Random(seed)
    latent, rope, dtype = draw.choice(COMPILED)
    page = draw.choice([0, 1, 16, 64])
    lengths = some_lengths(draw, page or 16)
    if page == 0 and max(lengths) == 0:
        lengths = (*lengths, 5)
    tokens = draw.choice([1, 1, 2, 3])
    return latent_case(
        (latent, rope),
        draw.choice(HEADS),
        lengths=lengths,
        tokens=(tokens,),
        dtype=DTYPES[dtype],
        device="cuda",
        page_size=page,
        apart=draw.random() < 0.3,
        with_head=draw.random() < 0.3,
        spread=draw.choice([1.0, 1.0, 30.0]),
        options={"causal": False} if tokens > 1 else {},
        seed=seed,
    )


def first(number: int = 0, heads: int = 16, **more: object) -> Case:
    """Return a call of a kernel, or skip."""
    if not COMPILED:
        pytest.skip("this build has no kernel of mla_decode")
    latent, rope, dtype = COMPILED[number]
    return latent_case((latent, rope), heads, dtype=DTYPES[dtype], device="cuda", **more)


@pytest.mark.parametrize("seed", range(40))
def test_is_close_to_float64_and_the_same_every_time(seed: int) -> None:
    if not COMPILED:
        pytest.skip("this build has no kernel of mla_decode")
    check(some_case(seed))


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("number", range(len(COMPILED)))
def test_every_number_of_heads_works_with_every_kernel(number: int, heads: int) -> None:
    check(first(number, heads, lengths=(1, 1700, 33), page_size=64))


UNSERVED = {
    "several tokens": {"tokens": (3,)},
    "other sizes": {"depth": 96, "latent": 64},
    "varlen": {"tokens": (1, 0, 2)},
}


@pytest.mark.parametrize("name", UNSERVED)
def test_what_no_kernel_serves_is_computed(name: str) -> None:
    check(replace(first(), **UNSERVED[name]))  # type: ignore[arg-type]


def test_a_graph_serves_other_lengths(captured) -> None:
    call = made(first(lengths=(900, 5, 70)))
    out, lse = call.poisoned()
    lengths = call.given["seq_lens"]
    assert isinstance(lengths, Tensor)
    graph = captured(lambda: call.run(out=out, lse=lse))
    for shorter in ((900, 5, 70), (3, 0, 64), (17, 5, 1), (0, 0, 0)):
        lengths.copy_(torch.tensor(shorter))
        short = replace(call.case, lengths=shorter)
        keys = [own[:n] for own, n in zip(call.keys, shorter, strict=True)]
        values = [own[..., : short.latent] for own in keys]
        exact, exact_lse = Call(short, call.q, call.k, call.v, keys, values, {}, call.given).exact()
        for _ in range(2):
            out.fill_(torch.nan), lse.fill_(torch.nan)
            graph.replay()
            assert error(out, exact) < call.case.tolerance
            assert same_lse(lse, exact_lse, call.case.lse_tolerance)


def test_waits_for_nothing_and_compiles(sync_is_an_error) -> None:
    torch.compiler.reset()
    call = made(first())
    expected = call.run()
    with sync_is_an_error():
        y = call.run()
    assert torch.equal(y, expected)
    compiled = torch.compile(call.run, fullgraph=True)
    assert torch.equal(compiled(), expected)
