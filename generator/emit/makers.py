"""Totals computed apart: what is emitted of the blocks that make them for all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_kernels.generator.emit import adapters, apart
from mirage_kernels.generator.emit.shared_map import shared_map
from mirage_kernels.generator.emit.slices import write_body, write_step
from mirage_kernels.generator.emit.words import declared
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.plan.apart import makers_of, users_of
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.plan.variants import Variant


def write_makers(writer: Writer, program: TileProgram, variants: Sequence[Variant]) -> None:
    """Write who makes what, and what the makers run: the plan of slices."""
    makers, users = makers_of(program), users_of(program)
    if makers.stacked:
        adapters.write_plan(writer, users, program)
    else:
        apart.write_plan(writer, users)
    writer.line(f"namespace {apart.NAMESPACE} {{")
    writer.line()
    write_step(writer, makers)
    if makers.stacked:
        adapters.write_map(writer, makers)
    else:
        alone = [v for v in variants if not v.knobs.maker_groups] or variants
        shared_map(writer, makers, [replace(v, knobs=v.knobs.makers) for v in alone])
    with writer.block(apart.write_makers_head(writer, makers)):
        if not makers.stacked:
            writer.line("using Config = Makers<Users>;")
        with declared(writer, makers):
            write_body(writer, makers)
    writer.line()
    if makers.stacked:
        adapters.write_makers_kernel(writer, makers)
    writer.line(f"}}  // namespace {apart.NAMESPACE}")
    writer.line()
    if makers.stacked:
        adapters.write_makers_launch(writer, makers)
        return apart.write_workspace(writer, users)
    writer.line("template <class Config>")
    size = f"{apart.NAMESPACE}::SharedMap<Makers<Config>>::kBytes + Apart<Config>::kStampBytes"
    writer.assignment(f"constexpr int kMakerBytes = {size};")
    writer.line()
    return apart.write_workspace(writer, users)
