"""Tensors that are addressed by an index, on arrays: what their rows are, read and written.

This is what emitted kernels do, and what PyTorch's operators are compared with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.ir import Indexed
from mirage_kernels.generator.tiles.machine import masked_load, masked_store
from mirage_kernels.generator.tiles.memory import Array

Whole = npt.NDArray[np.int64]
Places = Mapping[str, Whole]  # coordinates in whole tensors by dim, broadcastable
BEYOND = 2  # rows that no index says, in a draw
ROWS = 5  # of a table that is drawn
PAGE = 3  # rows of a page


def rows_of(own: Indexed, index: Whole, rows: int) -> Whole:
    """Return the rows that an index tensor says, -1 where it is none."""
    found = np.where((index < 0) & own.wraps, index + rows, index)
    return np.where((found >= 0) & (found < rows), found, -1)


def addressed(
    own: Indexed, names: Sequence[str], places: Places, given: tuple[Array, Array]
) -> tuple[npt.NDArray[np.bool_], tuple[Whole, ...]]:
    """Return which places have a row in a tensor, and where in memory they lie.

    `given` is the tensor and its index, `names` are the dims that a program gives the tensor.
    """
    memory, index = given
    said = np.asarray(index[tuple(places[d] for d in own.dims)]).astype(np.int64)
    counts = memory.shape[own.place : own.place + len(own.counts)]
    row = rows_of(own, said, int(np.prod(counts, dtype=np.int64)))
    order = [places[d] for d in names if d not in own.dims]
    order[own.place : own.place] = np.unravel_index(np.maximum(row, 0), counts)
    at, *more = np.broadcast_arrays(row >= 0, *order)
    return np.asarray(at), tuple(more)


def grid(shape: Sequence[int], names: Sequence[str]) -> dict[str, Whole]:
    """Return the coordinates of all elements by dim."""
    found = np.indices(tuple(shape))
    return {d: found[i] for i, d in enumerate(names)}


def gathered(
    own: Indexed, names: Sequence[str], given: tuple[Array, Array], shape: Sequence[int]
) -> Array:
    """Return the tensor that a program takes, zeros or NaN where there is no row."""
    inside, at = addressed(own, names, grid(shape, names), given)
    found = masked_load(given[0], at, inside)
    return np.where(inside, found, np.nan) if own.unknown_is_nan else found


def scattered(
    own: Indexed, names: Sequence[str], given: tuple[Array, Array], value: Array
) -> Array:
    """Return a tensor in memory with what a program writes."""
    inside, at = addressed(own, names, grid(value.shape, names), given)
    made: Array = given[0].copy()
    masked_store(made, at, inside, value)
    return made


def draws(
    indexed: Mapping[str, Indexed], dims: Mapping[str, Mapping[str, int]]
) -> Iterator[tuple[str, Array]]:
    """Yield random index tensors and tensors in memory, by name; no row is written twice.

    Some say no row: one beyond the last, one far below the first.
    """
    rng, rows = np.random.default_rng(1), dict[str, int]()
    for tensor, own in indexed.items():
        shape = [dims[tensor][d] for d in own.dims]
        count = int(np.prod(shape, dtype=np.int64))
        rows[own.by] = max(ROWS, count + BEYOND, rows.get(own.by, 0))
        said = rng.permutation(rows[own.by])[:count]
        first = len(rows) % 4  # of other elements than the index tensor before
        said[first::4] -= rows[own.by]
        said[(first + 1) % 4 :: 4] += rows[own.by]
        yield own.by, said.reshape(shape).astype(np.float64)
    for tensor, own in indexed.items():
        memory = [n for d, n in dims[tensor].items() if d not in own.dims]
        counts = [-(-rows[own.by] // PAGE), PAGE] if own.page else [rows[own.by]]
        memory[own.place : own.place] = counts
        yield tensor, rng.standard_normal(memory)
