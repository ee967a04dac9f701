"""From what the enumeration found to muGraphs: named values, types, tile sizes, precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirage_kernels.generator.errors import SearchError
from mirage_kernels.generator.ir import (
    OPS,
    Axis,
    Builder,
    DType,
    Graph,
    Kind,
    Level,
    Node,
    Phase,
    Space,
    TensorType,
    Value,
    check,
    numbered,
    parts_of,
    phases_of,
    result_type,
    tile_type,
    with_precision,
)
from mirage_kernels.generator.ir.infer import SCALAR, extents_of
from mirage_kernels.generator.ir.naming import name_of
from mirage_kernels.generator.search.fold import part
from mirage_kernels.generator.search.sketch import (
    GRID_AXES,
    BlockSketch,
    Leaf,
    LibrarySketch,
    ProgramSketch,
    Setting,
    View,
    in_order,
    middle_name,
)


@dataclass(frozen=True)
class Goal:
    """What a muGraph is lowered for: the spec, its result in device memory, storage, tiles.

    `stores` has the types of results beside it that are stored in others than `storage`.
    """

    spec: Graph
    result: TensorType
    storage: DType
    tiles: Mapping[str, int]  # by `Axis.tile_key`
    stores: Mapping[str, DType] = field(default_factory=dict)


def lower(program: ProgramSketch, goal: Goal) -> Graph:
    """Return the checked muGraph of a found program."""
    kernels, made = _Kernels(goal), list[str]()
    for kernel in program.kernels:
        result = goal.result if kernel is program.kernels[-1] else None
        if isinstance(kernel, LibrarySketch):
            made = [kernels.library(kernel, result)]
        else:
            made = kernels.block(kernel, result)
        kernels.bound |= {middle_name(i): name for i, name in enumerate(made)}
    also = goal.spec.outputs[1:]
    missing = [name for name in also if name not in kernels.builder.types]
    if missing:
        raise SearchError(f"the program does not compute {missing[0]}, which is a result too")
    graph = kernels.builder.graph((*made, *also))
    used = [n for n in graph.nodes if n.op != "iota" or graph.users(n.name)]
    return check(replace(graph, nodes=tuple(used)))


class _Kernels:
    """A kernel graph under construction: its builder and what the sketch's names are bound to."""

    def __init__(self, goal: Goal) -> None:
        self.goal, self.builder = goal, Builder(Level.KERNEL)
        for node in (*goal.spec.inputs, *goal.spec.of("iota")):
            self.builder.add(node)
        self.bound = {name: name for name in self.builder.types}
        self.inputs = list(self.bound)

    def library(self, kernel: LibrarySketch, result: TensorType | None) -> str:
        """Add a library product; `result` is the type of the program's result, if this is it."""
        args, types = tuple(self.bound[a] for a in kernel.args), self.builder.types
        name = "out" if result else self.builder.free_name(name_of("contract", args, types))
        node = Node("contract", args, (Value(name, SCALAR),), over=kernel.over)
        made = result_type(node, [types[a] for a in args])
        made = result or replace(made, dtype=self.goal.storage)
        return self.builder.keep(replace(node, outs=(Value(name, made),)))

    def block(self, kernel: BlockSketch, result: TensorType | None) -> list[str]:
        """Add a block graph; `result` is the type of the program's result, if this is it."""
        block, setting, storage = _Block(self, kernel), kernel.setting, self.goal.storage
        missing = [name for name in block.wanted if name not in block.beside]
        if result and missing:
            block = _Block(self, kernel, missing)
        body, outs, nodes = block.builder.graph(()), list[Value](), list[Node]()
        for number, dims in kernel.results:
            stored = result or self.stored_type(block.space, dims)
            public = "out" if result else self.builder.free_name(block.values[number])
            side = setting.split if not setting.holding else None  # parts that lie side by side
            keys = (parts_of(d) if d == side else d for d in setting.grid)
            cuts = tuple(d if d in stored.names else None for d in keys)
            value = Value(f"{public}_stored", stored)
            nodes.append(Node("output", (block.values[number],), (value,), cuts=cuts))
            outs.append(Value(public, stored))
        made = [value.name for value in outs]
        phases = phases_of(body)
        for name, tiles in block.beside.items():
            # Of several tiles of a result beside the output, the one that the loop cuts.
            beside = self.goal.stores.get(name, storage)
            type_ = replace(self.goal.spec.values[name].type, dtype=beside)
            looped = [tile for tile in tiles if phases[tile] is Phase.LOOP]
            cuts = tuple(d if d in type_.names else None for d in setting.grid)
            value, loop_cut = Value(f"{name}_stored", type_), setting.loop if looped else None
            tile = (*looped, *tiles)[0]
            nodes.append(Node("output", (tile,), (value,), cuts=cuts, loop_cut=loop_cut))
            outs.append(Value(name, type_))
        outputs = tuple(n.name for n in nodes)
        body = replace(body, nodes=(*body.nodes, *nodes), outputs=outputs)
        body = with_precision(body, storage)
        self.builder.add(Node("block", block.args, tuple(outs), body=body))
        return made

    def stored_type(self, space: Space, dims: Sequence[str]) -> TensorType:
        """Return the type of a tensor between kernels; partial sums and statistics are fp32."""
        own = {d.name: d for t in self.builder.types.values() for d in t.dims}
        for axis in space.reduced:
            parts = numbered(axis, space, own[axis.dim])
            own[parts.name] = parts
        narrow = len(dims) > 1 and not any(d.endswith(parts_of("")) for d in dims)
        return TensorType(tuple(own[d] for d in dims), self.goal.storage if narrow else DType.FP32)


class _Block:
    """A block graph without its outputs: what it reads, and the names of the sketch's values.

    Where the sketch views a part of the spec that was searched as an input, it computes that. It
    computes the results in `missing` too, in the tiles and the loop of the sketch.
    """

    def __init__(self, kernels: _Kernels, kernel: BlockSketch, missing: Sequence[str] = ()) -> None:
        self.spec, bound, types = kernels.goal.spec, kernels.bound, kernels.builder.types
        # Results beside the output that no kernel has stored, and the tiles of them.
        self.wanted = [name for name in self.spec.outputs[1:] if name not in types]
        self.beside: dict[str, list[str]] = {}
        self.whole: dict[str, str] = {}  # the spec's values that tiles are of
        extents, setting = extents_of(list(types.values())), kernel.setting
        named = zip(GRID_AXES, setting.grid, strict=False)
        grid = tuple(Axis(a, d, extents[d], reduced=d == setting.split) for a, d in named)
        loop = Axis("loop", setting.loop, extents[setting.loop]) if setting.loop else None
        # A dim without a tile size stays whole.
        self.space = Space(grid, loop).with_tiles(kernels.goal.tiles)
        self.builder = Builder(Level.BLOCK, self.space)

        parts: dict[Leaf, list[Node]] = {}
        read: dict[Leaf, None] = dict.fromkeys(c for c in kernel.leaves if isinstance(c, str))
        for leaf in kernel.leaves:
            if isinstance(leaf, View) and leaf.tensor not in bound:
                parts[leaf] = part(self.spec, leaf.tensor)
                read |= dict.fromkeys(_source(n, leaf) for n in parts[leaf] if not n.args)
            else:
                read.setdefault(leaf)
        tiles = View("", setting.grid, setting.loop)
        riding = part(self.spec, *missing)
        read |= dict.fromkeys(_source(n, tiles) for n in riding if not n.args)
        leaves = in_order(read, kernels.inputs)
        self.args = tuple(bound[leaf.tensor] for leaf in leaves if isinstance(leaf, View))
        extents = extents_of([types[a] for a in self.args])
        names: dict[Leaf, str] = {}
        for leaf in leaves:
            if isinstance(leaf, str):
                names[leaf] = self.add(self.spec.producers[leaf], leaf)
                continue
            arg, cut = bound[leaf.tensor], any(leaf.cuts) or leaf.loop_cut
            full = Value(self.builder.free_name(f"{arg}_tile" if cut else arg), types[arg])
            node = Node("input", (), (full,), cuts=leaf.cuts, loop_cut=leaf.loop_cut)
            tile = Value(full.name, tile_type(node, full.type, self.space, extents))
            of = arg if arg in kernels.inputs else ""
            names[leaf] = self.add(replace(node, outs=(tile,)), of)
        self.values: list[str] = []
        for leaf in kernel.leaves:
            made = {n.name: names[_source(n, leaf)] for n in parts.get(leaf, ()) if not n.args}
            for node in (n for n in parts.get(leaf, ()) if n.args):
                made[node.name] = self.step(node.op, [made[a] for a in node.args], node.over)
            self.values.append(
                made[leaf.tensor] if isinstance(leaf, View) and made else names[leaf]
            )
        for step in kernel.steps:
            self.values.append(self.step(step.op, [self.values[a] for a in step.args], step.over))
        made = {n.name: names[_source(n, tiles)] for n in riding if not n.args}
        for node in (n for n in riding if n.args):
            made[node.name] = self.summed(node, [made[a] for a in node.args], setting)
        for name in missing:
            self.ride(name, made[name])

    def summed(self, node: Node, args: Sequence[str], setting: Setting) -> str:
        """Return the value of a node of the spec, joined where tiles cut what it sums along.

        It is added unless the block computes it.
        """
        kind, ways = "_max" if node.op == "amax" else "", [(node.op, tuple(args), node.over)]
        if node.over and node.over == setting.loop:
            ways.append((f"accum{kind}", (), ""))
        if node.over and node.over == setting.split:
            ways.append((f"combine{kind}", (), node.over))
        name = ""
        for op, given, over in ways:
            given = given or (name,)
            name = self.known(op, given, over) or self.step(op, given, over)
        return name

    def known(self, op: str, args: tuple[str, ...], over: str) -> str:
        """Return the value of a node that the block has, "" without one."""
        ways = (args, args[::-1]) if OPS[op].commutative else (args,)
        terms = {n.name for n in self.builder.nodes if n.op == "mul" and n.args in ways}
        for n in self.builder.nodes:
            products = op == "contract" and n.op == "sum" and n.over == over and n.args[0] in terms
            if products or ((n.op, n.over) == (op, over) and n.args in ways):
                return n.name
        return ""

    def ride(self, name: str, tile: str) -> None:
        """Store a tile of a result; raises SearchError where several blocks have the same."""
        own = self.spec.values[name].type.names
        apart = [a.dim for a in self.space.grid if not a.reduced and a.dim not in own]
        if apart:
            raise SearchError(f"the blocks along {apart[0]} would all store {name}")
        if tile not in self.beside.get(name, ()):
            self.beside.setdefault(name, []).append(tile)

    def add(self, node: Node, of: str) -> str:
        """Add a node that makes a tile of a value of the spec, if of one."""
        name = self.builder.add(node)
        if of:
            self.whole[name] = of
        if of in self.wanted:
            self.beside.setdefault(of, []).append(name)
        return name

    def step(self, op: str, args: Sequence[str], over: str) -> str:
        """Add a step, named after what it computes."""
        of, whole = "", tuple(self.whole.get(a, "") for a in args)
        if OPS[op].kind is Kind.ELEMENTWISE:
            of = next((n.name for n in self.spec.of(op) if n.args == whole), "")
        own = f"{of}_tile" if of in self.wanted else name_of(op, tuple(args), self.builder.types)
        value = Value(self.builder.free_name(own), SCALAR)
        return self.add(Node(op, tuple(args), (value,), over=over), of)


def _source(node: Node, leaf: Leaf) -> Leaf:
    """Return what stands for an input or a constant of a part that is viewed."""
    if isinstance(leaf, str) or node.op in ("const", "size"):
        return node.name
    names = node.out.type.names
    cuts = tuple(c if c in names else None for c in leaf.cuts)
    return View(node.name, cuts, leaf.loop_cut if leaf.loop_cut in names else None)
