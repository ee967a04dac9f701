"""Operators that look at a value by other positional dims: nothing is computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mirage_kernels.generator.frontend.positional.dims import Scope, Tile

if TYPE_CHECKING:
    from mirage_kernels.generator.frontend.positional.program import Extents, Step


def reshaped(step: Step, args: Sequence[Extents]) -> Extents | None:
    """Return the extents that a reshape asks for, None where they hold another number."""
    return step.shape if math.prod(step.shape) == math.prod(args[0]) else None


def reshape(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    """Deal the factors out to other dims, splitting those that lie across two."""
    sizes, left = scope.factors.sizes, [f for row in args[0].rows for f in row]
    scope.factors.drop(tuple(f for f in left if sizes[f] == 1))
    rows = []
    for extent in step.shape:
        row, wanted = [], extent
        while wanted > 1:
            factor = left.pop(0)
            if wanted % sizes[factor]:
                scope.factors.split(factor, wanted, f"a reshape to {list(step.shape)}")
            row.append(factor)
            wanted //= sizes[factor]
        rows.append(tuple(row))
    return [replace(args[0], rows=tuple(rows))]


def expanded(step: Step, args: Sequence[Extents]) -> Extents | None:
    """Return the extents that dims of one element become, None where others would change."""
    pairs = [*zip(args[0], step.shape, strict=False)]
    fits = len(step.shape) == len(args[0]) and all(n in (1, more) for n, more in pairs)
    return step.shape if fits else None


def expand(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    """Repeat what has one element along dims: the value does not vary along their new factors."""
    (made,), factors = step.outs, scope.factors
    rows = [
        row if factors.extent(row) == extent else factors.of_input(made.guid, at, extent)
        for at, (row, extent) in enumerate(zip(args[0].rows, step.shape, strict=True))
    ]
    return [replace(args[0], rows=tuple(rows))]


def permuted(step: Step, args: Sequence[Extents]) -> Extents | None:
    """Return extents in another order, None where a dim is lost or there twice."""
    fits = sorted(step.shape) == [*range(len(args[0]))]
    return tuple(args[0][i] for i in step.shape) if fits else None


def permute(scope: Scope, step: Step, args: Sequence[Tile]) -> list[Tile]:
    """Put the rows of factors in another order."""
    return [replace(args[0], rows=tuple(args[0].rows[i] for i in step.shape))]
