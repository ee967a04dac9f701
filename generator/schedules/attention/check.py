"""Runs attention programs before they are written: they must compute what their muGraph does.

The programs keep the tiles and warps of their variants. Extents are as small as show all that
happens: sequences of more than a pass, of one key and of none, work tiles with rows left over, and
work tiles that blocks share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType, Graph, parts_of, retile
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.schedules.attention.interpret import Split, run
from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.attention.program import AttentionProgram
from mirage_kernels.generator.tiles.check import CLOSE, drawn

BLOCKS = 13  # of a call
DEPTH, MORE = 8, 4  # elements of a line
EDGE = 3  # keys of the last step


def split_of(knobs: AttentionKnobs, program: AttentionProgram) -> Split:
    """Return how a variant cuts the work."""
    heads = knobs.tiles(program.roles)[program.roles.group]
    return Split(heads, knobs.keys, knobs.pass_keys // knobs.keys, BLOCKS)


def require_same(graph: Graph, program: AttentionProgram, split: Split) -> None:
    """Raise PlanError where a program differs from its muGraph on random numbers.

    Raises TileError for a statement that stands where it cannot run. Of rows that see no keys, for
    which a muGraph divides 0 by 0, results are any numbers.
    """
    sizes = _extents(graph, program, split)
    inputs = _inputs(graph, program, sizes)
    with np.errstate(all="ignore"):
        whole = retile(graph, sizes | {parts_of(program.roles.keys): sizes[program.roles.keys]})
        given = [inputs[n.name] for n in graph.inputs]
        (wanted,) = results(whole, given, array_reading(FLOAT64, sizes))
        made = run(program, inputs, split)
    found, exact = (np.asarray(x.over(made.dims).parts[0], np.float64) for x in (made, wanted))
    seen = ~np.isnan(exact)
    close = CLOSE * np.max(np.abs(exact[seen]))
    if not np.isfinite(found).all() or np.max(np.abs(found - exact)[seen]) > close:
        (name,) = graph.outputs
        raise PlanError(f"the attention program of {name} differs from its muGraph at {sizes}")


def _extents(graph: Graph, program: AttentionProgram, split: Split) -> dict[str, int]:
    """Return extents of all dims: two tiles of rows, more steps than a block has warps."""
    roles, steps = program.roles, split.warps + 2
    found = {d: 1 for n in graph.inputs for d in n.out.type.names}  # of what nobody reads
    found |= {roles.sequences: 4, roles.heads: 2, roles.tokens: 2, roles.group: split.heads + 1}
    found |= {roles.depth: DEPTH, roles.more: MORE, roles.keys: steps * split.keys + EDGE}
    return {dim: size for dim, size in found.items() if dim}


def _inputs(graph: Graph, program: AttentionProgram, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Return random inputs: all lengths that differ, a window that hides keys of most rows."""
    found, most = drawn(graph, sizes, np.random.default_rng(0)), sizes[program.roles.keys]
    lengths = np.array([most, 0, most // 2, 1])
    for node in graph.inputs:
        numbers = {(): np.asarray(most // 4), (program.roles.sequences,): lengths}
        if node.out.type.dtype is DType.INT32 and node.out.type.names in numbers:
            found[node.name] = replace(found[node.name], parts=(numbers[node.out.type.names],))
    return found
