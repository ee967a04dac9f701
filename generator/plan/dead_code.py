"""What lowering leaves away at its end: statements whose values nothing is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Made(Protocol):
    """A statement: it makes a value from others."""

    @property
    def out(self) -> str:
        """Name of the value."""

    @property
    def args(self) -> tuple[str, ...]:
        """Names of the others."""


S = TypeVar("S", bound=Made)


def needed(statements: Sequence[S], wanted: set[str]) -> tuple[S, ...]:
    """Return the statements that values are made by, in their order."""
    found, names = list[S](), set(wanted)
    for s in reversed(statements):
        if s.out in names:
            names |= set(s.args)
            found.append(s)
    return tuple(reversed(found))
