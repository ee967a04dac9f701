"""Results that a function copies into views of its inputs: kernels write them there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from cutting import cut, drawn, require_same, ways
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.partition.program import Program
from mirage_kernels.program_steps import SteppedProgram


def require_same_inputs(program: Program, run: Callable[..., Any], **given: Tensor) -> None:
    """Compare results and what became of the inputs."""
    named = ((f"{r.record.recipe}_{r.record.stem}", r.request.recipe) for r in program.results)
    recipes = {f"sm_90a/{name}": recipe for name, recipe in named}

    def kernel(
        key: str, tensors: Sequence[Tensor], into: Sequence[Tensor | None], _assume: int
    ) -> Sequence[Tensor]:
        found = recipes[key].reference_results(*tensors)
        return [x if to is None else to.copy_(x) for x, to in zip(found, into, strict=True)]

    mine, theirs = ({n: x.clone() for n, x in given.items()} for _ in range(2))
    document = json.loads(json.dumps(program.document))
    found, wanted = SteppedProgram([document], kernel)(**mine), run(**theirs)
    for a, b in ((found, wanted), *((mine[n], theirs[n]) for n in given)):
        torch.testing.assert_close(a, b, atol=0.02, rtol=0.02)


def appended(x: Tensor, w: Tensor, cache: Tensor) -> Tensor:
    cache[:, 3:4] = torch.tanh(F.linear(x, w)).unsqueeze(1)
    return cache.sum(1)


def whole(x: Tensor, cache: Tensor) -> Tensor:
    made = torch.exp(x) + 1
    cache.copy_(made)
    return made * 2


def state(k: Tensor, v: Tensor, q: Tensor, memory: Tensor, decay: Tensor) -> Tensor:
    new = memory * decay + k.unsqueeze(-1) * v.unsqueeze(-2)
    memory.copy_(new)
    return torch.einsum("mh,mhd->md", q, new)


def turned(x: Tensor, square: Tensor) -> Tensor:
    square.copy_(square.transpose(0, 1) * 2 + x)
    return square + 1


def read_before(x: Tensor, cache: Tensor) -> Tensor:
    made = torch.relu(x)
    before = cache + made
    cache.copy_(made)
    return before


def twice(x: Tensor, cache: Tensor) -> Tensor:
    cache[:, :4] = torch.relu(x)[:, :4]
    cache[:, 2:] = torch.exp(x)[:, 2:]
    return cache * 1.5


def written_through_itself(x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
    made = torch.exp(x)
    cache.copy_(made)[:, :4].copy_(x[:, :4])
    return made * 2, cache + 1


IN_PLACE: dict[str, tuple[Callable[..., Tensor], dict[str, tuple[int, ...]]]] = {
    "a row of a cache": (appended, {"x": (5, 16), "w": (8, 16), "cache": (5, 6, 8)}),
    "a whole tensor": (whole, {"x": (5, 16), "cache": (5, 16)}),
    "a state that it reads": (
        state,
        {"k": (3, 8), "v": (3, 8), "q": (3, 8), "memory": (3, 8, 8), "decay": (8, 1)},
    ),
}
NOT_THERE: dict[str, tuple[Callable[..., Tensor], dict[str, tuple[int, ...]]]] = {
    "what it reads turned": (turned, {"x": (8, 8), "square": (8, 8)}),
    "what is read before": (read_before, {"x": (5, 16), "cache": (5, 16)}),
    "what is written over behind it": (written_through_itself, {"x": (5, 8), "cache": (5, 8)}),
    "what is written twice": (twice, {"x": (5, 8), "cache": (5, 8)}),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_kernel_writes_what_is_copied_into_an_input(name: str) -> None:
    run, shapes = IN_PLACE[name]
    program = cut(run, [], **shapes)
    steps = program.document["ways"][0]["steps"]
    assert any("into" in result for s in steps for result in s.get("results", ()))
    assert "[copy]" not in ways(program)[0]
    require_same_inputs(program, run, **{n: drawn(*s) for n, s in shapes.items()})


@pytest.mark.parametrize("name", NOT_THERE)
def test_what_would_come_too_early_is_copied(name: str) -> None:
    run, shapes = NOT_THERE[name]
    program = cut(run, [], **shapes)
    assert "[copy]" in ways(program)[0]
    require_same_inputs(program, run, **{n: drawn(*s) for n, s in shapes.items()})


def test_an_elementwise_operator_on_an_input_writes_it() -> None:
    def doubled(x: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(x.mul_(2) + y)

    program = cut(doubled, ["x", "y"], x=(5, 16), y=(5, 16))
    assert ways(program)[0][0] == "[mul]"
    require_same_inputs(program, doubled, x=drawn(5, 16), y=drawn(5, 16))


def test_a_function_may_write_and_return_nothing() -> None:
    def stored(x: Tensor, cache: Tensor) -> None:
        cache.copy_(torch.tanh(x))

    program = cut(stored, ["x", "cache"], x=(5, 16), cache=(5, 16))
    assert ways(program)[0] == ["tanh"]
    require_same_inputs(program, stored, x=drawn(5, 16), cache=drawn(5, 16))


def test_a_function_that_does_neither_is_refused_in_a_sentence() -> None:
    def nothing(x: Tensor) -> None:
        torch.tanh(x)

    with pytest.raises(RecipeError, match="returns something else than tensors"):
        cut(nothing, ["x"], x=(5, 16))


def test_none_among_the_results_is_returned() -> None:
    def attended(x: Tensor, y: Tensor) -> tuple[Tensor, None, dict[str, Tensor | None]]:
        return torch.tanh(x) * y, None, {"kept": torch.sigmoid(y), "weights": None}

    program = cut(attended, ["x", "y"], x=(5, 16), y=(5, 16))
    require_same(program, attended, x=drawn(5, 16), y=drawn(5, 16))


def slice_of_a_value(x: Tensor) -> Tensor:
    out = x * 2
    part = out[:, 10:]
    part += x[:, 10:]
    return out


def view_of_a_value(x: Tensor) -> Tensor:
    out = x * 2
    out.view(-1).exp_()
    return out


def value_that_a_view_shows(x: Tensor) -> tuple[Tensor, Tensor]:
    out = x * 2
    part = out[:, :3]
    out.mul_(2).add_(1)
    return part + 0, out


@pytest.mark.parametrize("run", [slice_of_a_value, view_of_a_value, value_that_a_view_shows])
def test_what_is_written_over_while_others_look_at_it_is_pytorch_s(run: Callable[..., Any]) -> None:
    program = cut(run, ["x"], x=(8, 96))
    assert any(text in ("[add]", "[exp]") for text in ways(program)[0])
    require_same(program, run, x=drawn(5, 96))


def test_a_value_of_its_own_is_computed_anew() -> None:
    def run(x: Tensor) -> Tensor:
        return (x * 2).mul_(3).relu_()

    assert ways(cut(run, ["x"], x=(8, 96))) == [["mul, mul, relu"]]
