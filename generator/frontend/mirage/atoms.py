"""Names for positional dims: which dims are one and the same, and into which factors they fall.

Mirage's tensors are positional, ours have named dims. Every positional dim is a row of *atoms*,
outermost first; an atom is a dim of our graphs. A matrix product says that two dims are the same
atoms, a tensor whose dim holds the results of several blocks side by side has one atom for the
blocks and one for what each of them made. Atoms begin as whole dims of the program's inputs and
are joined or split where the program asks for it, never more than that.

Whoever asks reads the atoms again after every change: `join`, `split` and `drop` raise `Refined`
when they change anything, and the reading starts anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from mirage_kernels.generator.errors import GraphError

Atom = int
Row = tuple[Atom, ...]  # the atoms of one positional dim, outermost first


class Refined(Exception):  # noqa: N818  (not an error: it starts a reading anew)
    """Something that was read about dims before is no longer up to date."""


@dataclass
class Atoms:
    """The atoms found so far; an atom points to the one it was joined with, or to its factors."""

    sizes: list[int] = field(default_factory=list)
    means: list[Row | None] = field(default_factory=list)  # None: still an atom of its own
    first: dict[tuple[int, int], Atom] = field(default_factory=dict)

    def of_input(self, tensor: int, position: int, extent: int) -> Row:
        """Return the atoms of a dim of one of the program's inputs."""
        key = (tensor, position)
        if key not in self.first:
            self.first[key] = self._new(extent)
        return self.leaves(self.first[key])

    def _new(self, size: int) -> Atom:
        self.sizes.append(size)
        self.means.append(None)
        return len(self.sizes) - 1

    def leaves(self, atom: Atom) -> Row:
        """Return what an atom means now: itself, the one it was joined with, or its factors."""
        meaning = self.means[atom]
        if meaning is None:
            return (atom,)
        return tuple(leaf for part in meaning for leaf in self.leaves(part))

    def extent(self, row: Sequence[Atom]) -> int:
        """Return the number of elements along a row of atoms."""
        return math.prod(self.sizes[a] for a in row)

    def join(self, a: Atom, b: Atom) -> None:
        """Make two atoms of one size the same."""
        if a != b:
            self.means[max(a, b)] = (min(a, b),)
            raise Refined

    def split(self, atom: Atom, outer: int, why: str) -> None:
        """Split an atom into `outer` parts; raise GraphError where that is uneven."""
        size = self.sizes[atom]
        if size % outer:
            raise GraphError(
                f"{why}: a dim of {size} does not fall into {outer} equal parts",
                "these programs divide evenly: choose grid and loop counts that divide every dim",
            )
        if outer not in (1, size):
            self.means[atom] = (self._new(outer), self._new(size // outer))
            raise Refined

    def drop(self, atom: Atom) -> None:
        """Forget an atom of size 1: its dim broadcasts."""
        assert self.sizes[atom] == 1
        self.means[atom] = ()
        raise Refined
