"""From what the enumeration found to muGraphs: named values, types, tile sizes, precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.errors import SearchError
from mirage_kernels.generator.ir import (
    OPS,
    Axis,
    Builder,
    Dim,
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
    count,
    parts_of,
    phases_of,
    result_type,
    tile_type,
    with_precision,
)
from mirage_kernels.generator.ir.infer import SCALAR, extents_of
from mirage_kernels.generator.ir.naming import name_of
from mirage_kernels.generator.search.settings import GRID_AXES, Setting
from mirage_kernels.generator.search.sketch import (
    BlockSketch,
    LibrarySketch,
    ProgramSketch,
    Step,
    middle_name,
)


@dataclass(frozen=True)
class Goal:
    """What a muGraph is lowered for: the spec, its result in device memory, storage, tiles."""

    spec: Graph
    result: TensorType
    storage: DType
    tiles: Mapping[str, int]  # by `Axis.tile_key`


def lower(program: ProgramSketch, goal: Goal) -> Graph:
    """Return the checked muGraph of a found program."""
    return _Lowering(goal).run(program)


class _Lowering:
    """A kernel graph under construction: its builder and what the sketch's names are bound to."""

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.builder = Builder(Level.KERNEL)
        for node in (*goal.spec.inputs, *goal.spec.of("iota")):
            self.builder.add(node)
        self.bound = {name: name for name in self.builder.types}
        self.inputs = frozenset(self.bound)

    def run(self, program: ProgramSketch) -> Graph:
        made: Sequence[str] = ()
        for kernel in program.kernels:
            result = self.goal.result if kernel is program.kernels[-1] else None
            if isinstance(kernel, LibrarySketch):
                made = [self.library(kernel, result)]
            else:
                made = self.block(kernel, result)
            self.bound |= {middle_name(i): name for i, name in enumerate(made)}
        also = self.goal.spec.outputs[1:]
        missing = [name for name in also if name not in self.builder.types]
        if missing:
            raise SearchError(f"the program does not compute {missing[0]}, which is a result too")
        graph = self.builder.graph((*made, *also))
        used = [n for n in graph.nodes if n.op != "iota" or graph.users(n.name)]
        return check(replace(graph, nodes=tuple(used)))

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
        args = tuple(self.bound[v.tensor] for v in kernel.views)
        body, made, also = self.body(kernel, args)
        outs, nodes, setting = [], [], kernel.setting
        for name, (_, dims) in zip(made, kernel.results, strict=True):
            stored = result or self.stored_type(setting, dims)
            public = "out" if result else self.builder.free_name(name)
            keys = (parts_of(d) if d == setting.split else d for d in setting.grid)
            cuts = tuple(d if d in stored.names else None for d in keys)
            nodes.append(Node("output", (name,), (Value(f"{public}_stored", stored),), cuts=cuts))
            outs.append(Value(public, stored))
        phases = phases_of(body)
        for name, tiles in also.items():
            # Of several tiles of a result beside the output, the one that the loop cuts.
            type_ = replace(self.goal.spec.values[name].type, dtype=self.goal.storage)
            looped = [tile for tile in tiles if phases[tile] is Phase.LOOP]
            cuts = tuple(d if d in type_.names else None for d in setting.grid)
            value, loop_cut = Value(f"{name}_stored", type_), setting.loop if looped else None
            tile = (*looped, *tiles)[0]
            nodes.append(Node("output", (tile,), (value,), cuts=cuts, loop_cut=loop_cut))
            outs.append(Value(name, type_))
        outputs = tuple(n.name for n in nodes)
        body = replace(body, nodes=(*body.nodes, *nodes), outputs=outputs)
        body = with_precision(body, self.goal.storage)
        self.builder.add(Node("block", args, tuple(outs), body=body))
        return [value.name for value in outs[: len(made)]]

    def stored_type(self, setting: Setting, dims: Sequence[str]) -> TensorType:
        """Return the type of a tensor between kernels; partial sums and statistics are fp32."""
        own = {d.name: d for t in self.builder.types.values() for d in t.dims}
        for axis in self.space(setting).reduced:
            whole, parts = own[axis.dim], parts_of(axis.dim)
            own[parts] = Dim(parts, count(axis, whole.size), whole.dynamic)
        narrow = len(dims) > 1 and not any(d.endswith(parts_of("")) for d in dims)
        return TensorType(tuple(own[d] for d in dims), self.goal.storage if narrow else DType.FP32)

    def space(self, setting: Setting) -> Space:
        """Return the grid and loop of a setting; a dim without a tile size stays whole."""
        extents = extents_of(list(self.builder.types.values()))
        loop, named = setting.loop, zip(GRID_AXES, setting.grid, strict=False)
        grid = tuple(Axis(a, d, extents[d], reduced=d == setting.split) for a, d in named)
        space = Space(grid, Axis("loop", loop, extents[loop]) if loop else None)
        return space.with_tiles(self.goal.tiles)

    def body(
        self, kernel: BlockSketch, args: Sequence[str]
    ) -> tuple[Graph, list[str], dict[str, list[str]]]:
        """Return the block graph without outputs, and the names of the kernel's results.

        Last the tiles of results beside the output that no kernel has stored yet, by their names.
        """
        fulls = [self.builder.types[a] for a in args]
        space, extents = self.space(kernel.setting), extents_of(fulls)
        builder = Builder(Level.BLOCK, space)
        names: list[str] = []
        whole: dict[str, str] = {}  # the spec's values that tiles are of
        for view, arg, full in zip(kernel.views, args, fulls, strict=True):
            name = builder.free_name(f"{arg}_tile" if any(view.cuts) or view.loop_cut else arg)
            node = Node("input", (), (Value(name, full),), cuts=view.cuts, loop_cut=view.loop_cut)
            tile = tile_type(node, full, space, extents)
            names.append(builder.add(replace(node, outs=(Value(name, tile),))))
            whole |= {name: arg} if arg in self.inputs else {}
        for constant in (leaf for leaf in kernel.leaves if isinstance(leaf, str)):
            names.append(builder.add(self.goal.spec.producers[constant]))
            whole[names[-1]] = constant
        also: dict[str, list[str]] = {}
        for step in kernel.steps:
            operands = tuple(names[a] for a in step.args)
            of = self.spec_value(step, tuple(whole.get(o, "") for o in operands))
            is_result = of in self.goal.spec.outputs[1:] and of not in self.builder.types
            own = f"{of}_tile" if is_result else name_of(step.op, operands, builder.types)
            name = builder.free_name(own)
            node = Node(step.op, operands, (Value(name, SCALAR),), over=step.over)
            names.append(builder.add(node))
            whole |= {name: of} if of else {}
            also |= {of: [*also.get(of, []), name]} if is_result else {}
        return builder.graph(()), [names[value] for value, _ in kernel.results], also

    def spec_value(self, step: Step, args: tuple[str, ...]) -> str:
        """Return the spec's value that an elementwise step makes a tile of, "" if it has none."""
        if OPS[step.op].kind is not Kind.ELEMENTWISE:
            return ""
        return next((n.name for n in self.goal.spec.of(step.op) if n.args == args), "")
