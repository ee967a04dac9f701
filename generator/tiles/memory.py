"""Shared memory of one block as flat bytes: what lies where, and which warps agree on it.

Every two bytes know the value that was written there last, which warp wrote it and which ones have
read it since the last barrier. So values that share bytes, and races, are seen whatever the numbers
are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.errors import MirageError

Array = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]  # bytes from the start
Warps = npt.NDArray[np.int64] | int

CELL_BYTES = 2  # of the narrowest elements
NOBODY, ANY = 0, -1  # which warp; any: threads of the block, each of which may be in any warp
COPIES = 10_000  # as a warp: what copies bring; of several groups of them, the first


class TileError(MirageError):
    """A tile program whose threads do not agree on what memory holds."""


@dataclass
class Memory:
    """Cells of two bytes: numbers, the value that they are part of, who wrote and who read them."""

    bytes: int
    names: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cells = self.bytes // CELL_BYTES
        self.numbers = np.full(cells, np.nan)
        self.owners, self.writers, self.readers = (np.zeros(cells, np.int16) for _ in range(3))

    def write(self, name: str, at: Places, width: int, values: Array, who: Warps) -> None:
        """Write elements of a value; raises TileError for what other warps may still read."""
        for cells in self._cells(name, at, width):
            if self._differs(self.readers[cells], who):
                raise TileError(f"{name} is written without a barrier behind what reads there")
            if isinstance(who, np.ndarray) and self._differs(self.writers[cells], who):
                raise TileError(f"{name} is written without a barrier behind what writes there")
            self.numbers[cells] = values
            self.owners[cells] = self.names.setdefault(name, len(self.names) + 1)
            self.writers[cells] = who

    def read(self, name: str, at: Places, width: int, who: Warps) -> Array:
        """Read elements of a value; raises TileError if it is not there, or perhaps not yet."""
        for cells in self._cells(name, at, width):
            if np.any(self.owners[cells] != self.names.get(name, -1)):
                raise TileError(f"{name} is read where something else lies, or nothing")
            if self._differs(self.writers[cells], who):
                raise TileError(f"{name} is read without a barrier behind what writes it")
            if isinstance(who, int) and who == ANY:
                self.readers[cells] = ANY
                continue
            several = np.broadcast(cells, who).shape != cells.shape  # warps for each cell
            readers, mine = self.readers[cells], ANY if several else who
            self.readers[cells] = np.where((readers == NOBODY) | (readers == mine), mine, ANY)
        return self.numbers[cells]

    def own(self, at: Places) -> Array:
        """Read elements that the same threads wrote: no barrier is needed."""
        return self.numbers[at // CELL_BYTES]

    def barrier(self, pending: int = COPIES * 3) -> None:
        """Let all warps agree, on copies too but for groups from `pending` on."""
        self.writers[self.writers < pending] = NOBODY
        self.readers.fill(NOBODY)

    def _cells(self, name: str, at: Places, width: int) -> list[Places]:
        if at.min() < 0 or at.max() + width > self.bytes:
            raise TileError(f"{name} lies beyond the {self.bytes} bytes of its block")
        return [(at + more) // CELL_BYTES for more in range(0, width, CELL_BYTES)]

    @staticmethod
    def _differs(seen: npt.NDArray[np.int16], who: Warps) -> bool:
        """Say whether another warp than `who` was seen; nobody is what any one may be."""
        if isinstance(who, int) and who == ANY:
            return bool(np.any(seen))
        return bool(np.any((seen != NOBODY) & ((seen != who) | (seen == ANY))))
