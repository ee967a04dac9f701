"""A kernel's candidates as sources, one variant each with C entries, compiled to libraries.

A library's variant serves any number of query rows. It also says whether the rule would take a call
for one of few work tiles, for only the launch knows that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.emit.cuda import Kernel, emit_cuda
from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.records.record import AttentionRecord, KernelRecord
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
from mirage_kernels.generator.schedules.candidates import Candidate, Wanted, by_size, candidates
from mirage_kernels.generator.schedules.choose import member, programs_of
from mirage_kernels.generator.schedules.loop import BUCKETS
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning.catalog import tuned_by_any_type, tuned_kernel
from mirage_kernels.generator.tuning.entries import ARGS_BYTES, FEW_TILES, LAUNCH, WORKSPACE
from mirage_kernels.generator.tuning.keys import Key
from mirage_kernels.generator.tuning.knobs import (
    Values,
    attention_knobs,
    has_producers,
    knobs_of,
    label,
    values_of,
)
from mirage_kernels.generator.tuning.libraries import Shop, digest_of, each, library_of
from mirage_kernels.generator.tuning.manifest import Built, Candidates, Compiled

BEYOND, BEYOND_ROW_WISE = 128, (8, 128, 1024, 4096)  # tokens
COMMAND = "mirage-kernels tune"


@dataclass(frozen=True)
class Source:
    """A candidate's source, or in `failed` why there is none."""

    knobs: Values
    text: str
    failed: str = ""
    predicted_us: float | None = None


@dataclass(frozen=True)
class Making:
    """Where candidates are compiled, how many beside the rule's, and who hears of it."""

    shop: Shop
    top: int
    progress: Progress

    def built(
        self, record: KernelRecord | AttentionRecord, sources: Sequence[Source]
    ) -> list[Built]:
        """Compile sources; what the folder has already is not compiled again."""

        def tell(done: int) -> None:
            name = f"{record.recipe} {record.stem}"
            self.progress(Event("compile", done, len(sources), name))

        return each(lambda s: self._one(s, record.arch), sources, self.shop, tell)

    def _one(self, source: Source, arch: str) -> Built:
        about = (label(source.knobs), source.predicted_us)
        if source.failed:
            digest = digest_of(source.text, self.shop.toolchain, arch)
            return Built(digest, source.knobs, 0, *about, source.failed)
        made = library_of(source.text, self.shop, arch)
        return Built(made.digest, source.knobs, made.registers, *about, made.failed)


# -- over tokens -----------------------------------------------------------------------------------


def compiled_kernel(record: KernelRecord, by: Making) -> Compiled:
    """Compile every candidate of a kernel over tokens."""
    programs = programs_of(record.recipe, record.graph, record.arch)
    on, key = target(record.arch), Key(record.recipe, record.dtype, dict(record.shape))
    tuned = tuned_kernel(record.arch, key)
    known = {b.size: knobs_of(b.chosen[0].knobs) for b in tuned.buckets} if tuned else {}
    by_bucket = {
        m: candidates(programs, m, on, Wanted(by.top, known.get(m)))
        for m in by_size(programs[0], on)
    }
    sources = [
        source_of(record, member(programs, producers=has_producers(values_of(c.knobs))), c)
        for found in by_bucket.values()
        for c in found
    ]
    built = iter(by.built(record, sources))
    buckets = (Candidates(m, tuple(next(built) for _ in found)) for m, found in by_bucket.items())
    beyond = _beyond(programs[0], max(by_bucket))
    return Compiled(key, tuple(buckets), record.roles.tokens, beyond)


def _beyond(program: TileProgram, last: int) -> tuple[int, ...]:
    """Return where else the last bucket's choice is compared with PyTorch.

    Above the buckets of a kernel with results beside its output the library takes another kernel,
    not PyTorch, so nothing is compared there.
    """
    if not program.loop:
        return BEYOND_ROW_WISE
    return () if program.also else tuple(m for m in (*BUCKETS, BEYOND) if m > last)


def source_of(record: KernelRecord, program: TileProgram, candidate: Candidate) -> Source:
    """Return a candidate's source: the kernel as it is emitted, with one variant and C entries."""
    knobs, predicted_us = values_of(candidate.knobs), round(candidate.predicted_us, 3)
    header = Header(f"{COMMAND} {record.recipe}", record.stem, [("Knobs", str(candidate.knobs))])
    kernel = Kernel(program, (Variant(0, candidate.knobs),), record.storage, header)
    needed = f"mirage::generated::{kernel.symbol}_workspace(*args)"
    entries = [("int64_t", WORKSPACE, needed if candidate.knobs.has_workspace else "0")]
    try:
        text = emit_cuda(kernel) + _entries("LaunchArgs", kernel.symbol, entries)
    except PlanError as error:
        return Source(knobs, "", error.sentence, predicted_us)
    return Source(knobs, text, predicted_us=predicted_us)


# -- over query rows -------------------------------------------------------------------------------


def compiled_attention(
    record: AttentionRecord, by: Making, graphs: Sequence[Graph] = ()
) -> Compiled:
    """Compile every candidate of a kernel over query rows.

    Of other muGraphs (`graphs`) the rule's variants are compiled, those of the `top` first.
    """
    key = Key(record.recipe, record.dtype, dict(record.shape))
    tuned = tuned_by_any_type(record.arch, key)
    known = [c.knobs for b in tuned.buckets for c in b.chosen] if tuned else []
    own = form_name(attention_program(record.recipe, record.graph))
    made = Compiled(key, _row_buckets(record, by, known), mugraph=own)
    for graph in graphs:
        name = form_name(attention_program(record.recipe, graph))
        if len(made.mugraphs) < by.top and name not in (own, *(g.mugraph for g in made.mugraphs)):
            buckets = _row_buckets(replace(record, graph=graph), replace(by, top=0), ())
            other = Compiled(key, buckets, mugraph=name)
            made = replace(made, mugraphs=(*made.mugraphs, other))
    return made


def _row_buckets(
    record: AttentionRecord, by: Making, known: Sequence[Values]
) -> tuple[Candidates, ...]:
    """Compile the candidates of one muGraph; a candidate may stand in several buckets."""
    program, on = attention_program(record.recipe, record.graph), target(record.arch)
    buckets = row_buckets(program, on, by.top, tuple(map(attention_knobs, known)))
    knobs = list(dict.fromkeys(k for bucket in buckets for k in bucket.knobs))
    sources = [Source(values_of(k), attention_source(record, program, k, buckets)) for k in knobs]
    built = dict(zip(knobs, by.built(record, sources), strict=True))
    return tuple(
        Candidates(
            b.rows,
            tuple(built[k] for k in b.knobs),
            values_of(b.rule),
            values_of(b.rule_of_few) if b.rule_of_few else {},
        )
        for b in buckets
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
    rule = next((b.rule_of_few for b in buckets if b.rule_of_few), None)
    few = f"mirage::tile::{few_tiles(program, rule)}(*args)" if rule else "0"
    workspace = f"mirage::generated::{source.symbol}_workspace(*args)"
    entries = [("int64_t", WORKSPACE, workspace), ("int", FEW_TILES, few)]
    return emit_attention(source) + _entries("AttentionArgs", source.symbol, entries)


def _entries(args: str, symbol: str, answers: Sequence[tuple[str, str, str]]) -> str:
    """Return the C functions of a library: the launch, what it answers, its arguments' bytes."""
    writer = Writer()
    writer.line()
    writer.line('#define VISIBLE __attribute__((visibility("default")))')
    taken = f"const mirage::{args}*"
    with writer.block(f'extern "C" VISIBLE int {LAUNCH}({taken} args, void* stream) {{'):
        launched = f"mirage::generated::{symbol}"
        writer.line(f"return {launched}(*args, static_cast<cudaStream_t>(stream));")
    for kind, name, answer in answers:
        named = f"{taken} args" if "args" in answer else taken
        with writer.block(f'extern "C" VISIBLE {kind} {name}({named}) {{'):
            writer.line(f"return {answer};")
    with writer.block(f'extern "C" VISIBLE int {ARGS_BYTES}() {{'):
        writer.line(f"return static_cast<int>(sizeof(mirage::{args}));")
    return writer.text()
