"""Elements that an index chooses of a softmax, and sums of entropy: nothing stores all of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cutting import Given, cut_given, drawn, numbers, really_made, require_same_memory, ways
from torch import Tensor

GIVEN: Given = {
    "x": drawn(6, 32) * 4,
    "index": numbers(6, below=32),
    "temperature": drawn(6).float().abs() + 0.5,
    "few": numbers(3, below=32),
}


def at_a_temperature(x: Tensor, index: Tensor, temperature: Tensor, few: Tensor) -> Tensor:
    warm = torch.tanh(x.float() / 8) * 8 / temperature[:, None]
    return torch.log_softmax(warm, -1).gather(-1, index[:, None])[:, 0]


def probability(x: Tensor, index: Tensor, temperature: Tensor, few: Tensor) -> Tensor:
    return torch.softmax(x, -1).gather(1, index.view(-1, 1)) * 2


def of_two(x: Tensor, index: Tensor, temperature: Tensor, few: Tensor) -> Tensor:
    found = torch.log_softmax(x, 1)
    return found.gather(1, index[:, None]) - found.gather(1, 31 - index[:, None])


def along_rows(x: Tensor, index: Tensor, temperature: Tensor, few: Tensor) -> Tensor:
    return torch.log_softmax(x, 0).gather(0, (index % 6).expand(32, 6).mT[:1])


def of_an_outer_product(x: Tensor, index: Tensor, temperature: Tensor, few: Tensor) -> Tensor:
    warm = x[:, :1] * x[:1]
    return torch.log_softmax(warm + x[0], -1).gather(-1, index[:, None])


CHOSEN: dict[Callable[..., Tensor], list[str]] = {
    at_a_temperature: ["[gather]", "div, tanh, mul, div, logsumexp, div, tanh, mul, div, sub"],
    probability: ["[gather]", "logsumexp, sub, exp, to, mul"],
    of_two: ["[gather]", "[gather]", "logsumexp, sub, to, logsumexp, sub, to, sub"],
    of_an_outer_product: ["mul, add, logsumexp", "[gather]", "sub, to"],
    along_rows: ["[remainder]", "[gather]", "logsumexp, sub, to"],
}


@pytest.mark.parametrize("run", CHOSEN, ids=lambda run: run.__name__)
def test_elements_are_chosen_before_a_softmax(run: Callable[..., Tensor]) -> None:
    program = cut_given(run, GIVEN)
    assert ways(program) == [CHOSEN[run]]
    require_same_memory(program, run, GIVEN)


def returned_too(
    x: Tensor, index: Tensor, temperature: Tensor, few: Tensor
) -> tuple[Tensor, Tensor]:
    found = torch.log_softmax(x, -1)
    return found, found.gather(-1, index[:, None])


def along_another_dim(x: Tensor, index: Tensor, temperature: Tensor, few: Tensor) -> Tensor:
    return torch.softmax(x, -1).gather(0, (index % 6).expand(32, 6).mT)


def of_fewer_rows(x: Tensor, index: Tensor, temperature: Tensor, few: Tensor) -> Tensor:
    return torch.softmax(x, -1).gather(1, few[:, None])


def written_over(x: Tensor, index: Tensor, temperature: Tensor, few: Tensor) -> Tensor:
    found = torch.softmax(x, -1)
    x.zero_()
    return found.gather(1, index[:, None])


@pytest.mark.parametrize(
    "run", [returned_too, along_another_dim, of_fewer_rows, written_over], ids=lambda f: f.__name__
)
def test_a_softmax_stays_where_more_of_it_is_wanted(run: Callable[..., Tensor]) -> None:
    program = cut_given(run, GIVEN)
    assert any("softmax" in part for part in ways(program)[0])
    found = program.lines()
    assert not any("logsumexp" in line for line in found)
    if run is not returned_too:
        require_same_memory(program, run, GIVEN)


# -- entropy ---------------------------------------------------------------------------------------


def entropy(x: Tensor) -> Tensor:
    p = torch.softmax(x, -1)
    return -(p * torch.log(p)).sum(-1)


def kept(x: Tensor) -> Tensor:
    return (torch.log_softmax(x.float(), 1) * torch.softmax(x, 1)).sum(1, keepdim=True)


@pytest.mark.parametrize("run", [entropy, kept], ids=lambda run: run.__name__)
def test_entropy_is_summed_in_one_pass(run: Callable[..., Tensor]) -> None:
    given = {"x": GIVEN["x"]}
    program = cut_given(run, given)
    assert ["logsumexp" in part for part in ways(program)[0]] == [True]
    require_same_memory(program, run, given)


def of_others(x: Tensor) -> Tensor:
    return (torch.softmax(x, -1) * torch.log_softmax(x * 2, -1)).sum(-1)


def along_others(x: Tensor) -> Tensor:
    return (torch.softmax(x, -1) * torch.log_softmax(x, -1)).sum(0)


def twice(x: Tensor) -> Tensor:
    return (torch.softmax(x, -1) * torch.softmax(x, -1) * 2).sum(-1)


@pytest.mark.parametrize("run", [of_others, along_others, twice], ids=lambda run: run.__name__)
def test_other_sums_stay(run: Callable[..., Tensor]) -> None:
    given = {"x": GIVEN["x"]}
    program = cut_given(run, given)
    assert not any("logsumexp" in line for line in program.lines())
    require_same_memory(program, run, given)


@pytest.mark.parametrize("run", [at_a_temperature, entropy], ids=lambda run: run.__name__)
def test_what_is_chosen_of_is_proved(run: Callable[..., Tensor]) -> None:
    given = {"x": GIVEN["x"]} if run is entropy else GIVEN
    program = cut_given(run, given, make=really_made)
    assert len(program.results) == 1
    assert program.results[0].record.graph is not None
