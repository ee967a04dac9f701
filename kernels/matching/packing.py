"""Several weights as one: rows of one tensor, of which the parameters become views.

Linears that read the same norm (queries, keys and values) are one product of their weights put
together. The parameters keep their values, names and shapes, and no memory is used twice.

torch.compile runs one graph for all modules of a class, with the parameters as arguments, and a
parameter may get other memory at any time. So nothing about memory is part of a graph: each call
looks where its own parameters lie, and puts them together where they are not yet.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING
from weakref import ref

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from mirage_kernels.matching.trace import storage_of

if TYPE_CHECKING:
    from mirage_kernels.matching.match import Match

ARGUMENTS = ("weight", "bias")  # of an op, that are put together
ALIGNED = 16  # bytes; kernels take weights that start at multiples of it
_moving = threading.Lock()


def packable(found: Match) -> bool:
    """Say whether a match has a whole weight, which may be put behind another."""
    return found.is_contiguous and all(
        found.tensors[n].end < 0 for n in ARGUMENTS if n in found.tensors
    )


def weight_nodes(group: Sequence[Match]) -> dict[str, tuple[fx.Node, ...]]:
    """Return the nodes that become one, by the op's argument."""
    found = {
        name: tuple(m.tensors[name].node for m in group if name in m.tensors) for name in ARGUMENTS
    }
    return {name: nodes for name, nodes in found.items() if nodes}


def unpackable(group: Sequence[Match], tensors: Mapping[fx.Node, Tensor]) -> str:
    """Say why the weights of a group cannot become one; empty where they can."""
    for nodes in weight_nodes(group).values():
        if len(set(nodes)) < len(nodes):
            return "one weight serves several of them"
        if any(node not in tensors for node in nodes):
            return "the weights are not known when the graph is made"
        reason = obstacle([tensors[node] for node in nodes], tensors.values())
        if reason:
            return reason
    return ""


def conflict(group: Sequence[Match], wholes: Mapping[fx.Node, tuple[fx.Node, ...]]) -> str:
    """Say whether a weight of a group belongs to another whole of `wholes`; empty where none."""
    for nodes in weight_nodes(group).values():
        if any(wholes.get(node, nodes) != nodes for node in nodes):
            return "a weight is put together with others already"
    return ""


def obstacle(parts: Sequence[Tensor], inputs: Iterable[Tensor]) -> str:
    """Say why parameters cannot become views of one tensor; empty where they can, or are.

    `inputs` are all tensors that the graph reads.
    """
    if any(isinstance(t, FakeTensor) or is_traceable_wrapper_subclass(t) for t in parts):
        return "the weights are not known when the graph is made"
    if is_packed(parts):
        return ""
    own = {storage_of(t) for t in parts}
    holders = Counter(storage_of(t) for t in inputs)
    if not all(map(_is_movable, parts)) or any(holders[storage] > 1 for storage in own):
        return "a weight shares its memory with another tensor"
    if any(t.numel() * t.element_size() % ALIGNED for t in parts[:-1]):
        return f"a weight would not start at a multiple of {ALIGNED} bytes"
    return ""


def is_packed(tensors: Sequence[Tensor]) -> bool:
    """Say whether tensors follow each other in memory, from where a kernel can read."""
    ends = [t.storage_offset() + t.numel() for t in tensors]
    starts = [t.storage_offset() for t in tensors]
    one = {t.untyped_storage().data_ptr() for t in tensors}
    follow = len(one) == 1 and ends[:-1] == starts[1:] and all(t.is_contiguous() for t in tensors)
    return follow and tensors[0].data_ptr() % ALIGNED == 0


def _is_movable(tensor: Tensor) -> bool:
    owns = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    # Another process may read a CPU's shared memory; of tensors on GPUs torch says it of all.
    shared = tensor.device.type == "cpu" and tensor.is_shared()  # type: ignore[no-untyped-call]
    return owns and tensor.is_contiguous() and not tensor.is_inference() and not shared


@dataclass(frozen=True)
class _Found:
    """Where the parts of a whole were in the last call.

    As long as it holds the whole, no other memory has these addresses.
    """

    addresses: tuple[int, ...]
    whole: Tensor
    owner: object  # a weak reference to the first part: without it the memory is free


class Whole:
    """The tensor that holds some arguments of a graph, one behind the other along the first dim."""

    def __init__(self, places: Sequence[int]) -> None:
        self.places = tuple(places)  # of two arguments or more
        self._parts: Callable[[Sequence[object]], tuple[Tensor, ...]] = itemgetter(*places)
        self._found: _Found | None = None

    def of(self, given: Sequence[object]) -> _Found | None:
        """Return the whole for a call's arguments; None where they cannot be moved into one.

        It is a view of the parameters' memory. No call copies a weight but the first with
        parameters that lie elsewhere.
        """
        parts, found = self._parts(given), self._found
        if found is not None and found.addresses == _addresses(parts):
            return found
        return self._look(parts, given)

    def _look(self, parts: Sequence[Tensor], given: Sequence[object]) -> _Found | None:
        self._found = None
        with _moving, torch.inference_mode(False), torch.no_grad():
            if not is_packed(parts):
                if obstacle(parts, [t for t in given if isinstance(t, Tensor)]) or _is_capturing():
                    return None
                _move(parts)
            first, rows = parts[0].detach(), sum(t.shape[0] for t in parts)
            whole = first.as_strided((rows, *first.shape[1:]), first.stride())
        self._found = made = _Found(_addresses(parts), whole, ref(parts[0], self._forget))
        return made

    def _forget(self, _: object) -> None:
        self._found = None


def _addresses(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    return tuple(map(Tensor.data_ptr, tensors))


def _is_capturing() -> bool:
    """Say whether a CUDA graph is being captured: what is moved then, a replay would move again."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _move(parts: Sequence[Tensor]) -> None:
    """Make the parts views of one tensor: their own memory is free then."""
    whole, start = torch.cat([t.detach() for t in parts]), 0
    for part in parts:
        if part.is_cuda:
            part.detach().record_stream(torch.cuda.current_stream(part.device))
        part.data = whole.narrow(0, start, part.shape[0])
        start += part.shape[0]


class PackedCall:
    """A compiled graph that takes wholes in the place of their first parts."""

    def __init__(
        self,
        compiled: Callable[..., object],
        wholes: Sequence[Whole],
        apart: Callable[..., object],
    ) -> None:
        self.compiled, self.wholes = compiled, tuple(wholes)
        self.apart = apart  # the graph that takes the parts, for those that cannot be moved
        self._places = [whole.places[0] for whole in wholes]
        self._parts: Callable[[Sequence[object]], tuple[Tensor, ...]]
        self._parts = itemgetter(*(place for whole in wholes for place in whole.places))
        # Of the last call: where all parts were, and what holds their wholes.
        self._seen: tuple[tuple[int, ...], tuple[ref[_Found], ...]] = ((), ())

    def __call__(self, *args: object) -> object:
        """Run the graph on its arguments."""
        given, found = [*args], self._as_before(args) or self._looked(args)
        if not found:
            return self.apart(*args)
        for place, one in zip(self._places, found, strict=True):
            given[place] = one.whole
        return self.compiled(*given)

    def _as_before(self, args: Sequence[object]) -> list[_Found]:
        """Return what holds the wholes of the last call, if the parts are still there."""
        addresses, kept = self._seen
        if _addresses(self._parts(args)) != addresses:
            return []
        found = [one for held in kept if (one := held()) is not None]
        return found if len(found) == len(kept) else []

    def _looked(self, args: Sequence[object]) -> list[_Found]:
        """Return what holds the wholes of a call, nothing where some cannot be made."""
        found = list[_Found]()
        for whole in self.wholes:
            if (one := whole.of(args)) is None:
                return []  # and move no more
            found.append(one)
        self._seen = (_addresses(self._parts(args)), tuple(map(ref, found)))
        return found
