"""The latency model: what the predicted times of all schedules that stream weights share.

It ranks what tuning compiles and measures; no claim rests on it. Times are those of launches that
overlap, with weights promised to be constant. A launch takes what the slowest of these takes:

* device memory, which hands out every weight once;
* the multiprocessor with the most blocks, whose port takes their weights, and more slowly where
  too few bytes are in flight;
* its warps, which issue the products, and wait for each where a scheduler has one warp only;

then the tokens, which every block reads anew from L2, while its weights wait; and a start and an
end by schedule. Numbers are fits to tunings on an H200 (kernels/catalog.json,
docs/measurements.md), leads for all other GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.hardware import hardware
from mirage_kernels.generator.plan.program import Do, Layout
from mirage_kernels.generator.schedules.loop import Block, LoopKnobs
from mirage_kernels.generator.schedules.producer_blocks import PAIR
from mirage_kernels.generator.target import Target

ELEMENT_BYTES = 2
OVERLAP = 1.06  # faster than memory alone: a launch starts before the one before it ends
WEIGHT_BYTES = 20.0  # per cycle, to one multiprocessor while its neighbour asks too
ALONE_BYTES = 28.0  # and where no more than every second one has a block
TOKEN_BYTES = 48.0  # per cycle, from L2, of a block alone on its multiprocessor
SHOWN = 0.1  # share of a resource's time that shows beside a busier one's
SCATTERED = 11  # one of so many runs no block of a cluster of four: an H200 runs 30 at once
WAVE_US = 0.8  # a block that follows another, from its first copy to its first product
PRODUCER_US = 2.0  # from a producer's start to its first product, and until its totals are received
ROW_WARP_US = 0.012  # warps of a line's block, by multiprocessor


@dataclass(frozen=True)
class Streaming(Block):
    """The blocks that stream rows on a target: all that time depends on beside the knobs."""

    on: Target

    @property
    def clock(self) -> float:
        """Cycles per microsecond."""
        return hardware(self.on).cycles_per_us

    def read_bytes(self, knobs: LoopKnobs, *, rows: bool) -> int:
        """Return the bytes that a block loads: of the weights that it shares with no other block
        (`rows`), or of all else.
        """
        roles, read = self.program.roles, 0
        own = self.program.extents | {roles.rows: knobs.rows, roles.tokens: knobs.tokens}
        for s in self.program.loads:
            if (s.layout is Layout.ROWS) is rows:
                read += s.dtype.bytes * (prod(own[name] for name in s.type.names) // knobs.blocks)
        return read

    def blocks(self, knobs: LoopKnobs) -> int:
        """Return how many blocks stream, of one tile of tokens."""
        return ceil(self.rows / knobs.rows) * knobs.blocks

    def most_blocks(self, knobs: LoopKnobs) -> int:
        """Return how many blocks the busiest multiprocessor runs."""
        at_once = self.on.multiprocessors
        if knobs.blocks > PAIR:  # some multiprocessors have too few neighbours
            at_once -= at_once // SCATTERED
        return ceil(self.blocks(knobs) / at_once)

    def weights_us(self, knobs: LoopKnobs, share: float = 1.0) -> float:
        """Return the time in which weights come: from memory, and to the busiest multiprocessor.

        Its port takes a `share` of what it could where few bytes are in flight, or some are empty.
        """
        own = self.read_bytes(knobs, rows=True)
        whole = own * knobs.blocks * self.rows / knobs.rows  # the last block may be partly empty
        few = self.rows / knobs.rows * knobs.blocks <= self.on.multiprocessors / 2
        port = (ALONE_BYTES if few else WEIGHT_BYTES) * self.clock * share
        memory = whole / self.on.memory_bytes_per_us / OVERLAP
        return max(memory, self.most_blocks(knobs) * own / port)

    def tokens_us(self, knobs: LoopKnobs, cycle_bytes: float) -> float:
        """Return the time that blocks spend on what all of them read, from L2."""
        again = self.read_bytes(knobs, rows=False)
        return self.most_blocks(knobs) * again / (cycle_bytes * self.clock)

    def warpgroups_us(self, knobs: LoopKnobs, taken: float, cycles: float) -> float:
        """Return the time of blocks alone on their multiprocessors, one after the other.

        Operands come in the time `taken`, warpgroups issue products for `cycles` of each block.
        """
        most = self.most_blocks(knobs)
        issued = most * cycles / self.clock
        return max(taken, issued) + SHOWN * issued + WAVE_US * (most - 1)

    def vectors_us(self, cycles: float) -> float:
        """Return the time of vectors along the depth that the loop computes in fp32."""
        maps = (s for s in self.program.loop if s.do is Do.MAP and s.layout is Layout.DEPTH)
        computed = any(s.dtype is DType.FP32 for s in maps)
        return cycles * self.depth / self.clock if computed else 0.0

    def beside_producers_us(self, knobs: LoopKnobs, streamed: float) -> float:
        """Return the time of a launch in which producer blocks compute something for all others."""
        if (producers := knobs.producers) is None:
            return streamed
        few = PAIR if producers.groups else 1  # half of the depth, of twice as many rows
        lines = producers.rows + producers.tokens // few
        read = ELEMENT_BYTES * lines * self.depth
        crowded = WAVE_US * (self.blocks(knobs) > self.on.multiprocessors)
        made = PRODUCER_US + read / (TOKEN_BYTES * self.clock)
        return max(streamed, made + PRODUCER_US) + SHOWN * made + 2 * crowded
