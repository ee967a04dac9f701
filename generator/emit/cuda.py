"""The CUDA writer: a tile program as readable text over `csrc/tile`.

A table says for every statement how it reads; this module puts together what the schedules' modules
write. A form (`part.py`) is a template over a `Config`; an instantiation defines the configs of a
shape: the element type and the static extents, and the knobs of each bucket of tokens. The text is
a pure function of its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.emit.names import statics, write_alias, write_config, write_shape
from mirage_kernels.generator.emit.part import Part, write_includes
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.program import Layout, TileProgram
from mirage_kernels.generator.schedules import RANKED, prologue
from mirage_kernels.generator.schedules.batched_lora import slices_ahead
from mirage_kernels.generator.schedules.loop import LoopKnobs, producers_of, prologue_warps
from mirage_kernels.generator.schedules.producer_blocks import WHERE_MEASURED
from mirage_kernels.generator.schedules.producer_blocks.forms import pairs, producers
from mirage_kernels.generator.schedules.producer_blocks.writer import PAIRS
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.target import target

CONTIGUOUS = (Layout.ROWS, Layout.INNER, Layout.FACTORS)  # weights, whose rows lie side by side


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


def parts_of(program: TileProgram, variants: Sequence[Variant]) -> list[Part]:
    """Return the forms of a kernel, each below those that it is written in terms of.

    Raises PlanError for an op that the device vocabulary lacks.
    """
    consumers = program.streamed
    parts = [producers(consumers, variants)] if consumers.received else []
    if not any(p.groups for v in variants if (p := producers_of(v.knobs))):
        consumers = replace(consumers, producers=None)
    behind = {v.schedule for v in variants if prologue_warps(v.knobs)}
    used = {v.schedule for v in variants}
    for schedule in (s for s in reversed(RANKED.values()) if s.name in used):
        own = prologue.main_program(consumers) if schedule.name in behind else consumers
        written = schedule.write(own, variants)
        if any(PAIRS in part.beside for part in written):
            parts.append(pairs(consumers))
        parts += written
    return [*parts, *(prologue.part(consumers, name) for name in behind)]


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
    writer.write("namespace mirage::generated {", "namespace {", "")


def bucket_name(variant: Variant, dim: str) -> str:
    """Return the name of a variant's config: `UpTo8M`, `AnyM`."""
    return f"UpTo{variant.bucket}{dim}" if variant.bucket else f"Any{dim}"


def _configs(writer: Writer, kernel: Kernel) -> None:
    """Write the shape, the knobs of each variant, and what callers see."""
    program = kernel.program
    write_shape(writer, kernel.storage, statics(program))
    listed = []
    for variant in kernel.variants:
        name, knobs = bucket_name(variant, program.roles.tokens), variant.knobs
        constants = knobs.config(program)
        if program.stacked and isinstance(knobs, LoopKnobs):
            constants |= {"slices": slices_ahead(program, knobs, target(WHERE_MEASURED[0]))}
        write_config(writer, name, knobs.template, constants)
        listed.append(f"UpTo<{variant.bucket}, {name}>" if variant.bucket else f"Any<{name}>")
    write_alias(writer, "Variants", "Kernels", listed)
    operands = {o.name: o for o in program.inputs}
    loads = [s for s in (*program.loads, *program.fetches) if s.layout in CONTIGUOUS]
    weights = [operands[s.args[0]] for s in loads]
    strides = [f"{{{o.index}, Shape::{o.type.names[-1]}}}" for o in weights]
    writer.write(
        "",
        "}  // namespace",
        "",
        f"MIRAGE_KERNEL({', '.join((kernel.symbol, *strides))})",
        "",
        "}  // namespace mirage::generated",
    )
