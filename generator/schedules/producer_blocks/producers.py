"""Totals computed apart: what is emitted of the blocks that make them for all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_kernels.generator.emit.names import declared
from mirage_kernels.generator.emit.part import Part, lines_of
from mirage_kernels.generator.emit.shared_map import shared_map
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.batched_lora import writer as batched_lora
from mirage_kernels.generator.schedules.loop import producers_of
from mirage_kernels.generator.schedules.producer_blocks import writer as producer_blocks
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.schedules.sliced_k.knobs import PRODUCER_CHUNKS, SlicedK
from mirage_kernels.generator.schedules.sliced_k.writer import write_body, write_step

ABOUT = "producer blocks: the first blocks of a launch compute {} once, for all others"
OF_STACKS = "producer blocks: a first launch computes {}, each token's with its own slice"


def makers(program: TileProgram, users: TileProgram, variants: Sequence[Variant]) -> Part:
    """Return the form of producer blocks, which `users` receive from."""
    (kept,) = users.received
    about = (OF_STACKS if users.stacked else ABOUT).format(kept.args[0])
    own = producer_blocks.includes(replace(users, producers=None))
    lines = lines_of(_write, program, variants)
    return Part(producer_blocks.FORM, about, (*own, "tile/tile.cuh"), (), lines)


def _write(writer: Writer, program: TileProgram, variants: Sequence[Variant]) -> None:
    """Write who makes what, and what the makers run: the plan of slices."""
    users = program.streamed
    makers = users.producers
    assert makers is not None
    if makers.stacked:
        batched_lora.write_plan(writer, users, program)
    else:
        producer_blocks.write_plan(writer, users)
    writer.line(f"namespace {producer_blocks.NAMESPACE} {{")
    writer.line()
    write_step(writer, makers)
    if makers.stacked:
        batched_lora.write_map(writer, makers)
    else:
        shared_map(writer, makers, _making(variants))
    with writer.block(producer_blocks.write_makers_head(writer, makers)):
        if not makers.stacked:
            writer.line("using Config = Producers<Consumers>;")
        with declared(writer, makers):
            write_body(writer, makers)
    writer.line()
    if makers.stacked:
        batched_lora.write_makers_kernel(writer, makers)
    writer.line(f"}}  // namespace {producer_blocks.NAMESPACE}")
    writer.line()
    if makers.stacked:
        batched_lora.write_makers_launch(writer, makers)
        return producer_blocks.write_workspace(writer, users)
    writer.line("template <class Config>")
    size = f"{producer_blocks.NAMESPACE}::SharedMap<Producers<Config>>::kBytes"
    size += " + ProducerBlocks<Config>::kTagBytes"
    writer.assignment(f"constexpr int kProducerBytes = {size};")
    writer.line()
    return producer_blocks.write_workspace(writer, users)


def _making(variants: Sequence[Variant]) -> list[SlicedK]:
    """Return the knobs of producer blocks beside sliced-K; without any, of those in pairs."""
    sliced = (v.knobs for v in variants if isinstance(v.knobs, SlicedK))
    made = [k.producer_knobs for k in sliced if k.producers]
    pairs = (producers_of(v.knobs) for v in variants)
    return made or [SlicedK(p.tokens, p.rows, 4, PRODUCER_CHUNKS, p.stages) for p in pairs if p]
