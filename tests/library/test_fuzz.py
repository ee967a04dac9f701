"""A few random calls of every op; tests/library/fuzz.py makes as many as it is asked for."""

from __future__ import annotations

import random

import pytest
import torch
from fuzz import complaint, fuzz
from fuzz_calls import DRAW, Drawn

import mirage_kernels
from mirage_kernels.signatures import signatures

CALLS = 20


@pytest.mark.parametrize("op", sorted(DRAW))
def test_random_calls_are_right_or_refused(op: str) -> None:
    counted, complaints = fuzz(op, "cpu", range(CALLS))
    assert not complaints
    assert all(counted[kind] for kind in ("right", "wrong"))


@pytest.mark.gpu
@pytest.mark.parametrize("op", sorted(DRAW))
def test_random_calls_on_a_gpu_are_right(op: str) -> None:
    """Wrong values are named only where the process began in checking mode: fuzz.py's does."""
    drawn = (DRAW[op](random.Random(f"{op} {seed}"), "cuda", op) for seed in range(CALLS))
    assert not [complaint(call) for call in drawn if not call.wrong and complaint(call)]


def test_every_op_is_drawn() -> None:
    assert {s.op for s in signatures()} <= {*DRAW}


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        (Drawn("gqa", "", "q is None", lambda: None, lambda made: True), "was accepted"),
        (Drawn("gqa", "", "", lambda: None, lambda made: False), "is not close to float64"),
        (Drawn("gqa", "", "", lambda: {}["q"], lambda made: True), "raised KeyError: 'q'"),
    ],
)
def test_what_a_call_must_not_do_is_told(drawn: Drawn, said: str) -> None:
    assert complaint(drawn) == said


def test_a_right_call_that_is_refused_is_told() -> None:
    x = torch.ones(2, 8).half()
    refused = Drawn("rms_norm", "", "", lambda: mirage_kernels.rms_norm(x, x), lambda made: True)
    assert complaint(refused).startswith("was refused: mirage_kernels::rms_norm: norm_weight has")
