"""Emission: every file of a kernel as a pure function of its record."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_kernels.generator.emit import forms
from mirage_kernels.generator.emit.cuda import Kernel
from mirage_kernels.generator.emit.table import AttentionEntry, Entry, emit_table
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.records.headers import attention_header, kernel_header, stacked_header
from mirage_kernels.generator.records.record import (
    AttentionRecord,
    Emitted,
    KernelRecord,
    MuGraphRecord,
    Record,
)
from mirage_kernels.generator.schedules.attention.lower import attention_program
from mirage_kernels.generator.schedules.attention.writer import AttentionSource, attention_files
from mirage_kernels.generator.schedules.batched_lora import (
    MOST_STACKED_TOKENS,
    stacked_program,
    stacked_variants,
)
from mirage_kernels.generator.schedules.loop import producers_of
from mirage_kernels.generator.schedules.producer_blocks import with_producer_blocks
from mirage_kernels.generator.target import target


def files_of(record: Record) -> dict[str, str]:
    """Return every file of a record, with a plan or without, by path below the kernels folder."""
    if isinstance(record, MuGraphRecord):
        return {record.path: record.text()}
    return sources_of(record)


def sources_of(record: Emitted) -> dict[str, str]:
    """Return the files of a record, as if there were no other of its recipe, by path."""
    return recipe_sources([record])


def recipe_sources(records: Sequence[Emitted]) -> dict[str, str]:
    """Return the files of all records of a recipe by path below the kernels folder.

    Each record's JSON, then CUDA and Triton; a file comes after those that it includes.
    """
    files = {record.path: record.text() for record in records}
    streaming = [record for record in records if isinstance(record, KernelRecord)]
    plain = [forms.Emitted(record.arch, kernel_of(record)) for record in streaming]
    stacked = [(record.arch, stacked_kernel(record)) for record in streaming]
    files |= forms.recipe_files(plain)
    files |= forms.recipe_files([forms.Emitted(arch, k) for arch, k in stacked if k is not None])
    files |= forms.triton_files(plain)
    attention = [r for r in records if isinstance(r, AttentionRecord)]
    return files | attention_files([(r.arch, attention_source(r)) for r in attention])


def triton_of(record: KernelRecord) -> str:
    """Return the Triton program of a record."""
    (text,) = forms.triton_files([forms.Emitted(record.arch, kernel_of(record))]).values()
    return text


def kernel_of(record: KernelRecord) -> Kernel:
    """Return the kernel of a record, planned."""
    program = tile_program(record.recipe, record.graph, record.arch)
    if any(producers_of(v.knobs) for v in record.variants):
        program = with_producer_blocks(program, target(record.arch))
    return Kernel(program, record.variants, record.storage, kernel_header(record, program))


def stacked_kernel(record: KernelRecord) -> Kernel | None:
    """Return the kernel of the same muGraph whose tokens have slices of stacks, if there is one."""
    if not record.stacked:
        return None
    on = target(record.arch)
    plain = tile_program(record.recipe, record.graph, record.arch)
    program = stacked_program(plain, record.stacked, on)
    variants = () if program is None else stacked_variants(program, record.variants, on)
    if program is None or not variants:
        return None
    return Kernel(program, variants, record.storage, stacked_header(record, program))


def attention_source(record: AttentionRecord) -> AttentionSource:
    """Return the attention kernel of a record, planned."""
    program = attention_program(record.recipe, record.graph)
    header = attention_header(record, program)
    return AttentionSource(program, record.variants, record.storage, header)


def table_of(arch: str, records: Sequence[Emitted]) -> str:
    """Return the dispatch table of an architecture."""
    kernels = [e for r in records if isinstance(r, KernelRecord) for e in _entries(r)]
    attention = [_attention_entry(r) for r in records if isinstance(r, AttentionRecord)]
    return emit_table(arch, kernels, attention)


def _entries(record: KernelRecord) -> list[Entry]:
    """Return the rows of a record: its kernel, and the one for slices of stacks."""
    options, about = _options(record), (record.dtype, record.shape, record.stem)
    space = any(v.knobs.has_workspace for v in record.variants)
    entries = [Entry(record.recipe, *about, record.max_tokens, options, space)]
    stacked = stacked_kernel(record)
    if stacked is not None:
        most = max(MOST_STACKED_TOKENS, record.max_tokens) if record.max_tokens else 0
        entries.append(Entry(stacked.program.recipe, *about, most, options, workspace=True))
    return entries


def _attention_entry(record: AttentionRecord) -> AttentionEntry:
    return AttentionEntry(record.recipe, record.dtype, record.shape, record.stem, _options(record))


def _options(record: Emitted) -> tuple[str, ...]:
    return tuple(n.name for n in record.graph.of("input") if n.optional)
