"""Kernels that take nothing of each other become one launch; what depends stays in its order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cutting import (
    DIM,
    HEADS,
    ROWS,
    SLOTS,
    Given,
    cut_given,
    drawn,
    made,
    numbers,
    really_made,
    require_same_memory,
    rotated,
    ways,
)
from torch import Tensor

from mirage_kernels.generator.errors import SearchError
from mirage_kernels.generator.partition.horizontal import Touched, in_order
from mirage_kernels.generator.partition.program import Program
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.recipe import Recipe

MORE = 4  # heads of queries


def given(*names: str) -> Given:
    """Tensors of a rotation that appends to a cache, by name."""
    every = {
        "q": drawn(5, MORE * DIM),
        "k": drawn(5, HEADS * DIM),
        "v": drawn(5, HEADS * DIM),
        "cos": drawn(ROWS, DIM),
        "positions": numbers(5, below=ROWS),
        "keys": drawn(SLOTS, HEADS, DIM),
        "values": drawn(SLOTS + 1, HEADS, DIM)[1:],
        "slots": numbers(5, below=SLOTS),
    }
    return {name: every[name] for name in names}


APPENDED = ("q", "k", "v", "cos", "positions", "keys", "values", "slots")
DYNAMIC = ("q", "k", "v", "positions", "slots", "keys", "values")


def turned(x: Tensor, cos: Tensor, positions: Tensor) -> Tensor:
    at = cos[positions].unsqueeze(1)
    return rotated(x.view(-1, x.shape[1] // DIM, DIM), at, at)


def heads(x: Tensor) -> Tensor:
    return x.view(-1, HEADS, DIM)


def appended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    positions: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
) -> Tensor:
    keys[slots] = turned(k, cos, positions)
    values[slots] = heads(v)
    return turned(q, cos, positions)


def cut(run: Callable[..., Any], *names: str, make: Callable[[Recipe], Any] = made) -> Program:
    rows = [n for n in names if n in DYNAMIC]
    return cut_given(run, given(*names), rows, make)


def calls(program: Program) -> list[str]:
    """The operators that PyTorch runs, views aside."""
    steps = program.document["ways"][0]["steps"]
    return [s["call"] for s in steps if s.get("call", "").partition(".")[2].startswith("index")]


def launches(program: Program) -> list[int]:
    """How many kernels each launch of a program runs."""
    return [len(p.members) or 1 for p in program.ways[0].parts if p.key in program.kernels]


def test_a_rotation_that_appends_keys_and_values_is_one_launch() -> None:
    program = cut(appended, *APPENDED)
    assert (launches(program), calls(program)) == ([3], [])
    require_same_memory(program, appended, given(*APPENDED))


def test_dynamic_dims_of_one_name_are_one_dim_of_a_launch() -> None:
    (result,) = cut(appended, *APPENDED).results
    assert [*result.request.recipe.dynamic] == ["M"]
    assert result.request.recipe.independent == (2, 1, 2)


def test_a_launch_may_have_no_rows() -> None:
    caches, every = ("cos", "keys", "values"), given(*APPENDED)
    none = {n: x if n in caches else x[:0] for n, x in every.items()}
    require_same_memory(cut(appended, *APPENDED), appended, none)


def test_kernels_of_a_launch_are_searched_proved_and_emitted_as_one() -> None:
    program = cut(appended, *APPENDED, make=really_made)
    assert launches(program) == [3]
    (cuda,) = (text for name, text in program.results[0].files.items() if name.endswith(".cu"))
    buckets = len(program.results[0].record.variants)
    assert cuda.count("__global__") == buckets
    assert cuda.count("__forceinline__") == 3 * buckets


def as_it_is(v: Tensor, values: Tensor, slots: Tensor) -> Tensor:
    values[slots] = heads(v)
    return torch.tanh(v)


def test_alone_pytorch_copies_what_goes_to_a_cache_as_it_is() -> None:
    names = ("v", "values", "slots")
    program = cut(as_it_is, *names)
    assert (launches(program), len(calls(program))) == ([1], 1)
    require_same_memory(program, as_it_is, given(*names))


def sliced(q: Tensor, k: Tensor, keys: Tensor) -> Tensor:
    keys[0, 1:2] = q[:1, :DIM]
    keys[1, :1] = k[:1, :DIM]
    return torch.tanh(q[:, DIM:])


def test_two_writers_of_a_cache_stay_apart() -> None:
    names = ("q", "k", "keys")
    program = cut(sliced, *names)
    assert launches(program) == [1]
    require_same_memory(program, sliced, given(*names))


# -- what depends ----------------------------------------------------------------------------------


def read_behind(k: Tensor, cos: Tensor, positions: Tensor, keys: Tensor, slots: Tensor) -> Tensor:
    keys[slots] = turned(k, cos, positions)
    return torch.tanh(keys[:, :, 4:12])


def written_over(v: Tensor, k: Tensor, cos: Tensor, positions: Tensor, values: Tensor) -> Tensor:
    made_ = turned(k, cos, positions)
    values.copy_(torch.sort(values, 0)[0])
    return made_ + values[: len(v), :, :].sum() + torch.exp(v[:, :HEADS, None] * made_)


def of_each_other(q: Tensor, cos: Tensor, positions: Tensor) -> Tensor:
    once = torch.tanh(q[:, :DIM] * cos[positions])
    return torch.exp(torch.sort(once, -1)[0] * cos[positions])


def copied_then_changed(
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    positions: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
) -> Tensor:
    values[slots] = heads(v)
    v.mul_(2)
    keys[slots] = turned(k, cos, positions)
    return v + 1


def changed_then_copied(
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    positions: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
) -> Tensor:
    keys[slots] = turned(k, cos, positions)
    v.mul_(2)
    values[slots] = heads(v)
    return v + 1


def read_between(
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    positions: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
) -> Tensor:
    keys[slots] = turned(k, cos, positions)
    before = torch.sort(values, 0)[0]
    values[slots] = heads(v)
    return before


FULL = ("k", "v", "cos", "positions", "keys", "values", "slots")
DEPEND: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "a kernel reads the cache that another writes": (
        read_behind,
        ("k", "cos", "positions", "keys", "slots"),
    ),
    "PyTorch writes between": (written_over, ("v", "k", "cos", "positions", "values")),
    "a kernel takes what becomes of another's result": (of_each_other, ("q", "cos", "positions")),
    "what is copied changes behind": (copied_then_changed, FULL),
    "what is copied changes before": (changed_then_copied, FULL),
    "PyTorch reads a cache before a launch writes it": (read_between, FULL),
}


@pytest.mark.parametrize("name", DEPEND)
def test_the_order_is_kept_where(name: str) -> None:
    run, names = DEPEND[name]
    require_same_memory(cut(run, *names), run, given(*names))


MUTANTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "what a part reads is forgotten": ("reads", read_between),
    "what a part writes is forgotten": ("writes", read_behind),
    "what a part takes is forgotten": ("takes", of_each_other),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_an_order_is_lost_where(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    what, run = MUTANTS[name]
    names = next(names for of, names in DEPEND.values() if of is run)
    monkeypatch.setattr(Touched, what, property(lambda self: set[object]()))
    with pytest.raises((AssertionError, KeyError, RuntimeError)):
        require_same_memory(cut(run, *names), run, given(*names))


def test_units_that_need_each_other_have_no_order() -> None:
    needs = [[], [0], [1]]
    assert in_order({0: (0,), 1: (1,), 2: (2,)}, needs) == [0, 1, 2]
    assert in_order({0: (0, 2), 1: (1,)}, needs) == []
    assert in_order({0: (0,), 1: (1, 2)}, [[], [0], [0]]) == [0, 1]


# -- what has no launch ----------------------------------------------------------------------------


def refusing(recipe: Recipe) -> Result:
    if recipe.independent:
        raise SearchError("no launch runs them")
    return made(recipe)


def test_kernels_without_a_launch_in_common_have_their_own() -> None:
    program = cut(appended, *APPENDED, make=refusing)
    assert (launches(program), len(calls(program))) == ([1, 1], 1)
    assert [w for w in ways(program)[0] if w.startswith("[")] == ["[index_put]"]
    require_same_memory(program, appended, given(*APPENDED))
