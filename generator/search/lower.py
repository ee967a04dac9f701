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
    builder = Builder(Level.KERNEL)
    for node in (*goal.spec.inputs, *goal.spec.of("iota")):
        builder.add(node)
    bound = {name: name for name in builder.types}
    last = program.kernels[-1]
    for kernel in program.kernels:
        wanted = goal.result if kernel is last else None
        if isinstance(kernel, LibrarySketch):
            made = _library(builder, kernel, bound, goal, wanted)
        else:
            made = _block(builder, kernel, bound, goal, wanted)
        bound[MIDDLE] = made
    return check(_pruned(builder.graph([bound[MIDDLE]])))


def _pruned(graph: Graph) -> Graph:
    """Drop sources that nothing uses (positions the program cut away); inputs stay."""
    kept = [n for n in graph.nodes if n.op == "input" or n.op != "iota" or graph.users(n.name)]
    return replace(graph, nodes=tuple(kept))


def _library(
    builder: Builder,
    kernel: LibrarySketch,
    bound: Mapping[str, str],
    goal: Goal,
    wanted: TensorType | None,
) -> str:
    args = tuple(bound[a] for a in kernel.args)
    name = "out" if wanted else builder.free_name(name_of("contract", args, builder.types))
    builder.add(Node("contract", args, (Value(name, SCALAR),), over=kernel.over))
    made = wanted or replace(builder.types[name], dtype=goal.storage)
    builder.nodes[-1] = replace(builder.nodes[-1], outs=(Value(name, made),))
    builder.types[name] = made
    return name


def _block(
    builder: Builder,
    kernel: BlockSketch,
    bound: Mapping[str, str],
    goal: Goal,
    wanted: TensorType | None,
) -> str:
    args = tuple(bound[v.tensor] for v in kernel.setting.views)
    fulls = [builder.types[a] for a in args]
    body = _body(kernel, args, fulls, goal)
    stored = wanted or _stored_type(kernel, fulls, goal.storage)
    name = "out" if wanted else builder.free_name(body.nodes[-1].name)
    cuts = tuple(d if d in stored.names else None for d in kernel.setting.grid)
    out = Node("output", (body.nodes[-1].name,), (Value(f"{name}_stored", stored),), cuts=cuts)
    body = replace(body, nodes=(*body.nodes, out), outputs=(out.name,))
    body = with_precision(body, goal.storage)
    builder.add(Node("block", args, (Value(name, stored),), body=body))
    return name


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
