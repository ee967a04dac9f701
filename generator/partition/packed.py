"""Products whose columns are several values: gate and up of one weight, as one kernel takes them.

    linear(x, w)[..., a:b]  ->  linear(x, w[a:b])

A slice of a product is a product with a slice of the weight, a view that kernels read as it lies.
That is better where the slices meet again, element by element: a gated MLP of both halves of a
weight stores one result. Where they go apart, as queries, keys and values do, the product stays
one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mirage_kernels.generator.frontend.export import operator_of
from mirage_kernels.generator.partition.editing import Node, added, is_op, substitute
from mirage_kernels.generator.partition.pieces import is_elementwise, range_of, shape_of
from mirage_kernels.generator.partition.rewriting import regions

_OF_COLUMNS = {"linear": 0, "mm": 1, "matmul": 1}  # the dim of the weight that columns are


def packed_in(graph: Any) -> list[Node]:
    """Return the products of which slices are taken that meet, and nothing else."""
    return [n for n in graph.nodes if is_op(n, *_OF_COLUMNS) and _is_sliced(n) and _meet(graph, n)]


def _is_sliced(product: Node) -> bool:
    """Say whether only slices of its columns are taken of a product: of one length, and apart."""
    last, weight = len(shape_of(product)) - 1, shape_of(product.args[1])
    found = [range_of(n) if is_op(n, "slice") else None for n in product.users]
    spans = [range(*own[1]) for own in found if own is not None and own[0] == last]
    columns = [i for span in spans for i in span]
    alike = len(found) == len(spans) > 1 == len({*map(len, spans)})
    return alike and len({*columns}) == len(columns) and len(weight) == 2


def _meet(graph: Any, product: Node) -> bool:
    """Say whether elementwise functions take a product's slices, and all go to one of these."""
    slices, region = frozenset(product.users), regions(graph)
    made_of: dict[Node, frozenset[Node]] = {n: frozenset((n,)) for n in slices}
    for node in graph.nodes:
        own = [made_of[n] for n in node.all_input_nodes if n in made_of]
        if own and (not is_elementwise(node) or region[node] != region[product]):
            return False
        if own and (both := frozenset.union(*own)) == slices:
            return all(u is node or u in made_of for n in made_of for u in n.users)
        made_of |= {node: both} if own else {}
    return False


def part_columns(graph: Any, names: Collection[str]) -> dict[str, list[Node]]:
    """Multiply by slices of weights instead of slicing some products; return what these became."""
    import torch

    found = dict[str, list[Node]]()
    aten = torch.ops.aten
    for product in [n for n in packed_in(graph) if n.name in names]:
        x, weight, *bias = product.args
        for piece in [*product.users]:
            own = range_of(piece)
            assert own is not None
            at = _OF_COLUMNS[operator_of(product)]
            given = [added(graph, product, aten.slice.Tensor, (weight, at, *own[1]))]
            given += [added(graph, product, aten.slice.Tensor, (b, 0, *own[1])) for b in bias if b]
            made = added(graph, product, product.target, (x, *given))
            found.setdefault(product.name, []).append(made)
            substitute(graph, piece, made)
    return found
