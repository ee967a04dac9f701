"""Terms that can be part of a program's term, and what ops make of them, each computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from mirage_kernels.generator.ir import OPS
from mirage_kernels.generator.meaning.abstract import elementwise, summed
from mirage_kernels.generator.meaning.terms import Terms


@dataclass
class TermSpace:
    """What each op makes of which terms, under both pruners; shared by all settings."""

    terms: Terms
    target: int
    binary: tuple[str, ...]  # the elementwise ops with two operands
    prune_abstract: bool = True

    def __post_init__(self) -> None:
        self.zero = self.terms.leaf("const", "0")
        self.choices = {
            atom[2][1:]  # so far the target's atoms are the only ones
            for atom in self.terms.atoms
            if atom[:2] == ("fn", "where") and len(atom[2]) == 3
        }
        # Counts of inputs are packed into one number: adding and comparing them are single steps.
        capacity = self.terms.occurrences(self.target)
        counted = sorted(name for name, n in capacity.items() if n < 0x80)  # more are not limited
        self.shift = {name: 8 * i for i, name in enumerate(counted)}
        self.high_bits = sum(0x80 << s for s in self.shift.values())
        self.room = sum(capacity[name] << s for name, s in self.shift.items()) | self.high_bits
        once: tuple[Callable[..., object], ...] = (self.result, self.ops_on, self._occurrences)
        for operation in once:
            setattr(self, operation.__name__, cache(operation))

    def result(
        self, op: str, args: tuple[int, ...], over: str, parts: tuple[str, ...]
    ) -> int | None:
        """Return the term of an op on terms, or None when it can't be needed."""
        if op in ("sum", "accum", "combine", "contract"):
            product = self.terms.mul(*args) if op == "contract" else args[0]
            term = summed(self.terms, product, over, parts)
        else:
            term = elementwise(self.terms, op, args)
        needed = not self.prune_abstract or self.terms.contains(self.target, term)
        return term if needed else None

    def ops_on(self, low: int, high: int) -> tuple[tuple[str, bool], ...]:
        """Return the ops on two terms that can be needed, and whether with operands swapped.

        A contraction can be needed only where the product of its operands can.
        """
        return tuple(self._ops_on(low, high)) if self._fit(low, high) else ()

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
        room = self.room - self._occurrences(low) - self._occurrences(high)
        return not self.prune_abstract or room & self.high_bits == self.high_bits

    def _occurrences(self, term: int) -> int:
        """Return the packed counts of a term; inputs that the target lacks don't count."""
        counts = self.terms.occurrences(term).items()
        return sum(min(n, 127) << self.shift[name] for name, n in counts if name in self.shift)

    def is_chosen_between(self, a: int, b: int) -> bool:
        """Return whether the program may choose between two terms: a mask, or a choice it makes."""
        return b == self.zero or (a, b) in self.choices or not self.prune_abstract
