"""Which products tensor cores make, and which operand has the rows of their instruction."""

from __future__ import annotations

from math import gcd, prod

from mirage_kernels.generator.ir import Dim, Graph, Node
from mirage_kernels.generator.ir.dtypes import STORAGE_DTYPES
from mirage_kernels.generator.tiles.conversions import operand_dims

ROWS, COLUMNS, DEPTH = 16, 8, 16  # of the instruction


def is_product(body: Graph, node: Node, *, vectors: bool) -> bool:
    """Say whether tensor cores make a product: of narrow operands, each with lines of its own.

    With `vectors`, one may have none, where a loop copies the other to shared memory: all columns
    of the instruction are that one then.
    """
    a, b = (body.values[x].type for x in node.args)
    if a.dtype not in STORAGE_DTYPES or b.dtype is not a.dtype or a.dim(node.over).size < COLUMNS:
        return False
    rows, columns, turned = lines(body, node)
    if columns or not (rows and vectors):
        return bool(rows and columns)
    matrix, vector = node.args[::-1] if turned else node.args
    made, own = body.producers[matrix], body.producers[vector]
    copied = made.op == "input" and made.loop_cut is not None
    lies = made.out.type.names[-1] in (node.over, rows[-1].name)
    beside = own.op != "input" or own.out.type.names[-1] == node.over
    return copied and lies and beside and prod(d.size for d in rows) >= ROWS


def lines(body: Graph, node: Node) -> tuple[tuple[Dim, ...], tuple[Dim, ...], bool]:
    """Return the rows and the columns of a product, and whether its operands change places.

    The side with more lines has the rows. Dims are in storage order, the contiguous one last.
    """
    a, b = (body.values[x].type.dims for x in node.args)
    mine = tuple(d for d in a if d not in b)
    other = tuple(d for d in b if d not in a)
    turned = prod(d.size for d in other) > prod(d.size for d in mine)
    return (other, mine, True) if turned else (mine, other, False)


def multiples(body: Graph, node: Node) -> dict[str, int]:
    """Return what extents of dims have to be multiples of, so that the instruction fits.

    Of an operand that is contiguous along the sum all lines together count.
    """
    rows, columns, turned = lines(body, node)
    found = {node.over: DEPTH}
    sides = node.args[::-1] if turned else node.args
    for side, dims, least in zip(sides, (rows, columns), (ROWS, COLUMNS), strict=True):
        along = operand_dims(body, node.over, side)[-1].name == node.over
        together = gcd(prod(d.size for d in dims[:-1]), least) if along else 1
        found |= {d.name: least // together for d in dims[-1:]}
    return found
