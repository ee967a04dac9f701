"""The CUDA writer: a tile program as readable text over `csrc/tile`.

A table says for every statement how it reads; this module puts together what the schedules' modules
write. A form (`part.py`) is a template over a `Config`; an instantiation defines the configs of a
shape: the element type and the static extents, and the knobs of each bucket of tokens. The text is
a pure function of its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mirage_kernels.generator.emit.names import statics, write_alias, write_config, write_shape
from mirage_kernels.generator.emit.part import KernelSource, Part, write_includes
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.plan.program import Layout, TileProgram
from mirage_kernels.generator.schedules import RANKED, prologue
from mirage_kernels.generator.schedules.batched_lora import slices_ahead
from mirage_kernels.generator.schedules.loop import LoopKnobs, producers_of, prologue_warps
from mirage_kernels.generator.schedules.producer_blocks import WHERE_MEASURED
from mirage_kernels.generator.schedules.producer_blocks.forms import pairs, producers
from mirage_kernels.generator.schedules.producer_blocks.writer import PAIRS
from mirage_kernels.generator.schedules.schedule import Knobs, Variant
from mirage_kernels.generator.target import target

CONTIGUOUS = (Layout.ROWS, Layout.INNER, Layout.FACTORS)  # weights, whose rows lie side by side


@dataclass(frozen=True)
class Kernel(KernelSource[TileProgram]):
    """The source of a kernel that runs a tile program."""

    listing: ClassVar[str] = "Kernels"
    entry: ClassVar[str] = "MIRAGE_KERNEL"

    @property
    def extents(self) -> dict[str, int]:
        """Return the static extents, which its text takes from `Config`."""
        return statics(self.program)

    def parts(self) -> list[Part]:
        """Return the forms, each below those that it is written in terms of.

        Raises PlanError for an op that the device vocabulary lacks.
        """
        variants = self.variants
        consumers = self.program.streamed
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

    def configs(self) -> dict[str, Knobs]:
        """Return the knobs of each bucket, by the name of its config."""
        return {bucket_name(v, self.program.roles.tokens): v.knobs for v in self.variants}

    def listed(self) -> list[str]:
        """Return which config serves which numbers of tokens."""
        sizes = zip((v.bucket for v in self.variants), self.configs(), strict=True)
        return [f"UpTo<{size}, {name}>" if size else f"Any<{name}>" for size, name in sizes]

    def constants(self, knobs: Knobs) -> dict[str, int]:
        """Return the constants of a config."""
        found = knobs.config(self.program)
        if self.program.stacked and isinstance(knobs, LoopKnobs):
            on = target(WHERE_MEASURED[0])
            found |= {"slices": slices_ahead(self.program, knobs, on)}
        return found

    def entry_arguments(self) -> list[str]:
        """Return the strides of the weights, whose rows lie side by side."""
        program = self.program
        operands = {o.name: o for o in program.inputs}
        loads = [s for s in (*program.loads, *program.fetches) if s.layout in CONTIGUOUS]
        weights = [operands[s.args[0]] for s in loads]
        return [f"{{{o.index}, Shape::{o.type.names[-1]}}}" for o in weights]


def bucket_name(variant: Variant, dim: str) -> str:
    """Return the name of a variant's config: `UpTo8M`, `AnyM`."""
    return f"UpTo{variant.bucket}{dim}" if variant.bucket else f"Any{dim}"


def emit_cuda(kernel: KernelSource[Any]) -> str:
    """Return a planned kernel as one text: its forms, then their instantiation.

    Raises PlanError for an op that the device vocabulary lacks.
    """
    parts, writer = kernel.parts(), Writer()
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


def instantiation(kernel: KernelSource[Any], forms: Sequence[str]) -> str:
    """Return the file of one shape and element type, given those of the forms that it includes."""
    writer = Writer()
    kernel.header.of_shape().write(writer, "//")
    write_includes(writer, forms)
    _open(writer)
    _configs(writer, kernel)
    return writer.text()


def _open(writer: Writer) -> None:
    writer.write("namespace mirage::generated {", "namespace {", "")


def _configs(writer: Writer, kernel: KernelSource[Any]) -> None:
    """Write the shape, the knobs of each variant, and what callers see."""
    write_shape(writer, kernel.storage, kernel.extents)
    for name, knobs in kernel.configs().items():
        write_config(writer, name, knobs.template, kernel.constants(knobs))
    write_alias(writer, "Variants", kernel.listing, kernel.listed())
    writer.write(
        "",
        "}  // namespace",
        "",
        f"{kernel.entry}({', '.join((kernel.symbol, *kernel.entry_arguments()))})",
        "",
        "}  // namespace mirage::generated",
    )
