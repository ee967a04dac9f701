"""How views of tensors lie in memory, found by making them of tensors without any."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mirage_kernels.generator.partition.trace import Node, Trace, base_of
from mirage_kernels.program_steps import call

if TYPE_CHECKING:
    import torch

Own = Callable[[Node], Node]  # a node of one of the two traces


def strides_of(trace: Trace, node: Node, own: Own) -> tuple[int, ...]:
    """Return the strides of a view of what lies side by side, or of an input.

    Dims of one element keep their places in the order.
    """
    return in_order(looked_at(trace, node, own))


def in_order(seen: torch.Tensor) -> tuple[int, ...]:
    """Return strides; those of dims of one element are as if they lay side by side."""
    found, inner = list[int](), 1
    for size, stride in zip(reversed(seen.shape), reversed(seen.stride()), strict=True):
        found.append(stride if size > 1 else inner)
        inner = found[-1] * size
    return (*reversed(found),) or (1,)


def looked_at(
    trace: Trace, node: Node, own: Own, stored: torch.Tensor | None = None
) -> torch.Tensor:
    """Return a view of a tensor without memory, which lies side by side unless it is an input.

    `own` says at which of the two extents of dynamic dims, `stored` how it lies otherwise.
    """
    import torch

    way, base = [node], base_of(trace, node)
    while way[0] is not base:
        way.insert(0, way[0].all_input_nodes[0])
    value = own(base).meta["val"]
    side = {"device": "meta", "dtype": value.dtype}
    whole = torch.empty(tuple(map(int, value.shape)), **side) if stored is None else stored
    if base in trace.inputs and stored is None:
        whole = torch.empty_strided(whole.shape, value.stride(), **side)
    values: dict[str, Any] = {trace.name(base): whole}
    extents = {dim: both[0 if own(node) is node else 1] for dim, both in trace.extents.items()}
    for view in way[1:]:
        call(trace.call(view), values, extents)
    return values[trace.name(node)]  # type: ignore[no-any-return]


def in_its_order(seen: torch.Tensor, value: Node) -> bool:
    """Say whether a view has the elements of a value in the order in which a kernel stores them."""
    return bool(seen.is_contiguous()) and seen.numel() == value.meta["val"].numel()
