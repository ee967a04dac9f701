"""Terms that can be part of a program's term, and what ops make of them, each computed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mirage_kernels.generator.ir import OPS
from mirage_kernels.generator.meaning.abstract import elementwise, summed
from mirage_kernels.generator.meaning.terms import Terms


class Occurrences:
    """Counts of inputs packed into one number, so that adding and comparing are single steps."""

    def __init__(self, terms: Terms, target: int) -> None:
        capacity = terms.occurrences(target)
        counted = sorted(name for name, n in capacity.items() if n < 0x80)  # more are not limited
        self.terms = terms
        self.shift = {name: 8 * i for i, name in enumerate(counted)}
        self.high_bits = sum(0x80 << s for s in self.shift.values())
        self.room = sum(capacity[name] << s for name, s in self.shift.items()) | self.high_bits
        self.packed: dict[int, int] = {}

    def of(self, term: int) -> int:
        """Return the packed counts of a term; inputs that the target lacks don't count."""
        if term not in self.packed:
            counts = self.terms.occurrences(term).items()
            self.packed[term] = sum(
                min(n, 127) << self.shift[name] for name, n in counts if name in self.shift
            )
        return self.packed[term]


Key = tuple[str, tuple[int, ...], str, tuple[str, ...]]


@dataclass
class TermSpace:
    """What each op makes of which terms, under both pruners; shared by all settings."""

    terms: Terms
    target: int
    binary: tuple[str, ...]  # the elementwise ops with two operands
    prune_abstract: bool = True
    reason: str = ""  # why the last result was pruned
    pairs: dict[tuple[int, int], tuple[tuple[str, bool], ...]] = field(default_factory=dict)
    memo: dict[Key, tuple[int | None, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.occurrences = Occurrences(self.terms, self.target)
        self.zero = self.terms.leaf("const", "0")
        self.choices = {
            atom[2][1:]  # so far the target's atoms are the only ones
            for atom in self.terms.atoms
            if atom[:2] == ("fn", "where") and len(atom[2]) == 3
        }

    def result(
        self, op: str, args: tuple[int, ...], over: str, parts: tuple[str, ...]
    ) -> int | None:
        """Return the term of an op on terms, or None with `reason` when it can't be needed."""
        key = (op, args, over, parts)
        if key not in self.memo:
            self.memo[key] = self._result(op, args, over, parts)
        term, self.reason = self.memo[key]
        return term

    def _result(
        self, op: str, args: Sequence[int], over: str, parts: tuple[str, ...]
    ) -> tuple[int | None, str]:
        if op in ("sum", "accum", "combine", "contract"):
            product = self.terms.mul(*args) if op == "contract" else args[0]
            term = summed(self.terms, product, over, parts)
        else:
            term = elementwise(self.terms, op, args)
        if self.prune_abstract and not self.terms.contains(self.target, term):
            return None, "abstract"
        return term, ""

    def ops_on(self, low: int, high: int) -> tuple[tuple[str, bool], ...]:
        """Return the ops on two terms that can be needed, and whether with operands swapped.

        A contraction can be needed only where the product of its operands can.
        """
        key = (low, high)
        if key not in self.pairs:
            self.pairs[key] = tuple(self._ops_on(low, high)) if self._fit(low, high) else ()
        return self.pairs[key]

    def _ops_on(self, low: int, high: int) -> Iterator[tuple[str, bool]]:
        for op in self.binary:
            if self.result(op, (low, high), "", ()) is not None:
                yield op, False
            if not OPS[op].commutative and self.result(op, (high, low), "", ()) is not None:
                yield op, True
        if self.result("mul", (low, high), "", ()) is not None:
            yield "contract", False

    def _fit(self, low: int, high: int) -> bool:
        """Return whether the operands together count no input more often than the target does."""
        count, bits = self.occurrences.of, self.occurrences.high_bits
        room = self.occurrences.room - count(low) - count(high)
        return not self.prune_abstract or room & bits == bits

    def is_chosen_between(self, a: int, b: int) -> bool:
        """Return whether the program may choose between two terms: a mask, or a choice it makes."""
        return b == self.zero or (a, b) in self.choices or not self.prune_abstract
