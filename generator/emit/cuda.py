"""The CUDA writer: a tile program as readable text over `csrc/tile`.

A table says for every statement how it reads; this module arranges what the plans' modules write:
header, constants, knobs, the parts of the kernel, the host's functions. The text is a pure function
of its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.emit import adapters, apart, front
from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.emit.host import bucket_name, write_host
from mirage_kernels.generator.emit.parts import SHAPE, Part, file_of, parts_of, write_beside
from mirage_kernels.generator.emit.split import turns
from mirage_kernels.generator.emit.words import TYPES, camel, dims_text
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.apart import users_of
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.plan.variants import Variant

__all__ = ["Kernel", "bucket_name", "camel", "cuda_files", "dims_text", "emit_cuda"]


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
    """Return a planned kernel as one text.

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
    _constants(writer, kernel)
    _knobs(writer, kernel)
    _threads(writer)
    for part in parts:
        writer.lines += part.lines
    _ending(writer, kernel)
    return writer.text()


def cuda_files(kernel: Kernel) -> dict[str, str]:
    """Return a planned kernel's files by name: one, or of several parts a file for each.

    That which dispatches comes last. Raises PlanError for an op that the device vocabulary lacks.
    """
    stem, parts = kernel.header.stem, parts_of(kernel.program, kernel.variants)
    if len(parts) == 1:
        return {f"{stem}.cu": emit_cuda(kernel)}
    shape = Writer()
    _constants(shape, kernel)
    _threads(shape)
    about = "what the plans in the files beside this one have in common"
    common = Part(SHAPE, about, ("tile/tile.cuh",), (), (), tuple(shape.lines))
    files = {file_of(stem, p.name): p.text(kernel.header) for p in (common, *parts)}
    return files | {f"{stem}.cu": _dispatching(kernel, parts)}


def _dispatching(kernel: Kernel, parts: Sequence[Part]) -> str:
    """Return the file that dispatches: it includes those of the parts."""
    writer, header = Writer(), kernel.header
    names = ", ".join(f".{part.name}.cuh" for part in parts)
    beside = ("Plans", f"in files beside this one: {names}; what they share: .{SHAPE}.cuh.")
    replace(header, paragraphs=[*header.paragraphs, beside]).write(writer, "//")
    writer.line()
    writer.line('#include "launch.h"')
    writer.line()
    write_beside(writer, header.stem, [SHAPE, *(part.name for part in parts)])
    _open(writer)
    _knobs(writer, kernel)
    _ending(writer, kernel)
    return writer.text()


def _open(writer: Writer) -> None:
    writer.line("namespace mirage::generated {")
    writer.line("namespace {")
    writer.line()


def _ending(writer: Writer, kernel: Kernel) -> None:
    """Write what follows the parts: the size of the workspace, what callers see."""
    users = users_of(kernel.program)
    if users.received:
        apart.write_workspace(writer, users)
    writer.line("}  // namespace")
    writer.line()
    write_host(writer, kernel)
    writer.line()
    writer.line("}  // namespace mirage::generated")


def _constants(writer: Writer, kernel: Kernel) -> None:
    program = kernel.program
    writer.line(f"using T = {TYPES[kernel.storage]};")
    extents = {d.name: d for o in program.inputs for d in o.type.dims}
    statics = [d for d in extents.values() if not d.dynamic]
    whole = "cut into parts" if program.parted else "whole in a block"
    depth = "contracted" if program.loop else whole
    words = {program.roles.rows: "rows of the weights", program.roles.depth: depth}
    words |= dict.fromkeys(program.roles.inner, "contracted after the loop")
    rows = [(f"constexpr int {d.name} = {d.size};", words[d.name]) for d in statics]
    writer.table(rows)
    writer.line()


def _threads(writer: Writer) -> None:
    writer.line("template <class Knobs>")
    writer.line("constexpr int kThreads = Knobs::kWarps * tile::kWarpLanes;")
    writer.line()


def _knobs(writer: Writer, kernel: Kernel) -> None:
    for variant in kernel.variants:
        _knobs_of(writer, kernel.program, variant)
    writer.line()


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
    with writer.block(f"struct {bucket_name(variant, program.roles.tokens)} {{", "};"):
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
