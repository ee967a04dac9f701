"""Tensors that one kernel takes twice: `x @ x.T`, `x + linear(x, w)` of a square weight.

Rows of one operand and columns of the other are two dims, and a tensor has names for its own only.
So the kernel takes it a second time, with dims of its own. It is proved for any two tensors, and
called with one. In a trace the second one is `resolve_conj` of the first, which a real tensor's is
itself; programs have no step for it. `cutting.uses_apart` says which uses take it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mirage_kernels.generator.frontend.editing import Node, added, is_op, taken_by, with_taken
from mirage_kernels.generator.partition.rewriting import SEEN

_VIEWS = (*SEEN, "t", "numpy_T")
Use = tuple[str, int]  # a node by its name, and which of the nodes that it takes


def with_twins(graph: Any, uses: Collection[Use]) -> dict[Node, Node]:
    """Let uses of tensors take their twins, which are made in front; return twins and tensors."""
    import torch

    twins: dict[Node, Node] = {}
    for node in [*graph.nodes]:
        for at in sorted(i for name, i in uses if name == node.name):
            way = [taken_by(node)[at]]
            while is_op(way[0], *_VIEWS):
                way.insert(0, way[0].all_input_nodes[0])
            if way[0] not in twins:
                twins[way[0]] = added(graph, node, torch.ops.aten.resolve_conj.default, (way[0],))
            made = twins[way[0]]
            for view in way[1:]:
                given = with_taken(view, {0: made})
                made = added(graph, node, view.target, given[0], **given[1])
            node.args, node.kwargs = with_taken(node, {at: made})
    return {twin: tensor for tensor, twin in twins.items()}
