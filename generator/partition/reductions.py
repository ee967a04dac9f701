"""Sums among a function's nodes, maxima and norms among them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from mirage_kernels.generator.frontend.export import operator_of
from mirage_kernels.generator.partition.trace import Node, Trace, base_of

CENTRED = frozenset(("layer_norm", "group_norm", "instance_norm"))  # two sums each
SOFTMAX = frozenset(("softmax", "_softmax", "softmax_beside"))
_REDUCTIONS = """
log_softmax logsumexp sum mean var std var_mean aminmax max min amax amin norm linalg_vector_norm
frobenius_norm layer_norm rms_norm group_norm instance_norm mse_loss l1_loss smooth_l1_loss
huber_loss kl_div triplet_margin_loss _weight_norm cosine_similarity
"""
_EXPS = SOFTMAX | {"exp", "exp2", "log_softmax", "logsumexp"}
REDUCTIONS = SOFTMAX | frozenset(_REDUCTIONS.split())


def reduces(node: Node) -> bool:
    """Say whether a node sums up elements; one along dims of one element does not."""
    shapes = [first_of(n).shape for n in (*node.all_input_nodes[:1], node)]
    same = prod(shapes[0]) == prod(shapes[1]) and len(shapes[0]) != len(shapes[1])
    ones = operator_of(node) in ("sum", "mean", "logsumexp") and (same or shapes[0] == shapes[1])
    return operator_of(node) in REDUCTIONS and not ones


def nested_exp(trace: Trace, nodes: Sequence[Node]) -> Node | None:
    """Return the first exp of what another one is part of: no proof has a law for it."""
    behind = set[Node]()
    for node in nodes:
        above = behind & {base_of(trace, n) for n in node.all_input_nodes}
        is_exp = operator_of(node) in _EXPS
        if is_exp and above:
            return node
        if is_exp or above:
            behind.add(node)
    return None


def first_of(node: Node) -> Any:
    """Return a value, or the first of several."""
    value = node.meta["val"]
    return value[0] if isinstance(value, tuple | list) else value
