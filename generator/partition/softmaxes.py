"""Softmax without what functions spell out around it: its maximum, columns that are cut off again.

    softmax(x - amax(x))         ->  softmax(x)
    log(softmax(x))              ->  log_softmax(x)
    softmax(cat(x, y))[..., :n]  ->  softmax_beside(x, y) = exp(x) / (sum(exp(x)) + sum(exp(y)))
    logsumexp(cat(x, y))         ->  logaddexp(logsumexp(x), logsumexp(y))
    sum(p * log(p))              ->  sum(p * x) - logsumexp(x), where p = softmax(x)

The third is attention with sinks: the softmax has one more term to sum, and nothing is joined. It
is done before a function is cut, alike in its graphs at several extents.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from mirage_kernels.generator.frontend.editing import (
    CASTS,
    Node,
    added,
    arguments_of,
    cast,
    is_op,
    substitute,
)
from mirage_kernels.generator.partition.pieces import (
    extents,
    joined_dim,
    range_of,
    ranges,
    shape_of,
)
from mirage_kernels.generator.partition.rewriting import regions

_SAME = (*CASTS, "detach", "alias", "contiguous", "clone")


def with_columns_apart(graph: Any) -> None:
    """Rewrite the softmaxes of a graph."""
    for softmax in [n for n in graph.nodes if is_op(n, "softmax")]:
        _without_cat(graph, _without_maximum(graph, softmax))
    for log in [n for n in graph.nodes if is_op(n, "log")]:
        _of_softmax(graph, log)
    for total in [n for n in graph.nodes if is_op(n, "logsumexp")]:
        _of_pieces(graph, total)
    for total in [n for n in graph.nodes if is_op(n, "sum")]:
        _negative_entropy(graph, total)


def _without_maximum(graph: Any, softmax: Node) -> Node:
    """Return the softmax of numbers as they are, not relative to their maximum."""
    lowered, dim, region = _same_as(softmax.args[0]), _dim_of(softmax), regions(graph)
    if not is_op(lowered, "sub") or lowered.kwargs or region[lowered] != region[softmax]:
        return softmax
    x, peak = lowered.args
    if not isinstance(peak, type(x)) or not _is_maximum(_same_as(peak), _same_as(x), dim):
        return softmax
    made = added(graph, softmax, softmax.target, (x, dim, softmax.meta["val"].dtype))
    substitute(graph, softmax, made)
    return made


def _is_maximum(peak: Node, x: Node, dim: int) -> bool:
    """Say whether a value is another's maximum along one dim, which stays with one element."""
    if peak.target is operator.getitem and peak.args[1] == 0:  # beside where it is
        peak = peak.args[0]
    if not is_op(peak, "max", "amax"):
        return False
    given = dict(zip(("of", "dim", "keepdim"), peak.args, strict=False)) | peak.kwargs
    along, kept = given.get("dim"), given.get("keepdim", False)
    dims = along if isinstance(along, list | tuple) else [along]
    return kept and _same_as(given["of"]) is x and [_behind(d, x) for d in dims] == [dim]


def _of_softmax(graph: Any, log: Node) -> None:
    """Write the logarithm of a softmax in one operator, which takes it of no 0."""
    import torch

    softmax, region = _same_as(log.args[0]), regions(graph)
    if is_op(softmax, "softmax") and region[softmax] == region[log]:
        given = (softmax.args[0], _dim_of(softmax), log.meta["val"].dtype)
        made = added(graph, log, torch.ops.aten.log_softmax.int, given)
        substitute(graph, log, made)


def _negative_entropy(graph: Any, total: Node) -> None:
    """Sum a softmax times its logarithm in one pass, which knows their sum behind it only."""
    import torch

    aten, product = torch.ops.aten, _same_as(total.args[0])
    factors = [_same_as(n) for n in product.all_input_nodes] if is_op(product, "mul") else []
    if [sum(is_op(n, kind) for n in factors) for kind in ("softmax", "log_softmax")] != [1, 1]:
        return
    given, region = arguments_of(total), regions(graph)
    x, other = (_same_as(n.args[0]) for n in factors)
    dims = {_behind(d, product) for d in given.get("dim") or ()}
    places = {region[n] for n in (*factors, product, total)}
    if x is not other or dims != {*map(_dim_of, factors)} or len(places) > 1:
        return
    dim, kept = [*dims], given["keepdim"]
    wide = cast(graph, total, x, torch.float32)
    shares = added(graph, total, aten.softmax.int, (wide, *dim))
    mean = added(graph, total, aten.mul.Tensor, (shares, wide))
    mean = added(graph, total, aten.sum.dim_IntList, (mean, dim, kept))
    whole = added(graph, total, aten.logsumexp.default, (wide, dim, kept))
    made = added(graph, total, aten.sub.Tensor, (mean, whole))
    substitute(graph, total, cast(graph, total, made, total.meta["val"].dtype))


def _without_cat(graph: Any, softmax: Node) -> None:
    """Make what is left of a softmax of joined pieces of each piece and the powers of the others.

    Nothing else may take the softmax.
    """
    import torch

    cat, dim, region = _same_as(softmax.args[0]), _dim_of(softmax), regions(graph)
    if not is_op(cat, "cat") or joined_dim(cat) != dim or region[cat] != region[softmax]:
        return
    at, dtype = len(shape_of(cat)) + dim, softmax.meta["val"].dtype
    places = {(at, (*ends, 1)): i for i, ends in enumerate(ranges(extents(cat)))}
    left = [*_slices(softmax)]
    kept = [(n, places[own]) for n in left if n and (own := range_of(n)) and own in places]
    if not left or len(kept) < len(left) or any(region[n] != region[softmax] for n, _ in kept):
        return
    pieces = [cast(graph, softmax, n, dtype) for n in cat.args[0]]
    for node, i in kept:
        beside = torch.ops.mirage_kernels.softmax_beside.default
        given = (pieces[i], [n for j, n in enumerate(pieces) if j != i], dim)
        made = added(graph, softmax, beside, given)
        substitute(graph, node, cast(graph, node, made, node.meta["val"].dtype))


def _of_pieces(graph: Any, total: Node) -> None:
    """Sum the powers of joined pieces by themselves."""
    import torch

    cat, dims, region = _same_as(total.args[0]), total.args[1], regions(graph)
    along = [_behind(d, cat) for d in (dims if isinstance(dims, list | tuple) else [dims])]
    if not is_op(cat, "cat") or along != [joined_dim(cat)] or region[cat] != region[total]:
        return
    dtype, made = total.meta["val"].dtype, None
    for piece in cat.args[0]:
        x = cast(graph, total, piece, dtype)
        own = added(graph, total, total.target, (x, *total.args[1:]), **total.kwargs)
        pair = (made, own)
        made = own if made is None else added(graph, total, torch.ops.aten.logaddexp.default, pair)
    substitute(graph, total, made)


def _slices(value: Node) -> Iterator[Node | None]:
    """Yield the slices that are taken of a value, None for what else takes it."""
    for user in value.users:
        same = user.op == "call_function" and shape_of(user) == shape_of(value)
        if same and is_op(user, "slice", *_SAME):
            yield from _slices(user)
        else:
            yield user if is_op(user, "slice") else None


def _same_as(x: Node) -> Node:
    """Return what a value is a copy of, in whatever type."""
    while is_op(x, *_SAME):
        x = x.args[0]
    return x


def _dim_of(softmax: Node) -> int:
    """Return the dim of a softmax, counted from the end."""
    return _behind(arguments_of(softmax)["dim"], softmax)


def _behind(dim: int | None, x: Node) -> int:
    """Return a dim counted from the end, 0 for none."""
    if dim is None:
        return 0
    return dim if dim < 0 else dim - len(shape_of(x))
