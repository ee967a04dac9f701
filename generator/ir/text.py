"""Graphs as JSON (committed, stable order) and as text (for people)."""

from __future__ import annotations

import json
from math import isfinite

from msgspec import convert

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.ir.graph import (
    Axis,
    Dim,
    Graph,
    Level,
    Node,
    Phase,
    Space,
    TensorType,
    Value,
    phases_of,
)

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def to_json(graph: Graph) -> dict[str, Json]:
    """Return `graph` as plain JSON data; `from_json` reads it back unchanged."""
    data: dict[str, Json] = {"level": graph.level.value}
    if graph.space is not None:
        data["grid"] = [_axis_json(a) for a in graph.space.grid]
        data["loop"] = _axis_json(graph.space.loop) if graph.space.loop else None
    return data | {"nodes": [_node_json(n) for n in graph.nodes], "outputs": list(graph.outputs)}


def _axis_json(axis: Axis) -> Json:
    data: dict[str, Json] = {"axis": axis.name, "dim": axis.dim, "tile": axis.tile}
    return data | {"reduced": True} if axis.reduced else data


def _node_json(node: Node) -> Json:
    fields: dict[str, tuple[bool, Json]] = {  # whether it is written, and its data
        "over": (bool(node.over), node.over),
        "value": (node.op == "const", node.value if isfinite(node.value) else str(node.value)),
        "cuts": (bool(node.op == "output" or node.cuts or node.loop_cut), list(node.cuts)),
        "loop_cut": (bool(node.loop_cut), node.loop_cut),
        "body": (node.body is not None, to_json(node.body) if node.body else None),
        "optional": (node.optional, True),
        "grouped": (bool(node.grouped), dict(node.grouped)),
    }
    outs: dict[str, Json] = {v.name: str(v.type) for v in node.outs}
    written = {name: data for name, (is_written, data) in fields.items() if is_written}
    return {"op": node.op, "args": list(node.args), "outs": outs, **written}


def dumps(data: Json) -> str:
    """Return JSON text that puts every small list or object on one line (readable diffs)."""
    return _dump(data, 0) + "\n"


def _dump(data: Json, depth: int) -> str:
    flat = json.dumps(data)
    if not isinstance(data, dict | list) or len(flat) + depth * 2 <= 96:
        return flat
    pad, end = "  " * (depth + 1), "  " * depth
    if isinstance(data, list):
        body = ",\n".join(pad + _dump(item, depth + 1) for item in data)
        return f"[\n{body}\n{end}]"
    body = ",\n".join(f"{pad}{json.dumps(k)}: {_dump(v, depth + 1)}" for k, v in data.items())
    return f"{{\n{body}\n{end}}}"


def parse_type(text: str) -> TensorType:
    """Read a type back from the text that `str` makes of it."""
    dtype, _, rest = text.partition("[")
    dims = []
    for item in filter(None, rest.rstrip("]").split(", ")):
        dynamic = "<=" in item
        name, sizes = item.split("<=" if dynamic else "=")
        size, _, typical = sizes.partition("~")
        dims.append(Dim(name, int(size), dynamic, int(typical or 0)))
    return TensorType(tuple(dims), DType(dtype))


def from_json(data: Json) -> Graph:
    """Read a graph back; raises GraphError naming what is missing or malformed."""
    try:
        return _graph(data)
    except (KeyError, ValueError, TypeError) as error:
        raise GraphError(f"the muGraph's JSON is malformed: {error!r}") from error


def _graph(data: Json) -> Graph:
    item, space = convert(data, dict), None
    if "grid" in item:
        loop = item["loop"]
        space = Space(tuple(map(_axis, convert(item["grid"], list))), _axis(loop) if loop else None)
    nodes = tuple(map(_node, convert(item["nodes"], list)))
    return Graph(Level(item["level"]), nodes, convert(item["outputs"], tuple[str, ...]), space)


def _axis(data: Json) -> Axis:
    item = convert(data, dict)
    return convert({"name": item["axis"], **item}, Axis)


def _node(data: Json) -> Node:
    item = convert(data, dict)
    value = item.get("value", 0.0)
    return Node(
        op=str(item["op"]),
        args=convert(item["args"], tuple[str, ...]),
        outs=tuple(Value(n, parse_type(t)) for n, t in convert(item["outs"], dict).items()),
        over=str(item.get("over", "")),
        value=float(value) if value in ("inf", "-inf") else convert(value, int | float),
        cuts=convert(item.get("cuts", []), tuple[str | None, ...]),
        loop_cut=convert(item.get("loop_cut"), str | None),
        body=_graph(item["body"]) if "body" in item else None,
        optional=bool(item.get("optional", False)),
        grouped=tuple(convert(item.get("grouped", {}), dict[str, int]).items()),
    )


def to_text(graph: Graph, indent: str = "") -> str:
    """Return `graph` as indented text, one line per node; block graphs by phase of their loop."""
    lines = []
    phases = phases_of(graph) if graph.level is Level.BLOCK else {}
    last, order = None, [None, *Phase]
    for node in sorted(graph.nodes, key=lambda n: order.index(phases.get(n.name))):
        phase = phases.get(node.name)
        if phase is not None and phase is not last:
            lines.append(f"{indent}{phase.value}:")
            last = phase
        lines.append(indent + ("  " if phases else "") + node_text(node))
        if node.body is not None and node.body.space is not None:
            cuts = [f"{a.name} cuts {a.dim} by {a.tile}" for a in node.body.space.axes]
            for i, axis in enumerate(node.body.space.axes):
                cuts[i] += " (partial sums)" if axis.reduced else ""
            *grid, loop = cuts if node.body.space.loop else [*cuts, "no loop"]
            lines.append(f"{indent}    grid: {', '.join(grid)}; {loop}")
            lines.append(to_text(node.body, indent + "    "))
    return "\n".join(lines)


def node_text(node: Node) -> str:
    """Return a node with the types of its results: `y: fp32[M=4] = sum(x, over=K)`."""
    left = ", ".join(f"{v.name}: {v.type}" for v in node.outs)
    right = expression(node)
    if node.op == "thread" and node.body is not None:
        inner = "; ".join(f"{n.name} = {expression(n)}" for n in node.body.nodes if n.op != "input")
        right = f"thread({', '.join(node.args)}) {{ {inner} }}"
    if node.cuts:
        cuts = ", ".join(c if c is not None else "*" for c in node.cuts)
        right += f" {'omap' if node.op == 'output' else 'imap'}=({cuts})"
    if node.loop_cut:
        right += f" fmap={node.loop_cut}"
    return f"{left} = {right}"


def expression(node: Node) -> str:
    """Return the right-hand side of a node: `contract(x, w, over=K)`."""
    items = [*node.args]
    if node.over:
        items.append(f"over={node.over}" if node.args else node.over)
    if node.op == "const":
        items.append(number_text(node.value))
    if node.optional:
        items.append("optional")
    items += [f"one for {n} along {dim}" for dim, n in node.grouped]
    return f"{node.op}({', '.join(items)})"


def number_text(value: float) -> str:
    """Return the shortest text that reads back as `value`: 0.1, 1e-06, 128."""
    return repr(float(value)).removesuffix(".0")
