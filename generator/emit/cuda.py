"""The CUDA writer: a tile program as readable text over `csrc/tile`.

A table says for every statement how it reads; this module puts together what the schedules' modules
write. A form (`parts.py`) is a template over a `Config`; an instantiation defines the configs of a
shape: the element type and the static extents, and the knobs of each bucket of tokens. The text is
a pure function of its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_kernels.generator.emit import adapters, apart, front
from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.emit.host import bucket_name, write_host
from mirage_kernels.generator.emit.parts import parts_of, write_includes
from mirage_kernels.generator.emit.split import turns
from mirage_kernels.generator.emit.words import TYPES, camel, dims_text, statics
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.plan.variants import Variant

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
        _knobs_of(writer, kernel.program, variant)
    writer.line()
    writer.line("}  // namespace")
    writer.line()
    write_host(writer, kernel)
    writer.line()
    writer.line("}  // namespace mirage::generated")


def _knobs_of(writer: Writer, program: TileProgram, variant: Variant) -> None:
    given = variant.knobs.to_json()
    if not program.loop:
        given = {k: given[k] for k in ("warps", "line") if k in given}
    if variant.knobs.plan:
        given = {k: given[k] for k in ("tokens", "rows", "stages")}
    if variant.knobs.held:
        given |= {"groups": variant.knobs.held, "blocks": variant.knobs.blocks}
        given |= {"barriers": variant.knobs.barriers} if variant.knobs.barriers > 1 else {}
    knobs = [f"k{camel(k)} = {v}" for k, v in given.items() if "maker" not in k]
    with writer.block(f"struct {bucket_name(variant, program.roles.tokens)} : Shape {{", "};"):
        writer.declaration("static constexpr int ", knobs)
        if variant.knobs.front:
            writer.line(front.knobs_text(variant.knobs))
        if variant.knobs.apart:
            writer.line(apart.knobs_text(variant.knobs))
        if program.stacked:
            writer.line(adapters.knobs_text(program, variant.knobs))
        if variant.knobs.plan == "split":
            for line in turns(program, variant.knobs):
                writer.line(line)
