"""Who serves dense calls of many query tokens: our kernel, or PyTorch's attention.

`kernels/prefill.py` has the numbers that these rules give for the committed catalog.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import log

from mirage_kernels.generator.tuning.catalog import Beyond, Catalog

NEVER = 1 << 30  # query tokens


@dataclass(frozen=True)
class Prefill:
    """From where on PyTorch's attention serves: query tokens of a sequence, and query lines."""

    tokens: int
    lines: int

    def serves(self, call: Beyond) -> bool:
        """Say whether PyTorch's attention serves a call."""
        return call.sizes["tokens"] >= self.tokens and lines_of(call) >= self.lines


def lines_of(call: Beyond) -> int:
    """Return a call's query lines: tokens of all sequences times heads."""
    return call.sizes["sequences"] * call.sizes["tokens"] * call.sizes["heads"]


def kind_of(tokens: int, keys: int, *, causal: bool) -> str:
    """Return what query tokens see: "all" keys, or those up to their own.

    Causal tokens are as many as the keys ("square"), "most" of them, or a "part", up to half.
    """
    if not causal:
        return "all"
    if tokens == keys:
        return "square"
    return "most" if 2 * tokens > keys else "part"


def kind(call: Beyond) -> str:
    """Return what a call's tokens see, in the words of kernels/prefill.py."""
    return kind_of(call.sizes["tokens"], call.sizes["keys"], causal=call.causal)


def prefill_from(dense: Sequence[Beyond]) -> Prefill | None:
    """Return the rule that loses least against the faster one of both at every call.

    The sum of logarithms counts small calls as large ones; of equal rules that for the most tokens
    and lines. None where nothing was measured.
    """
    if not dense:
        return None
    tokens, lines = (sorted(sizes, reverse=True) for sizes in _sizes(dense))
    rules = [Prefill(*pair) for pair in product(tokens, lines)]

    def lost(rule: Prefill) -> float:
        taken = (_taken_us(rule, d) / min(_ours_us(d), d.other_us) for d in dense)
        return round(sum(map(log, taken)), 9)

    return min([*rules, Prefill(NEVER, 0)], key=lost)


def _ours_us(call: Beyond) -> float:
    assert call.default_us is not None
    return call.default_us


def _taken_us(rule: Prefill, call: Beyond) -> float:
    return call.other_us if rule.serves(call) else _ours_us(call)


def _sizes(dense: Sequence[Beyond]) -> tuple[set[int], set[int]]:
    return {d.sizes["tokens"] for d in dense}, {lines_of(d) for d in dense}


def prefill_rules(catalog: Catalog, arch: str) -> dict[tuple[str, int], Prefill]:
    """Return the catalog's rules by kind of call and by the length of a head."""
    points: dict[tuple[str, int], list[Beyond]] = {}
    for kernel in (k for s in catalog.sections if s.arch == arch for k in s.kernels):
        for call in (b for b in kernel.beyond if "keys" in b.sizes):
            points.setdefault((kind(call), kernel.key.shape["D"]), []).append(call)
    found = {at: prefill_from(points[at]) for at in sorted(points)}
    return {at: rule for at, rule in found.items() if rule is not None}
