"""The sources of candidates: a kernel as it is emitted, with one variant, and C functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirage_kernels.generator.emit.cuda import Kernel, emit_cuda
from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.plan.program import Roles, TileProgram
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.schedules.attention.candidates import row_buckets
from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.attention.lower import attention_program
from mirage_kernels.generator.schedules.attention.program import AttentionProgram, form_name
from mirage_kernels.generator.schedules.attention.variants import AttentionVariant
from mirage_kernels.generator.schedules.attention.writer import (
    AttentionSource,
    emit_attention,
    few_tiles,
)
from mirage_kernels.generator.schedules.choose import (
    Wanted,
    by_size,
    candidates,
    member,
    programs_of,
)
from mirage_kernels.generator.schedules.loop import BUCKETS
from mirage_kernels.generator.schedules.schedule import Knobs, Variant
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning.catalog import Key, Tuned, tuned_kernel
from mirage_kernels.generator.tuning.choice import has_producers

COMMAND = "mirage-kernels tune"
LAUNCH, ARGS_BYTES = "mirage_candidate_launch", "mirage_candidate_args_bytes"
WORKSPACE, FEW_TILES = "mirage_candidate_workspace", "mirage_candidate_few_tiles"
BEYOND, BEYOND_ROWS = 128, (8, 128, 1024, 4096)  # tokens
VISIBLE = 'extern "C" __attribute__((visibility("default")))'


@dataclass(frozen=True)
class Source:
    """A candidate's source, or in `failed` why there is none."""

    text: str
    failed: str = ""


@dataclass(frozen=True)
class SourceBucket:
    """Candidates of a bucket, by `BuiltBucket`'s rules, with their predicted times if any."""

    size: int
    rule: Knobs
    predicted_us: Mapping[Knobs, float | None]
    rule_of_few: Knobs | None = None


@dataclass(frozen=True)
class Candidates:
    """A kernel's candidates by bucket, and how one becomes a source; see `Compiled`."""

    buckets: tuple[SourceBucket, ...]
    source: Callable[[Knobs], Source]
    dim: str = ""
    beyond: tuple[int, ...] = ()
    form: str = ""
    forms: tuple[Candidates, ...] = field(default=())


def candidates_of(record: KernelRecord, top: int, forms: Sequence[Graph] = ()) -> Candidates:
    """Return the candidates of a kernel: the rule's choice, what the catalog has, `top` others.

    Of other muGraphs (`forms`) there are the rule's variants, of `top` muGraphs.
    """
    key = Key(record.recipe, record.dtype, dict(record.shape))
    if isinstance(record.roles, Roles):
        return _by_tokens(record, top, tuned_kernel(record.arch, key))
    tuned = tuned_kernel(record.arch, key, of_any_type=True)
    made = _by_calls(record, top, tuned)
    others: dict[str, Candidates] = {}
    for graph in forms:
        name = form_name(attention_program(record.recipe, graph))
        if len(others) < top and name not in (made.form, *others):
            others[name] = _by_calls(replace(record, graph=graph), 0, None)
    return replace(made, forms=tuple(others.values()))


# -- kernels with buckets of tokens ----------------------------------------------------------------


def _by_tokens(record: KernelRecord, top: int, tuned: Tuned | None) -> Candidates:
    programs, on = programs_of(record.recipe, record.graph, record.arch), target(record.arch)
    known = {b.size: b.chosen[0].knobs for b in tuned.buckets} if tuned else {}
    buckets = []
    for tokens in by_size(programs[0], on):
        found = candidates(programs, tokens, on, Wanted(top, known.get(tokens)))
        predicted = {c.knobs: round(c.predicted_us, 3) for c in found}
        buckets.append(SourceBucket(tokens, found[0].knobs, predicted))

    def source(knobs: Knobs) -> Source:
        program = member(programs, producers=has_producers(knobs))
        return _tokens_source(record, program, knobs)

    beyond = _beyond(programs[0], buckets[-1].size)
    return Candidates(tuple(buckets), source, record.roles.tokens, beyond)


def _beyond(program: TileProgram, last: int) -> tuple[int, ...]:
    """Return where else the last bucket's choice is compared with PyTorch.

    Above the buckets of a kernel with results beside its output the library takes another kernel,
    not PyTorch, so nothing is compared there.
    """
    if not program.loop:
        return BEYOND_ROWS
    return () if program.also else tuple(m for m in (*BUCKETS, BEYOND) if m > last)


def _tokens_source(record: KernelRecord, program: TileProgram, knobs: Knobs) -> Source:
    kernel = Kernel(program, (Variant(0, knobs),), record.storage, _header(record, knobs))
    workspace = f"mirage::generated::{kernel.symbol}_workspace(*args)"
    answers = {WORKSPACE: workspace if knobs.has_workspace else "0", FEW_TILES: "0"}
    try:
        return Source(emit_cuda(kernel) + _entries(kernel.symbol, "LaunchArgs", answers))
    except PlanError as error:
        return Source("", error.sentence)


# -- kernels with buckets of query rows ------------------------------------------------------------


def _by_calls(record: KernelRecord, top: int, tuned: Tuned | None) -> Candidates:
    program, on = attention_program(record.recipe, record.graph), target(record.arch)
    known = [k for k in (tuned.knobs if tuned else ()) if isinstance(k, AttentionKnobs)]
    found = row_buckets(program, on, top, known)
    buckets = tuple(
        SourceBucket(b.rows, b.rule, dict.fromkeys(b.knobs), b.rule_of_few) for b in found
    )
    few = next((b.rule_of_few for b in found if b.rule_of_few), None)

    def source(knobs: Knobs) -> Source:
        assert isinstance(knobs, AttentionKnobs)
        return _calls_source(record, program, (knobs, few))

    return Candidates(buckets, source, form=form_name(program))


def _calls_source(
    record: KernelRecord,
    program: AttentionProgram,
    by: tuple[AttentionKnobs, AttentionKnobs | None],
) -> Source:
    """Return a source that also says whether the rule (`by[1]`) finds few work tiles in a call.

    For only the launch knows that.
    """
    knobs, few = by
    variants = (AttentionVariant(0, knobs),)
    source = AttentionSource(program, variants, record.storage, _header(record, knobs))
    found = f"mirage::tile::{few_tiles(program, few)}(*args)" if few is not None else "0"
    workspace = f"mirage::generated::{source.symbol}_workspace(*args)"
    answers = {WORKSPACE: workspace, FEW_TILES: found}
    return Source(emit_attention(source) + _entries(source.symbol, "AttentionArgs", answers))


# -- both ------------------------------------------------------------------------------------------


def _header(record: KernelRecord, knobs: Knobs) -> Header:
    return Header(f"{COMMAND} {record.recipe}", record.stem, [("Knobs", str(knobs))])


def _entries(symbol: str, arguments: str, answers: Mapping[str, str]) -> str:
    """Return the C functions of a library: launch, workspace, few work tiles, size of arguments."""
    writer = Writer()
    writer.line()
    launch = f"{VISIBLE} int {LAUNCH}(const mirage::{arguments}* args, void* stream) {{"
    with writer.block(launch):
        stream = "static_cast<cudaStream_t>(stream)"
        writer.line(f"return mirage::generated::{symbol}(*args, {stream});")
    for name, type_ in ((WORKSPACE, "int64_t"), (FEW_TILES, "int")):
        taken = "args" if "args" in answers[name] else ""
        with writer.block(f"{VISIBLE} {type_} {name}(const mirage::{arguments}* {taken}) {{"):
            writer.line(f"return {answers[name]};")
    with writer.block(f"{VISIBLE} int {ARGS_BYTES}() {{"):
        writer.line(f"return static_cast<int>(sizeof(mirage::{arguments}));")
    return writer.text()
