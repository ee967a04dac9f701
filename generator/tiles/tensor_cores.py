"""Which products tensor cores make, and which operand has the rows of their instruction."""

from __future__ import annotations

from dataclasses import replace
from math import gcd, prod

from mirage_kernels.generator.ir import OPS, Dim, Graph, Kind, Node, Value
from mirage_kernels.generator.ir.dtypes import EIGHT_BITS, STORAGE_DTYPES
from mirage_kernels.generator.ir.infer import SCALAR

ROWS, COLUMNS, DEPTH = 16, 8, 16  # of the instruction
ONE, CONVERTED = "_one", "_converted"  # behind the name of an operand


def with_conversions(body: Graph) -> Graph:
    """Return a block graph whose products take tensors of 8 bits in the other operand's type.

    That holds every number of theirs. A conversion is a product with 1.
    """
    nodes, made = list[Node](), dict[str, str]()
    for node in body.nodes:
        for name, other in zip(node.args, node.args[::-1], strict=True):
            if node.op != "contract" or not _is_converted(body, name, other):
                continue
            if name not in made:
                made[name] = f"{name}{CONVERTED}"
                nodes.append(Node("const", (), (Value(f"{name}{ONE}", SCALAR),), value=1.0))
                type_ = replace(body.values[name].type, dtype=body.values[other].type.dtype)
                args = (name, f"{name}{ONE}")
                nodes.append(Node("mul", args, (Value(made[name], type_),)))
            node = replace(node, args=tuple(made[name] if a == name else a for a in node.args))
        nodes.append(node)
    return replace(body, nodes=tuple(nodes)) if made else body


def _is_converted(body: Graph, name: str, other: str) -> bool:
    own = body.values[name].type.dtype in EIGHT_BITS
    return own and body.values[other].type.dtype in STORAGE_DTYPES


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

    Of an operand that is contiguous along the sum all lines together count. A formula's tile is.
    """
    rows, columns, turned = lines(body, node)
    found = {node.over: DEPTH}
    sides = node.args[::-1] if turned else node.args
    for side, dims, least in zip(sides, (rows, columns), (ROWS, COLUMNS), strict=True):
        made = body.producers[side]
        formula = made.op in OPS and OPS[made.op].kind is Kind.ELEMENTWISE
        along = formula or made.out.type.names[-1] == node.over
        together = gcd(prod(d.size for d in dims[:-1]), least) if along else 1
        found |= {d.name: least // together for d in dims[-1:]}
    return found
