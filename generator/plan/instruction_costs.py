"""What ways and moves cost a multiprocessor, from the facts and the forms' maps."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from mirage_kernels.generator.plan.bank_conflicts import access
from mirage_kernels.generator.plan.blocks import Block
from mirage_kernels.generator.plan.forms import (
    LINE_TILE,
    Copy,
    Fragment,
    Lanes,
    Place,
    Stored,
    Tile,
)
from mirage_kernels.generator.plan.integer_program import Work

_SIMPLE = ("neg", "square", "relu", "add", "sub", "mul", "max", "less", "both", "where")
_PAIRED = ("add", "sub", "mul")  # two 2-byte values at a time (csrc/tile/elementwise.cuh)
_MMA_ROWS, _MMA_COLS, _MMA_DEPTH = 16, 8, 16  # m16n8k16, PTX ISA
SECTOR_BYTES = 32  # what device memory and L2 move at least, CUDA C++ Programming Guide
_PIECE = 16


@dataclass(frozen=True)
class Prices:
    """Costs of one block, all its passes and all blocks of a multiprocessor counted in."""

    block: Block

    @property
    def tile(self) -> Tile:
        """Extents and warps."""
        return self.block.tile

    def often(self, value: str, work: Work) -> Work:
        """Return the cost of doing something whenever a value is computed."""
        return work.times(self.block.times(value) * self.block.rounds)

    def base(self) -> Work:
        """Return what a kernel pays anyhow: every distinct byte of its tensors once."""
        block = self.block
        tensors = dict.fromkeys((*block.node.args, *(v.name for v in block.node.outs)))
        moved = sum(block.tensor_bytes(t) for t in tensors)
        microseconds = moved / block.on.memory_bytes_per_us
        return Work({"memory": microseconds * block.facts.cycles_per_us})

    def map(self, op: str, form: Fragment, width: int) -> Work:
        """Return the cost of an elementwise op whose result has this form."""
        f = self.block.facts
        each = f.simple_cycles if op in _SIMPLE else f.function_cycles
        if op == "exp":
            each = f.exp_cycles
        pairs = 0.5 if op in _PAIRED and width == 2 else 1.0
        narrowed = f.convert_cycles / 2 if width == 2 and op not in _PAIRED else 0.0
        return self._issued(form, pairs * each + narrowed)

    def _issued(self, form: Fragment, cycles: float) -> Work:
        return Work({"issue": self.tile.warps * self.tile.lane_elements(form) * cycles})

    def accumulate(self, form: Fragment, each: float = 1.0) -> Work:
        """Return the cost of adding a fragment to a carried one, and the registers of that."""
        held = self.tile.registers(form, 4)
        return self._issued(form, each * self.block.facts.simple_cycles) + Work(registers=held)

    def rescale(self, form: Fragment, bound: Fragment) -> Work:
        """Return the cost of a carried fragment's multiplication by exp(bound before - after)."""
        return self.accumulate(form, 2.0) + self._issued(bound, self.block.facts.exp_cycles)

    def reduce(self, form: Fragment, over: str) -> Work:
        """Return the cost of adding up (or taking the largest) along a dim, inside each lane."""
        return self._issued(form, self.block.facts.simple_cycles)

    def lanes(self, result: Fragment, over_rows: bool) -> Work:
        """Return the cost of joining lanes: rows lie in eight, columns in four of them."""
        steps = 3 if over_rows else 2
        return self._issued(result, steps * self.block.facts.shuffle_cycles)

    def contract(self, rows: Fragment, cols: Fragment, over: str, batch: int) -> Work:
        """Return the cost of a product on the tensor cores; `rows` is the M side's operand."""
        tile, f = self.tile, self.block.facts
        split = rows.split or cols.split
        rows_per_warp = -(-tile.extent(rows.rows, split) // batch)
        cols_per_warp = -(-tile.extent(cols.rows, split) // batch)
        depth = tile.extent((over,), split)
        count = (
            tile.warps
            * batch
            * ceil(rows_per_warp / _MMA_ROWS)
            * ceil(cols_per_warp / _MMA_COLS)
            * ceil(depth / _MMA_DEPTH)
        )
        return Work({"tensor": count * f.mma_cycles, "issue": count * f.simple_cycles})

    def loads(self, form: Fragment, stored: Stored, width: int) -> Work:
        """Return the cost of reading a fragment from shared memory."""
        every = access(form, stored, self.tile, width)
        copies = self.tile.warps if stored.parts else 1
        work = self._accessed(every.instructions * copies, every.wavefronts * copies, form)
        if copies > 1:
            work += self._issued(form, (copies - 1) * self.block.facts.simple_cycles)
        return work

    def stores(self, form: Fragment, stored: Stored, width: int) -> Work:
        """Return the cost of writing a fragment to shared memory."""
        every = access(form, stored, self.tile, width)
        return self._accessed(every.instructions, every.wavefronts, form)

    def _accessed(self, instructions: int, passes: int, form: Fragment) -> Work:
        f, warps = self.block.facts, self.tile.warps
        return Work({"shared": warps * passes, "issue": warps * instructions * f.simple_cycles})

    def transpose(self, form: Fragment) -> Work:
        """Return the cost of exchanging rows and columns of a 2-byte fragment by movmatrix."""
        return self._issued(form, self.block.facts.transpose_cycles / 2)

    def copy(self, stored: Stored, width: int, lines: int) -> Work:
        """Return the cost of bringing a tile of so many lines into shared memory."""
        f, tile = self.block.facts, self.tile
        moved = tile.extent(stored.order) * width
        issue = {
            Copy.PLAIN: 2 * moved / width / 32 * f.simple_cycles * 2,  # load, store, addresses
            Copy.CP_ASYNC: moved / (32 * _PIECE) * f.copy_cycles,
            Copy.BULK: lines * f.bulk_cycles,
            Copy.TENSOR: ceil(lines / 256) * f.bulk_cycles,  # a box has at most 256 lines
        }[stored.copy or Copy.PLAIN]
        shared = moved / f.wavefront_bytes
        return Work({"cache": self._cached(moved), "shared": shared, "issue": issue})

    def direct(self, form: Fragment, width: int, rows_together: bool) -> Work:
        """Return the cost of loads from device memory to registers, warp by warp."""
        f, tile = self.block.facts, self.tile
        copies = 1 if form.split or form.lanes is Lanes.SPREAD else tile.warps
        elements = tile.extent(form.rows + form.cols)
        waste = self.wasted(form, width, rows_together)
        moved = elements * width * copies * waste
        run = 1 if rows_together else form.lanes.run
        instructions = copies * elements * width / (32 * min(_PIECE, run * width))
        issue = instructions * 2 * f.simple_cycles
        return Work({"cache": self._cached(moved), "issue": issue})

    def wasted(self, form: Fragment, width: int, rows_together: bool) -> float:
        """Return the bytes of the sectors that an access touches, per byte that it wants."""
        if form.lanes is Lanes.SPREAD:
            return 1.0
        together = LINE_TILE if rows_together else 4 * form.lanes.run
        return max(1.0, SECTOR_BYTES / (together * width))

    def _cached(self, moved: float) -> float:
        """Return the cycles in which L2 serves one block's bytes, all blocks asking at once."""
        on, f = self.block.on, self.block.facts
        at_once = min(self.block.blocks, on.multiprocessors)
        return moved * at_once / on.l2_bytes_per_us * f.cycles_per_us

    def exchange(self, form: Fragment, place: Place) -> Work:
        """Return the cost of a sum over blocks: all write theirs and read a part of the others'."""
        f = self.block.facts
        moved = self.tile.extent(form.rows + form.cols) * 4
        if place is Place.CLUSTER:
            return Work({"shared": moved / f.wavefront_bytes + moved / f.cluster_bytes})
        return Work({"cache": 2 * self._cached(moved)})
