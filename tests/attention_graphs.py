"""MuGraphs of attention: those of golden kernels, and the same with nodes changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from mirage_kernels.generator.ir import Graph, Node, from_json
from mirage_kernels.generator.plan.threads import without_threads
from mirage_kernels.generator.records.record import load_record

GOLDEN = Path(__file__).parent / "golden"
RECIPES = (
    *("gqa", "qk_norm_attention", "sliding_window_attention", "gqa_full"),
    *("qk_layer_norm_attention", "mla_decode"),
)


def mugraph(name: str) -> Graph:
    """Return the muGraph of a recipe's golden kernel, or a golden muGraph."""
    record = GOLDEN / f"attention_{name}.json"
    if record.is_file():
        return load_record(record).graph
    return from_json(json.loads((GOLDEN / "mugraphs" / f"{name}.json").read_text())["mugraph"])


def rewritten(recipe: str, *nodes: tuple[str, dict[str, object]], after: str = "") -> Graph:
    """Return a muGraph without thread graphs in which nodes of its block are others.

    New nodes stand behind `after`.
    """
    graph = mugraph(recipe)
    (block,) = graph.blocks
    assert block.body is not None
    body, changes = without_threads(block.body), dict(nodes)
    new = {name: fields for name, fields in nodes if name not in body.producers}
    assert not new or after
    made: list[Node] = []
    for node in body.nodes:
        made.append(replace(node, **changes.get(node.name, {})))
        if node.name == after:
            for name, fields in new.items():
                made.append(replace(node, outs=(replace(node.out, name=name),), **fields))
    other = replace(block, body=replace(body, nodes=tuple(made)))
    return replace(graph, nodes=tuple(other if n is block else n for n in graph.nodes))
