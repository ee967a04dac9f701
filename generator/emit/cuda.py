"""The CUDA writer: a tile program as readable text over `csrc/tile`.

A table says for every statement how it reads; this module puts together what the schedules' modules
write. A form (`parts.py`) is a template over a `Config`; an instantiation defines the configs of a
shape: the element type and the static extents, and the knobs of each bucket of tokens. The text is
a pure function of its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.emit.host import bucket_name, write_host
from mirage_kernels.generator.emit.kernel_sources import parts_of
from mirage_kernels.generator.emit.names import TYPES, camel, dims_text, statics
from mirage_kernels.generator.emit.part import write_includes
from mirage_kernels.generator.emit.writer import WIDTH, Writer
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.batched_lora import writer as batched_lora
from mirage_kernels.generator.schedules.loop import LoopKnobs, producers_of, prologue_warps
from mirage_kernels.generator.schedules.producer_blocks import writer as producer_blocks
from mirage_kernels.generator.schedules.prologue import writer as prologue
from mirage_kernels.generator.schedules.schedule import Variant

__all__ = ["Kernel", "bucket_name", "camel", "dims_text", "emit_cuda", "instantiation"]


@dataclass(frozen=True)
class Kernel:
    """What the emitted files of a kernel are made of."""

    program: TileProgram
    variants: Sequence[Variant]
    storage: DType
    header: Header

    @property
    def symbol(self) -> str:
        """Name of the host function: recipe and file stem."""
        return f"{self.program.recipe}_{self.header.stem}"


def emit_cuda(kernel: Kernel) -> str:
    """Return a planned kernel as one text: its forms, then their instantiation.

    Raises PlanError for an op that the device vocabulary lacks.
    """
    parts, writer = parts_of(kernel.program, kernel.variants), Writer()
    kernel.header.write(writer, "//")
    writer.line()
    writer.line('#include "launch.h"')
    for include in sorted({i for part in parts for i in part.includes}):
        writer.line(f'#include "{include}"')
    writer.line()
    _open(writer)
    for part in parts:
        writer.lines += part.lines
    _configs(writer, kernel)
    return writer.text()


def instantiation(kernel: Kernel, forms: Sequence[str]) -> str:
    """Return the file of one shape and element type, given those of the forms that it includes."""
    writer = Writer()
    kernel.header.of_shape().write(writer, "//")
    writer.line()
    writer.line('#include "launch.h"')
    writer.line()
    write_includes(writer, forms)
    _open(writer)
    _configs(writer, kernel)
    return writer.text()


def _open(writer: Writer) -> None:
    writer.line("namespace mirage::generated {")
    writer.line("namespace {")
    writer.line()


def _configs(writer: Writer, kernel: Kernel) -> None:
    """Write the shape, the knobs of each bucket, and what callers see."""
    with writer.block("struct Shape {", "};"):
        writer.line(f"using T = {TYPES[kernel.storage]};")
        extents = [f"{name} = {size}" for name, size in statics(kernel.program).items()]
        writer.declaration("static constexpr int ", extents)
    for variant in kernel.variants:
        _knobs_of(writer, kernel, variant)
    writer.line()
    writer.line("}  // namespace")
    writer.line()
    write_host(writer, kernel)
    writer.line()
    writer.line("}  // namespace mirage::generated")


def _knobs_of(writer: Writer, kernel: Kernel, variant: Variant) -> None:
    knobs, program = variant.knobs, kernel.program
    launch = kernel.header.launches.get(variant.bucket, "")
    head = f"struct {bucket_name(variant, program.roles.tokens)} : Shape {{"
    noted = f"{head}  // {launch}"
    if launch and len(noted) > WIDTH:
        writer.line(f"// {launch}.")
    with writer.block(noted if launch and len(noted) <= WIDTH else head, "};"):
        first, *more = knobs.config(program)
        writer.declaration("static constexpr int ", _constants(first))
        if prologue_warps(knobs):
            writer.line(prologue.knobs_text(knobs))
        if producers_of(knobs):
            for line in producer_blocks.knobs_text(knobs):
                writer.line(line)
        if program.stacked and isinstance(knobs, LoopKnobs):
            writer.line(batched_lora.knobs_text(program, knobs))
        for constants in more:
            writer.declaration("static constexpr int ", _constants(constants))


def _constants(values: Mapping[str, int]) -> list[str]:
    return [f"k{camel(name)} = {value}" for name, value in values.items()]
