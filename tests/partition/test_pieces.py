"""Tensors side by side: slices are views, and kernels write the pieces of one tensor in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cutting import (
    cut,
    cut_given,
    drawn,
    made,
    numbers,
    really_made,
    require_same,
    require_same_memory,
    ways,
)
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.errors import SearchError
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.recipe import Recipe


def steps(program: Any, kind: str) -> list[dict[str, Any]]:
    return [s for s in program.document["ways"][0]["steps"] if kind in s]


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


ROTATION = {"x": (6, 4, 32), "cos": (6, 1, 32), "sin": (6, 1, 32)}


def test_a_rotation_of_halves_is_one_kernel_that_writes_both() -> None:
    program = cut(rotated, [*ROTATION], **ROTATION)
    assert len(ways(program)[0]) == 1
    (join,) = steps(program, "join")
    assert join["copies"] == []
    (kernel,) = steps(program, "kernel")
    ranges = sorted((r["into"]["start"], r["into"]["size"]) for r in kernel["results"])
    assert ranges == [(0, 16), (16, 16)]
    require_same(program, rotated, **{n: drawn(3, *s[1:]) for n, s in ROTATION.items()})


def test_such_a_kernel_is_proved_and_takes_any_strides() -> None:
    program = cut(rotated, [*ROTATION], really_made, **ROTATION)
    (record,) = (result.record for result in program.results)
    assert record.strided
    assert {v.schedule for v in record.variants} == {"general"}
    assert record.proof.log2_failure <= -40


def interleaved(x: Tensor, w: Tensor) -> Tensor:
    a, b, c = F.linear(x, w).split((16, 32, 48), dim=1)
    return torch.relu(torch.cat((torch.tanh(c), a, b * 2), dim=1)) + 1


def partly_rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turning, left = x[..., :16], x[..., 16:]
    return torch.cat((rotated(turning, cos, sin), left), dim=-1)


def rotated_in_fp32(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = torch.exp(x).transpose(0, 1).float()
    return (rotated(turned, cos, sin)).to(x.dtype)


def rotated_whole(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.cat((rotated(x[..., :24], cos, sin), x[..., 24:]), dim=-1)


def fused(x: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    q, k, v = F.linear(x, w).view(-1, 6, 16).split((4, 1, 1), dim=1)
    both = rotated(torch.cat((q, k), dim=1), cos, sin)
    return torch.cat((both, v * 2), dim=1)


def across(x: Tensor, y: Tensor) -> Tensor:
    rows = torch.cat((torch.tanh(x), torch.exp(y)), 0)
    return torch.cat((rows * 2, torch.relu(rows)), 1) - 1


def residual(x: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(torch.cat((x, y), 0)) * 2


def doubled(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat((x, y), 1) + torch.cat((y, x), 1)


def kept(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.cat((x, y), 1)
    return both, torch.relu(both)


def turned(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat((x.transpose(1, 2), torch.exp(y)), 1)


def written(x: Tensor, y: Tensor) -> Tensor:
    both = torch.cat((x * 2, y * 3), 1)
    x.copy_(y)
    return both + torch.cat((x, y), 1)


def squared(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return torch.cat((x * 2, y + 1), -1) - w * w


def powers(x: Tensor, y: Tensor) -> Tensor:
    return x * x + rotated(x, x * (1 + x), y)


def halves(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.cat((x * 2, y), -1) * (w * w)
    return both, torch.tanh(w[..., :24]) * w[..., :24] + w[..., 24:]


def halves_written(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.cat((x * 2, y), -1) * (w * w)
    w[..., :24].copy_(y)
    return both, torch.cat((x, y * 3), -1) * (w + w)


FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, tuple[int, ...]]]] = {
    "parts of a product": (interleaved, {"x": (5, 64), "w": (96, 64)}),
    "a part that turns": (
        partly_rotated,
        {"x": (5, 4, 24), "cos": (5, 1, 16), "sin": (5, 1, 16)},
    ),
    "a whole that turns, and nothing": (
        rotated_whole,
        {"x": (5, 4, 24), "cos": (5, 1, 24), "sin": (5, 1, 24)},
    ),
    "a cast that turns": (
        rotated_in_fp32,
        {"x": (5, 4, 24), "cos": (5, 24), "sin": (5, 24)},
    ),
    "heads of one product": (
        fused,
        {"x": (5, 32), "w": (96, 32), "cos": (5, 1, 16), "sin": (5, 1, 16)},
    ),
    "rows and columns": (across, {"x": (5, 24), "y": (3, 24)}),
    "rows": (residual, {"x": (5, 24), "y": (3, 24)}),
    "two in one": (doubled, {"x": (5, 24), "y": (5, 24)}),
    "one that is a result": (kept, {"x": (5, 24), "y": (5, 24)}),
    "a view beside": (turned, {"x": (5, 24, 8), "y": (5, 3, 24)}),
    "one that is written over": (written, {"x": (5, 24), "y": (5, 24)}),
    "a square beside": (squared, {"x": (5, 24), "y": (5, 24), "w": (5, 48)}),
    "a square of what turns": (powers, {"x": (5, 4, 24), "y": (5, 1, 24)}),
    "slices behind": (halves, {"x": (5, 24), "y": (5, 24), "w": (5, 48)}),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_computed_piece_by_piece_is_the_same(name: str) -> None:
    run, shapes = FUNCTIONS[name]
    program = cut(run, [], **shapes)
    require_same(program, run, **{n: drawn(*s) for n, s in shapes.items()})


@pytest.mark.parametrize("run", [halves, halves_written])
def test_a_slice_is_of_a_tensor_as_it_is_where_it_is_taken(run: Callable[..., Any]) -> None:
    given = {"x": drawn(5, 24), "y": drawn(5, 24), "w": drawn(5, 48)}
    require_same_memory(cut_given(run, given), run, given)


@pytest.mark.parametrize("width", [16, 24])
def test_what_does_not_turn_is_copied_by_the_kernel_of_what_does(width: int) -> None:
    def run(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return torch.cat((rotated(x[..., :width], cos, sin), x[..., width:]), dim=-1)

    shapes = {"x": (6, 4, 24), "cos": (6, 1, width), "sin": (6, 1, width)}
    program = cut(run, [*shapes], **shapes)
    (alone,) = ways(program)
    assert len(alone) == 1
    (join,) = steps(program, "join")
    assert join["copies"] == []
    require_same(program, run, **{n: drawn(3, *s[1:]) for n, s in shapes.items()})


def test_a_value_is_cast_where_its_pieces_are_taken() -> None:
    shapes = {"x": (6, 4, 24), "cos": (6, 24), "sin": (6, 24)}
    program = cut(rotated_in_fp32, [], **shapes)
    assert [text for text in ways(program)[0] if text.startswith("[")] == []
    assert "to" not in ways(program)[0][0].split(", ")  # it is stored as it was computed


def test_a_gate_beside_its_operand_goes_to_a_kernel_as_views() -> None:
    def gated(x: Tensor, w: Tensor) -> Tensor:
        gate, up = F.linear(x, w).chunk(2, dim=-1)
        return F.silu(gate) * up

    program = cut(gated, ["x"], x=(8, 96), w=(128, 96))
    assert ways(program)[1] == ["[linear]", "silu, mul"]
    (kernel,) = (s for s in program.ways[1].steps if "kernel" in s)
    assert {*(i["value"] for i in kernel["inputs"])} == {"slice_tensor", "slice_tensor_1"}
    require_same(program, gated, x=drawn(70, 96), w=drawn(128, 96))


def test_pieces_that_no_kernel_makes_together_are_made_apart() -> None:
    def make(recipe: Recipe) -> Result:
        if recipe.also:
            raise SearchError("the search found nothing", "")
        return made(recipe)

    program = cut(rotated, [*ROTATION], make, **ROTATION)
    assert len(steps(program, "kernel")) == 2
    assert all("into" in r for s in steps(program, "kernel") for r in s["results"])
    require_same(program, rotated, **{n: drawn(3, *s[1:]) for n, s in ROTATION.items()})


def test_a_piece_that_pytorch_makes_is_copied() -> None:
    def summed_beside(x: Tensor) -> Tensor:
        return torch.cat((torch.cumsum(x, dim=1), torch.exp(x)), dim=1)

    program = cut(summed_beside, ["x"], x=(8, 16))
    (join,) = steps(program, "join")
    assert [(c["start"], c["size"]) for c in join["copies"]] == [(0, 16)]
    require_same(program, summed_beside, x=drawn(5, 16))


def test_one_of_several_results_of_pytorch_is_copied_by_the_kernel_of_what_is_beside_it() -> None:
    def sorted_beside(x: Tensor) -> Tensor:
        return torch.cat((torch.sort(x, dim=1)[0], torch.exp(x)), dim=1)

    program = cut(sorted_beside, ["x"], x=(8, 16))
    (join,) = steps(program, "join")
    assert join["copies"] == []
    require_same(program, sorted_beside, x=drawn(5, 16))


def nibbles(q: Tensor) -> Tensor:
    return torch.cat(((q << 4) >> 4, q >> 4), -1).bfloat16()


def nibbles_in_turn(q: Tensor) -> Tensor:
    return torch.stack(((q & 15).bfloat16(), (q >> 4).bfloat16()), -1) * 2


def of_groups(q: Tensor, scale: Tensor) -> Tensor:
    pairs = torch.stack(((q & 15).bfloat16(), (q >> 4).bfloat16()), -1).flatten(-2)
    return pairs.view(6, 4, 4) * scale[..., None]


def in_fp32(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat((x.float(), y.float()), -1).view(6, 4, 4).sum(-1)


def rounded_twice(x: Tensor) -> Tensor:
    return x.half().bfloat16()


def rounded_copy(x: Tensor) -> Tensor:
    return x.half().t().contiguous()


Q, X = numbers(6, 8, below=128, dtype=torch.int8), drawn(6, 8)
CASTS: dict[Callable[..., Tensor], dict[str, Tensor]] = {
    nibbles: {"q": Q},
    nibbles_in_turn: {"q": Q},
    of_groups: {"q": Q, "scale": drawn(6, 4)},
    in_fp32: {"x": X, "y": X.flip(0)},
    rounded_twice: {"x": X},
    rounded_copy: {"x": X},
}


@pytest.mark.parametrize("run", CASTS, ids=lambda run: run.__name__)
def test_no_kernel_only_casts(run: Callable[..., Tensor]) -> None:
    program = cut_given(run, CASTS[run])
    assert all({*text.split(", ")} - {"to"} for text in ways(program)[0])
    require_same(program, run, **CASTS[run])
