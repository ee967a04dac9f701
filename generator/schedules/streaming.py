"""Kernels that stream weights past tokens, and row-wise ones: from a muGraph to their sources."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import ClassVar

from mirage_kernels.generator.emit.cuda import Entry, KernelSource, Part, recipe_files
from mirage_kernels.generator.emit.statements import statics
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Graph, retile
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import Do, Layout, Roles, TileProgram
from mirage_kernels.generator.records.headers import kernel_header
from mirage_kernels.generator.records.record import About, KernelRecord, Plan, require_room
from mirage_kernels.generator.schedules import PARTS, RANKED, prologue
from mirage_kernels.generator.schedules.batched_lora import (
    MOST_STACKED_TOKENS,
    slices_ahead,
    stacked_program,
    stacked_variants,
)
from mirage_kernels.generator.schedules.choose import all_candidates, fastest, programs_of, variants
from mirage_kernels.generator.schedules.loop import (
    ALIGNED_ELEMENTS,
    MANY_TOKENS,
    LoopKnobs,
    producers_of,
    prologue_warps,
)
from mirage_kernels.generator.schedules.producer_blocks import (
    PAIRS,
    WHERE_MEASURED,
    with_producer_blocks,
)
from mirage_kernels.generator.schedules.producer_blocks.forms import pairs, producers
from mirage_kernels.generator.schedules.run import require_runs
from mirage_kernels.generator.schedules.schedule import Knobs, Subject, Variant
from mirage_kernels.generator.search.cases import Case, affordable
from mirage_kernels.generator.target import Target, target
from mirage_kernels.generator.tuning.catalog import Key, tuned_kernel, tuned_program
from mirage_kernels.generator.tuning.variants import MAX_TOKENS, chosen_variants

# What a launch has room for: the arrays of LaunchArgs and Kernel in csrc/launch.h.
ROOM = {"tensors": 12, "scalars": 4, "results": 4, "dynamic dims": 4, "static dims": 4}
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

    @property
    def counted(self) -> str:
        """What names of configs count: tokens."""
        return self.program.roles.tokens

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
            written = PARTS[schedule.name](own, variants)
            if any(PAIRS in part.beside for part in written):
                parts.append(pairs(consumers))
            parts += written
        return [*parts, *(prologue.part(consumers, name) for name in behind)]

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
        read = (*program.loads, *program.group_reads, *program.fetches)
        weights = [operands[s.args[0]] for s in read if s.layout in CONTIGUOUS]
        places = [(o.index + i, o) for o in weights for i in range(program.tensors_of(o))]
        return [f"{{{at}, Shape::{o.in_memory[-1]}}}" for at, o in places]


def require(subject: Subject) -> None:
    """Raise PlanError for a muGraph that no schedule runs."""
    variants(tile_program(subject.recipe, subject.graph, subject.on.arch), subject.on)
    types = {n.name: n.out.type for n in subject.graph.inputs}
    dims = {d.name: d.dynamic for type_ in types.values() for d in type_.dims}
    carried: dict[str, Collection[str]] = {
        "tensors": [name for name, type_ in types.items() if type_.dims],
        "scalars": [name for name, type_ in types.items() if not type_.dims],
        "results": subject.graph.outputs,
        "dynamic dims": [d for d, dynamic in dims.items() if dynamic],
        "static dims": [d for d, dynamic in dims.items() if not dynamic],
    }
    require_room(subject.recipe, carried, ROOM)


def planned(about: About, graph: Graph, catalogs: Sequence[Path] = ()) -> KernelRecord:
    """Return the record of a kernel with its variants: measured ones where it was tuned.

    Raises PlanError or TileError where a variant's kernels do not do what the muGraph does.
    """
    programs = programs_of(about.recipe, graph, about.arch)
    program, on = programs[0], target(about.arch)
    key = Key(about.recipe, about.dtype, about.shape)
    tuned = tuned_program(about.arch, key, catalogs) or tuned_kernel(about.arch, key)
    chosen = chosen_variants(programs, on, tuned)
    chosen = tuple(_with_parts(replace(program, row_parts=about.row_parts), v, on) for v in chosen)
    for variant in chosen:
        require_runs(programs[-1], graph, variant.knobs)
    largest = chosen[-1].knobs.tiles(program.roles)[program.roles.tokens]
    most_tokens = largest if program.statistics or program.also else MAX_TOKENS
    if tuned and (
        not prologue.has_prologue(program, on) or largest in {b.size for b in tuned.buckets}
    ):
        most_tokens = tuned.max_tokens  # else it was measured before the plan for so many was there
        if MANY_TOKENS in {b.size for b in tuned.buckets} and largest < MANY_TOKENS:
            most_tokens = min(largest, most_tokens)  # this muGraph does not take so many
    elif not program.loop:
        most_tokens = 0
    tiled = retile(graph, chosen[0].knobs.tiles(program.roles))
    return KernelRecord(
        **vars(about), roles=program.roles, variants=chosen, max_tokens=most_tokens, graph=tiled
    )


def cases(record: KernelRecord, variant: Variant) -> list[Case]:
    """Return what a variant is proved on.

    The full extents have an uneven number of tokens; the small ones have uneven edges everywhere,
    and no more than a single tile. Rows without a loop: full lines, short ones, a single token.
    """
    roles, tiles = record.roles, record.tiles(variant)
    if not roles.rows:
        full = {roles.tokens: tiles[roles.tokens] + 2, **record.shape}
        few = {roles.tokens: 2, roles.depth: ALIGNED_ELEMENTS}
        single = full | {roles.tokens: 1}
        return [Case(tiles, full), Case(tiles, full | few, bounded=True), Case(tiles, single)]
    tokens = tiles[roles.tokens] + 3
    rows, depth = tiles[roles.rows], tiles[roles.depth]
    full = affordable(record.graph, {roles.tokens: tokens, **record.shape}, tiles)
    uneven = full | {roles.rows: 2 * rows + 5, roles.depth: 2 * depth + 8}
    single = full | {roles.tokens: 1, roles.rows: rows - 1, roles.depth: depth}
    return [Case(tiles, full), Case(tiles, uneven, bounded=True), Case(tiles, single)]


def sources(records: Sequence[KernelRecord]) -> dict[str, str]:
    """Return the sources of a recipe's records."""
    plain = [kernel_of(record) for record in records]
    stacked = [k for record in records if (k := stacked_kernel(record)) is not None]
    return recipe_files(plain) | recipe_files(stacked)


def kernel_of(record: KernelRecord) -> Kernel:
    """Return the kernel of a record, planned."""
    program = tile_program(record.recipe, record.graph, record.arch)
    if any(producers_of(v.knobs) for v in record.variants):
        program = with_producer_blocks(program, target(record.arch))
    program = as_called(program, record)
    return Kernel(program, record.variants, record.storage, kernel_header(record, program))


def as_called(program: TileProgram, record: KernelRecord) -> TileProgram:
    """Return a record's program with what calls give in other ways than the muGraph has it.

    Vectors may be broadcast, rows may come in parts. Raises PlanError where blocks of a variant
    would have no rows, or cannot find theirs.
    """
    strided, parts = broadcast_inputs(record), record.row_parts
    inputs = tuple(replace(o, broadcast=o.name in strided) for o in program.inputs)
    program = replace(program, inputs=inputs, row_parts=parts)
    if parts:
        for variant in record.variants:
            _require_parts(program, variant.knobs)
        ahead = accumulate(map(program.tensors_of, inputs), initial=0)
        placed = (replace(o, index=at) for o, at in zip(inputs, ahead, strict=False))
        program = replace(program, inputs=tuple(placed))
    return program


def _with_parts(program: TileProgram, variant: Variant, on: Target) -> Variant:
    """Return a variant whose blocks find the parts of a program's rows: the fastest, if not this.

    Where none finds them it stays as it is.
    """
    if not program.row_parts or _finds_parts(program, variant.knobs):
        return variant
    tokens = variant.knobs.tiles(program.roles)[program.roles.tokens]
    every = all_candidates(program, tokens, on)
    best = fastest(c for c in every if _finds_parts(program, c.knobs))
    return replace(variant, knobs=best.knobs) if best else variant


def _finds_parts(program: TileProgram, knobs: Knobs) -> bool:
    try:
        _require_parts(program, knobs)
    except PlanError:
        return False
    return True


def _require_parts(program: TileProgram, knobs: Knobs) -> None:
    """Raise PlanError for rows in parts that a kernel's blocks cannot take.

    Blocks that share rows each finish some, those of a last tile too.
    """
    parts, said = program.row_parts, f"{program.recipe}: rows in parts {program.row_parts}"
    if not isinstance(knobs, LoopKnobs) or knobs.producers or program.also:
        raise PlanError(f"{said} are not planned for {knobs.schedule}")
    if sum(parts) != program.extents[program.roles.rows] or len(parts) > ROOM["results"]:
        raise PlanError(f"{said} are no rows of {program.roles.rows}")
    others = knobs.rows - knobs.finished_rows
    if any(0 < length % knobs.rows <= others for length in parts):
        raise PlanError(f"{said} leave blocks of {knobs.rows} rows without some")
    tensors = sum(map(program.tensors_of, program.inputs))
    if tensors > ROOM["tensors"]:
        raise PlanError(f"{said} are {tensors} tensors, a launch takes {ROOM['tensors']}")


def broadcast_inputs(record: KernelRecord) -> tuple[str, ...]:
    """Return the vectors whose strides a record's kernels take: those that epilogues alone read.

    Where something else reads a vector of one element, a call copies it to a whole one.
    """
    if not record.broadcast:
        return ()
    program = tile_program(record.recipe, record.graph, record.arch)
    if not program.loop or program.lines or any(producers_of(v.knobs) for v in record.variants):
        return ()
    stages = (stage.statements for stage in program.stages)
    others = chain(program.loop, program.reductions, program.fetches, program.products, *stages)
    taken = {a for s in others for a in s.args}
    read = [s for s in program.epilogue if s.do is Do.READ and s.layout is Layout.ROW_SUMS]
    names = {a for s in read for a in s.args} - taken
    return tuple(n for n in record.broadcast if n in names)


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
    return Kernel(program, variants, record.storage, kernel_header(record, program))


def entries(record: KernelRecord) -> list[Entry]:
    """Return the rows of a record: its kernel, and the one for slices of stacks."""
    options, about = record.options, (record.dtype, record.shape, record.stem)
    space = any(v.knobs.has_workspace for v in record.variants)
    found = [Entry(record.recipe, *about, record.max_tokens, options, space)]
    stacked = stacked_kernel(record)
    if stacked is not None:
        most = max(MOST_STACKED_TOKENS, record.max_tokens) if record.max_tokens else 0
        found.append(Entry(stacked.program.recipe, *about, most, options, workspace=True))
    return found


def form(subject: Subject) -> str:
    """Return nothing: muGraphs that stream weights have no names; PlanError for other ones."""
    tile_program(subject.recipe, subject.graph, subject.on.arch)
    return ""


PLAN = Plan(Roles, form, require, planned, cases, sources, entries)
