"""Results that the blocks of a cluster deal out: each combines and stores a share of the vectors.

That is for a value that only one store reads, in its own order. What else blocks combine, all of
them have: the peak that values are relative to, say.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.ir import Dim, Graph, Phase
from mirage_kernels.generator.tiles.program import BlockProgram
from mirage_kernels.generator.tiles.statements import Combine, Store

DEALT = 8  # elements that lie beside each other in one block's share


def dealt(program: BlockProgram, s: Combine | Store) -> str:
    """Return the tile that blocks deal out where a statement makes or stores it, else nothing."""
    said = program.statements[Phase.JOINED]
    if isinstance(s, Combine):
        stores = [x for x in said if isinstance(x, Store) and s.tile in x.reads]
        return s.tile if any(dealt(program, x) == s.tile for x in stores) else ""
    if s not in said or program.is_held(s.output):
        return ""
    names = [d for d in program.type(s.output).names if d in program.type(s.value).names]
    for c in (c for c in said if isinstance(c, Combine) and c.tile in s.reads):
        tile, readers = program.tiles[c.tile], [x for x in said if c.tile in x.reads]
        if readers == [s] and [*tile.names] == names and names and tile.dims[-1].size % DEALT == 0:
            return c.tile
    return ""


def as_results(body: Graph, dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """Return dims in the order in which results have them; others, that sums are along, last."""
    order = [*dict.fromkeys(d for node in body.of("output") for d in node.out.type.names)]
    return tuple(sorted(dims, key=lambda d: order.index(d.name) if d.name in order else len(order)))


def share(shape: Sequence[int], block: int, blocks: int) -> npt.NDArray[np.bool_]:
    """Say which elements of a dealt tile, its last dim the fastest, are a block's share."""
    places = np.arange(prod(shape)).reshape(shape)
    return np.asarray(places // DEALT % blocks == block)
