"""Pieces whose elements lie in turn: rotations of pairs (2i, 2i + 1), as of GPT-J and Llama."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cutting import drawn, made, really_made, require_same, ways
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.errors import SearchError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.partition.program import Program, partitioned
from mirage_kernels.generator.partition.trace import Function
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.recipe import Recipe

Given = dict[str, Tensor]


def cut(run: Callable[..., Any], given: Given, make: Callable[[Recipe], Result] = made) -> Program:
    examples = {n: x.to("meta") for n, x in given.items()}
    dynamic = {n: {0: "M"} for n in given if n != "w"}
    return partitioned(Function(run, examples, dynamic, "f"), DType.BF16, "sm_90a", make)


def steps(program: Program, kind: str) -> list[dict[str, Any]]:
    return [s for s in program.document["ways"][0]["steps"] if kind in s]


def turned(x: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((-b, a), dim=-1).flatten(-2)


def whole(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + turned(x) * sin


def repeated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = (torch.repeat_interleave(t, 2, dim=-1) for t in (cos, sin))
    return x * cos + turned(x) * sin


def stacked(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = (torch.stack((t, t), -1).reshape(t.shape[0], 1, -1) for t in (cos, sin))
    return x * cos + turned(x) * sin


def of_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).type_as(x)


def complex_numbers(x: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns.unsqueeze(1)).flatten(2).type_as(x)


def turned_back(x: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    back = torch.view_as_real(pairs * turns.unsqueeze(1).conj() * turns.real[:, None])
    return back.flatten(2).to(x.dtype)


def partly(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.cat((repeated(x[..., :32], cos, sin), x[..., 32:]), dim=-1)


def of_a_product(x: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    heads = F.linear(x, w).view(-1, 4, 32)
    return repeated(heads, cos, sin) * 2


X, HALF, FULL = drawn(6, 4, 32), drawn(6, 1, 16), drawn(6, 1, 32)
TURNS = torch.polar(torch.ones(6, 16), drawn(6, 16).float())
ROTATIONS: dict[str, tuple[Callable[..., Any], Given]] = {
    "angles for every element": (whole, {"x": X, "cos": FULL, "sin": FULL.flip(-1)}),
    "repeated angles": (repeated, {"x": X, "cos": HALF, "sin": HALF.flip(-1)}),
    "stacked angles": (stacked, {"x": X, "cos": HALF, "sin": HALF.flip(-1)}),
    "pairs in fp32": (of_pairs, {"x": X, "cos": HALF, "sin": HALF.flip(-1)}),
    "complex numbers": (complex_numbers, {"x": X, "turns": TURNS}),
    "conjugates": (turned_back, {"x": X, "turns": TURNS}),
}
OTHERS: dict[str, tuple[Callable[..., Any], Given]] = {
    "a part of each head": (partly, {"x": drawn(6, 4, 40), "cos": HALF, "sin": HALF.flip(-1)}),
    "heads of a product": (
        of_a_product,
        {"x": drawn(6, 64), "w": drawn(128, 64), "cos": HALF, "sin": HALF.flip(-1)},
    ),
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_a_rotation_of_pairs_is_one_kernel_that_writes_both(name: str) -> None:
    run, given = ROTATIONS[name]
    program = cut(run, given)
    assert len(ways(program)[0]) == 1
    (join,) = steps(program, "join")
    assert join["copies"] == []
    (kernel,) = steps(program, "kernel")
    places = sorted((r["into"]["start"], r["into"]["size"]) for r in kernel["results"])
    assert places == [(0, 1), (1, 1)]
    require_same(program, run, **given)


def of_pairs_made_by_pytorch(x: Tensor, cos: Tensor) -> Tensor:
    a, b = torch.cumsum(x[..., :32:2], 0), x[..., 1:32:2] * cos
    return torch.cat((torch.stack((a, b), -1).flatten(-2), x[..., 32:]), -1)


@pytest.mark.parametrize("run", [partly, of_pairs_made_by_pytorch])
def test_pairs_of_a_part_are_written_where_they_lie(run: Callable[..., Tensor]) -> None:
    given = {"x": drawn(6, 4, 40), "cos": HALF, "sin": HALF.flip(-1)}
    given = {n: given[n] for n in inspect.signature(run).parameters}
    program = cut(run, given)
    (join,) = steps(program, "join")
    (kernel,) = steps(program, "kernel")
    ranges = ("start", "size", "step")
    copied = [tuple(c.get(name, 1) for name in ranges) for c in join["copies"]]
    made = [tuple(r["into"].get(name, 1) for name in ranges) for r in kernel["results"]]
    assert sorted(copied + made) == [(0, 16, 2), (1, 16, 2), (32, 8, 1)]
    assert len(copied) == (run is of_pairs_made_by_pytorch)
    require_same(program, run, **given)


@pytest.mark.parametrize("name", OTHERS)
def test_pairs_among_other_things_are_the_same(name: str) -> None:
    run, given = OTHERS[name]
    program = cut(run, given)
    assert not any("[" in way and "stack" in way for way in ways(program)[0])
    require_same(program, run, **given)


def test_such_a_kernel_is_proved_and_takes_any_strides() -> None:
    run, given = ROTATIONS["complex numbers"]
    (record,) = (result.record for result in cut(run, given, really_made).results)
    assert record.strided
    assert {v.schedule for v in record.variants} == {"general"}
    assert record.proof.log2_failure <= -40


def test_pairs_that_no_kernel_makes_together_are_made_apart() -> None:
    def make(recipe: Recipe) -> Result:
        if recipe.also:
            raise SearchError("the search found nothing", "")
        return made(recipe)

    run, given = ROTATIONS["repeated angles"]
    program = cut(run, given, make)
    assert len(steps(program, "kernel")) == 2
    require_same(program, run, **given)


def test_what_pytorch_makes_is_copied_into_its_place() -> None:
    def beside(x: Tensor) -> Tensor:
        return torch.stack((torch.cumsum(x, -1), torch.exp(x)), dim=-1)

    program = cut(beside, {"x": X})
    (join,) = steps(program, "join")
    assert [(c["dim"], c["start"]) for c in join["copies"]] == [(3, 0)]
    require_same(program, beside, x=X)


def test_rows_of_a_stack_go_where_they_lie() -> None:
    def rows(x: Tensor) -> Tensor:
        return torch.stack((torch.exp(x), x * 2), dim=1)

    program = cut(rows, {"x": X})
    assert len(steps(program, "kernel")) == 1
    require_same(program, rows, x=X)


def test_an_input_that_is_written_between_a_cast_and_its_view_is_not_looked_at_again() -> None:
    def written(x: Tensor, y: Tensor) -> Tensor:
        wide = x.float()
        x.copy_(y)
        return wide[..., ::2] * 2 + x[..., 1::2]

    given = {"x": X, "y": X.flip(0)}
    program = cut(written, given)
    require_same(program, written, **{n: x.clone() for n, x in given.items()})


def test_complex_numbers_that_are_no_pairs_are_pytorch_s() -> None:
    def product(x: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * turns.unsqueeze(1)
        return z.abs(), torch.view_as_real(z + 1)

    program = cut(product, {"x": X, "turns": TURNS})
    assert "[mul]" in ways(program)[0]
    require_same(program, product, x=X, turns=TURNS)
