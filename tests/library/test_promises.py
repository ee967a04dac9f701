"""The promise of constant weights: off at first, process-wide, suspended for computed weights.

That of a constant history is tested by what calls launch (test_attention_launches.py), and on a GPU
(test_gpu_history.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

import mirage_kernels
from mirage_kernels.assumptions import fresh_weights

OPS = torch.ops.mirage_kernels


@pytest.fixture
def promised() -> Iterator[None]:
    mirage_kernels.constant_weights()
    yield
    mirage_kernels.constant_weights(False)


def test_nothing_is_promised_at_first() -> None:
    assert not OPS._constant_weights()


@pytest.mark.usefixtures("promised")
def test_a_promise_holds_for_all_threads() -> None:
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(OPS._constant_weights()))
    thread.start()
    thread.join()
    assert seen == [True]


@pytest.mark.usefixtures("promised")
def test_a_promise_is_suspended_for_weights_that_were_just_computed() -> None:
    with fresh_weights():
        assert not OPS._constant_weights()
    assert OPS._constant_weights()


@pytest.mark.gpu
def test_without_a_promise_weights_written_just_before_are_read(gpu_case) -> None:
    news = [gpu_case.arguments(8, seed=seed) for seed in (1, 2)]
    wanted = [gpu_case.call(**new) for new in news]
    old = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in news[0].items()}
    wrong = 0
    for i in range(200):
        new, expected = news[i % 2], wanted[i % 2]
        for name, value in new.items():
            if isinstance(value, torch.Tensor):
                old[name].copy_(value)
        y = gpu_case.call(**old)
        pairs = zip(y, expected, strict=True) if isinstance(y, tuple) else [(y, expected)]
        wrong += any(not torch.equal(a, b) for a, b in pairs)
    assert wrong == 0


@pytest.mark.gpu
@pytest.mark.usefixtures("promised")
def test_with_a_promise_a_chain_of_ops_still_sees_its_activations(gpu_case) -> None:
    arguments = gpu_case.arguments(8, seed=3)
    x = arguments.pop(gpu_case.first)
    inputs = [x * (1 + i / 64) for i in range(64)]
    mirage_kernels.constant_weights(False)
    expected = [gpu_case.call(**{gpu_case.first: each}, **arguments) for each in inputs]
    torch.cuda.synchronize()
    mirage_kernels.constant_weights()
    written = torch.empty_like(x)
    wrong = 0
    for each, wanted in zip(inputs, expected, strict=True):
        written.copy_(each)  # the kernel just before writes x, which no promise covers
        y = gpu_case.call(**{gpu_case.first: written}, **arguments)
        pairs = zip(y, wanted, strict=True) if isinstance(y, tuple) else [(y, wanted)]
        wrong += any(not torch.equal(a, b) for a, b in pairs)
    assert wrong == 0
