"""What is rewritten in the graphs of a function, in order, before it is cut."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from mirage_kernels.generator.frontend.conditions import as_numbers
from mirage_kernels.generator.frontend.editing import Node
from mirage_kernels.generator.partition.bits import bits_as_numbers
from mirage_kernels.generator.partition.casts import casts_last, expands_last
from mirage_kernels.generator.partition.constants import with_numbers
from mirage_kernels.generator.partition.gathers import chosen_first
from mirage_kernels.generator.partition.packed import part_columns, slice_first
from mirage_kernels.generator.partition.pieces import copies_in, in_pieces, sliced
from mirage_kernels.generator.partition.rewriting import rewritten, without_wrappers
from mirage_kernels.generator.partition.softmaxes import with_columns_apart
from mirage_kernels.generator.partition.spelled_out import with_activations
from mirage_kernels.generator.partition.stepwise import along_rows_first
from mirage_kernels.generator.partition.twins import Use, with_twins


def prepare(
    programs: Sequence[Any], packed: Collection[str], twice: Collection[Use]
) -> tuple[dict[Node, Node], dict[str, list[Node]], dict[Node, Node]]:
    """Rewrite the graphs of one function, exported at several extents, alike.

    Return of the first what kernels copy over something as it is, by the node that does, what
    products named in `packed` have become, and what the uses in `twice` take, with what it is.
    """
    for program in programs:
        without_wrappers(program.graph, program.graph_module)
        with_numbers(program)
    graphs = [program.graph for program in programs]
    for graph in graphs:
        rewritten(graph)
        bits_as_numbers(graph)
        chosen_first(graph)
        casts_last(graph)
        expands_last(graph)
        with_activations(graph)
        as_numbers(graph)
    sliced(graphs)
    for graph in graphs:
        with_columns_apart(graph)
        along_rows_first(graph)
        slice_first(graph)
    in_pieces(graphs)
    for graph in graphs:
        casts_last(graph)  # slices that are pieces among them
    copies = [copies_in(graph) for graph in graphs]
    parted = [part_columns(graph, packed) for graph in graphs]
    twins = [with_twins(graph, twice) for graph in graphs]
    return copies[0], parted[0], twins[0]
