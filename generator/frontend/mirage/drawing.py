"""Drawings of graphs: Graphviz's language, kernels as boxes around what their blocks do."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.ir import Graph, Node, expression, number_text, phases_of, to_text
from mirage_kernels.generator.ir.graph import Phase

_COLOURS = {  # of what runs when; kernel-level nodes have none of these
    Phase.BEFORE: "#eef3fb",
    Phase.LOOP: "#d9e7fd",
    Phase.AFTER: "#fbe9d7",
    Phase.JOINED: "#f6d5d5",
}


def write_drawing(graph: Graph, base: Path) -> list[Path]:
    """Write a graph as text and for Graphviz, and as SVG where `dot` is installed."""
    if not base.parent.is_dir():
        raise FileError(f"folder {base.parent} does not exist", f"mkdir -p {base.parent}")
    text, dot = base.with_name(f"{base.name}.txt"), base.with_name(f"{base.name}.dot")
    text.write_text(to_text(graph) + "\n")
    dot.write_text(to_dot(graph))
    program = shutil.which("dot")
    if program is None:
        return [text, dot]
    svg = base.with_name(f"{base.name}.svg")
    subprocess.run([program, "-Tsvg", str(dot), "-o", str(svg)], check=True, capture_output=True)
    return [text, dot, svg]


def to_dot(graph: Graph) -> str:
    """Return a graph in Graphviz's language; edges carry the types of tensors."""
    lines = ["digraph muGraph {", '  node [shape=box, fontname="Helvetica"];']
    for node in graph.nodes:
        if node.op == "block" and node.body is not None:
            lines += _block_lines(node, node.body, graph)
        else:
            lines.append(f"  {_quoted(node.name)} [label={_quoted(_label(node))}];")
            lines += [_edge(_source(a, graph), node.name, graph, a) for a in node.args]
    for name in graph.outputs:
        lines.append(f"  {_quoted(f'out {name}')} [label={_quoted('result')}, shape=oval];")
        lines.append(_edge(_source(name, graph), f"out {name}", graph, name))
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _label(node: Node) -> str:
    if node.op == "input":
        return f"{node.name}\n{node.out.type}"
    return number_text(node.value) if node.op == "const" else expression(node)


def _inner(kernel: Node, name: str) -> str:
    return f"{kernel.name}: {name}"


def _source(name: str, graph: Graph) -> str:
    """Return the drawn node that makes a value: of a kernel, the output that stores it."""
    maker = graph.producers[name]
    if maker.op != "block" or maker.body is None:
        return maker.name
    index = [v.name for v in maker.outs].index(name)
    return _inner(maker, maker.body.outputs[index])


def _edge(source: str, target: str, graph: Graph, value: str) -> str:
    label = _quoted(str(graph.values[value].type))
    return f"  {_quoted(source)} -> {_quoted(target)} [label={label}];"


def _block_lines(kernel: Node, body: Graph, graph: Graph) -> list[str]:
    assert body.space is not None
    grid = ", ".join(f"{a.name} cuts {a.dim} by {a.tile}" for a in body.space.grid)
    loop = body.space.loop
    title = f"grid: {grid or 'one block'}"
    title += f"\nloop cuts {loop.dim} by {loop.tile}" if loop else "\nno loop"
    lines = [f"  subgraph {_quoted(f'cluster {kernel.name}')} {{", f"    label={_quoted(title)};"]
    phases = phases_of(body)
    for node in body.nodes:
        phase = phases[node.name]
        colour = _COLOURS[phase] if phase is not None else "white"
        label = _label(node)
        if node.op in ("input", "output"):
            cuts = ", ".join(c or "*" for c in node.cuts)
            label += f"\n{'imap' if node.op == 'input' else 'omap'} ({cuts})"
            label += f"\nfmap {node.loop_cut}" if node.op == "input" and node.loop_cut else ""
        label = _quoted(label)
        name = _quoted(_inner(kernel, node.name))
        lines.append(f'    {name} [label={label}, style=filled, fillcolor="{colour}"];')
        for arg in node.args:
            lines.append(f"  {_edge(_inner(kernel, arg), _inner(kernel, node.name), body, arg)}")
    lines.append("  }")
    for inner, outer in zip(body.inputs, kernel.args, strict=True):
        lines.append(_edge(_source(outer, graph), _inner(kernel, inner.name), graph, outer))
    return lines
