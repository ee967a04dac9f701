"""Positions that small extents stand for."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.recipe import trace
from mirage_kernels.generator.search.places import places_of


def spec_of(low: int, high: int) -> tuple[Graph, str, str]:
    """Return the spec of a softmax of which row r sees the columns from r + low to r + high."""

    def run(x: Tensor) -> Tensor:
        row, column = torch.arange(32)[:, None], torch.arange(96)[None, :]
        seen = (column >= row + low) & (column <= row + high)
        return torch.softmax(x.masked_fill(~seen, -math.inf), -1)

    recipe = from_torch(run, {"x": torch.empty(8, 32, 96, dtype=torch.bfloat16, device="meta")})
    spec = trace(recipe, recipe.shapes[0], DType.BF16)
    rows, columns = sorted((n.over for n in spec.of("iota")), key=lambda d: spec_size(spec, d))
    return spec, rows, columns


def spec_size(spec: Graph, dim: str) -> int:
    return next(n.out.type.dims[0].size for n in spec.of("iota") if n.over == dim)


@pytest.mark.parametrize(("low", "high"), [(25, 64), (0, 2), (60, 64), (-5, 90)])
def test_every_row_sees_something_and_not_all(low: int, high: int) -> None:
    spec, rows, columns = spec_of(low, high)
    places = places_of(spec, {d.name: 4 for d in spec.inputs[0].out.type.dims})
    row, column = places[rows][:, None], places[columns][None, :]
    seen = (column >= row + low) & (column <= row + high)
    assert seen.any(axis=1).all()
    assert not seen.all()
    assert places[rows].max() < 32
    assert places[columns].max() < 96


def test_all_extents_are_all_positions() -> None:
    spec, *_ = spec_of(25, 64)
    sizes = {d.name: d.size for d in spec.inputs[0].out.type.dims}
    assert places_of(spec, sizes) == {}
