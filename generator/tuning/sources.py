"""The sources of candidates: a kernel as it is emitted, with one variant, and C functions.

Also which other muGraphs of a recipe measurement compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.emit.cuda import Header, emit_cuda
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.errors import MirageError, PlanError
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.pipeline import mugraphs, searched
from mirage_kernels.generator.plan.program import Roles, TileProgram
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
from mirage_kernels.generator.schedules.loop import BUCKETS
from mirage_kernels.generator.schedules.schedule import Knobs, Subject, Variant
from mirage_kernels.generator.schedules.streaming import Kernel
from mirage_kernels.generator.search.gate import Gate
from mirage_kernels.generator.search.select import Ranked, rank
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning.catalog import Key, Tuned, tuned_kernel
from mirage_kernels.generator.tuning.choice import has_producers
from mirage_kernels.generator.tuning.manifest import Built, BuiltBucket, Compiled

COMMAND = "mirage-kernels tune"
LAUNCH, ARGS_BYTES = "mirage_candidate_launch", "mirage_candidate_args_bytes"
WORKSPACE, FEW_TILES = "mirage_candidate_workspace", "mirage_candidate_few_tiles"
BEYOND, BEYOND_ROWS = 128, (8, 128, 1024, 4096)  # tokens
VISIBLE = 'extern "C" __attribute__((visibility("default")))'


@dataclass(frozen=True)
class Candidates:
    """A kernel's candidates, not compiled yet, and how knobs become a source.

    `source` raises PlanError where there is none.
    """

    kernel: Compiled
    source: Callable[[Knobs], str]
    forms: tuple[Candidates, ...] = ()


def candidates_of(record: KernelRecord, top: int, forms: Sequence[Graph] = ()) -> Candidates:
    """Return the candidates of a kernel: the rule's choice, what the catalog has, `top` others.

    Of other muGraphs (`forms`) there are the rule's variants, of `top` muGraphs.
    """
    key = _key(record)
    if isinstance(record.roles, Roles):
        return _by_tokens(record, top, tuned_kernel(record.arch, key))
    made = _by_rows(record, top, tuned_kernel(record.arch, key, of_any_type=True))
    others: dict[str, Candidates] = {}
    for graph in forms:
        name = form_name(attention_program(record.recipe, graph))
        if len(others) < top and name not in (made.kernel.form, *others):
            others[name] = _by_rows(replace(record, graph=graph), 0, None)
    return replace(made, forms=tuple(others.values()))


def _key(record: KernelRecord) -> Key:
    return Key(record.recipe, record.dtype, dict(record.shape))


# -- kernels with buckets of tokens ----------------------------------------------------------------


def _by_tokens(record: KernelRecord, top: int, tuned: Tuned | None) -> Candidates:
    programs, on = programs_of(record.recipe, record.graph, record.arch), target(record.arch)
    known = {b.size: b.chosen[0].knobs for b in tuned.buckets} if tuned else {}
    buckets = []
    for tokens in by_size(programs[0], on):
        found = candidates(programs, tokens, on, Wanted(top, known.get(tokens)))
        built = tuple(Built("", c.knobs, 0, round(c.predicted_us, 3)) for c in found)
        buckets.append(BuiltBucket(tokens, built, found[0].knobs))

    def source(knobs: Knobs) -> str:
        program = member(programs, producers=has_producers(knobs))
        kernel = Kernel(program, (Variant(0, knobs),), record.storage, _header(record, knobs))
        workspace = f"mirage::generated::{kernel.symbol}_workspace(*args)"
        answers = {WORKSPACE: workspace if knobs.has_workspace else "0", FEW_TILES: "0"}
        return emit_cuda(kernel) + _entries(kernel.symbol, "LaunchArgs", answers)

    beyond = _beyond(programs[0], buckets[-1].size)
    kernel = Compiled(_key(record), tuple(buckets), record.roles.tokens, beyond)
    return Candidates(kernel, source)


def _beyond(program: TileProgram, last: int) -> tuple[int, ...]:
    """Return where else the last bucket's choice is compared with PyTorch.

    Above the buckets of a kernel with results beside its output the library takes another kernel,
    not PyTorch, so nothing is compared there.
    """
    if not program.loop:
        return BEYOND_ROWS
    return () if program.also else tuple(m for m in (*BUCKETS, BEYOND) if m > last)


# -- kernels with buckets of query rows ------------------------------------------------------------


def _by_rows(record: KernelRecord, top: int, tuned: Tuned | None) -> Candidates:
    """Return candidates whose sources also say whether the rule finds few work tiles in a call.

    For only the launch knows that.
    """
    program, on = attention_program(record.recipe, record.graph), target(record.arch)
    known = [k for k in (tuned.knobs if tuned else ()) if isinstance(k, AttentionKnobs)]
    found = row_buckets(program, on, top, known)
    buckets = tuple(
        BuiltBucket(b.rows, tuple(Built("", k, 0) for k in b.knobs), b.rule, b.rule_of_few)
        for b in found
    )
    few = next((b.rule_of_few for b in found if b.rule_of_few), None)

    def source(knobs: Knobs) -> str:
        assert isinstance(knobs, AttentionKnobs)
        variants = (AttentionVariant(0, knobs),)
        made = AttentionKernel(program, variants, record.storage, _header(record, knobs))
        asked = f"mirage::{few_tiles(program, few)}::holds(*args)" if few is not None else "0"
        workspace = f"mirage::generated::{made.symbol}_workspace(*args)"
        answers = {WORKSPACE: workspace, FEW_TILES: asked}
        return emit_cuda(made) + _entries(made.symbol, "AttentionArgs", answers)

    return Candidates(Compiled(_key(record), buckets, form=form_name(program)), source)


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


# -- other muGraphs --------------------------------------------------------------------------------


def mugraph_forms(
    request: Request, *, jobs: int, progress: Progress, store: Store | None
) -> list[Graph]:
    """Return every muGraph that is accurate and has the plan of tuned kernels, as predicted.

    The search finds many, and the predicted time hardly tells them apart: one divides before it
    multiplies, another scales the scores and not the queries.
    """
    spec = trace(request.recipe, request.shape, request.dtype)
    found = searched(request, jobs=jobs, progress=progress, store=store)
    ranked = rank(mugraphs(found, request, spec), spec, target(request.arch))
    gate = Gate(spec, request.recipe, request.dtype)
    return [with_threads(r.graph) for r in ranked if _is_one(r, request, gate)]


def _is_one(ranked: Ranked, request: Request, gate: Gate) -> bool:
    try:
        subject = Subject(request.recipe.name, with_threads(ranked.graph), target(request.arch))
        if not plan_for(subject).form(subject):
            return False
        gate.measure(ranked.graph)
    except PlanError:
        return False
    except MirageError:  # it is not accurate
        return False
    return True
