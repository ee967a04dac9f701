"""The op that appends and its recipes are given the same calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType

import pytest
import torch
from torch import Tensor

from mirage_kernels.generator.bench.measure import Clock
from mirage_kernels.generator.recipe import Recipe, catalog
from tests.scripts import script

CLOCK = Clock("cpu", lambda calls: float(len(calls)), float, lambda dtype: 1.0, lambda size: 2)
TYPES = [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)]
Run = Callable[..., Sequence[Tensor]]


@pytest.fixture(scope="module")
def append() -> ModuleType:
    return script("append")


def by_reference(recipe: Recipe) -> Run:
    """Return what computes a recipe by its reference, in place of its kernel."""

    def run(into: Sequence[Tensor], **given: Tensor) -> Sequence[Tensor]:
        at, slots = given.pop("positions"), given.pop("slots")
        given |= {name: given[name][at].to(given["v"].dtype) for name in ("cos", "sin")}
        made = recipe.reference_results(*(given[name] for name in recipe.inputs))
        names = ("q_written", *recipe.also)
        for name, place, x in zip(names, into, made, strict=True):
            page = place.shape[1]
            where = (slots // page, slots % page)
            if name.startswith("q_"):
                place.copy_(x)
            else:
                place[where] = x
        return into

    return run


def models(append: ModuleType) -> list[object]:
    return [replace(m, heads=(4, 2), depth=m.depth // 4) for m in append.MODELS]


@pytest.mark.parametrize("types", TYPES, ids=str)
def test_both_compute_the_same(append: ModuleType, types: tuple[torch.dtype, ...]) -> None:
    for model in models(append):
        both = append.caches(model, types[0], "cpu", slots=64)
        given = append.draw(model, 5, both, types[1], seed=1)
        run = by_reference(catalog()[model.recipe])
        for way in (append.by_op, partial(append.by_recipe, run=run)):
            for cache in both:
                cache.fill_(torch.nan)
            assert append.error(model, given, partial(way, model)) < 0.02


def test_a_call_that_swaps_halves_has_a_large_error(append: ModuleType) -> None:
    model = models(append)[-1]
    both = append.caches(model, torch.bfloat16, "cpu", slots=64)
    given = append.draw(model, 5, both, torch.bfloat16, seed=1)
    right = by_reference(catalog()[model.recipe])

    def run(into: Sequence[Tensor], **given: Tensor) -> Sequence[Tensor]:
        return right([into[1], into[0], *into[2:]], **given)

    assert append.error(model, given, partial(append.by_recipe, model, run=run)) > 0.1


def test_a_row_has_the_times_of_both(append: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append, "SLOTS", 64)
    monkeypatch.setattr(append, "POSITIONS", 32)
    model = models(append)[0]
    run = by_reference(catalog()[model.recipe])
    monkeypatch.setattr(append.caches, "__defaults__", (64,))
    row = append.measured(model, 3, (torch.bfloat16, torch.float32), run, CLOCK)
    assert (row.op_us, row.recipe_us, row.ratio, row.tables) == (2.0, 2.0, 1.0, "float32")
    assert len(row.line()) == len(append.HEAD)
