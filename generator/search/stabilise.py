"""Safe exponentials: every exp that is summed is taken relative to a peak, which cancels.

    sum(exp(s) * v) / sum(exp(s))  ->  sum(exp(s - m) * v) / sum(exp(s - m)),   m = peak(s)

A value computed from exp(s - m) is exp(-d * m) times what it was; d is its degree. Products add
degrees, quotients subtract them, sums want equal ones. Where a degree is not yet cancelled, what
carries it rescales: an accumulator whenever the running peak rises, the blocks of a split when they
combine, a last kernel by the peaks that the first one stores beside its partial sums. Blocks that
hold a row together combine their peaks first. The rewrite knows no recipe; that its result is right
for any peak at all is proved like everything else.

An exp that is not summed itself is taken relative to the peak of the sum that divides it, wherever
that was made. One that is added to a sum, as a sink is, may be the largest term: both are taken
relative to the larger of the two, and so is what their sum divides. The logarithm of a sum gets the
peak back:

    sum(exp(s)) + exp(t)  ->  sum(exp(s - m)) * exp(m - c) + exp(t - c),   c = max(m, t)
    log(sum(exp(s)))      ->  m + log(sum(exp(s - m)))

Where a degree is left over, or meets a function without a law, some exps stay as they are, as few
as possible: exp(log_softmax(x)) is one, which nothing divides. If it is so whatever stays, all do.
Then the numeric gate says whether it is safe.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from mirage_kernels.generator.ir import (
    Builder,
    DType,
    Graph,
    Level,
    Node,
    TensorType,
    Value,
    check,
    parts_of,
    tile_type,
    with_precision,
)
from mirage_kernels.generator.ir.infer import extents_of
from mirage_kernels.generator.search.peaks import Rewrite, UnstableError, require

_MOST_EXPS = 4  # of which some may stay as they are


def stabilise(graph: Graph, storage: DType) -> Graph:
    """Return a kernel graph whose exponentials cannot overflow, or `graph` if there is no way."""
    bodies = [n.body for n in graph.blocks if n.body is not None]
    exps = [(id(part), n.name) for part in (graph, *bodies) for n in part.of("exp")]
    for count in range(len(exps) if len(exps) <= _MOST_EXPS else min(len(exps), 1)):
        for plain in combinations(exps, count):
            made = _rewritten(graph, storage, frozenset(plain))
            if made is not None:
                return made
    return graph


def _rewritten(graph: Graph, storage: DType, plain: frozenset[tuple[int, str]]) -> Graph | None:
    """Return a graph with other exps than the `plain` relative to peaks; None if it cannot be."""
    kernels = Rewrite(graph, Builder(Level.KERNEL), plain)
    try:
        for node in graph.nodes:
            if node.op == "block":
                _rewrite_block(kernels, node, storage)
            elif node.op == "contract" and graph.blocks:
                # The library's product stores its result as it is.
                require(not any(kernels.degrees[a] for a in node.args))
                kernels.degrees[kernels.builder.keep(node)] = {}
            else:
                kernels.need(node.name)
        require(not any(kernels.degrees[name] for name in graph.outputs))
        return check(without_unused(kernels.builder.graph(graph.outputs)))
    except UnstableError:
        return None


def without_unused(graph: Graph) -> Graph:
    """Return a graph without computed values that nothing uses."""
    used, kept = {*graph.outputs}, list[Node]()
    for node in reversed(graph.nodes):
        if node.op == "input" or used & {v.name for v in node.outs}:
            used.update(node.args)
            kept.append(node)
    return replace(graph, nodes=tuple(reversed(kept)))


def _rewrite_block(kernels: Rewrite, node: Node, storage: DType) -> None:
    """Rebuild a block graph.

    It also reads the peaks that its inputs are relative to, and stores those of its results.
    """
    body = node.body
    assert body is not None
    assert body.space is not None
    block = Rewrite(body, Builder(Level.BLOCK, body.space), kernels.plain)
    args = list[str]()
    for given, tensor in zip(body.inputs, node.args, strict=True):
        block.builder.add(given)
        args.append(tensor)
        degree = kernels.degrees[tensor]
        block.degrees[given.name] = {f"{peak}_tile": power for peak, power in degree.items()}
        for peak in (p for p in degree if p not in args):
            args.append(peak)
            types = kernels.builder.types
            tile = _cut_like(given, Node("input", (), (Value(f"{peak}_tile", types[peak]),)))
            type_ = tile_type(tile, types[peak], body.space, extents_of([types[a] for a in args]))
            block.builder.add(replace(tile, outs=(Value(tile.name, type_),)))
            block.degrees[tile.name] = {}
    for inner in body.nodes:
        block.need(inner.name)

    outs, first = list(node.outs), body.of("output")[0]
    peaks = sorted({peak for name in body.outputs for peak in block.degrees[name]})
    names = {peak: kernels.builder.free_name(f"{peak}_stored") for peak in peaks}
    for peak in peaks:
        # It is stored next to what is relative to it, cut alike.
        require(peak in block.builder.types)
        own = {*block.builder.types[peak].names}
        kept = own | {parts_of(a.dim) for a in body.space.reduced}
        type_ = TensorType(tuple(d for d in first.out.type.dims if d.name in kept), DType.FP32)
        require(own <= {*type_.names})
        value = Value(f"{peak}_stored", type_)
        block.builder.add(_cut_like(first, Node("output", (peak,), (value,))))
        outs.append(Value(names[peak], type_))
    outputs = (*body.outputs, *(f"{peak}_stored" for peak in peaks))
    whole = without_unused(block.builder.graph(outputs))
    safe = with_precision(whole, storage, squares=False)
    kernels.builder.add(Node("block", tuple(args), tuple(outs), body=safe))
    for out, name in zip(node.outs, body.outputs, strict=True):
        kernels.degrees[out.name] = {names[p]: n for p, n in block.degrees[name].items()}
    kernels.degrees |= {name: {} for name in names.values()}


def _cut_like(node: Node, other: Node) -> Node:
    """Return an input or output cut as another one is, along the dims that it has."""
    dims = other.out.type.names
    cuts = tuple(c if c in dims else None for c in node.cuts)
    return replace(other, cuts=cuts, loop_cut=node.loop_cut if node.loop_cut in dims else None)
