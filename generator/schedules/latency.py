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

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.hardware import hardware
from mirage_kernels.generator.plan.program import Do, Layout, TileProgram
from mirage_kernels.generator.schedules.loop import LoopKnobs, Producers
from mirage_kernels.generator.schedules.producer_blocks import PAIR, consumer_program
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.target import Target

Model = Callable[[Knobs, int], float]  # microseconds, of knobs and a number of tokens
ELEMENT_BYTES = 2
OVERLAP = 1.06  # faster than memory alone: a launch starts before the one before it ends
WEIGHT_BYTES = 20.0  # per cycle, to one multiprocessor while its neighbour asks too
ALONE_BYTES = 28.0  # and where no more than every second one has a block
TOKEN_BYTES = 48.0  # per cycle, from L2, of a block alone on its multiprocessor
SHOWN = 0.1  # share of a resource's time that shows beside a busier one's
WAVE_US = 0.8  # a block that follows another, from its first copy to its first product
PRODUCER_US = 2.0  # from a producer's start to its first product, and until its totals are received
ROW_WARP_US = 0.012  # warps of a line's block, by multiprocessor


@dataclass(frozen=True)
class Streaming:
    """A planned program on a target: all that its predicted time depends on beside the knobs."""

    program: TileProgram
    consumers: TileProgram  # the same without what producer blocks compute
    on: Target

    @staticmethod
    def of(program: TileProgram, on: Target) -> Streaming:
        """Return what the predictions for a program need."""
        return Streaming(program, consumer_program(program), on)

    @property
    def clock(self) -> float:
        """Cycles per microsecond."""
        return hardware(self.on).cycles_per_us

    @property
    def rows(self) -> int:
        """Rows of the streamed weights."""
        return self.program.extents[self.program.roles.rows]

    @property
    def depth(self) -> int:
        """The contracted extent."""
        return self.program.extents[self.program.roles.depth]

    @property
    def products(self) -> int:
        """Products of one pass of the loop."""
        return sum(s.do is Do.CONTRACT for s in self.consumers.loop)

    def elements(self, names: tuple[str, ...], knobs: LoopKnobs) -> int:
        """Return the elements that a block has of a value in the whole loop."""
        roles, count = self.program.roles, 1
        own = self.program.extents | {roles.rows: knobs.rows, roles.tokens: knobs.tokens}
        for name in names:
            count *= own[name]
        return count // knobs.blocks

    def read_bytes(self, knobs: LoopKnobs, *, rows: bool) -> int:
        """Return the bytes that a block loads: of the weights that it shares with no other block
        (`rows`), or of all else.
        """
        loads = [s for s in self.consumers.loads if (s.layout is Layout.ROWS) is rows]
        return ELEMENT_BYTES * sum(self.elements(s.type.names, knobs) for s in loads)

    def computes(self, layout: Layout) -> bool:
        """Say whether the loop computes with values of a layout, not only products."""
        maps = (s for s in self.consumers.loop if s.do is Do.MAP and s.layout is layout)
        return any(layout is not Layout.DEPTH or s.dtype is DType.FP32 for s in maps)

    def most_blocks(self, knobs: LoopKnobs) -> int:
        """Return how many blocks the busiest multiprocessor runs."""
        return ceil(ceil(self.rows / knobs.rows) * knobs.blocks / self.on.multiprocessors)

    def memory_us(self, knobs: LoopKnobs) -> float:
        """Return the time in which device memory hands out all weights."""
        own = self.read_bytes(knobs, rows=True)
        whole = own * knobs.blocks * self.rows / knobs.rows  # the last block may be partly empty
        return whole / self.on.memory_bytes_per_us / OVERLAP

    def port(self, knobs: LoopKnobs) -> float:
        """Return how many bytes of weights come to a multiprocessor in a microsecond."""
        few = self.rows / knobs.rows * knobs.blocks <= self.on.multiprocessors / 2
        return (ALONE_BYTES if few else WEIGHT_BYTES) * self.clock

    def vectors_us(self, cycles: float) -> float:
        """Return the time of vectors along the depth that the loop computes in fp32."""
        return cycles * self.depth / self.clock if self.computes(Layout.DEPTH) else 0.0


def beside_producers_us(
    work: Streaming, knobs: LoopKnobs, producers: Producers | None, streamed: float
) -> float:
    """Return the time of a launch in which producer blocks compute something for all others."""
    if producers is None:
        return streamed
    few = PAIR if producers.groups else 1  # half of the depth, of twice as many rows
    lines = producers.rows + producers.tokens // few
    read = ELEMENT_BYTES * lines * work.depth
    crowded = WAVE_US * (ceil(work.rows / knobs.rows) * knobs.blocks > work.on.multiprocessors)
    made = PRODUCER_US + read / (TOKEN_BYTES * work.clock)
    return max(streamed, made + PRODUCER_US) + SHOWN * made + 2 * crowded
