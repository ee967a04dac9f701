"""Mutants of muGraphs: small changes at every level, most of them wrong, many still well formed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.ir import (
    OPS,
    Axis,
    DType,
    Graph,
    Kind,
    Level,
    Node,
    Space,
    TensorType,
    Value,
    ops_of_kind,
)

SCALAR = TensorType((), DType.FP32)


@dataclass(frozen=True)
class Place:
    """A graph somewhere in a muGraph: itself, or the body of the node `inside` of another place."""

    graph: Graph
    outer: Place | None = None
    inside: str = ""

    def root(self, changed: Graph) -> Graph:
        """Return the whole muGraph with this graph changed."""
        if self.outer is None:
            return changed
        nodes = [
            replace(n, body=changed) if n.name == self.inside else n for n in self.outer.graph.nodes
        ]
        return self.outer.root(replace(self.outer.graph, nodes=tuple(nodes)))

    def with_node(self, old: Node, *new: Node) -> Graph:
        """Return the whole muGraph with one node replaced."""
        return self.root(_with_node(self.graph, old, *new))

    @property
    def dims(self) -> list[str]:
        """All dims that the whole muGraph knows, the parts of a split among them."""
        top = self
        while top.outer is not None:
            top = top.outer
        names = [d for n in top.graph.nodes for v in n.outs for d in v.type.names]
        return list(dict.fromkeys(names))


def places(graph: Graph) -> Iterator[Place]:
    """Yield a muGraph and all graphs in it."""
    todo = [Place(graph)]
    for place in todo:
        yield place
        todo += [Place(n.body, place, n.name) for n in place.graph.nodes if n.body is not None]


def _with_node(graph: Graph, old: Node, *new: Node) -> Graph:
    at = graph.nodes.index(old)
    return replace(graph, nodes=(*graph.nodes[:at], *new, *graph.nodes[at + 1 :]))


def _renamed(node: Node, old: str, new: str) -> Node:
    return replace(node, args=tuple(new if a == old else a for a in node.args))


Changes = Iterator[tuple[str, Graph]]
Others = Iterator[tuple[str, Node]]  # a node in another one's place, and what is different


def nodewise(others: Callable[[Place, Node], Others]) -> Callable[[Place], Changes]:
    """Return the mutation that puts other nodes in the place of each."""

    def changes(place: Place) -> Changes:
        for node in place.graph.nodes:
            for what, new in others(place, node):
                yield f"{what} for {node.name}", place.with_node(node, new)

    return changes


def operators(place: Place, node: Node) -> Others:
    kind = OPS[node.op].kind
    for op in ops_of_kind(kind) if kind in (Kind.ELEMENTWISE, Kind.REDUCE) else ():
        if op != node.op and OPS[op].arity == len(node.args):
            yield f"{op} instead of {node.op}", replace(node, op=op)


def operands(place: Place, node: Node) -> Others:
    """Give a node of a block or thread graph another operand, or a kernel another tensor."""
    names = [v.name for n in place.graph.nodes for v in n.outs]
    for i, old in enumerate(node.args):
        for new in names[: names.index(node.name)]:
            if new != old:
                args = (*node.args[:i], new, *node.args[i + 1 :])
                yield f"{new} instead of {old}", replace(node, args=args)


def own_operands(place: Place, node: Node) -> Others:
    yield from operands(place, node) if place.graph.level is not Level.KERNEL else ()


def bindings(place: Place, node: Node) -> Others:
    yield from operands(place, node) if node.op == "block" else ()


def is_computed(node: Node) -> bool:
    return OPS[node.op].kind not in (Kind.SOURCE, Kind.OUTPUT, Kind.GRAPH)


def orders(place: Place, node: Node) -> Others:
    if is_computed(node) and len(set(node.args)) > 1:
        yield "operands swapped", replace(node, args=(*node.args[:-2], *node.args[:-3:-1]))


def reduced_dims(place: Place, node: Node) -> Others:
    for dim in place.dims:
        if node.over not in ("", dim):
            yield f"over {dim}", replace(node, over=dim)


def constants(place: Place, node: Node) -> Others:
    for value in (node.value + 1, -node.value, node.value / 2) if node.op == "const" else ():
        if value != node.value:
            yield f"the number {value:g}", replace(node, value=value)


def imaps(place: Place, node: Node) -> Others:
    yield from maps(node, place.dims) if node.op == "input" else ()


def omaps(place: Place, node: Node) -> Others:
    yield from maps(node, node.out.type.names) if node.op == "output" else ()


def maps(node: Node, dims: Sequence[str]) -> Others:
    for i, old in enumerate(node.cuts):
        for new in (*dims, None):
            if new != old:
                cuts = (*node.cuts[:i], new, *node.cuts[i + 1 :])
                yield f"{cuts} cut", replace(node, cuts=cuts)


def fmaps(place: Place, node: Node) -> Others:
    looped = place.graph.space is not None and place.graph.space.loop is not None
    for new in (*place.dims, None) if looped and node.op == "input" else ():
        if new != node.loop_cut:
            yield f"fmap {new}", replace(node, loop_cut=new)


CARRIED = {
    "accum": ("accum_rescaled", "last", "combine"),
    "accum_rescaled": ("accum", "last"),
    "accum_max": ("accum", "last"),
    "last": ("accum",),
    "combine": ("combine_rescaled",),
    "combine_max": ("combine",),
    "combine_rescaled": ("combine",),
}


def carriers(place: Place, node: Node) -> Others:
    """Change how values are carried across the loop and the blocks."""
    graph = place.graph
    loop = graph.space.loop.dim if graph.space and graph.space.loop else ""
    for op in CARRIED.get(node.op, ()):
        over = (node.over or loop) if op.startswith("combine") else ""
        for peak in graph.of("peak", "last") if OPS[op].arity == 2 else [None]:
            args = (*node.args[:1], peak.name) if peak else node.args[:1]
            yield f"{op} instead of {node.op}", replace(node, op=op, args=args, over=over)


def omissions(place: Place) -> Changes:
    for node in filter(is_computed, place.graph.nodes):
        for operand in dict.fromkeys(node.args):
            kept = (n for n in place.graph.nodes if n is not node)
            nodes = tuple(_renamed(n, node.name, operand) for n in kept)
            outputs = tuple(operand if o == node.name else o for o in place.graph.outputs)
            changed = replace(place.graph, nodes=nodes, outputs=outputs)
            yield f"{operand} in place of {node.name}", place.root(changed)


def doublings(place: Place) -> Changes:
    for node in filter(is_computed, place.graph.nodes):
        for op in ("add", "mul", "div"):
            twice = Node(op, (node.name,) * 2, (Value(f"{node.name}_twice", node.out.type),))
            at = place.graph.nodes.index(node)
            users = (_renamed(n, node.name, twice.name) for n in place.graph.nodes[at + 1 :])
            outputs = tuple(twice.name if o == node.name else o for o in place.graph.outputs)
            nodes = (*place.graph.nodes[: at + 1], twice, *users)
            changed = replace(place.graph, nodes=nodes, outputs=outputs)
            yield f"{op} of {node.name} with itself", place.root(changed)


def spaces(place: Place) -> Changes:
    space = place.graph.space
    if space is None:
        return
    if space.loop is not None:
        yield "no loop", place.root(replace(place.graph, space=Space(space.grid)))
    for axis in space.axes:
        changes = [(f"along {d}", replace(axis, dim=d)) for d in place.dims if d != axis.dim]
        if axis is not space.loop:
            what = "not reduced" if axis.reduced else "reduced"
            changes.append((what, replace(axis, reduced=not axis.reduced)))
        for what, new in changes:
            axes = [new if a is axis else a for a in space.axes]
            grid = tuple(axes[: len(space.grid)])
            changed = Space(grid, axes[-1] if space.loop else None)
            yield f"axis {axis.name} {what}", place.root(replace(place.graph, space=changed))
    for axis in space.grid:
        yield f"no axis {axis.name}", place.root(_without_axis(place.graph, axis))


def _without_axis(graph: Graph, axis: Axis) -> Graph:
    assert graph.space is not None
    at = graph.space.grid.index(axis)
    nodes = tuple(
        replace(n, cuts=(*n.cuts[:at], *n.cuts[at + 1 :])) if n.cuts else n for n in graph.nodes
    )
    grid = (*graph.space.grid[:at], *graph.space.grid[at + 1 :])
    return replace(graph, nodes=nodes, space=Space(grid, graph.space.loop))


def steps(place: Place) -> Changes:
    """Let the loop leave out elements, or take some twice, along the dim that it cuts."""
    space, outer = place.graph.space, place.outer
    if space is None or space.loop is None or outer is None:
        return
    for node in place.graph.inputs:
        if node.loop_cut and node.out.type.dtype.is_real:
            for what, texts in STEPS.items():
                yield f"{what} of {node.name}", _with_steps(place, node, texts)


# `before` holds for the first two elements of the loop's dim; one tile of them, when that is 2.
STEPS: Mapping[str, tuple[str, str, str]] = {
    "only the first step": ("before", "tile", "nothing"),
    "all but the first step": ("before", "nothing", "tile"),
    "the first step twice": ("before", "twice", "tile"),
    "all but the first step twice": ("before", "tile", "twice"),
}


def _with_steps(place: Place, node: Node, chosen: tuple[str, str, str]) -> Graph:
    """Return the muGraph whose block sees where(position < 2, a, b) in place of an input."""
    graph, outer = place.graph, place.outer
    assert graph.space is not None
    assert graph.space.loop is not None
    assert outer is not None
    assert node.loop_cut is not None
    dim, mask = node.loop_cut, TensorType((), DType.BOOL)
    full = next(n for n in outer.graph.nodes if n.name == place.inside)
    bound = dict(zip((n.name for n in graph.inputs), full.args, strict=True))[node.name]
    whole = outer.graph.values[bound].type.dim(dim)
    counted = Node("iota", (), (Value("counted", TensorType((whole,), DType.INT32)),), over=dim)
    cuts = tuple(c if c == dim else None for c in node.cuts)
    seen = Node("input", (), (Value("counted", SCALAR),), cuts=cuts, loop_cut=dim)
    made = (
        seen,
        Node("const", (), (Value("two", TensorType((), DType.INT32)),), value=2.0),
        Node("const", (), (Value("nothing", SCALAR),), value=0.0),
        Node("less", ("counted", "two"), (Value("before", mask),)),
        Node("add", (node.name, node.name), (Value("twice", SCALAR),)),
        Node(
            "where",
            tuple(node.name if c == "tile" else c for c in chosen),
            (Value("taken", SCALAR),),
        ),
    )
    inputs = graph.inputs
    rest = (_renamed(n, node.name, "taken") for n in graph.nodes if n.op != "input")
    body = replace(graph, nodes=(*inputs, *made, *rest))
    block = replace(full, args=(*full.args, "counted"), body=body)
    return outer.with_node(full, counted, block)


def results(place: Place) -> Changes:
    """Exchange two results of a kernel."""
    for node in place.graph.blocks:
        assert node.body is not None
        outputs = node.body.outputs
        for i in range(len(outputs)):
            for j in range(i):
                order = list(outputs)
                order[i], order[j] = order[j], order[i]
                body = replace(node.body, outputs=tuple(order))
                changed = place.with_node(node, replace(node, body=body))
                yield f"{outputs[i]} and {outputs[j]} exchanged", changed


MUTATIONS: Mapping[str, Callable[[Place], Changes]] = {
    "another operator": nodewise(operators),
    "another operand": nodewise(own_operands),
    "operands swapped": nodewise(orders),
    "an op left out": omissions,
    "a value with itself": doublings,
    "another reduced dim": nodewise(reduced_dims),
    "another constant": nodewise(constants),
    "another imap": nodewise(imaps),
    "another fmap": nodewise(fmaps),
    "another omap": nodewise(omaps),
    "another grid or loop": spaces,
    "another way to carry": nodewise(carriers),
    "steps left out or repeated": steps,
    "another tensor": nodewise(bindings),
    "results exchanged": results,
}


@dataclass(frozen=True)
class Mutant:
    """A changed muGraph, and what kind of change it is."""

    kind: str
    what: str
    graph: Graph


def mutants(graph: Graph, most: int) -> Iterator[Mutant]:
    """Yield mutants of every kind, at most so many of each, spread over all there are."""
    for kind, mutate in MUTATIONS.items():
        of_kind = [Mutant(kind, *made) for place in places(graph) for made in mutate(place)]
        stride = max(1, -(-len(of_kind) // most))
        yield from of_kind[::stride]
