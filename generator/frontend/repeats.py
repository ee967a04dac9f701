"""Repeated elements as views: what `repeat_interleave` copies is looked at several times.

scale.repeat_interleave(128, 1)  ->  scale.unsqueeze(2).expand(-1, -1, 128).flatten(1, 2)
"""

from __future__ import annotations

from typing import Any

from mirage_kernels.generator.frontend.editing import added, arguments_of, is_op, substitute


def without_repeats(graph: Any) -> None:
    """Write elements that are repeated in turn as a view that PyTorch copies and kernels do not."""
    import torch

    aten = torch.ops.aten
    for node in [n for n in graph.nodes if is_op(n, "repeat_interleave")]:
        if node.target is not aten.repeat_interleave.self_int:
            continue
        given = arguments_of(node)
        x, count, dim = given["self"], given["repeats"], given["dim"]
        dims = x.meta["val"].dim()
        if not isinstance(count, int) or not dims or (dim is None and dims > 1):
            continue
        at = (dim or 0) % dims
        sizes = [-1] * dims
        sizes.insert(at + 1, count)
        apart = added(graph, node, aten.unsqueeze.default, (x, at + 1))
        wide = added(graph, node, aten.expand.default, (apart, sizes))
        substitute(graph, node, added(graph, node, aten.flatten.using_ints, (wide, at, at + 1)))
