"""Products whose columns are several values: gate and up of one weight, as one kernel takes them.

    linear(x, w)[..., a:b]  ->  linear(x, w[a:b])
    (y + z)[..., a:b]       ->  y[..., a:b] + z[..., a:b]

A slice of a product is a product with a slice of the weight, a view that kernels read as it lies.
That is better where the slices meet again, element by element: a gated MLP of both halves of a
weight stores one result. Where they go apart, as queries, keys and values do, the product stays
one. Slices are taken before elementwise functions where they meet behind these, as behind a bias.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mirage_kernels.generator.frontend.editing import Node, added, is_op, substitute
from mirage_kernels.generator.partition.pieces import is_elementwise, range_of, shape_of
from mirage_kernels.generator.partition.rewriting import regions

_PRODUCTS = ("linear", "mm", "bmm", "matmul", "einsum")


def packed_in(graph: Any) -> list[Node]:
    """Return the products of which slices are taken that meet, and nothing else."""
    products = (n for n in graph.nodes if is_op(n, *_PRODUCTS))
    return [n for n in products if _is_sliced(n) and _have_rows(n) and _meet(graph, n)]


def _have_rows(product: Node) -> bool:
    """Say whether slices of what has a product's columns are rows, or neighbours within one."""
    found = _columns(product)
    pieces = [own[1] for n in product.users if (own := range_of(n))]
    in_turn = any(step > 1 for _, _, step in pieces)
    return found is not None and not (in_turn and found[0].meta["val"].stride(found[1]) == 1)


def slice_first(graph: Any) -> None:
    """Take slices that meet of what elementwise functions take, instead of their results."""
    for node in [*graph.nodes][::-1]:
        if is_elementwise(node) and _is_sliced(node) and _meet(graph, node):
            for piece in [*node.users]:
                substitute(graph, piece, _function_of_slice(graph, node, piece))


def _function_of_slice(graph: Any, node: Node, piece: Node) -> Node:
    """Add an elementwise function of slices of its operands."""
    import torch

    found, columns = range_of(piece), shape_of(node)[-1]
    assert found is not None

    def sliced(x: Node) -> Node:
        if shape_of(x)[-1:] != (columns,):
            return x
        dim = len(shape_of(x)) - 1
        return added(graph, node, torch.ops.aten.slice.Tensor, (x, dim, *found[1]))

    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), sliced)
    return added(graph, node, node.target, args, **kwargs)


def _columns(product: Node) -> tuple[Node, int] | None:
    """Return the operand that has a product's columns, and its dim that they are."""
    if product.kwargs or len({*product.all_input_nodes}) < 2:
        return None
    if is_op(product, "einsum"):
        given, _, result = str(product.args[0]).partition("->")
        names, last = given.split(","), result[-1:]
        having = [i for i, own in enumerate(names) if last in own]
        if len(having) != 1 or not last:
            return None
        return product.args[1][having[0]], names[having[0]].index(last)
    weight = product.args[1]
    rank = len(shape_of(weight))
    at = 0 if is_op(product, "linear") else rank - 1
    return (weight, at) if rank >= 2 else None


def _is_sliced(product: Node) -> bool:
    """Say whether only slices of its columns are taken of a product: of one length, and apart."""
    if len(product.users) < 2 or not all(is_op(n, "slice") for n in product.users):
        return False
    last, found = len(shape_of(product)) - 1, [*map(range_of, product.users)]
    spans = [range(*own[1]) for own in found if own is not None and own[0] == last]
    columns = [i for span in spans for i in span]
    alike = len(found) == len(spans) and len({*map(len, spans)}) == 1
    return alike and len({*columns}) == len(columns)


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
    found = dict[str, list[Node]]()
    for product in [n for n in packed_in(graph) if n.name in names]:
        for piece in [*product.users]:
            made = _of_slice(graph, product, piece)
            found.setdefault(product.name, []).append(made)
            substitute(graph, piece, made)
    return found


def _of_slice(graph: Any, product: Node, piece: Node) -> Node:
    """Add a product of the same rows by a slice of the operand that has the columns."""
    import torch

    found, columns = range_of(piece), _columns(product)
    assert found is not None
    assert columns is not None
    _, ends = found
    biases = [n for n in product.args[2:] if isinstance(n, type(product))]
    own = {
        x: added(graph, product, torch.ops.aten.slice.Tensor, (x, dim, *ends))
        for x, dim in (columns, *((bias, 0) for bias in biases))
    }
    given = torch.fx.node.map_arg(product.args, lambda n: own.get(n, n))
    return added(graph, product, product.target, given)
