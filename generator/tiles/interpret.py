"""Runs general tile programs statement by statement, as the emitted kernels do.

Tiles are flat memory that layouts address, in as many stages as they have. What a statement wrote
may be read by others behind a barrier only, what a copy brings behind one that waits for copies:
anything else, memory that nobody wrote too, raises TileError whatever the numbers are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mirage_kernels.generator.ir import Axis, Graph, Phase, parts_of
from mirage_kernels.generator.tiles.block import Block
from mirage_kernels.generator.tiles.block_run import BlockRun
from mirage_kernels.generator.tiles.horizontal import launches
from mirage_kernels.generator.tiles.machine import (
    grid,
)
from mirage_kernels.generator.tiles.memory import Array, TileError
from mirage_kernels.generator.tiles.program import BlockProgram
from mirage_kernels.generator.tiles.statements import (
    Statement,
)


class Interpreter:
    """Runs the block programs of a kernel graph on arrays."""

    def __init__(self, graph: Graph, extents: Mapping[str, int]) -> None:
        self.graph, self.extents = graph, dict(extents)

    def run(
        self, programs: Sequence[BlockProgram], inputs: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return every tensor of the graph; raises TileError for a program that is not safe.

        Of the kernels that one launch runs the last comes first: nothing says that it does not.
        """
        tensors = dict(inputs)
        for own in launches(programs):
            for i in own:
                self.make(programs[i], tensors)
            for i in reversed(own):
                self.kernel(programs[i], tensors)
        return tensors

    def make(self, program: BlockProgram, tensors: dict[str, Array]) -> None:
        """Add the tensors that a kernel writes, of nan."""
        for axis in program.space.reduced:
            count = -(-self.extents[axis.dim] // axis.tile)
            self.extents[parts_of(axis.dim)] = count
        for node in program.body.of("output"):
            if node.name in program.indexed:  # what lies there stays where nothing is written
                continue
            shape = [self.extents[d] for d in node.out.type.names]
            tensors[program.tensors[node.name]] = np.full(shape, np.nan)

    def kernel(self, program: BlockProgram, tensors: dict[str, Array]) -> None:
        reduced = [a for a in program.space.grid if a.reduced]
        kept = [a for a in program.space.grid if not a.reduced]
        for place in self.places(kept):
            cluster = [
                Block(program, {**place, **part}, self.extents) for part in self.places(reduced)
            ]
            runs = [BlockRun(block, tensors, cluster) for block in cluster]
            for run in runs:
                run.alone()
            joined(runs, program.statements[Phase.JOINED])

    def places(self, axes: Sequence[Axis]) -> Iterator[dict[str, int]]:
        return grid({a.name: range(-(-self.extents[a.dim] // a.tile)) for a in axes})


def joined(runs: Sequence[BlockRun], said: Sequence[Statement]) -> None:
    """Run what the blocks of a cluster do together, statement by statement.

    Raises TileError where one may leave while others still read its tiles.
    """
    for s in said:
        for run in runs:
            run.joined(s)
    for block in (run.block for run in runs):
        if block.lent:
            raise TileError(f"a block leaves while others may still read its {min(block.lent)}")
