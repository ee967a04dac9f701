"""The CUDA writer: a tile program as readable text over `csrc/tile`.

A table says for every statement how it reads; this module puts together what the schedules' modules
write. A form (`parts.py`) is a template over a `Config`; an instantiation defines the configs of a
shape: the element type and the static extents, and the knobs of each bucket of tokens. The text is
a pure function of its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.emit.host import bucket_name, schedule_name, write_host
from mirage_kernels.generator.emit.kernel_sources import parts_of
from mirage_kernels.generator.emit.names import (
    camel,
    dims_text,
    statics,
    write_alias,
    write_config,
    write_shape,
)
from mirage_kernels.generator.emit.part import write_includes
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.batched_lora import writer as batched_lora
from mirage_kernels.generator.schedules.loop import LoopKnobs, prologue_warps
from mirage_kernels.generator.schedules.producer_blocks import writer as producer_blocks
from mirage_kernels.generator.schedules.schedule import Knobs, Variant

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
    for include in sorted({i for part in parts for i in part.includes} | {"variants.h"}):
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
    write_includes(writer, forms)
    _open(writer)
    _configs(writer, kernel)
    return writer.text()


def _open(writer: Writer) -> None:
    writer.line("namespace mirage::generated {")
    writer.line("namespace {")
    writer.line()


def _configs(writer: Writer, kernel: Kernel) -> None:
    """Write the shape, the knobs of each variant, and what callers see."""
    write_shape(writer, kernel.storage, statics(kernel.program))
    listed = []
    for variant in kernel.variants:
        name = bucket_name(variant, kernel.program.roles.tokens)
        schedule = schedule_name(variant, kernel.program)
        write_config(writer, name, schedule, _constants(kernel.program, variant.knobs))
        listed.append(f"UpTo<{variant.bucket}, {name}>" if variant.bucket else f"Any<{name}>")
    write_alias(writer, "Variants", "Kernels", listed)
    writer.line()
    writer.line("}  // namespace")
    writer.line()
    write_host(writer, kernel)
    writer.line()
    writer.line("}  // namespace mirage::generated")


def _constants(program: TileProgram, knobs: Knobs) -> dict[str, int]:
    """Return what a config has."""
    found = knobs.config(program)
    if warps := prologue_warps(knobs):
        found |= {"prologue_warps": warps}
    found |= producer_blocks.knobs_of(knobs)
    if program.stacked and isinstance(knobs, LoopKnobs):
        found |= batched_lora.knobs_of(program, knobs)
    return found
