"""Kernels that take one tensor twice: as rows and as columns, in a square product and beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cutting import cut, drawn, really_made, require_same, ways
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.partition.program import Program


def gram(x: Tensor) -> Tensor:
    return torch.relu(x.transpose(1, 2) @ x) / 16


def attention_to_itself(x: Tensor) -> Tensor:
    return torch.softmax(x @ x.t() / 8, -1) @ x


def fused_attention_to_itself(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x)


def attention_and_residual(x: Tensor) -> Tensor:
    return torch.softmax(x @ x.transpose(1, 2), -1) @ x + x


def with_its_transpose(x: Tensor) -> Tensor:
    return torch.relu(x + x.t() * 0.5) - x


def differences(x: Tensor) -> Tensor:
    below = torch.ones(16, 16, dtype=torch.bool).tril()
    apart = x[..., :, None] - x[..., None, :]
    return torch.exp(apart.masked_fill(~below, -torch.inf))


def residual(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x + F.silu(F.linear(x, w, b))


def residual_of_norm(x: Tensor, w: Tensor) -> Tensor:
    return x + F.linear(F.rms_norm(x, x.shape[-1:], eps=1e-6), w)


def gated(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return torch.sigmoid(F.linear(x, w)) * F.linear(x, v) + x


def in_two_layers(x: Tensor, w: Tensor) -> Tensor:
    y = F.relu(F.linear(x, w))
    return y + F.linear(y, w)


SHAPES: dict[str, tuple[int, ...]] = {"x": (8, 512), "w": (512, 512), "v": (512, 512), "b": (512,)}
FUNCTIONS: list[tuple[Callable[..., Tensor], tuple[str, ...], dict[str, tuple[int, ...]]]] = [
    (gram, (), {"x": (4, 64, 16)}),
    (attention_to_itself, ("x",), {}),
    (fused_attention_to_itself, (), {"x": (2, 4, 32, 64)}),
    (attention_and_residual, (), {"x": (4, 32, 64)}),
    (with_its_transpose, (), {"x": (64, 64)}),
    (differences, (), {"x": (4, 16)}),
    (residual, ("x",), {}),
    (residual_of_norm, ("x",), {}),
    (gated, ("x",), {}),
    (in_two_layers, ("x",), {}),
]


def of(run: Callable[..., Any], **more: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    names = run.__code__.co_varnames[: run.__code__.co_argcount]
    return {n: more.get(n, SHAPES[n]) for n in names}


@pytest.mark.parametrize(
    ("run", "rows", "more"), FUNCTIONS, ids=lambda x: getattr(x, "__name__", "")
)
def test_a_function_that_takes_a_tensor_twice_computes_the_same(
    run: Callable[..., Tensor], rows: tuple[str, ...], more: dict[str, tuple[int, ...]]
) -> None:
    shapes = of(run, **more)
    program = cut(run, rows, really_made, **shapes)
    for count in (3, 8, 70) if rows else (0,):
        given = {n: (count, *s[1:]) if n in rows else s for n, s in shapes.items()}
        require_same(program, run, **{n: drawn(*s) * 0.0625 for n, s in given.items()})
    calls = [s["call"] for way in program.document["ways"] for s in way["steps"] if "call" in s]
    assert not any("resolve_conj" in call for call in calls)


def kernel_of(program: Program) -> dict[str, Any]:
    steps = [s for s in program.document["ways"][0]["steps"] if "kernel" in s]
    assert len(steps) == 1
    return dict(steps[0])


@pytest.mark.parametrize("run", [residual, residual_of_norm])
def test_a_square_product_and_what_is_added_to_it_are_one_kernel(run: Callable[..., Any]) -> None:
    large = {"x": (8, 1024), "w": (1024, 1024), "b": (1024,)}
    program = cut(run, ["x"], really_made, **of(run, **large))
    taken = [i["value"] for i in kernel_of(program)["inputs"]]
    assert taken.count("x") == 2
    assert "linear" in ways(program)[0][0]


def test_attention_of_a_tensor_to_itself_is_one_kernel() -> None:
    program = cut(attention_to_itself, ["x"], really_made, x=(8, 64))
    assert [i["value"] for i in kernel_of(program)["inputs"]] == ["x", "x"]


def test_what_cannot_be_one_kernel_takes_twins_in_parts_of_it() -> None:
    program = cut(attention_and_residual, [], really_made, x=(4, 32, 64))
    assert "[matmul]" not in ways(program)[0]
    assert ways(cut(with_its_transpose, [], really_made, x=(64, 64))) == [["mul, add, relu, sub"]]


def test_what_the_function_writes_over_is_taken_once() -> None:
    def updated(x: Tensor, w: Tensor) -> Tensor:
        y = x + F.linear(x, w)
        x.copy_(y)
        return y

    program = cut(updated, ["x"], really_made, x=(8, 64), w=(64, 64))
    taken = [s["inputs"] for s in program.document["ways"][0]["steps"] if "kernel" in s]
    assert all(len({i["value"] for i in own}) == len(own) for own in taken)
