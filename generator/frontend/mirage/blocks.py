"""Hand-written block graphs, as Mirage's `new_threadblock_graph` builds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.mirage.program import AXES, NOWHERE, Block, Step, Three
from mirage_kernels.generator.frontend.mirage.recorder import DTensor, Recorder, STensor, position
from mirage_kernels.generator.frontend.mirage.shapes import (
    check_block,
    stored_extents,
    tile_extents,
)


def _three(values: Sequence[int], what: str) -> Three:
    whole = all(isinstance(v, int) and not isinstance(v, bool) for v in values)
    if not whole or len(values) != len(AXES):
        raise MirageError(f"{what} is {values!r}", "it is three whole numbers, for x, y and z")
    x, y, z = values
    return (x, y, z)


class BlockGraph(Recorder[STensor]):
    """What every block of a grid computes; its loop runs until values are accumulated."""

    handle = STensor
    kind = "block graph"

    def __init__(
        self, grid: Sequence[int], threads: Sequence[int], *, loop_range: int, dimx: int
    ) -> None:
        super().__init__()
        self.block = Block(
            _three(grid, "grid_dim"), _three(threads, "block_dim"), loop_range, dimx, ()
        )
        check_block(self.block)
        self.tensors: list[DTensor] = []  # what the inputs are tiles of, in order
        self.extents: list[tuple[int, ...]] = []  # of what the outputs store

    @property
    def frame(self) -> Block:
        """Grid and loop."""
        return self.block

    def new_input(
        self,
        dtensor: DTensor,
        input_map: Sequence[int],
        forloop_dim: int,
        store_in_dmem: bool = False,
    ) -> STensor:
        """Take the tile of a tensor that the input map and the loop give each block.

        The map says for the grid's x, y and z which dim they cut, -1 for none. Where the tile is
        kept (`store_in_dmem`) is the planner's business here.
        """
        if not isinstance(dtensor, DTensor):
            raise MirageError(
                f"a block graph's input is {dtensor!r}", "give a tensor of a kernel graph"
            )
        dim = NOWHERE if forloop_dim == NOWHERE else position(forloop_dim, dtensor)
        step = Step("input", dim=dim, maps=_three(input_map, "input_map"))
        extents = tile_extents(step, dtensor.tensor.extents, self.block)
        tensor = self.new_tensor(extents, dtensor.dtype)
        self.tensors.append(dtensor)
        self.steps.append(replace(step, outs=(tensor,)))
        return STensor(self, tensor)

    def new_output(
        self,
        stensor: STensor,
        output_map: Sequence[int],
        forloop_dim: int = NOWHERE,
        epilogue: str | None = None,
    ) -> None:
        """Store a tile where the output map puts it."""
        if forloop_dim != NOWHERE or epilogue is not None:
            raise MirageError(
                "an output that stores every iteration or ends in a communication has no form here",
                "accumulate over the loop and store once",
            )
        if not isinstance(stensor, STensor) or stensor.graph is not self:
            raise MirageError(f"new_output of {stensor!r}: it is no tensor of this block graph")
        maps = _three(output_map, "output_map")
        step = Step("output", (stensor.tensor.number,), maps=maps)
        self.extents.append(stored_extents(step, stensor.tensor.extents, self.block))
        self.steps.append(step)

    def rms_norm(self, A: STensor) -> STensor:  # noqa: N803
        """A / sqrt(mean(A^2)) along the last dim of the tile."""
        return self.one(Step("rms_norm", dim=A.num_dims - 1), A)

    def reduction_to_dimx(self, A: STensor, dim: int) -> STensor:  # noqa: N803
        """Sum along a dim until `reduction_dimx` elements are left."""
        step = Step("reduction", dim=position(dim, A), size=self.block.dimx)
        return self.one(step, A)

    def reduction_max(self, A: STensor, dim: int) -> list[STensor]:  # noqa: N803
        """Return the running maximum along a dim and how much it grew in this iteration."""
        return self.record(Step("reduction_max", dim=position(dim, A)), [A])

    def concat(self, A: STensor, B: STensor, dim: int) -> STensor:  # noqa: N803
        """Put two tiles side by side, for a matmul with another concat."""
        return self.one(Step("concat", dim=position(dim, A)), A, B)

    def forloop_accum(self, A: STensor, acc: str | None = None) -> STensor:  # noqa: N803
        """Sum over the loop's iterations.

        With "sum" along the last dim too; "mean" and "rms" (root of the mean of squares) likewise;
        "sum_todimx" along the last dim until `reduction_dimx` columns are left.
        """
        return self.one(Step("accum", kind=acc or ""), A)

    def forloop_accum_rescale(self, A: STensor, B: STensor, acc: str | None = None) -> STensor:  # noqa: N803
        """Sum over the loop's iterations, what is summed so far times B = exp(growth)."""
        return self.one(Step("accum_rescale", kind=acc or ""), A, B)

    def forloop_accum_max(self, A: STensor) -> STensor:  # noqa: N803
        """Return the running maximum after the loop."""
        return self.one(Step("accum_max"), A)

    def built(self) -> Block:
        """Return the finished block graph; raise MirageError for one that stores nothing."""
        if not self.extents or not self.tensors:
            raise MirageError("a block graph needs inputs and outputs", "new_input, new_output")
        return replace(self.block, steps=tuple(self.steps))
