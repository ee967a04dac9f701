"""Where a loop may begin and end: steps whose places a condition hides whole change nothing.

A condition compares the places of the loop's dim with whole numbers (lengths, other places). Where
it is false, sums of the loop add 0 and its maxima take -inf, so that no step is needed before the
first place for which it may be true, or behind the last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf

from mirage_kernels.generator.ir import DType, Graph, Phase, phases_of
from mirage_kernels.generator.ir.ops import ACCUMS

_OF_SLOPE = {-1: False, 1: True}  # of `high - low` along the loop: does it begin?


@dataclass(frozen=True)
class LoopEnd:
    """A condition `low < high`, false for all places of a loop beyond some place, or before it.

    `high - low` at the loop's first place is how many places are seen; where the loop `begins`
    with what is seen, how many are not is 1 less it.
    """

    low: str
    high: str
    begins: bool = False


class _Hidden(Enum):
    """What elements are where a condition is false; others count as finite numbers."""

    FALSE, ZERO, LOWEST, OTHER = "false", "0", "-inf", "other"


_FALSE, _ZERO, _LOWEST, _OTHER = _Hidden
_RULES: Mapping[str, Callable[[Sequence[_Hidden]], _Hidden]] = {  # of what operands are
    "where": lambda of: of[2] if of[0] is _FALSE or of[1] is of[2] else _OTHER,
    "masked": lambda of: _ZERO if of[0] is _FALSE or of[1] is _ZERO else _OTHER,
    "both": lambda of: _FALSE if _FALSE in of else _OTHER,
    "mul": lambda of: _ZERO if _ZERO in of else _OTHER,
    "contract": lambda of: _ZERO if _ZERO in of else _OTHER,
    "div": lambda of: _ZERO if of[0] is _ZERO else _OTHER,
    "exp": lambda of: _ZERO if of[0] is _LOWEST else _OTHER,
    "add": lambda of: _LOWEST if _LOWEST in of else of[0] if of[0] is of[1] else _OTHER,
    "sub": lambda of: _LOWEST if of[0] is _LOWEST and of[1] is not _LOWEST else _OTHER,
    **dict.fromkeys(("sum", "amax", "peak"), lambda of: of[0]),
}


def loop_ends(body: Graph, iotas: Collection[str]) -> tuple[LoopEnd, ...]:
    """Return the conditions that hide whole steps of a block graph's loop.

    `iotas` are the inputs that number a dim.
    """
    if body.space is None or body.space.loop is None:
        return ()
    dim, phases, found = body.space.loop.dim, phases_of(body), dict[LoopEnd, None]()
    if any(phases[n.args[0]] is Phase.LOOP for n in body.of("output")):
        return ()
    for node in body.of("less"):
        low, high = (_slope(body, a, dim, iotas) for a in node.args)
        begins = None if low is None or high is None else _OF_SLOPE.get(high - low)
        if begins is not None and _ends(body, node.name):
            found[LoopEnd(node.args[0], node.args[1], begins)] = None
    return tuple(found)


def _slope(body: Graph, name: str, dim: str, iotas: Collection[str]) -> int | None:
    """Return how much a whole number grows from place to place of a dim, None where unknown.

    It is made of inputs that do not have the dim, and of its places: known before the loop.
    """
    node = body.producers[name]
    if node.out.type.dtype is not DType.INT32:
        return None
    if not node.args:
        counts = name in iotas or node.op == "iota"
        return int(dim in node.out.type.names) if counts or dim not in node.out.type.names else None
    slopes = [_slope(body, a, dim, iotas) for a in node.args]
    known = [s for s in slopes if s is not None]
    if len(known) < len(slopes):
        return None
    if node.op in ("add", "sub"):
        return known[0] + known[1] if node.op == "add" else known[0] - known[1]
    return 0 if node.op in ("mul", "max") and not any(known) else None


def _ends(body: Graph, condition: str) -> bool:
    """Say whether nothing that a loop carries changes where a condition is false."""
    assert body.space is not None
    hidden, numbers = {condition: _FALSE}, {0.0: _ZERO, -inf: _LOWEST}
    for node in body.nodes:
        of, added = [hidden[a] for a in node.args], node.op in ("accum", "accum_rescaled")
        carried = node.op in ACCUMS or body.space.runs(node)
        if carried and of[0] is not (_ZERO if added else _LOWEST):
            return False
        made = _OTHER if carried or node.op not in _RULES else _RULES[node.op](of)
        made = numbers.get(node.value, _OTHER) if node.op == "const" else made
        hidden.setdefault(node.name, made)
    return True
