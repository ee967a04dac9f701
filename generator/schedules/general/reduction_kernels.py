"""Split sums without clusters: blocks store their parts, and a kernel of its own joins them.

It is what split-K products and decoding attention do. A search finds blocks that combine in a
cluster, each relative to its own peak; here what they combine becomes results of a first kernel,
and what follows the combine a second one. Which of the two runs faster is for the model of time to
say, of each size of call: clusters find less room than single blocks, but a kernel more must start.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from mirage_kernels.generator.ir import (
    Builder,
    DType,
    Graph,
    Level,
    Node,
    Phase,
    Space,
    TensorType,
    Value,
    check,
    held_dims,
    numbered,
    parts_of,
    phases_of,
    retile,
    tile_type,
    with_precision,
)
from mirage_kernels.generator.ir.dtypes import STORAGE_DTYPES
from mirage_kernels.generator.ir.infer import SCALAR, extents_of
from mirage_kernels.generator.ir.ops import COMBINES
from mirage_kernels.generator.plan.threads import with_threads, without_threads


def with_reduction_kernels(graph: Graph, storage: DType) -> Graph | None:
    """Return a kernel graph whose blocks combine nothing; None if none does, or one holds rows."""
    joined = [n for n in graph.blocks if n.body is not None and n.body.of(*COMBINES)]
    if not joined or any(n.body is not None and held_dims(n.body) for n in joined):
        return None
    kernels = Builder(Level.KERNEL)
    for node in graph.nodes:
        for made in _Split(node, kernels, storage).kernels() if node in joined else (node,):
            kernels.keep(made)
    return check(retile(kernels.graph(graph.outputs), {}))


@lru_cache(maxsize=8)
def planned_apart(graph: Graph) -> Graph | None:
    """Return that form of a planned muGraph, which has thread graphs; None if it has none."""
    if not any(n.body is not None and n.body.of(*COMBINES) for n in graph.blocks):
        return None
    bodies = {n.name: without_threads(n.body) for n in graph.blocks if n.body is not None}
    nodes = (replace(n, body=bodies.get(n.name)) for n in graph.nodes)
    ends = [*graph.inputs, *(graph.producers[o] for o in graph.outputs)]
    types = [v.type.dtype for n in ends for v in n.outs if v.type.dtype in STORAGE_DTYPES]
    made = with_reduction_kernels(replace(graph, nodes=tuple(nodes)), (*types, DType.FP32)[0])
    return with_threads(made) if made is not None else None


@dataclass
class _Split:
    """A kernel whose blocks combine, as it becomes two."""

    kernel: Node
    around: Builder  # the kernel graph so far
    storage: DType
    args: list[str] = field(default_factory=list)  # of the last kernel
    made: dict[str, str] = field(default_factory=dict)  # its values, by their names in the body

    def __post_init__(self) -> None:
        body = self.kernel.body
        assert body is not None
        assert body.space is not None
        self.body, self.space, (self.axis,) = body, body.space, body.space.reduced
        self.over = parts_of(self.axis.dim)
        self.tensors = dict(zip((n.name for n in body.inputs), self.kernel.args, strict=True))
        self.left = [i for i, axis in enumerate(self.space.grid) if axis is not self.axis]
        self.last = Builder(Level.BLOCK, Space(tuple(self.space.grid[i] for i in self.left)))

    def kernels(self) -> tuple[Node, Node]:
        """Return the kernel that stores parts, and the one that joins them."""
        phases = phases_of(self.body)
        results = list(zip(map(self.node, self.body.outputs), self.kernel.outs, strict=True))
        late = [(n, out) for n, out in results if phases[n.name] is Phase.JOINED]
        first = self.first([pair for pair in results if pair not in late])
        self.around.types |= {v.name: v.type for v in first.outs}
        for node, _ in late:
            (value,) = map(self.copy, node.args)
            self.last.keep(replace(node, args=(value,), cuts=self.cuts(node)))
        body = self.last.graph([n.name for n, _ in late])
        body = with_precision(body, self.storage, squares=False)
        return first, Node("block", tuple(self.args), tuple(out for _, out in late), body=body)

    def node(self, name: str) -> Node:
        """Return the node of the body that makes a value."""
        return self.body.producers[name]

    @cached_property
    def parts(self) -> dict[str, tuple[Node, Value]]:
        """What the first kernel stores of values that are combined, and in which tensors."""
        full = {d.name: d for a in self.kernel.args for d in self.around.types[a].dims}
        number, found = numbered(self.axis, self.space, full[self.axis.dim]), {}
        for value in dict.fromkeys(a for n in self.body.of(*COMBINES) for a in n.args):
            own = self.body.values[value].type.names
            type_ = TensorType((number, *(full[d] for d in own)), DType.FP32)
            keys = (number.name if a is self.axis else a.dim for a in self.space.grid)
            cuts = tuple(key if key in type_.names else None for key in keys)
            node = Node("output", (value,), (Value(f"{value}_part", type_),), cuts=cuts)
            found[value] = node, Value(self.around.free_name(f"{value}_parts"), type_)
        return found

    def first(self, results: list[tuple[Node, Value]]) -> Node:
        """Return the kernel that stores parts, and results that need none, and makes nothing else.

        Blocks along a dim that some parts lack would all store these: it is whole for each block.
        """
        stored = [*results, *self.parts.values()]
        used, nodes = {a for n, _ in stored for a in n.args}, list[Node]()
        for node in reversed(self.body.nodes):
            if node.op != "output" and used & {v.name for v in node.outs}:
                used.update(node.args)
                nodes.insert(0, node)
        every = set.intersection(*({*v.type.names} for _, v in self.parts.values()))
        own = [i for i, a in enumerate(self.space.grid) if a is self.axis or a.dim in every]
        space = Space(tuple(self.space.grid[i] for i in own), self.space.loop)
        args = tuple(self.tensors[n.name] for n in nodes if n.op == "input")
        nodes += [n for n, _ in stored]
        cut = tuple(replace(n, cuts=tuple(n.cuts[i] for i in own)) if n.cuts else n for n in nodes)
        body = replace(self.body, nodes=cut, outputs=tuple(n.name for n, _ in stored), space=space)
        return Node("block", args, tuple(v for _, v in stored), body=body)

    # -- the last kernel -------------------------------------------------------------------------

    def cuts(self, node: Node) -> tuple[str | None, ...]:
        """Return how the last kernel's grid cuts an input or output of the body."""
        return tuple(node.cuts[i] for i in self.left)

    def copy(self, name: str) -> str:
        """Return the last kernel's own of a value of the body."""
        if name not in self.made:
            node = self.node(name)
            if node.op == "input":
                made = self.read(self.tensors[name], replace(node, cuts=self.cuts(node)))
            elif node.op in COMBINES:
                made = self.joined(node)
            else:
                made = self.last.add(replace(node, args=tuple(map(self.copy, node.args))))
            self.made[name] = made
        return self.made[name]

    def read(self, tensor: str, node: Node) -> str:
        """Add an input: its tile of a tensor."""
        self.args.append(tensor)
        types = [self.around.types[a] for a in self.args]
        assert self.last.space is not None
        tile = tile_type(node, types[-1], self.last.space, extents_of(types))
        return self.last.keep(replace(node, outs=(Value(node.name, tile),)))

    def all_parts(self, value: str) -> str:
        """Return all parts of a value that is combined."""
        node, tensor = self.parts[value]
        if node.name not in self.made:
            given = Node("input", (), (Value(node.name, SCALAR),), cuts=self.cuts(node))
            self.made[node.name] = self.read(tensor.name, given)
        return self.made[node.name]

    def add(self, op: str, args: tuple[str, ...], name: str, over: str = "") -> str:
        """Add a node, once."""
        if name not in self.made:
            self.made[name] = self.last.add(Node(op, args, (Value(name, SCALAR),), over=over))
        return self.made[name]

    def joined(self, node: Node) -> str:
        """Return what parts join to: their sum or maximum, or sum for their common peak."""
        value, last = node.args[0], node.args[-1]
        parts = (self.all_parts(value),)
        if node.op == "combine":
            return self.add("sum", parts, node.name, self.over)
        if node.op == "combine_max" and self.node(last).op not in ("peak", "last"):
            return self.add("amax", parts, node.name, self.over)
        peaks = self.all_parts(last)
        common = self.add("peak", (peaks,), f"{last}_of_all", self.over)
        if node.op == "combine_max":
            return common
        lowered = self.add("sub", (peaks, common), f"lowered_{last}")
        decay = self.add("exp", (lowered,), f"decay_{last}")
        rescaled = self.add("mul", (*parts, decay), f"rescaled_{value}")
        return self.add("sum", (rescaled,), node.name, self.over)
