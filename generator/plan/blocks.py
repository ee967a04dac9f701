"""A kernel of a muGraph as the layout planner sees it: tile extents, phases, how often it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from mirage_kernels.generator.ir import OPS, Graph, Kind, Node, Phase, TensorType, count, phases_of
from mirage_kernels.generator.plan.hardware import HardwareParameters, hardware
from mirage_kernels.generator.plan.layouts import Tile
from mirage_kernels.generator.target import Target


@dataclass(frozen=True)
class Block:
    """One kernel: its graph without thread graphs, bound to tensors, at given extents."""

    node: Node
    body: Graph
    types: Mapping[str, TensorType]  # of the kernel graph's tensors
    sizes: Mapping[str, int]  # extents of whole dims
    warps: int
    on: Target

    @property
    def hardware(self) -> HardwareParameters:
        """What its multiprocessor does per cycle."""
        return hardware(self.on)

    @cached_property
    def phases(self) -> Mapping[str, Phase]:
        """When each value is computed."""
        return {name: phase for name, phase in phases_of(self.body).items() if phase is not None}

    @cached_property
    def depths(self) -> Mapping[str, int]:
        """Return for each value the operators of its phase on the longest path to it."""
        depths: dict[str, int] = {}
        for node in self.body.nodes:
            before = [depths[a] for a in node.args if self.phases[a] is self.phases[node.name]]
            depths |= {v.name: 1 + max(before, default=-1) for v in node.outs}
        return depths

    @cached_property
    def tile(self) -> Tile:
        """Extents of the tiles."""
        extents: dict[str, int] = {}
        for node in self.body.nodes:
            if node.op != "output":  # whose type is the whole tensor's
                for d in (d for v in node.outs for d in v.type.dims):
                    extents[d.name] = max(extents.get(d.name, 1), d.size)
        bounded = {d: min(n, self.sizes.get(d, n)) for d, n in extents.items()}
        return Tile(bounded, self.warps)

    def dims(self, value: str) -> tuple[str, ...]:
        """Return a value's dims, those of extent 1 left away."""
        names = self.body.values[value].type.names
        return tuple(d for d in names if self.tile.extents.get(d, 1) > 1)

    def width(self, value: str) -> int:
        """Return the size of a value's elements in bytes."""
        return self.body.values[value].type.dtype.bytes

    def looped(self, value: str) -> bool:
        """Say whether a value is computed in every pass of the loop."""
        return self.phases[value] is Phase.LOOP

    @cached_property
    def steps(self) -> int:
        """Passes of the loop."""
        space = self.body.space
        if space is None or space.loop is None:
            return 1
        reduced = [a.tile for a in space.reduced if a.dim == space.loop.dim]
        return count(space.loop, reduced[0] if reduced else self.sizes[space.loop.dim])

    def times(self, value: str) -> int:
        """Return how often a multiprocessor computes a value, in all passes of all its blocks."""
        return (self.steps if self.looped(value) else 1) * self.rounds

    @cached_property
    def blocks(self) -> int:
        """Blocks of the grid."""
        assert self.body.space is not None
        return prod(count(a, self.sizes[a.dim]) for a in self.body.space.grid)

    @property
    def rounds(self) -> int:
        """Blocks that one multiprocessor runs, one after the other or side by side."""
        return -(-self.blocks // self.on.multiprocessors)

    def tensor(self, value: str) -> str:
        """Return the kernel graph's tensor that an input or output node is bound to."""
        inputs = [n.name for n in self.body.inputs]
        if value in inputs:
            return self.node.args[inputs.index(value)]
        return self.node.outs[self.body.outputs.index(value)].name

    @cached_property
    def maximum_dims(self) -> Mapping[str, frozenset[str]]:
        """Return for each value the dims of which it is a maximum, perhaps each warp's own."""
        found: dict[str, frozenset[str]] = {}
        for node in self.body.nodes:
            dims = frozenset[str]().union(*(found[a] for a in node.args))
            if node.op == "peak":
                dims |= {node.over}
            elif node.op != "last" and OPS[node.op].kind is not Kind.ELEMENTWISE:
                dims = frozenset()
            found |= {v.name: dims - set(v.type.names) for v in node.outs}
        return found
