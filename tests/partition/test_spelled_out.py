"""Activations that a function spells out become one operator; what is nearly one does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cutting import cut, drawn, require_same, ways
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

K = 64


def gpt2(x: Tensor) -> Tensor:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


def fast(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


def bloom(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def exact(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def of_another(x: Tensor) -> Tensor:
    """What goes in may be computed by the same operators."""
    return gpt2(x * x + 1.0)


def scaled(x: Tensor) -> Tensor:
    """What comes out may be multiplied."""
    return exact(x) * 3.0


def other_number(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.044715 * torch.pow(x, 3.0))))


def of_two(x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * y * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


def by_many(x: Tensor) -> Tensor:
    """A number for each column is no number."""
    return x * torch.full((K,), 0.5, dtype=x.dtype) * (1.0 + torch.erf(x / math.sqrt(2.0)))


def kept(x: Tensor) -> tuple[Tensor, Tensor]:
    """The result has what is inside, too, which is computed anyway."""
    inner = torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))
    return 0.5 * x * (1.0 + inner), inner


@pytest.mark.parametrize("run", [gpt2, fast, bloom, exact])
def test_each_way_to_write_one_is_one_operator(run: Callable[..., Any]) -> None:
    program = cut(run, ["x"], x=(2, K))
    assert ways(program) == [["gelu"]]
    require_same(program, run, x=drawn(5, K) * 3)


@pytest.mark.parametrize(("run", "ops"), [(of_another, "mul, add, gelu"), (scaled, "gelu, mul")])
def test_only_the_activation_is_replaced(run: Callable[..., Any], ops: str) -> None:
    program = cut(run, ["x"], x=(2, K))
    assert ways(program) == [[ops]]
    require_same(program, run, x=drawn(5, K))


@pytest.mark.parametrize("run", [other_number, of_two, by_many, kept])
def test_what_computes_something_else_stays(run: Callable[..., Any]) -> None:
    given = {n: drawn(4, K) for n in ("x", "y") if n in run.__annotations__}
    program = cut(run, [*given], **dict.fromkeys(given, (2, K)))
    assert not any("gelu" in line for way in ways(program) for line in way)
    require_same(program, run, **given)


def test_it_may_follow_a_product() -> None:
    def mlp(x: Tensor, w: Tensor) -> Tensor:
        return gpt2(F.linear(x, w))

    program = cut(mlp, ["x"], x=(2, K), w=(2 * K, K))
    assert ways(program)[0] == ["linear, gelu"]
