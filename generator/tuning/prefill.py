"""Who serves dense calls of many query tokens: our kernel, or PyTorch's attention.

`kernels/prefill.py` has the numbers that these rules give for the committed catalog.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import log

from mirage_kernels.generator.tuning.catalog import Catalog, Dense
from mirage_kernels.prefill import kind_of

NEVER = 1 << 30  # query tokens


@dataclass(frozen=True)
class Prefill:
    """From where on PyTorch's attention serves: query tokens of a sequence, and query lines."""

    tokens: int
    lines: int

    def serves(self, call: Dense) -> bool:
        """Say whether PyTorch's attention serves a call."""
        return call.tokens >= self.tokens and call.lines >= self.lines


def prefill_from(dense: Sequence[Dense]) -> Prefill | None:
    """Return the rule that loses least against the faster one of both at every call.

    The sum of logarithms counts small calls as large ones; of equal rules that for the most tokens
    and lines. None where nothing was measured.
    """
    if not dense:
        return None
    tokens, lines = (sorted(sizes, reverse=True) for sizes in _sizes(dense))
    rules = [Prefill(*pair) for pair in product(tokens, lines)]

    def lost(rule: Prefill) -> float:
        taken = ((d.sdpa_us if rule.serves(d) else d.us) / min(d.us, d.sdpa_us) for d in dense)
        return round(sum(map(log, taken)), 9)

    return min([*rules, Prefill(NEVER, 0)], key=lost)


def _sizes(dense: Sequence[Dense]) -> tuple[set[int], set[int]]:
    return {d.tokens for d in dense}, {d.lines for d in dense}


def prefill_rules(catalog: Catalog, arch: str) -> dict[tuple[str, int], Prefill]:
    """Return the catalog's rules by kind of call (see `kind_of`) and by the length of a head."""
    points: dict[tuple[str, int], list[Dense]] = {}
    for kernel in catalog.of(arch):
        for call in kernel.dense:
            kind = kind_of(call.tokens, call.keys, causal=call.causal)
            points.setdefault((kind, kernel.key.shape["D"]), []).append(call)
    found = {at: prefill_from(points[at]) for at in sorted(points)}
    return {at: rule for at, rule in found.items() if rule is not None}
