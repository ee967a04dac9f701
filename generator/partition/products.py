"""Matrix products among a function's nodes: what they multiply, and how many rows that has."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mirage_kernels.generator.frontend.export import operator_of
from mirage_kernels.generator.partition.trace import Node

PRODUCTS = frozenset(("linear", "mm", "bmm", "addmm", "matmul", "einsum", "mv"))
ATTENTION = "scaled_dot_product_attention"


def free_extents(node: Node) -> tuple[int, int]:
    """Return the rows of a product's two operands: what each has and the other has not."""
    a, b, *_ = (tuple(map(int, n.meta["val"].shape)) for n in factors(node))
    op = operator_of(node)
    if op == "einsum":
        names = str(node.args[0]).replace(" ", "").partition("->")[0].split(",")
        mine, other = (dict(zip(x, s, strict=True)) for x, s in zip(names, (a, b), strict=True))
        return prod(n for d, n in mine.items() if d not in other), prod(
            n for d, n in other.items() if d not in mine
        )
    if op == "linear":
        return prod(a[:-1]), b[0]
    columns = b[-1] if len(b) > 1 else 1
    rows = prod(a[:-1]) if len(b) <= 2 else a[-2] if len(a) > 1 else 1
    return rows, columns


def factors(node: Node) -> Sequence[Node]:
    """Return the tensors that a product multiplies."""
    op = operator_of(node)
    if op == "einsum":
        return list(node.args[1])
    if op == ATTENTION:
        return list(node.args[:3])
    return [n for n in node.args if isinstance(n, type(node))][1 if op == "addmm" else 0 :][:2]
