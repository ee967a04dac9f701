"""Sums among a function's nodes, maxima and norms among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from mirage_kernels.generator.frontend.editing import Node
from mirage_kernels.generator.frontend.export import operator_of

CENTRED = frozenset(("layer_norm", "group_norm", "instance_norm"))  # two sums each
SOFTMAX = frozenset(("softmax", "_softmax", "softmax_beside"))
_LOSSES = """
mse_loss l1_loss smooth_l1_loss huber_loss kl_div soft_margin_loss margin_ranking_loss
binary_cross_entropy_with_logits
"""
LOSSES = frozenset(_LOSSES.split())  # of elements
_REDUCTIONS = """
log_softmax logsumexp sum mean var std var_mean aminmax max min amax amin norm
linalg_norm linalg_vector_norm frobenius_norm layer_norm rms_norm group_norm instance_norm
triplet_margin_loss _weight_norm cosine_similarity dot vdot
"""
_EXPS = SOFTMAX | {"exp", "exp2", "log_softmax", "logsumexp"}
MOST_UNLIKE = 6  # nodes among which sums have several numbers of results
REDUCTIONS = SOFTMAX | LOSSES | frozenset(_REDUCTIONS.split())


def reduces(node: Node) -> bool:
    """Say whether a node sums up elements.

    One along dims of one element does not, nor does a loss that has a value for each element.
    """
    if operator_of(node) not in REDUCTIONS:
        return False
    shapes = [first_of(n).shape for n in (*node.all_input_nodes[:1], node)]
    same = prod(shapes[0]) == prod(shapes[1]) and len(shapes[0]) != len(shapes[1])
    alike = same or shapes[0] == shapes[1]
    ones = operator_of(node) in ("sum", "mean", "logsumexp") and alike
    ones |= operator_of(node) in LOSSES and len(shapes[1]) > 0
    return not ones


def may_sum(nodes: Sequence[Node]) -> bool:
    """Say whether a search finds the sums of nodes soon: of many, where they have as many results.

    Softmaxes and norms aside: a step's sum over each head's state, with the norm of all heads
    behind it, took minutes.
    """
    given = (
        (first_of(n).numel(), first_of(n.all_input_nodes[0]).numel()) for n in nodes if reduces(n)
    )
    return len(nodes) <= MOST_UNLIKE or len({int(made) for made, of in given if made < of}) <= 1


def nested_exp(
    nodes: Sequence[Node], base: Callable[[Node], Node]
) -> tuple[Node, Node] | tuple[()]:
    """Return the first exp of what another one is part of, behind that: no proof has a law for it.

    `base` says what a view looks at.
    """
    behind = dict[Node, Node]()
    for node in nodes:
        above = [behind[base(n)] for n in node.all_input_nodes if base(n) in behind]
        is_exp = operator_of(node) in _EXPS
        if is_exp and above:
            return above[0], node
        if is_exp or above:
            behind[node] = node if is_exp else above[0]
    return ()


def first_of(node: Node) -> Any:
    """Return a value, or the first of several."""
    value = node.meta["val"]
    return value[0] if isinstance(value, tuple | list) else value
