"""What is rewritten in the graphs of a function, in order, before it is cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirage_kernels.generator.partition.pieces import in_pieces, sliced
from mirage_kernels.generator.partition.rewriting import rewritten
from mirage_kernels.generator.partition.softmaxes import with_columns_apart


def prepare(graphs: Sequence[Any]) -> None:
    """Rewrite the graphs of one function, traced at several extents, alike."""
    for graph in graphs:
        rewritten(graph)
    sliced(graphs)
    for graph in graphs:
        with_columns_apart(graph)
    in_pieces(graphs)
