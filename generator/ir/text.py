"""Graphs as JSON (committed, stable order) and as text (for people)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite

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
    data["nodes"] = [_node_json(n) for n in graph.nodes]
    data["outputs"] = list(graph.outputs)
    return data


def _axis_json(axis: Axis) -> Json:
    data: dict[str, Json] = {"axis": axis.name, "dim": axis.dim, "tile": axis.tile}
    return data | {"reduced": True} if axis.reduced else data


def _node_json(node: Node) -> Json:
    data: dict[str, Json] = {"op": node.op, "args": list(node.args)}
    data["outs"] = {v.name: str(v.type) for v in node.outs}
    if node.over:
        data["over"] = node.over
    if node.op == "const":
        data["value"] = node.value if isfinite(node.value) else str(node.value)
    if node.op == "output" or node.cuts or node.loop_cut:
        data["cuts"] = list(node.cuts)
    if node.loop_cut:
        data["loop_cut"] = node.loop_cut
    if node.body is not None:
        data["body"] = to_json(node.body)
    if node.optional:
        data["optional"] = True
    return data


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
        name, size = item.split("<=" if dynamic else "=")
        dims.append(Dim(name, int(size), dynamic))
    return TensorType(tuple(dims), DType(dtype))


def from_json(data: Json) -> Graph:
    """Read a graph back; raises GraphError naming what is missing or malformed."""
    try:
        return _graph(_object(data))
    except (KeyError, ValueError, TypeError) as error:
        raise GraphError(f"the muGraph's JSON is malformed: {error!r}") from error


def _object(data: Json) -> dict[str, Json]:
    if not isinstance(data, dict):
        raise TypeError(f"expected an object, found {type(data).__name__}")
    return data


def _items(data: Json) -> Sequence[Json]:
    if not isinstance(data, list):
        raise TypeError(f"expected a list, found {type(data).__name__}")
    return data


def _number(data: Json) -> float:
    if data in ("inf", "-inf"):
        return float(str(data))
    if not isinstance(data, int | float):
        raise TypeError(f"expected a number, found {data!r}")
    return data


def _axis(data: Json) -> Axis:
    item = _object(data)
    reduced = bool(item.get("reduced", False))
    return Axis(str(item["axis"]), str(item["dim"]), int(_number(item["tile"])), reduced)


def _graph(data: dict[str, Json]) -> Graph:
    space = None
    if "grid" in data:
        loop = data["loop"]
        grid = tuple(_axis(a) for a in _items(data["grid"]))
        space = Space(grid, _axis(loop) if loop else None)
    nodes = tuple(_node(_object(n)) for n in _items(data["nodes"]))
    return Graph(Level(data["level"]), nodes, tuple(str(o) for o in _items(data["outputs"])), space)


def _node(data: dict[str, Json]) -> Node:
    outs = _object(data["outs"])
    loop_cut = data.get("loop_cut")
    return Node(
        op=str(data["op"]),
        args=tuple(str(a) for a in _items(data["args"])),
        outs=tuple(Value(name, parse_type(str(t))) for name, t in outs.items()),
        over=str(data.get("over", "")),
        value=_number(data.get("value", 0.0)),
        cuts=tuple(None if c is None else str(c) for c in _items(data.get("cuts", []))),
        loop_cut=None if loop_cut is None else str(loop_cut),
        body=_graph(_object(data["body"])) if "body" in data else None,
        optional=bool(data.get("optional", False)),
    )


def to_text(graph: Graph, indent: str = "") -> str:
    """Return `graph` as indented text, one line per node; block graphs by phase of their loop."""
    lines = []
    phases = phases_of(graph) if graph.level is Level.BLOCK else {}
    last = None
    for node in sorted(graph.nodes, key=lambda n: _phase_rank(phases.get(n.name))):
        phase = phases.get(node.name)
        if phase is not None and phase is not last:
            lines.append(f"{indent}{phase.value}:")
            last = phase
        lines.append(indent + ("  " if phases else "") + _node_text(node))
        if node.body is not None and node.op == "block":
            lines.append(f"{indent}    {_space_text(node.body)}")
            lines.append(to_text(node.body, indent + "    "))
    return "\n".join(lines)


def _phase_rank(phase: object) -> int:
    order = list(Phase)
    return order.index(phase) if isinstance(phase, Phase) else 0


def _space_text(block: Graph) -> str:
    assert block.space is not None
    reduced = {a.name: " (partial sums)" for a in block.space.reduced}
    grid = ", ".join(
        f"{a.name} cuts {a.dim} by {a.tile}{reduced.get(a.name, '')}" for a in block.space.grid
    )
    loop = block.space.loop
    return f"grid: {grid}" + (f"; loop cuts {loop.dim} by {loop.tile}" if loop else "; no loop")


def _node_text(node: Node) -> str:
    left = ", ".join(f"{v.name}: {v.type}" for v in node.outs)
    right = expression(node)
    if node.op == "thread" and node.body is not None:
        inner = "; ".join(f"{n.name} = {expression(n)}" for n in node.body.nodes if n.op != "input")
        right = f"thread({', '.join(node.args)}) {{ {inner} }}"
    cuts = [c if c is not None else "*" for c in node.cuts]
    if cuts:
        right += f" {'omap' if node.op == 'output' else 'imap'}=({', '.join(cuts)})"
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
    return f"{node.op}({', '.join(items)})"


def number_text(value: float) -> str:
    """Return the shortest text that reads back as `value`: 0.1, 1e-06, 128."""
    return repr(float(value)).removesuffix(".0")
