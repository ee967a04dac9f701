"""What attention kernels are launched with, and which calls launch none."""

from __future__ import annotations

import pytest

# What a call prints, part by part; parts left out are those of PLAIN.
PLAIN = {
    "kernel": "gqa B=3 Hkv=2 G=4 q_len=1 max_len=64",
    "q": "q 3c00 512 64",
    "k": "k 4000 2048 128 64",
    "v": "v 4200 2048 128 64",
    "cache": "table 5/4 of 16, lens 7, first -1",
    "numbers": "scalars 0.125 0 0, window 1073741824 skip -1",
    "vectors": "vectors 0000/0 0000/0 0000/0 0000/0, sinks 0000",
    "out": "out 1 512 64, lse 0",
    "history": "9 pages, history 0",
}
CAUSAL = {"kernel": "sliding B=3 Hkv=2 G=4 q_len=2 max_len=64"}
DENSE = {
    "kernel": "gqa B=3 Hkv=2 G=4 q_len=5 max_len=50",
    "k": "k 4000 6400 128 64",
    "v": "v 4200 6400 128 64",
    "cache": "table -1/0 of 50, lens -1, first -1",
    "history": "3 pages, history 0",
}
NORMED = {
    "kernel": "normed B=3 Hkv=2 G=4 q_len=1 max_len=64",
    "numbers": "scalars 0.125 1e-06 0, window 1073741824 skip -1",
    "vectors": "vectors 4500/0 4600/0 0000/0 0000/0, sinks 0000",
}
LAYERED = {
    **NORMED,
    "kernel": "layered B=3 Hkv=2 G=4 q_len=1 max_len=64",
    "vectors": "vectors 4500/0 0000/0 4600/0 0000/0, sinks 0000",
}
LATENT = {
    "kernel": "latent B=3 Hkv=1 G=8 q_len=1 max_len=64",
    "q": "q 3c00 640 80, more 4880 640 80",
    "k": "k 4000 1280 80 64",
    "v": "v 4200 1280 80 16",
    "numbers": "scalars 2 0 0, window 1073741824 skip -1",
}

LAUNCHES = {
    "attention": {},
    "attention promised": {"history": "9 pages, history 1"},
    "attention dense promised": DENSE,
    "attention bound": {"kernel": "gqa B=3 Hkv=2 G=4 q_len=1 max_len=20"},
    "attention bound beyond the table": {},
    "attention lse": {"out": "out 1 512 64, lse 1"},
    "attention out": {"out": "out 1 1024 128, lse 0"},
    "attention scale and sinks": {
        "numbers": "scalars 0.5 0 0, window 1073741824 skip -1",
        "vectors": "vectors 0000/0 0000/0 0000/0 0000/0, sinks 4400",
    },
    "attention varlen of one": {"cache": "table 5/4 of 16, lens 7, first 0"},
    "attention varlen": {
        "kernel": "sliding B=3 Hkv=2 G=4 q_len=3 max_len=64",
        "cache": "table 5/4 of 16, lens 7, first 0",
    },
    "attention part of a table": {"cache": "table 5/8 of 16, lens 7, first -1"},
    "attention heads first": {"k": "k 4000 2048 64 1024", "v": "v 4000 2048 64 1024"},
    "attention halves": {"k": "k 4000 4096 256 128", "v": "v 4200 4096 256 128"},
    "attention unaligned q": {},
    "attention window": {
        "kernel": "sliding B=3 Hkv=2 G=4 q_len=1 max_len=64",
        "numbers": "scalars 0.125 0 0, window 6 skip 5",
    },
    "attention window of all": {"kernel": "sliding B=3 Hkv=2 G=4 q_len=1 max_len=64"},
    "attention cap": {
        "kernel": "full B=3 Hkv=2 G=4 q_len=1 max_len=64",
        "numbers": "scalars 0.125 30 0, window 1073741824 skip -1",
    },
    "attention cap and window": {
        "kernel": "full B=3 Hkv=2 G=4 q_len=2 max_len=64",
        "numbers": "scalars 0.125 30 0, window 1 skip 0",
    },
    "attention several": CAUSAL,
    "attention several see all": {"kernel": "gqa B=3 Hkv=2 G=4 q_len=2 max_len=64"},
    "attention dense": DENSE,
    "attention dense causal": {**DENSE, "kernel": "sliding B=3 Hkv=2 G=4 q_len=5 max_len=50"},
    "attention dense lens": {**DENSE, "cache": "table -1/0 of 50, lens 7, first -1"},
    "attention normed": NORMED,
    "attention normed offset": {
        **NORMED,
        "numbers": "scalars 0.125 0.001 1, window 1073741824 skip -1",
        "out": "out 1 512 64, lse 1",
    },
    "attention normed by layer": LAYERED,
    "attention normed by layer and head": {
        **LAYERED,
        "vectors": "vectors 4500/64 4700/0 4600/64 4800/64, sinks 0000",
    },
    "attention latent": LATENT,
    "attention latent, heads of one": {**LATENT, "out": "out 1 512 64, lse 1"},
    "attention latent several see all": {
        **LATENT,
        "kernel": "latent B=3 Hkv=1 G=8 q_len=2 max_len=64",
        "q": "q 3c00 512 64, more 4880 128 16",
    },
    "attention latent apart": {
        **LATENT,
        "q": "q 3c00 512 64, more 4880 128 16",
        "k": "k 4000 1024 64 64",
        "v": "v 4200 256 16 16",
    },
    "attention wide": {
        "kernel": "wide B=3 Hkv=1 G=4 q_len=1 max_len=64",
        "q": "q 3f80 512 128",
        "k": "k 3f80 2048 128 128",
        "v": "v 3f80 2048 128 128",
        "numbers": "scalars 0.0883883 0 0, window 1073741824 skip -1",
        "out": "out 1 512 128, lse 0",
    },
}

SILENT = [
    "attention several see all in a window",
    "attention several see all capped",
    "attention no tokens",
    "attention no heads",
    "attention no sequences",
    "attention no keys",
    "attention normed by layer, offset",
    "attention normed window",
    "attention normed by head",
    "attention latent several",
]


@pytest.mark.parametrize("call", LAUNCHES)
def test_a_call_launches_what_serves_it(told: dict[str, str], call: str) -> None:
    *parts, _ = told[call].split(" | ")
    assert parts == list((PLAIN | LAUNCHES[call]).values())


@pytest.mark.parametrize("call", SILENT)
def test_a_call_without_a_kernel_runs_pytorchs_program(told: dict[str, str], call: str) -> None:
    assert told[call] == ""


def test_a_workspace_comes_with_every_launch_and_a_nonce_of_its_own(told: dict[str, str]) -> None:
    lasts = [told[call].rpartition(" | ")[2] for call in LAUNCHES]
    assert {last.partition(", nonce ")[0] for last in lasts} == {"132 SMs, space 1"}
    nonces = [int(last.rpartition(" ")[2], 16) for last in lasts]
    assert len(set(nonces)) == len(nonces)
    assert max(nonces) >= 2**56  # all 64 bits are mixed


def test_an_uncovered_head_size_is_still_computed(told: dict[str, str]) -> None:
    assert told["attention uncovered"] == "computed 1"


def test_where_even_that_fails_the_way_to_a_kernel_is_said(told: dict[str, str]) -> None:
    assert told["attention out of memory"] == (
        "mirage_kernels::gqa: PyTorch's own program failed: CUDA out of memory.; it ran because "
        "there is no kernel: mirage_kernels::gqa: no kernel covers D=72 in fp16; the nearest "
        "covered are D=64 fp16, D=128 bf16; `mirage-kernels generate gqa --dtype fp16 --shape "
        "D=72` makes it"
    )
