"""Compiling an attention kernel's candidates: as `libraries.py` does those of the other kernels.

Every library holds a kernel with one variant, which serves any number of rows. It also says
whether the rule would take a call for one of few work tiles, for only the launch knows that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.records.record import AttentionRecord
from mirage_kernels.generator.request import Event, Progress
from mirage_kernels.generator.schedules.attention.candidates import RowBucket, row_buckets
from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.attention.lower import attention_program
from mirage_kernels.generator.schedules.attention.program import AttentionProgram, form_name
from mirage_kernels.generator.schedules.attention.variants import AttentionVariant
from mirage_kernels.generator.schedules.attention.writer import (
    AttentionSource,
    emit_attention,
    few_tiles,
)
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning.attention_manifest import (
    BuiltAttention,
    BuiltRows,
    CompiledAttention,
)
from mirage_kernels.generator.tuning.catalog import tuned_attention
from mirage_kernels.generator.tuning.entries import ARGS_BYTES, FEW_TILES, LAUNCH, WORKSPACE
from mirage_kernels.generator.tuning.keys import Key
from mirage_kernels.generator.tuning.libraries import COMMAND, Shop, each, library_of


def compiled_attention(
    record: AttentionRecord,
    shop: Shop,
    *,
    top: int,
    progress: Progress,
    forms: Sequence[Graph] = (),
) -> CompiledAttention:
    """Compile every candidate of a kernel; what the folder has already is not compiled again.

    Of other muGraphs (`forms`) the rule's variants are compiled, `top` of them.
    """
    key = Key(record.recipe, record.dtype, dict(record.shape))
    tuned = tuned_attention(record.arch, key)
    known = tuned.knobs if tuned else ()
    own = form_name(attention_program(record.recipe, record.graph))
    made = CompiledAttention(key, own, _compiled(record, shop, (top, known, progress)))
    for graph in forms:
        name = form_name(attention_program(record.recipe, graph))
        if len(made.forms) < top and name not in (own, *(f.form for f in made.forms)):
            other = replace(record, graph=graph)
            form = CompiledAttention(key, name, _compiled(other, shop, (0, (), progress)))
            made = replace(made, forms=(*made.forms, form))
    return made


def _compiled(
    record: AttentionRecord, shop: Shop, by: tuple[int, Sequence[AttentionKnobs], Progress]
) -> tuple[BuiltRows, ...]:
    """Compile the candidates of one muGraph; `by` = how many others, known knobs, progress."""
    top, known, progress = by
    program, on = attention_program(record.recipe, record.graph), target(record.arch)
    buckets = row_buckets(program, on, top, known)
    knobs = list(dict.fromkeys(k for bucket in buckets for k in bucket.knobs))

    def tell(done: int) -> None:
        progress(Event("compile", done, len(knobs), f"{record.recipe} {record.stem}"))

    sources = [attention_source(record, program, k, buckets) for k in knobs]
    made = each(lambda s: library_of(s, shop, record.arch), sources, shop, tell)
    built = {
        k: BuiltAttention(m.digest, k, m.registers, m.failed)
        for k, m in zip(knobs, made, strict=True)
    }
    return tuple(
        BuiltRows(b.rows, b.rule, b.rule_of_few, tuple(built[k] for k in b.knobs)) for b in buckets
    )


def attention_source(
    record: AttentionRecord,
    program: AttentionProgram,
    knobs: AttentionKnobs,
    buckets: tuple[RowBucket, ...],
) -> str:
    """Return a candidate's source: the kernel as it is emitted, with one variant and C entries."""
    header = Header(f"{COMMAND} {record.recipe}", record.stem, [("Knobs", str(knobs))])
    source = AttentionSource(program, (AttentionVariant(0, knobs),), record.storage, header)
    few = next((b.rule_of_few for b in buckets if b.rule_of_few), None)
    return emit_attention(source) + _entries(source, few)


def _entries(source: AttentionSource, few: AttentionKnobs | None) -> str:
    writer = Writer()
    writer.line()
    writer.line('#define VISIBLE __attribute__((visibility("default")))')
    args, symbol = "const mirage::AttentionArgs* args", f"mirage::generated::{source.symbol}"
    with writer.block(f'extern "C" VISIBLE int {LAUNCH}({args}, void* stream) {{'):
        writer.line(f"return {symbol}(*args, static_cast<cudaStream_t>(stream));")
    with writer.block(f'extern "C" VISIBLE int64_t {WORKSPACE}({args}) {{'):
        writer.line(f"return {symbol}_workspace(*args);")
    with writer.block(f'extern "C" VISIBLE int {FEW_TILES}({args}) {{'):
        said = "0"
        if few is not None:
            said = f"mirage::tile::{few_tiles(source.program, few)}(*args)"
        writer.line(f"return {said};")
    with writer.block(f'extern "C" VISIBLE int {ARGS_BYTES}() {{'):
        writer.line("return static_cast<int>(sizeof(mirage::AttentionArgs));")
    return writer.text()
