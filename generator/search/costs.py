"""Nominal costs that order the search: work and traffic before tile sizes are known.

Every step is charged alone, so costs add up over a program; the full estimate of `meaning/cost.py`
ranks what is found. Dynamic dims stand at what decoding has: few tokens, thousands of keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from mirage_kernels.generator.ir import Dim, DType, Graph, Phase
from mirage_kernels.generator.meaning.cost import CHEAP, FUNCTION
from mirage_kernels.generator.search.cases import summed_dims
from mirage_kernels.generator.search.refine import Refined
from mirage_kernels.generator.search.settings import FULL, PART, Setting, View
from mirage_kernels.generator.search.values import LOAD, Saturation, Step, Value
from mirage_kernels.generator.target import Target

FEW, MANY = 8, 4096  # of a dynamic dim: rows or sequences; positions that are summed along
TILE, STEP = 64, 64  # nominal tiles of the grid and of the loop
LONGEST, UNCUT = 256, 1.25  # of a dim that is not cut; what more than that costs
PARTS_EACH = 16  # blocks that share a split dim
_EACH = 0.002  # of any step: fewer steps are better where nothing else differs


def nominal_sizes(spec: Graph) -> dict[str, int]:
    """Return the extents that costs are charged for."""
    reduced = summed_dims(spec)
    dims: dict[str, Dim] = {d.name: d for n in spec.nodes for v in n.outs for d in v.type.dims}
    return {
        name: min(d.size, MANY if name in reduced else FEW) if d.dynamic else d.size
        for name, d in dims.items()
    }


@dataclass(frozen=True)
class Costs:
    """Nominal microseconds of steps and of reading inputs, in one setting."""

    setting: Setting
    sizes: Mapping[str, int]
    on: Target

    def step(self, found: Saturation | Refined, value: int, step: Step) -> float:
        """Return the nominal time of making a value."""
        if step.op == LOAD:
            return self.load(found, value)
        args = [found.values[a] for a in step.args]
        dims = frozenset[tuple[str, str]]().union(*(a.dims for a in args))
        times = self._elements(dims) * self._repeats(dims, found.values[value], args)
        if step.op == "contract":
            return 2 * times / self.on.tensor_flops_per_us + _EACH
        each = 1 if step.op in (*CHEAP, "sum", "accum") else FUNCTION
        return times * each / self.on.alu_ops_per_us + _EACH

    def load(self, found: Saturation | Refined, value: int) -> float:
        """Return the nominal time of reading an input: once from memory, again from the cache.

        A long tile that is not cut is read before anything is computed with it.
        """
        leaf = found.leaves[value]
        if not isinstance(leaf, View):
            return 0.0
        seen = found.values[value]
        whole = self._elements(seen.dims) * 2
        if any(how == FULL and self.extent(d) > LONGEST for d, how in seen.dims):
            whole *= UNCUT
        again = self._repeats(seen.dims, seen, [])
        return whole / self.on.memory_bytes_per_us + whole * again / self.on.l2_bytes_per_us

    def _elements(self, dims: frozenset[tuple[str, str]]) -> float:
        return float(prod(self.extent(d) for d, how in dims if how != PART))

    def extent(self, dim: str) -> int:
        """Return the nominal extent of a dim; of a parts dim, how many blocks share the sum."""
        return self.sizes.get(dim, PARTS_EACH)

    def _repeats(self, dims: frozenset[tuple[str, str]], value: Value, args: list[Value]) -> float:
        """Return how many blocks and steps do the same: along axes that cut none of the dims."""
        cut = {d for d, how in dims if how != FULL}
        blocks = prod(
            PARTS_EACH if axis == self.setting.split else -(-self.extent(axis) // TILE)
            for axis in self.setting.grid
            if axis not in cut
        )
        looped = any(a.phase is Phase.LOOP for a in args)
        loop = self.setting.loop
        steps = -(-self.extent(loop) // STEP) if looped and loop and loop not in cut else 1
        return float(blocks * steps)


def tensor_us(dims: tuple[str, ...], sizes: Mapping[str, int], on: Target) -> float:
    """Return the nominal time of reading or writing a tensor once."""
    elements = prod(sizes.get(d, PARTS_EACH) for d in dims)
    return elements * DType.FP16.bytes / on.memory_bytes_per_us
