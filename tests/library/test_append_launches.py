"""What the kernel of qk_norm_rope_append is launched with, and which calls launch none."""

from __future__ import annotations

import pytest

# What a call prints, part by part; parts left out are those of PLAIN.
PLAIN = {
    "sizes": "3x4+2",
    "qkv": "qkv 3c00/512",
    "weights": "4000/0 4200/0 0000/0 0000/0",
    "norm": "rms 1e-06 0",
    "rope": "neox float 64 of 64, 10 rows",
    "indices": "at 7/1 wide, to 9/1 wide",
    "k": "k 4600 2048 128 64",
    "v": "v 4700 2048 128 64",
    "pages": "80 slots in pages of 16",
    "rest": "q 1, promised 0",
}
LAYER = {"norm": "layer 1e-06 0", "weights": "4000/0 4200/0 4400/0 4500/64"}

LAUNCHES = {
    "append plain": {},
    "append strided qkv": {"qkv": "qkv 3c00/520"},
    "append short indices": {"indices": "at 7/1 short, to 9/1 short"},
    "append strided indices": {"indices": "at 7/2 wide, to 9/2 wide"},
    "append heads first": {"k": "k 4600 2048 64 1024", "v": "v 4700 2048 64 1024"},
    "append halves": {"k": "k 4600 4096 256 128", "v": "v 4700 4096 256 128"},
    "append weights by head": {"weights": "4000/64 4200/0 0000/0 0000/0"},
    "append offset": {"norm": "rms 0.001 1"},
    "append layer": LAYER,
    "append no bias": {"norm": "layer 1e-06 0"},
    "append half angles": {"rope": "neox half 64 of 64, 10 rows"},
    "append part of the angles": {"rope": "neox float 64 of 32, 10 rows"},
    "append interleaved": {"rope": "interleaved float 64 of 64, 10 rows"},
    "append interleaved octets": {"rope": "interleaved float 64 of 24, 10 rows"},
    "append promised": {"rest": "q 1, promised 1"},
}

SILENT = [
    "append misaligned qkv",
    "append an octet and a half",
    "append half an octet",
    "append angles by column",
    "append no tokens",
    "append other heads",
]


@pytest.mark.parametrize("call", LAUNCHES)
def test_a_call_launches_the_kernel(told: dict[str, str], call: str) -> None:
    assert told[call].split(" | ") == list((PLAIN | LAUNCHES[call]).values())


@pytest.mark.parametrize("call", SILENT)
def test_a_call_without_a_kernel_runs_pytorchs_program(told: dict[str, str], call: str) -> None:
    assert told[call] == ""
