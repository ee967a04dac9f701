"""Rows as one dim of any extent, for fast schedules: of a static number, or of several dims.

A kernel for any number of rows is right for one. Dims number rows where nothing is summed along
them, and every tensor that has them has them in front, whole, results among them. What is computed
of a row is the same then whatever other rows there are. Tensors without them are weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod

from mirage_kernels.generator.frontend.dim_names import renamed
from mirage_kernels.generator.frontend.merging import as_one, merged, without_ones
from mirage_kernels.generator.frontend.positional.lower import Lowered, flat, sizes_of

ROWS, MOST = "M", 2**20  # what the dim is called, and how many rows it may number
PLAIN = "D"  # what dims are called that no product has


def with_rows(
    lowered: Lowered, gaps: Collection[str], dynamic: Sequence[str] = ()
) -> tuple[Lowered, tuple[str, ...]]:
    """Return a graph with its rows along one dim in front, and that dim's name.

    Of the dims in front, rows are as few as leave each result one more dim. There is a gap in front
    of the dims in `gaps` (`merged`). Dynamic dims are among them, the first keeps its name then.
    Where there are no rows the graph is as it was. Dims of one element go where rows are hidden
    behind them.
    """
    first = flat(lowered.outputs[0])[:1]
    fewer = [without_ones(lowered, {*kept, *dynamic}) for kept in ({*gaps, *first}, gaps)]
    for one in (lowered, *fewer):
        rows = _rows_of(one, gaps, dynamic)
        if rows is not None:
            return rows
    return lowered, (*dynamic,)


def _rows_of(
    lowered: Lowered, gaps: Collection[str], dynamic: Sequence[str]
) -> tuple[Lowered, tuple[str, ...]] | None:
    """Return a graph with its rows along one dim, if it has such in front."""
    for rows in _in_front(lowered):
        one = as_one(lowered, rows, gaps)
        if one is None:
            break
        known = {*dynamic} <= {*rows}
        if known and all(len(flat(x)) == 2 for x in merged(one, rows[:1], gaps).outputs):
            if dynamic and len(rows) == 1:
                break
            name = rows[0] if dynamic else ROWS
            return renamed(one, {rows[0]: name, **_numbered(one, rows[0])}), (name,)
    return None


def _numbered(lowered: Lowered, rows: str) -> dict[str, str]:
    """Return names for dims that products give none, however many dims numbered the rows."""
    others = (d for d in sizes_of(lowered.graph) if d != rows and d.startswith(PLAIN))
    return {d: f"{PLAIN}{i}" for i, d in enumerate(others, start=2)}


def _in_front(lowered: Lowered) -> Iterator[tuple[str, ...]]:
    """Yield dims that may number rows: the first of the results, then one more each time."""
    graph, sizes = lowered.graph, sizes_of(lowered.graph)
    along = {node.over for node in graph.nodes}
    layouts = [flat(x) for x in (*lowered.inputs, *lowered.outputs)]
    stored = [node.out.type.names for node in graph.inputs]
    first = flat(lowered.outputs[0])
    for count in range(1, len(first)):
        rows = first[:count]
        whole = all(_has_in_front(names, rows) for names in (*layouts, *stored))
        if along & {*rows} or not whole or prod(sizes[d] for d in rows) > MOST:
            return
        yield rows


def _has_in_front(names: tuple[str, ...], rows: tuple[str, ...]) -> bool:
    """Say whether a tensor has rows in front and something in each, or none of them."""
    return not {*names} & {*rows} or (names[: len(rows)] == rows and len(names) > len(rows))
