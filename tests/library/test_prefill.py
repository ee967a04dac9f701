"""From where on dense calls run PyTorch's attention: by what was measured where a kernel is."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import cast

import pytest

torch = pytest.importorskip("torch")
from mirage_kernels import prefill  # noqa: E402
from mirage_kernels.prefill import MEASURED, NARROW, TOKENS, is_long  # noqa: E402


@dataclass(frozen=True)
class Queries:
    """As much of a tensor as is asked for."""

    shape: tuple[int, int, int, int]
    is_cuda: bool = True
    dtype: torch.dtype = torch.float16

    def get_device(self) -> int:
        """Return a GPU's number."""
        return 0

    def numel(self) -> int:
        """Return how many elements there are."""
        return prod(self.shape)


def long(
    sequences: int, tokens: int, depth: int = 128, *, kernels: bool = True, gpu: bool = True
) -> bool:
    q = cast(torch.Tensor, Queries((sequences, tokens, 32, depth), gpu))
    return is_long(q, 4096, causal=False, kernels=kernels)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "_has_kernel", lambda *which: True)


def test_a_measured_length_has_its_own_rule(kernel: None) -> None:
    tokens, lines = MEASURED["all", 128]
    sequences = -(-lines // (32 * tokens))
    assert long(sequences, tokens)
    assert not long(sequences, tokens - 1)
    assert not long(1, lines // 32 - 1)


@pytest.mark.parametrize(("kind", "keys"), [("square", 300), ("most", 599), ("part", 600)])
def test_causal_calls_have_rules_of_their_own(
    kernel: None, monkeypatch: pytest.MonkeyPatch, kind: str, keys: int
) -> None:
    monkeypatch.setattr(prefill, "MEASURED", {(kind, 128): (300, 0)})
    q = cast(torch.Tensor, Queries((1, 300, 32, 128)))
    assert is_long(q, keys, causal=True, kernels=True)
    shorter = cast(torch.Tensor, Queries((1, 299, 32, 128)))
    assert is_long(shorter, keys, causal=True, kernels=True) is (kind != "part")


@pytest.mark.parametrize(("causal", "depth"), NARROW)
def test_narrow_tiles_have_rules_of_their_own(kernel: None, causal: bool, depth: int) -> None:
    tokens, lines = NARROW[causal, depth]

    def served(sequences: int, tokens: int) -> bool:
        q = cast(torch.Tensor, Queries((sequences, tokens, 32, depth)))
        return is_long(q, 4096, causal=causal, kernels=True)

    assert served(-(-lines // (32 * tokens)), tokens)
    assert not served(64, tokens - 1)
    assert not served(1, lines // 32 - 1)


def test_what_was_not_measured_goes_by_tokens_alone(kernel: None) -> None:
    assert not long(64, TOKENS - 1, depth=72)
    assert long(1, TOKENS, depth=72)


def test_off_gpus_and_inside_other_ops_calls_go_by_tokens_alone(kernel: None) -> None:
    for where in ({"kernels": False}, {"gpu": False}):
        assert long(1, TOKENS, **where)
        assert not long(64, TOKENS - 1, **where)


def test_pytorch_serves_all_that_no_kernel_does(
    kernel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "_has_kernel", lambda *which: False)
    assert long(1, 1)
    assert not long(0, 1)
