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
from mirage_kernels.generator.search.settings import FULL, PART, Dims, View
from mirage_kernels.generator.search.sketch import Step
from mirage_kernels.generator.search.values import LOAD, Values
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
    """Nominal microseconds of making values, and of reading and writing tensors."""

    sizes: Mapping[str, int]
    on: Target

    def step(self, found: Values, value: int, step: Step) -> float:
        """Return the nominal time of making a value, or of reading an input.

        An input is read once from memory, again from the cache; a long tile of it that is not cut
        is read before anything is computed with it.
        """
        made, args = found.values[value], [found.values[a] for a in step.args]
        if step.op == LOAD:
            if not isinstance(found.leaves[value], View):
                return 0.0
            whole = self._elements(made.dims) * 2
            if any(how == FULL and self.extent(d) > LONGEST for d, how in made.dims):
                whole *= UNCUT
            again = self._repeats(found, made.dims, looped=False)
            return whole / self.on.memory_bytes_per_us + whole * again / self.on.l2_bytes_per_us
        dims: Dims = frozenset().union(*(a.dims for a in args))
        looped = any(a.phase is Phase.LOOP for a in args)
        times = self._elements(dims) * self._repeats(found, dims, looped=looped)
        if step.op == "contract":
            return 2 * times / self.on.tensor_flops_per_us + _EACH
        each = 1 if step.op in (*CHEAP, "sum", "accum") else FUNCTION
        return times * each / self.on.alu_ops_per_us + _EACH

    def tensor(self, dims: tuple[str, ...]) -> float:
        """Return the nominal time of reading or writing a tensor once."""
        elements = prod(map(self.extent, dims))
        return elements * DType.FP16.bytes / self.on.memory_bytes_per_us

    def extent(self, dim: str) -> int:
        """Return the nominal extent of a dim; of a parts dim, how many blocks share the sum."""
        return self.sizes.get(dim, PARTS_EACH)

    def _elements(self, dims: Dims) -> float:
        return float(prod(self.extent(d) for d, how in dims if how != PART))

    def _repeats(self, found: Values, dims: Dims, *, looped: bool) -> float:
        """Return how many blocks and steps do the same: along axes that cut none of the dims."""
        cut, setting = {d for d, how in dims if how != FULL}, found.setting
        blocks = prod(
            PARTS_EACH if axis == setting.split else -(-self.extent(axis) // TILE)
            for axis in setting.grid
            if axis not in cut
        )
        loop = setting.loop
        steps = -(-self.extent(loop) // STEP) if looped and loop and loop not in cut else 1
        return float(blocks * steps)
