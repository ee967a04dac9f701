"""From what the enumeration found to muGraphs: named values, types, tile sizes, precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirage_kernels.generator.ir import (
    Axis,
    Builder,
    DType,
    Graph,
    Level,
    Node,
    Space,
    TensorType,
    Value,
    check,
    result_type,
    tile_type,
    with_precision,
)
from mirage_kernels.generator.ir.infer import SCALAR
from mirage_kernels.generator.naming import name_of
from mirage_kernels.generator.search.blocks import BlockSketch
from mirage_kernels.generator.search.kernels import MIDDLE, LibrarySketch, ProgramSketch
from mirage_kernels.generator.search.settings import GRID_AXES


@dataclass(frozen=True)
class Goal:
    """What a muGraph is lowered for: the spec, its result in device memory, storage, tiles."""

    spec: Graph
    result: TensorType
    storage: DType
    tiles: Mapping[str, int]  # by dim name


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

    def run(self, program: ProgramSketch) -> Graph:
        for kernel in program.kernels:
            result = self.goal.result if kernel is program.kernels[-1] else None
            if isinstance(kernel, LibrarySketch):
                self.bound[MIDDLE] = self.library(kernel, result)
            else:
                self.bound[MIDDLE] = self.block(kernel, result)
        return check(_without_idle_sources(self.builder.graph([self.bound[MIDDLE]])))

    def library(self, kernel: LibrarySketch, result: TensorType | None) -> str:
        """Add a library product; `result` is the type of the program's result, if this is it."""
        args = tuple(self.bound[a] for a in kernel.args)
        types = self.builder.types
        name = "out" if result else self.builder.free_name(name_of("contract", args, types))
        node = Node("contract", args, (Value(name, SCALAR),), over=kernel.over)
        made = result or replace(
            result_type(node, [types[a] for a in args]), dtype=self.goal.storage
        )
        self.builder.nodes.append(replace(node, outs=(Value(name, made),)))
        types[name] = made
        return name

    def block(self, kernel: BlockSketch, result: TensorType | None) -> str:
        """Add a block graph; `result` is the type of the program's result, if this is it."""
        args = tuple(self.bound[v.tensor] for v in kernel.setting.views)
        fulls = [self.builder.types[a] for a in args]
        body = _body(kernel, args, fulls, self.goal)
        made = body.nodes[-1].name
        name = "out" if result else self.builder.free_name(made)
        stored = result or _stored_type(kernel, fulls, self.goal.storage)
        cuts = tuple(d if d in stored.names else None for d in kernel.setting.grid)
        out = Node("output", (made,), (Value(f"{name}_stored", stored),), cuts=cuts)
        body = replace(body, nodes=(*body.nodes, out), outputs=(out.name,))
        body = with_precision(body, self.goal.storage)
        return self.builder.add(Node("block", args, (Value(name, stored),), body=body))


def _without_idle_sources(graph: Graph) -> Graph:
    """Drop positions that the program cut away; inputs stay."""
    kept = [n for n in graph.nodes if n.op != "iota" or graph.users(n.name)]
    return replace(graph, nodes=tuple(kept))


def _stored_type(kernel: BlockSketch, fulls: list[TensorType], storage: DType) -> TensorType:
    dims = {d.name: d for t in fulls for d in t.dims}
    kept = tuple(d for name, d in dims.items() if name in kernel.dims)
    return TensorType(kept, storage if len(kept) > 1 else DType.FP32)


def _body(kernel: BlockSketch, args: tuple[str, ...], fulls: list[TensorType], goal: Goal) -> Graph:
    extents = {d.name: d.size for t in fulls for d in t.dims}
    loop = kernel.setting.loop
    axes = [
        Axis(axis, dim, goal.tiles.get(dim, extents[dim]))
        for axis, dim in zip(GRID_AXES, kernel.setting.grid, strict=False)
    ]
    space = Space(
        tuple(axes), Axis("loop", loop, goal.tiles.get(loop, extents[loop])) if loop else None
    )
    builder = Builder(Level.BLOCK, space)
    names: list[str] = []
    for view, arg, full in zip(kernel.setting.views, args, fulls, strict=True):
        name = f"{arg}_tile" if any(view.cuts) or view.loop_cut else arg
        node = Node("input", (), (Value(name, full),), cuts=view.cuts, loop_cut=view.loop_cut)
        tile = tile_type(node, full, space, extents)
        names.append(builder.add(replace(node, outs=(Value(name, tile),))))
    used = {i for s in kernel.steps for i in s.args}
    for constant in kernel.constants:
        if len(names) in used:
            builder.add(goal.spec.producers[constant])
        names.append(constant)
    for step in kernel.steps:
        operands = tuple(names[i] for i in step.args)
        name = builder.free_name(name_of(step.op, operands, builder.types))
        names.append(builder.add(Node(step.op, operands, (Value(name, SCALAR),), over=step.over)))
    return builder.graph([names[-1]])
