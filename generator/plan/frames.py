"""The index spaces in which registers are dealt out: operands and results of contractions.

A graph without a product on the tensor cores has frames all the same: of each tensor, the fast dim
along the columns and the others along the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mirage_kernels.generator.ir import Node
from mirage_kernels.generator.plan.blocks import Block
from mirage_kernels.generator.plan.forms import Frame, Lanes

Lines = tuple[str, ...]


def operands_of(block: Block, node: Node) -> tuple[Lines, Lines] | None:
    """Return the lines of a product's operands; None where they are the same lines.

    Dims of both operands that stay are a batch: they belong to the lines of both.
    """
    first, second = (tuple(d for d in block.dims(a) if d != node.over) for a in node.args)
    if node.over not in block.tile.extents or set(first) == set(second):
        return None
    return first, second


def sides_of(block: Block, node: Node, m_side: str) -> list[tuple[str, str]]:
    """Return the pairs (operand on the M side, operand on the N side) that are allowed.

    Whoever has static lines comes first: weights, which are many, fill the 16 rows of the M side.
    """
    a, b = node.args
    dynamic = {d.name for t in block.types.values() for d in t.dims if d.dynamic}
    lines = [set(block.dims(x)) - {node.over} for x in (a, b)]
    pairs = [(a, b), (b, a)]
    pairs.sort(key=lambda pair: bool(lines[(a, b).index(pair[0])] & dynamic))
    if m_side == "first":
        return [(a, b)]
    if m_side == "static":
        return pairs[:1]
    if m_side == "dynamic":
        return pairs[-1:]
    return pairs


def frames_of(block: Block, lanes: Sequence[Lanes]) -> tuple[Frame, ...]:
    """Return every frame in which a value of the block may lie in registers."""
    found: dict[Frame, None] = {}
    for node in block.body.of("contract"):
        operands = operands_of(block, node)
        if operands is not None:
            found |= dict.fromkeys(_of_product(block, node, operands, lanes))
    covered = [f.dims for f in found]
    for node in block.body.nodes:
        dims = block.dims(node.name) if node.op != "output" else ()
        if dims and not any(set(dims) <= c for c in covered):
            found |= dict.fromkeys(_dealt(lanes, dims[:-1], dims[-1:]))
    return tuple(found)


def _of_product(
    block: Block, node: Node, operands: tuple[Lines, Lines], lanes: Sequence[Lanes]
) -> Iterator[Frame]:
    first, second = operands
    over = (node.over,) if block.tile.extents[node.over] > 1 else ()
    for lines in operands:
        yield from _dealt(lanes, lines, over)
    for rows, cols in ((first, second), (second, first)):
        yield from _dealt((Lanes.PAIRS,), rows, tuple(d for d in cols if d not in rows))


def _dealt(lanes: Sequence[Lanes], rows: Lines, cols: Lines) -> Iterator[Frame]:
    """Yield a frame for each dim that the warps may share out."""
    for lane_map in lanes:
        for split in (*rows, *cols):
            yield Frame(lane_map, rows, cols, split)
