"""What the kernel of qk_norm_rope_append is launched with, and which calls launch none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "pretended" / "append_calls.py"

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
    "plain": {},
    "strided qkv": {"qkv": "qkv 3c00/520"},
    "short indices": {"indices": "at 7/1 short, to 9/1 short"},
    "strided indices": {"indices": "at 7/2 wide, to 9/2 wide"},
    "heads first": {"k": "k 4600 2048 64 1024", "v": "v 4700 2048 64 1024"},
    "halves": {"k": "k 4600 4096 256 128", "v": "v 4700 4096 256 128"},
    "weights by head": {"weights": "4000/64 4200/0 0000/0 0000/0"},
    "offset": {"norm": "rms 0.001 1"},
    "layer": LAYER,
    "no bias": {"norm": "layer 1e-06 0"},
    "half angles": {"rope": "neox half 64 of 64, 10 rows"},
    "part of the angles": {"rope": "neox float 64 of 32, 10 rows"},
    "interleaved": {"rope": "interleaved float 64 of 64, 10 rows"},
    "interleaved octets": {"rope": "interleaved float 64 of 24, 10 rows"},
    "promised": {"rest": "q 1, promised 1"},
}

SILENT = [
    "misaligned qkv",
    "an octet and a half",
    "half an octet",
    "angles by column",
    "no tokens",
    "other heads",
]


@pytest.fixture(scope="module")
def said(told: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each call of pretended/append_calls.py prints, with the package that `told` compiled."""
    assert told
    (package,) = tmp_path_factory.getbasetemp().glob("pretended[0-9]*/mirage_kernels")
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
    command = [sys.executable, str(PROGRAM)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    parts = (part.partition("\n") for part in ran.stdout.split("# ")[1:])
    return {name: text.strip() for name, _, text in parts}


@pytest.mark.parametrize("call", LAUNCHES)
def test_a_call_launches_the_kernel(said: dict[str, str], call: str) -> None:
    assert said[call].split(" | ") == list((PLAIN | LAUNCHES[call]).values())


@pytest.mark.parametrize("call", SILENT)
def test_a_call_without_a_kernel_runs_pytorchs_program(said: dict[str, str], call: str) -> None:
    assert said[call] == ""


def test_every_call_is_told_of(said: dict[str, str]) -> None:
    assert sorted(said) == sorted([*LAUNCHES, *SILENT])
