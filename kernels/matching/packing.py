"""Several weights as one: rows of one tensor, of which the parameters become views.

Linears that read the same norm (queries, keys and values) are one product of their weights put
together. The parameters keep their values, names and shapes, and no memory is used twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensor

if TYPE_CHECKING:
    from mirage_kernels.matching.match import Match


def packable(found: Match) -> bool:
    """Say whether a match has a whole weight, which may be put behind another."""
    return all(found.tensors[n].end < 0 for n in ("weight", "bias") if n in found.tensors)


def unpackable(group: Sequence[Match], tensors: Mapping[fx.Node, Tensor]) -> str:
    """Say why the weights of a group cannot become one; empty where they can."""
    for name in ("weight", "bias"):
        nodes = [found.tensors[name].node for found in group if name in found.tensors]
        own = [tensors[node] for node in nodes if node in tensors]
        if len(own) < len(nodes) or any(isinstance(t, FakeTensor) for t in own):
            return "the weights are not known when the graph is made"
        if own and not is_packed(own) and not all(map(_is_movable, own)):
            return "a weight shares its memory with another tensor"
    return ""


def is_packed(tensors: Sequence[Tensor]) -> bool:
    """Say whether tensors follow each other in memory."""
    ends = [t.storage_offset() + t.numel() for t in tensors]
    starts = [t.storage_offset() for t in tensors]
    one = {t.untyped_storage().data_ptr() for t in tensors}
    return len(one) == 1 and ends[:-1] == starts[1:] and all(t.is_contiguous() for t in tensors)


def _is_movable(tensor: Tensor) -> bool:
    owns = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return owns and tensor.is_contiguous() and not tensor.is_inference()


@dataclass(frozen=True)
class Pack:
    """Tensors, and one that holds them all along its first dim."""

    parts: tuple[Tensor, ...]
    whole: Tensor

    def move(self) -> None:
        """Make the parts views of the whole: their own memory is free then."""
        start = 0
        for part in self.parts:
            part.data = self.whole.narrow(0, start, part.shape[0])
            start += part.shape[0]


def packed(tensors: Sequence[Tensor]) -> Pack:
    """Return tensors as one; those that follow each other in memory are not copied."""
    first, rows = tensors[0].detach(), sum(t.shape[0] for t in tensors)
    if is_packed(tensors):
        return Pack((), first.as_strided((rows, *first.shape[1:]), first.stride()))
    with torch.no_grad():
        return Pack(tuple(tensors), torch.cat([t.detach() for t in tensors]))
