"""Promises: nothing at first, by thread, in a context, for one call, and not of computed weights.

What launches are told of a history is tested by what calls launch (test_launches.py), and on a GPU
(test_gpu_history.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from op_cases import Case
from torch import Tensor
from torch._dynamo.testing import CompileCounter

import mirage_kernels
from mirage_kernels import composite, constant_history, constant_weights, gated_mlp, gqa
from mirage_kernels.library import ACTIVATIONS

OPS = torch.ops.mirage_kernels
WEIGHTS, HISTORY = 1, 2
X, WEIGHT = torch.ones(2, 16).half(), torch.ones(32, 16).half()


@pytest.fixture
def promised() -> Iterator[None]:
    mirage_kernels.constant_weights()
    yield
    mirage_kernels.constant_weights(False)


@pytest.fixture
def assumed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What calls of gated_mlp assume, as the program inside of them sees it."""
    seen: list[int] = []

    def noted(x: Tensor) -> Tensor:
        seen.append(OPS._assumptions())
        return x

    monkeypatch.setitem(ACTIVATIONS, "silu", noted)
    return seen


def test_nothing_is_promised_at_first(assumed: list[int]) -> None:
    gated_mlp(X, WEIGHT)
    assert assumed == [0]


def test_a_statement_holds_until_it_is_taken_back(assumed: list[int]) -> None:
    constant_weights()
    gated_mlp(X, WEIGHT)
    constant_weights(False)
    gated_mlp(X, WEIGHT)
    assert assumed == [WEIGHTS, 0]


def test_a_context_ends_and_restores_what_held(assumed: list[int]) -> None:
    with constant_weights():
        gated_mlp(X, WEIGHT)
        with constant_weights(False):
            gated_mlp(X, WEIGHT)
        gated_mlp(X, WEIGHT)
    gated_mlp(X, WEIGHT)
    assert assumed == [WEIGHTS, 0, WEIGHTS, 0]


def test_a_context_ends_where_an_error_leaves_it(assumed: list[int]) -> None:
    with pytest.raises(ZeroDivisionError), constant_weights():
        raise ZeroDivisionError
    gated_mlp(X, WEIGHT)
    assert assumed == [0]


def test_a_call_promises_for_itself(assumed: list[int]) -> None:
    gated_mlp(X, WEIGHT, constant_weights=True)
    with constant_weights():
        gated_mlp(X, WEIGHT, constant_weights=False)
    assert assumed == [WEIGHTS, 0]


@pytest.mark.usefixtures("promised")
def test_a_promise_is_that_of_its_thread(assumed: list[int]) -> None:
    thread = threading.Thread(target=gated_mlp, args=(X, WEIGHT))
    thread.start()
    thread.join()
    gated_mlp(X, WEIGHT)
    assert assumed == [0, WEIGHTS]


@pytest.mark.usefixtures("promised")
def test_a_promise_is_suspended_for_weights_that_were_just_computed(
    cases: dict[str, Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def noted(**given: object) -> None:
        seen.append(given["assume"])

    monkeypatch.setattr(OPS.rms_norm_linear, "out", noted)
    names = ["x", "norm_weight", "weight", "eps", "bias", "weight_offset"]
    around = composite.around("rms_norm_linear", names)
    case = cases["rms_norm_linear offset"]
    around(**case.arguments(2), eps=1e-6, out=case.poisoned(2)[0])
    assert seen == [0]


@pytest.mark.parametrize("promise", [constant_weights, constant_history])
@pytest.mark.parametrize("wrong", [3, "no", None])
def test_a_promise_is_true_or_false(promise: object, wrong: object) -> None:
    with pytest.raises(RuntimeError, match=r"promised is .*; True or False works$"):
        promise(wrong)  # type: ignore[operator]
    assert not OPS._assumptions()


@pytest.mark.parametrize("name", ["constant_weights", "constant_history"])
def test_a_wrong_promise_of_a_call_is_named(name: str) -> None:
    q, k = torch.ones(1, 2, 8).half(), torch.ones(1, 4, 2, 8).half()
    with pytest.raises(RuntimeError, match=rf"gqa: {name} is of type int; True or False works$"):
        gqa(q, k, k, **{name: 3})  # type: ignore[call-overload]


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_function_keeps_what_it_promises_and_follows_its_caller(
    assumed: list[int],
) -> None:
    def two_calls(x: Tensor) -> Tensor:
        with constant_weights():
            y = gated_mlp(x, WEIGHT)
        return gated_mlp(y, WEIGHT)

    counter = CompileCounter()
    compiled = torch.compile(two_calls, fullgraph=True, backend=counter)
    compiled(X)
    with constant_weights():
        compiled(X)
    compiled(X)
    assert assumed == [WEIGHTS, 0, WEIGHTS, WEIGHTS, WEIGHTS, 0]
    assert counter.frame_count == 2


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
