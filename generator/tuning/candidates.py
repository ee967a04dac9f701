"""Candidates of a kernel and their sources: the kernel as emitted, one variant, and C functions.

Also which other muGraphs of a recipe measurement compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.emit.cuda import Header, emit_cuda
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.errors import MirageError, PlanError, ToolchainError
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.pipeline import goal_of, searched
from mirage_kernels.generator.plan.program import Roles
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.recipe import trace
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.records.sources import plan_for
from mirage_kernels.generator.request import Progress, Request
from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.attention.lower import attention_program
from mirage_kernels.generator.schedules.attention.program import form_name
from mirage_kernels.generator.schedules.attention.variants import AttentionVariant, row_buckets
from mirage_kernels.generator.schedules.attention.writer import AttentionKernel, few_tiles
from mirage_kernels.generator.schedules.choose import (
    Wanted,
    by_size,
    candidates,
    member,
    programs_of,
)
from mirage_kernels.generator.schedules.loop import BUCKETS, MANY_TOKENS
from mirage_kernels.generator.schedules.schedule import Knobs, Subject, Variant
from mirage_kernels.generator.schedules.streaming import Kernel
from mirage_kernels.generator.search.gate import Gate
from mirage_kernels.generator.search.select import mugraphs, rank
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning.catalog import Bucket, Key, Tried, Tuned, tuned_kernel
from mirage_kernels.generator.tuning.choice import has_producers

LAUNCH, ARGS_BYTES = "mirage_candidate_launch", "mirage_candidate_args_bytes"
WORKSPACE, FEW_TILES = "mirage_candidate_workspace", "mirage_candidate_few_tiles"
BEYOND, BEYOND_ROWS = 128, (8, 128, 1024, 4096)  # tokens
FEWER = 96  # that the bucket of many tokens serves too, where PyTorch has products of 96
VISIBLE = 'extern "C" __attribute__((visibility("default")))'


@dataclass(frozen=True)
class Candidates:
    """A kernel's candidates, not compiled yet, and how knobs become a source.

    `source` raises PlanError where there is none. `others` are those of other muGraphs.
    """

    kernel: Tuned
    source: Callable[[Knobs], str]
    others: tuple[Candidates, ...] = ()


def candidates_of(record: KernelRecord, top: int, forms: Sequence[Graph] = ()) -> Candidates:
    """Return the candidates of a kernel: the rule's choice, what the catalog has, `top` others.

    Of other muGraphs (`forms`) there are the rule's variants, of `top` muGraphs.
    """
    key = Key(record.recipe, record.dtype, dict(record.shape))
    if isinstance(record.roles, Roles):
        return _by_tokens(record, key, record.roles, top)
    made = _by_rows(record, key, top, tuned_kernel(record.arch, key, of_any_type=True))
    others: dict[str, Candidates] = {}
    for graph in forms:
        try:
            name = form_name(attention_program(record.recipe, graph))
        except PlanError:  # a general kernel's, which has no variants by query rows
            continue
        if len(others) < top and name not in (made.kernel.form, *others):
            others[name] = _by_rows(replace(record, graph=graph), key, 0, None)
    return replace(made, others=tuple(others.values()))


def _by_tokens(record: KernelRecord, key: Key, roles: Roles, top: int) -> Candidates:
    """Return the candidates of a kernel with buckets of tokens, as predicted.

    The last bucket's choice is also compared with PyTorch above the buckets, that of many tokens
    below its own size. There the library takes another kernel in place of one with results beside
    its output, so that is not compared.
    """
    programs, on = programs_of(record.recipe, record.graph, record.arch), target(record.arch)
    tuned, buckets = tuned_kernel(record.arch, key), []
    known = {b.size: b.chosen[0].knobs for b in tuned.buckets} if tuned else {}
    for tokens in by_size(programs[0], on, many=True):
        found = candidates(programs, tokens, on, Wanted(top, known.get(tokens)))
        tried = tuple(Tried(c.knobs, round(c.predicted_us, 3)) for c in found)
        buckets.append(Bucket(tokens, tried=tried))
    above = () if programs[0].also else tuple(m for m in (*BUCKETS, BEYOND) if m > buckets[-1].size)
    if buckets[-1].size == MANY_TOKENS:
        above = (FEWER,)
    if not programs[0].loop:
        above = BEYOND_ROWS

    def source(knobs: Knobs) -> str:
        program = member(programs, producers=has_producers(knobs))
        kernel = Kernel(program, (Variant(0, knobs),), record.storage, _header(record, knobs))
        workspace = f"mirage::generated::{kernel.symbol}_workspace(*args)"
        answers = {WORKSPACE: workspace if knobs.has_workspace else "0", FEW_TILES: "0"}
        return emit_cuda(kernel) + _entries(kernel.symbol, "LaunchArgs", answers)

    return Candidates(Tuned(key, tuple(buckets), dim=roles.tokens, above=above), source)


def _by_rows(record: KernelRecord, key: Key, top: int, tuned: Tuned | None) -> Candidates:
    """Return the candidates of a kernel with buckets of query rows.

    Their sources also say whether the rule finds few work tiles in a call: only the launch knows.
    """
    program, on = attention_program(record.recipe, record.graph), target(record.arch)
    chosen = [c.knobs for b in tuned.buckets for c in b.chosen] if tuned else []
    known = [knobs for knobs in chosen if isinstance(knobs, AttentionKnobs)]
    found = row_buckets(program, on, top, known)
    few = next((b.rule_of_few for b in found if b.rule_of_few), None)

    def source(knobs: Knobs) -> str:
        assert isinstance(knobs, AttentionKnobs)
        variants = (AttentionVariant(0, knobs),)
        made = AttentionKernel(program, variants, record.storage, _header(record, knobs))
        is_few = f"mirage::{few_tiles(program, few)}::holds(*args)" if few is not None else "0"
        workspace = f"mirage::generated::{made.symbol}_workspace(*args)"
        answers = {WORKSPACE: workspace, FEW_TILES: is_few}
        return emit_cuda(made) + _entries(made.symbol, "AttentionArgs", answers)

    buckets = tuple(
        Bucket(b.rows, tried=tuple(map(Tried, b.knobs)), rule_of_few=b.rule_of_few) for b in found
    )
    return Candidates(Tuned(key, buckets, form=form_name(program)), source)


def _header(record: KernelRecord, knobs: Knobs) -> Header:
    command = f"mirage-kernels tune {record.recipe}"
    return Header(command, record.stem, [("Knobs", str(knobs))])


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


def mugraph_forms(
    request: Request, *, jobs: int, progress: Progress, store: Store | None
) -> list[Graph]:
    """Return every muGraph that is accurate and has the plan of tuned kernels, as predicted.

    The search finds many, and the predicted time hardly tells them apart: one divides before it
    multiplies, another scales the scores and not the queries.
    """
    spec, on = trace(request.recipe, request.shape, request.dtype), target(request.arch)
    found = searched(request, jobs=jobs, progress=progress, store=store)
    gate, kept = Gate(spec, request.recipe, request.dtype), []
    for ranked in rank(mugraphs(found.programs, goal_of(request, spec)), spec, on):
        try:
            graph = with_threads(ranked.graph)
            subject = Subject(request.recipe.name, graph, on)
            if plan_for(subject).form(subject):
                gate.measure(ranked.graph)
                kept.append(graph)
        except ToolchainError:
            raise
        except MirageError:  # it has no plan, or is not accurate
            continue
    return kept
