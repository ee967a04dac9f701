"""Conditions on numbers are numbers in kernels, and PyTorch's where something else takes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cutting import cut, drawn, really_made, require_same, ways
from torch import Tensor

from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results

Function = Callable[[Tensor, Tensor], Tensor]

CONDITIONS: dict[str, Function] = {
    "gt": lambda x, y: torch.where(x > 0, x, x * y),
    "lt and ge": lambda x, y: torch.where(x < y, x * 2, y) + torch.where(x <= 0.5, y, 1.0),
    "le": lambda x, y: torch.where(x <= 0.25, y, x),
    "equal": lambda x, y: torch.where(x == y, 3.0, x),
    "not equal": lambda x, y: torch.where(y != 0.5, y / x, 1.0),
    "both": lambda x, y: torch.where((x > 0) & (y < x), x, y),
    "either": lambda x, y: torch.where((x > 0) | ~(y < x), x, y),
    "as a number": lambda x, y: x * (x > 0) + (y <= x).to(x.dtype) - (x > y).float().to(x.dtype),
    "filled": lambda x, y: x.masked_fill(x.abs() > y, 0.25),
    "not computed with": lambda x, y: torch.where(x > 0, torch.log(x), y),
    "is NaN": lambda x, y: torch.where(torch.isnan(x), y, x),
    "NaN to a number": lambda x, y: torch.nan_to_num(torch.tanh(x), nan=0.5) * y,
    "of sums": lambda x, y: torch.where(x > x.mean(-1, keepdim=True), x, y),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_choices_by_a_condition_are_one_proved_kernel(name: str) -> None:
    program = cut(CONDITIONS[name], ["x", "y"], really_made, x=(8, 96), y=(8, 96))
    assert not program.reasons
    (steps,) = ways(program)
    assert len(steps) == 1
    x, y = drawn(5, 96), drawn(5, 96)
    y[:, :40] = x[:, :40]
    y[0, 0] = x[1, 1] = torch.nan
    x[2, 2] = torch.inf
    given = {"x": x.double(), "y": y.double()}
    graph = program.results[0].record.graph
    inputs = [Array(n.out.type.names, (given[n.name].numpy(),)) for n in graph.inputs]
    sizes = dict(zip(graph.inputs[0].out.type.names, x.shape, strict=True))
    (made,) = results(graph, inputs, array_reading(FLOAT64, sizes))
    wanted = CONDITIONS[name](**given)
    torch.testing.assert_close(torch.from_numpy(made.parts[0]), wanted, equal_nan=True)


KEPT: dict[str, tuple[Function, str]] = {
    "any": (lambda x, y: torch.where((x > 0).any(-1, keepdim=True), x, y), "any"),
    "returned": (lambda x, y: (x > y, x * y), "gt"),
    "other infinities": (lambda x, y: torch.nan_to_num(x, posinf=1.0) * y, "nan_to_num"),
    "-inf": (lambda x, y: torch.softmax(x.masked_fill(x < y, -torch.inf), -1), "lt"),
}


@pytest.mark.parametrize("name", KEPT)
def test_conditions_that_something_else_takes_are_pytorchs(name: str) -> None:
    run, op = KEPT[name]
    program = cut(run, ["x", "y"], x=(8, 96), y=(8, 96))
    assert any(f"[{op}" in step for step in ways(program)[0])
    require_same(program, run, x=drawn(5, 96), y=drawn(5, 96))


def test_what_is_written_by_a_condition_in_place_is_what_it_was() -> None:
    def run(x: Tensor, y: Tensor) -> Tensor:
        z = x * y
        z.masked_fill_(x > y, 0.0)
        return z + 1

    require_same(cut(run, ["x", "y"], x=(8, 96), y=(8, 96)), run, x=drawn(5, 96), y=drawn(5, 96))
