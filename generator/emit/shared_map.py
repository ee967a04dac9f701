"""The shared-memory map of an emitted kernel: what lies where, written without numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirage_kernels.generator.emit.names import MEETINGS, camel, declared, kept_type, typed
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.sliced_k.knobs import RING, Footprint, SlicedK


def shared_map(writer: Writer, program: TileProgram, variants: Sequence[SlicedK]) -> None:
    """Write the map of a program: the same for all variants."""
    early = (*program.fetches, *program.statistics)
    late = (*program.meetings, *program.kept, *program.products)
    if program.received:
        early = (*program.fetches, *program.received, *program.products)
        late = program.meetings
    writer.line(
        "// Shared memory in bytes: the pipeline's stages, and after the loop the partial sums."
    )
    writer.line("template <class Config>")
    with writer.block("struct SharedMap {", "};"), declared(writer, program, member=True):
        writer.line(
            "using Steps = tile::StageBuffers<Step<Config>, Config::kStages, Config::kWarps>;"
        )
        for s in program.meetings:
            writer.assignment(f"using {camel(s.out)} = tile::{typed(MEETINGS, s, program)};")
        for s in (*program.fetches, *program.kept, *program.received, *program.products):
            writer.line(f"using {camel(s.out)} = tile::{kept_type(s, program)};")
        for s in program.statistics:
            writer.line(f"using {camel(s.out)} = tile::TokenTable<Config::kTokens>;")
        below = _below(program, variants)
        rows = [
            *((_offset(s.out, below), "from the start") for s in early),
            (_offset(RING, below), "during the loop"),
            *((_offset(s.out, below), "after the loop") for s in late),
        ]
        writer.table([(f"static constexpr int {text};", when) for text, when in rows])
        writer.assignment(f"static constexpr int kPartialsBytes = {_end(list(below)[-1], below)};")
        ring = _end(RING, below)
        writer.line(f"static constexpr int kBytes = tile::larger({ring}, kPartialsBytes);")
    writer.line()


def _offset(name: str, below: Mapping[str, tuple[str, ...]]) -> str:
    start = " + ".join(_end(under, below) for under in below[name]) or "0"
    return f"k{camel(name)}At = {start}"


def _below(program: TileProgram, variants: Sequence[SlicedK]) -> dict[str, tuple[str, ...]]:
    """Return what each buffer lies on, bottom first: the same for all variants of a kernel."""
    footprint = Footprint.of(program)
    maps = [dict(footprint.arrangement(knobs).below) for knobs in variants]
    if any(m != maps[0] or max(map(len, m.values())) > 1 for m in maps):
        raise PlanError(f"{program.recipe}: its variants arrange shared memory differently")
    return maps[0]


def _end(name: str, below: Mapping[str, tuple[str, ...]]) -> str:
    """Return where a buffer ends, as the shared-memory map writes it."""
    begins_at_0 = name == RING and not below[name]
    return f"{camel(name)}::kBytes" if begins_at_0 else f"k{camel(name)}At + {camel(name)}::kBytes"
