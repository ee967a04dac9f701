"""A graph as files: drawings for Graphviz, the Triton program and the CUDA kernel of a muGraph.

A Triton program has a function `execute_mugraph`, which takes tensors as `new_input` declared them.
CUDA kernels stream weights `[N, K]` past rows of tokens where they can; others are general ones.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path

from mirage_kernels.generator import ir
from mirage_kernels.generator.build.compile import DEFAULT_ARCH
from mirage_kernels.generator.emit.cuda import Header, emit_cuda
from mirage_kernels.generator.errors import FileError, PlanError
from mirage_kernels.generator.frontend.mirage.optimize import storage_of
from mirage_kernels.generator.frontend.mirage.running import Runnable
from mirage_kernels.generator.frontend.positional.lower import Lowered, flat, sizes_of
from mirage_kernels.generator.ir.text import node_text
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.records.headers import mugraph_words
from mirage_kernels.generator.records.record import About, SearchSummary
from mirage_kernels.generator.schedules.choose import variants
from mirage_kernels.generator.schedules.general import plan as general
from mirage_kernels.generator.schedules.general.products import with_products
from mirage_kernels.generator.schedules.run import require_runs
from mirage_kernels.generator.schedules.streaming import Kernel
from mirage_kernels.generator.search.verify import Proof
from mirage_kernels.generator.target import target
from mirage_kernels.generator.terminal import counted
from mirage_kernels.generator.tiles.triton import emit_triton

NAME = "mugraph"  # of the emitted functions
MADE_BY = "mirage_kernels.generator: superoptimize"


def generate_triton_program(graph: Runnable, target_cc: int | None = None) -> dict[str, str]:
    """Return {"code": the Triton program}; `target_cc` is taken and not needed.

    Its function `execute_mugraph` takes tensors as `new_input` declared them, and returns a list of
    results with the dims of `mark_output`. Raises PlanError for what no block can compute.
    """
    lowered = next(graph.choices()).lowered()
    made = with_products(ir.with_precision(lowered.graph, lowered.graph.inputs[0].out.type.dtype))
    arguments, sizes = ", ".join(n.name for n in made.inputs), sizes_of(made)
    lines = []
    for node, layout in zip(made.inputs, lowered.inputs, strict=True):
        extents = ", ".join(str(sizes[name]) for name in flat(layout))
        turned = _turned(flat(layout), node.out.type.names)
        lines.append(f"    {node.name} = {node.name}.reshape({extents}){turned}")
    results = []
    for name, layout in zip(made.outputs, lowered.outputs, strict=True):
        extents = ", ".join(str(prod(sizes[d] for d in row)) for row in layout)
        turned = _turned(made.values[name].type.names, flat(layout))
        results.append(f"{name}{turned}.reshape({extents})")
    host = [
        f"\n\ndef execute_mugraph({arguments}):",
        '    """Return the results for tensors as `new_input` declared them."""',
        *lines,
        f"    {', '.join(made.outputs)} = {NAME}({arguments})",
        f"    return [{', '.join(results)}]\n",
    ]
    return {"code": emit_triton(made, NAME) + "\n".join(host)}


def _turned(own: Sequence[str], wanted: Sequence[str]) -> str:
    """Return the call that brings a tensor's dims into another order, nothing if there is none."""
    order = tuple(own.index(name) for name in wanted)
    return "" if list(order) == sorted(order) else f".permute{order}"


def generate_cuda_program(
    graph: Runnable,
    target_cc: int | None = None,
    input_strides: Sequence[Sequence[int]] | None = None,
    **others: object,
) -> dict[str, str]:
    """Return {"code": the CUDA source} of the default architecture's kernels.

    A kernel of a fast schedule is made for csrc/tile and called through the library's dispatch, a
    general one is a program of its own; Mirage's other options are taken and decided by the
    planner. Raises PlanError where no block has room, and for operators outside of blocks other
    than products.
    """
    choices = [*graph.choices()]
    for lowered in (choice.lowered() for choice in choices):
        with suppress(PlanError):
            return {"code": _streaming(lowered)}
    first: PlanError | None = None
    for lowered in (choice.lowered() for choice in choices):
        try:
            return {"code": _general(lowered)}
        except PlanError as error:
            first = first or error
    assert first is not None
    hint = first.hint or "graph.superoptimize() puts operators into blocks"
    raise PlanError(f"no kernel can be planned: {first.sentence}", hint) from first


def _streaming(lowered: Lowered) -> str:
    """Return the source of a kernel that streams weights; PlanError for other muGraphs."""
    planned = with_threads(streamed(lowered.graph))
    program = tile_program(NAME, planned)
    schedules = variants(program, target(DEFAULT_ARCH))
    for variant in schedules:
        require_runs(program, planned, variant.knobs)
    dims = "_".join(f"{d.name}{d.size}" for d in program.output.type.dims)
    header = Header(MADE_BY, dims, [("muGraph", mugraph_words(lowered.graph))])
    return emit_cuda(Kernel(program, schedules, storage_of(lowered), header))


def _general(lowered: Lowered) -> str:
    """Return the source of general kernels, which take every muGraph that blocks have room for."""
    graph, sizes = with_threads(lowered.graph), sizes_of(lowered.graph)
    about = About(
        recipe=NAME,
        summary=NAME,
        shape=sizes,
        source="a graph recorded with mi",
        dtype=storage_of(lowered).value,
        arch=DEFAULT_ARCH,
        search=SearchSummary(0, 0, 0),
        proof=Proof((), 0.0),
        accuracy=(),
    )
    record = general.planned(about, graph)
    header = Header(MADE_BY, record.stem, [("Schedule", "general."), ("muGraph", _words(graph))])
    return general.launcher(record).text([*header.lines("//"), ""])


def _words(graph: ir.Graph) -> str:
    kernels = len(with_products(graph).blocks)
    alone = kernels == len(graph.blocks) == 1
    return mugraph_words(graph) if alone else f"{counted(kernels, 'kernel')}."


def streamed(graph: ir.Graph) -> ir.Graph:
    """Return the graph as the planner wants it: tokens dynamic, the loop's dim last in memory.

    That holds for every tensor in memory, also those between kernels and of library products.
    """
    loops = {space.loop.dim for space in graph.spaces if space.loop}
    others = {d for n in graph.inputs[1:] for d in n.out.type.names}
    tokens = set(graph.inputs[0].out.type.names) - others - loops

    def retyped(node: ir.Node, *, top: bool) -> ir.Node:
        outs = []
        for name, type_ in ((v.name, v.type) for v in node.outs):
            dims = [replace(d, dynamic=d.name in tokens) for d in type_.dims]
            if top or node.op in ("input", "output"):
                dims.sort(key=lambda d: (d.name in loops, not d.dynamic))
            outs.append(ir.Value(name, ir.TensorType(tuple(dims), type_.dtype)))
        body = node.body
        if body is not None:
            body = replace(body, nodes=tuple(retyped(n, top=False) for n in body.nodes))
        return replace(node, outs=tuple(outs), body=body)

    return ir.check(replace(graph, nodes=tuple(retyped(n, top=True) for n in graph.nodes)))


_COLOURS = {  # of what runs when
    ir.Phase.BEFORE: "#eef3fb",
    ir.Phase.LOOP: "#d9e7fd",
    ir.Phase.AFTER: "#fbe9d7",
    ir.Phase.JOINED: "#f6d5d5",
}


def write_drawing(graph: ir.Graph, base: Path) -> list[Path]:
    """Write a graph as text and for Graphviz, and as SVG where `dot` is installed."""
    if not base.parent.is_dir():
        raise FileError(f"folder {base.parent} does not exist", f"mkdir -p {base.parent}")
    text, dot, svg = (base.with_name(f"{base.name}.{end}") for end in ("txt", "dot", "svg"))
    text.write_text(ir.to_text(graph) + "\n")
    lines, edges = _drawn(graph)
    head = ["digraph muGraph {", '  node [shape=box, fontname="Helvetica"];']
    dot.write_text("\n".join([*head, *lines, *edges, "}", ""]))
    program = shutil.which("dot")
    if program is None:
        return [text, dot]
    subprocess.run([program, "-Tsvg", str(dot), "-o", str(svg)], check=True, capture_output=True)
    return [text, dot, svg]


def _drawn(
    graph: ir.Graph, prefix: str = "", bound: Iterable[tuple[str, ir.TensorType]] = ()
) -> tuple[list[str], list[str]]:
    """Return a graph's nodes and edges in Graphviz's language; edges carry the types of tensors.

    Kernels are boxes around what their blocks do, whose inputs are `bound` to drawn nodes.
    """
    lines: list[str] = []
    edges: list[str] = []
    sources: dict[str, str] = {}  # the drawn node that makes a value
    phases = ir.phases_of(graph) if prefix else {}
    outer = iter(bound)
    results = [
        ir.Node("result", (o,), (replace(graph.values[o], name=f"out {o}"),)) for o in graph.outputs
    ]
    for node in (*graph.nodes, *([] if prefix else results)):
        name = prefix + node.name
        taken = [(sources[a], graph.values[a].type) for a in node.args]
        sources |= {v.name: prefix + v.name for v in node.outs}
        if node.op == "block" and node.body is not None:
            inner, within = _drawn(node.body, f"{name}: ", taken)
            _, grid, *_ = ir.to_text(replace(graph, nodes=(node,))).split("\n")
            lines.append(f"  subgraph {_quoted(f'cluster {name}')} {{")
            lines += [f"    label={_quoted(grid.strip())};", *inner, "  }"]
            edges += within
            made = zip(node.outs, node.body.outputs, strict=True)
            sources |= {v.name: f"{name}: {output}" for v, output in made}
            continue
        if node.op == "input" and prefix:
            taken = [next(outer)]
        phase = phases.get(node.name)
        colour = "white" if phase is None else _COLOURS[phase]
        style = f'style=filled, fillcolor="{colour}"'
        lines.append(f"    {_quoted(name)} [label={_quoted(node_text(node))}, {style}];")
        for source, type_ in taken:
            label = _quoted(str(type_))
            edges.append(f"  {_quoted(source)} -> {_quoted(name)} [label={label}];")
    return lines, edges


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
