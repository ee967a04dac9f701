"""What comes to be made is told ahead: the same recipes, by the names that they get."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from cutting import made
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.errors import SearchError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.partition.program import Program, partitioned
from mirage_kernels.generator.partition.trace import Function
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.recipe import Recipe

SHAPES = {"x": (8, 64), "first": (128, 64), "second": (64, 128), "third": (32, 64)}


def two_layers(x: Tensor, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    h = F.linear(torch.relu(F.linear(x, first)), second)
    return F.linear(h / h.square().mean(-1, keepdim=True).sqrt(), third)


class Maker:
    """Makes kernels of all recipes but some, and notes what came to it and what was told ahead."""

    def __init__(self, refused: Sequence[int] = ()) -> None:
        """Refuse the kernels that come with these numbers."""
        self.refused, self.told, self.asked = refused, list[list[Recipe]](), list[Recipe]()

    def ahead(self, recipes: Sequence[Recipe]) -> None:
        self.told.append([*recipes])

    def make(self, recipe: Recipe) -> Result:
        self.asked.append(recipe)
        if len(self.asked) - 1 in self.refused:
            raise SearchError("nothing is equal to it")
        return made(recipe)

    def cut(self, *, tells: bool) -> Program:
        given = {n: torch.empty(s, dtype=torch.bfloat16, device="meta") for n, s in SHAPES.items()}
        function = Function(two_layers, given, {"x": {0: "M"}}, "f")
        more = {"ahead": self.ahead} if tells else {}
        return partitioned(function, DType.BF16, "sm_90a", self.make, **more)


def test_what_is_told_is_what_is_asked_for() -> None:
    maker = Maker()
    maker.cut(tells=True)
    told = [recipe for recipes in maker.told for recipe in recipes]
    assert [*map(id, told)] == [*map(id, maker.asked)]
    assert len(told) > 2


@pytest.mark.parametrize("refused", [(), (0,), (1,), (0, 1), (2, 3)])
def test_names_do_not_depend_on_what_was_told(refused: Sequence[int]) -> None:
    plain, telling = Maker(refused), Maker(refused)
    a, b = plain.cut(tells=False), telling.cut(tells=True)
    assert [r.name for r in plain.asked] == [r.name for r in telling.asked]
    assert a.document == b.document
