"""Positional programs: what a front end records, each step checked, before dims have names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mirage_kernels.generator.frontend.positional.ops import result_extents
from mirage_kernels.generator.frontend.positional.steps import (
    Extents,
    Frame,
    Step,
    Tensor,
    Three,
    check_extents,
    row_major,
    stored_extents,
    tile_extents,
)
from mirage_kernels.generator.ir import DType


@dataclass
class Program:
    """A kernel graph, step by step; with a `frame`, the block graph of that grid and loop.

    `results` are tensors that were chosen as results, with their strides.
    """

    frame: Frame | None = None
    steps: list[Step] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)  # by number
    results: list[Tensor] = field(default_factory=list)

    def of(self, op: str) -> list[Step]:
        """Return the steps with the given op, in order."""
        return [s for s in self.steps if s.op == op]

    @property
    def inputs(self) -> list[Tensor]:
        """The input tensors, in order."""
        return [s.outs[0] for s in self.of("input")]

    @property
    def outputs(self) -> list[Tensor]:
        """The results; where none are chosen, the computed tensors that no step takes."""
        taken = {a for s in self.steps for a in s.args}
        made = [t for s in self.steps if s.op != "input" for t in s.outs]
        return self.results or [t for t in made if t.number not in taken]

    @property
    def stored(self) -> list[Extents]:
        """Extents of what a block graph's outputs make together."""
        return [self._stored(step) for step in self.of("output")]

    def _stored(self, step: Step) -> Extents:
        assert self.frame is not None
        return stored_extents(step, self.tensors[step.args[0]].extents, self.frame)

    def owns(self, tensor: object) -> bool:
        """Say whether something is a tensor of this graph."""
        return any(tensor is own for own in self.tensors)

    def add(self, step: Step, extents: Sequence[Extents], dtype: DType) -> list[Tensor]:
        """Append a step and return its results."""
        first = len(self.tensors)
        outs = [Tensor(first + i, e, dtype) for i, e in enumerate(extents)]
        self.tensors += outs
        self.steps.append(replace(step, outs=tuple(outs)))
        return outs

    def input(self, extents: Extents, dtype: DType, strides: Extents = ()) -> Tensor:
        """Add an input of the program; strides (in elements) default to row-major."""
        check_extents(extents, "an input")
        strides = () if strides == row_major(extents) else strides
        self.tensors.append(Tensor(len(self.tensors), extents, dtype, strides))
        self.steps.append(Step("input", outs=(self.tensors[-1],)))
        return self.tensors[-1]

    def apply(self, step: Step, args: Sequence[Tensor]) -> list[Tensor]:
        """Add an operator; raise GraphError where its operands don't fit."""
        extents = result_extents(step, [a.extents for a in args], self.frame)
        return self.add(replace(step, args=tuple(a.number for a in args)), extents, args[0].dtype)

    def tile(self, whole: Tensor, maps: Three, dim: int) -> Tensor:
        """Add a block graph's input: the tile of a tensor that grid and loop cut."""
        assert self.frame is not None
        step = Step("input", dim=dim, maps=maps)
        return self.add(step, [tile_extents(step, whole.extents, self.frame)], whole.dtype)[0]

    def store(self, tile: Tensor, maps: Three) -> None:
        """Add a block graph's output: where each block's tile goes in a result."""
        step = Step("output", (tile.number,), maps=maps)
        self._stored(step)
        self.steps.append(step)

    def customized(self, block: Program, args: Sequence[Tensor]) -> list[Tensor]:
        """Add a kernel: a finished block graph applied to tensors."""
        step = Step("customized", tuple(a.number for a in args), block=block)
        return self.add(step, block.stored, args[0].dtype)
