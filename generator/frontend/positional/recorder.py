"""Recording a positional program step by step, each checked when it is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.positional.ops import result_extents
from mirage_kernels.generator.frontend.positional.program import (
    Block,
    Extents,
    Program,
    Step,
    Tensor,
    Three,
    row_major,
    unused,
)
from mirage_kernels.generator.frontend.positional.shapes import (
    check_block,
    check_extents,
    stored_extents,
    tile_extents,
)
from mirage_kernels.generator.ir import DType


@dataclass
class Recorder:
    """A kernel graph under construction; with a `frame`, the block graph of that grid and loop."""

    frame: Block | None = None
    steps: list[Step] = field(default_factory=list)
    stored: list[Extents] = field(default_factory=list)  # of what a block graph's outputs make
    tensors: dict[int, Tensor] = field(default_factory=dict)  # by number: of this graph

    def __post_init__(self) -> None:
        if self.frame is not None:
            check_block(self.frame)

    @classmethod
    def of(cls, program: Program) -> Recorder:
        """Return a recorder that goes on after a program."""
        return cls(steps=list(program.steps), tensors={t.number: t for t in program.tensors()})

    def new(self, extents: Extents, dtype: DType, strides: Extents = ()) -> Tensor:
        """Return a tensor with a number of its own in this graph."""
        tensor = Tensor(len(self.tensors), extents, dtype, strides)
        self.tensors[tensor.number] = tensor
        return tensor

    def owns(self, tensor: object) -> bool:
        """Say whether something is a tensor of this graph."""
        return isinstance(tensor, Tensor) and self.tensors.get(tensor.number) is tensor

    def add(self, step: Step, extents: Sequence[Extents], dtype: DType) -> tuple[Tensor, ...]:
        """Append a step and return its results."""
        outs = tuple(self.new(e, dtype) for e in extents)
        self.steps.append(replace(step, outs=outs))
        return outs

    def input(self, extents: Extents, dtype: DType, strides: Extents = ()) -> Tensor:
        """Add an input of the program; strides (in elements) default to row-major."""
        check_extents(extents, "an input")
        layout = check_strides(strides, extents)
        layout = () if layout == row_major(extents) else layout
        tensor = self.new(extents, dtype, layout)
        self.steps.append(Step("input", outs=(tensor,)))
        return tensor

    def apply(self, step: Step, args: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Add an operator; raise GraphError where its operands don't fit."""
        extents = result_extents(step, [a.extents for a in args], self.frame)
        return self.add(replace(step, args=numbers_of(args)), extents, args[0].dtype)

    def tile(self, whole: Tensor, maps: Three, dim: int) -> Tensor:
        """Add a block graph's input: the tile of a tensor that grid and loop cut."""
        assert self.frame is not None
        step = Step("input", dim=dim, maps=maps)
        (tile,) = self.add(step, [tile_extents(step, whole.extents, self.frame)], whole.dtype)
        return tile

    def store(self, tile: Tensor, maps: Three) -> None:
        """Add a block graph's output: where each block's tile goes in a result."""
        assert self.frame is not None
        step = Step("output", (tile.number,), maps=maps)
        self.stored.append(stored_extents(step, tile.extents, self.frame))
        self.steps.append(step)

    def customized(self, block: Recorder, args: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Add a kernel: a finished block graph applied to tensors."""
        assert block.frame is not None
        body = replace(block.frame, steps=tuple(block.steps))
        return self.add(
            Step("customized", numbers_of(args), block=body), block.stored, args[0].dtype
        )

    def program(self, outputs: Sequence[int] = ()) -> Program:
        """Return the program; its results are the given tensors, or those that nothing takes."""
        steps = tuple(self.steps)
        return Program(steps, tuple(outputs) or unused(steps))


def numbers_of(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the numbers of tensors in their graph."""
    return tuple(t.number for t in tensors)


def check_strides(strides: Extents, extents: Extents) -> Extents:
    """Return strides that a tensor can have; raise MirageError for too few or too many."""
    if strides and len(strides) != len(extents):
        raise MirageError(f"{len(strides)} strides are given for {len(extents)} dims")
    return strides
