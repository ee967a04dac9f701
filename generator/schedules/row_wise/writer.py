"""Row-wise and elementwise kernels as CUDA, and rows that a block takes before a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.emit.names import (
    THREADS,
    camel,
    declared,
    dims_text,
    launch_function,
    operand_dims,
    shared_at,
    vocabulary,
)
from mirage_kernels.generator.emit.part import Part, lines_of
from mirage_kernels.generator.emit.statements import (
    EARLY,
    WHOLE,
    map_text,
    operands,
    rows_of,
    scalars,
)
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.plan.program import Do, Layout, Statement, TileProgram
from mirage_kernels.generator.schedules.schedule import Variant

ABOUT = {
    "row_wise": "row-wise: a block holds a token whole in registers",
    "elementwise": "elementwise: every block takes a piece of a token",
}


@dataclass(frozen=True)
class Lines:
    """Where lines are written: whose they are, and where their sums meet."""

    program: TileProgram
    token: str  # the line's number
    summed: bool  # in a block, through shared memory
    first: str = ""  # where the block's part of a line begins

    def sums(self) -> dict[str, int]:
        """Return the number of each sum of lines."""
        summed = [s.out for s in self.program.lines if s.do is Do.SUM]
        return {name: i for i, name in enumerate(summed)}

    def head(self, depth: str, threads: str) -> list[str]:
        """Return the type of lines that so many threads hold, and where their sums meet."""
        sums = [f"__shared__ float sums[{len(self.sums())}][Lines::kWarps];"] if self.sums() else []
        return [f"using Lines = tile::Lines<{depth}, {threads}>;", *(sums if self.summed else [])]


def line_rows(statements: Sequence[Statement], lines: Lines) -> list[tuple[str, str]]:
    """Return each statement as code and comment; what is stored has the tensor's dims."""
    program = lines.program
    stored = {o.name: operand_dims(o, program) for o in (*program.results, program.output)}

    def dims(s: Statement) -> str:
        return stored[s.args[1]] if s.do is Do.STORE else dims_text(s.type.names)

    return [(_TEXTS[s.do](s, lines), dims(s)) for s in statements]


def _load(s: Statement, lines: Lines) -> str:
    program, (name,) = lines.program, s.args
    place = name
    if s.layout is Layout.LINE:
        index = next(o.index for o in program.inputs if o.name == name)
        where = f"{name}, args.row_strides[{index}], {lines.token}, {program.roles.tokens}"
        place = f"tile::line_of({where})"
    return f"const auto {s.out} = tile::load_line<Lines>({place}{lines.first});"


def _map(s: Statement, lines: Lines) -> str:
    args = [lines.program.literals.get(a, a) for a in s.args]
    if s.layout in WHOLE:
        return map_text(s, args)
    return f"const float {s.out} = tile::{vocabulary(s.op)}({', '.join(args)});"


def _sum(s: Statement, lines: Lines) -> str:
    parts = f", sums[{lines.sums()[s.out]}]" if lines.summed else ""
    return f"const float {s.out} = tile::sum_line<Lines>({s.args[0]}{parts});"


def _store(s: Statement, lines: Lines) -> str:
    value, out = s.args
    place = f"{out} + {lines.token} * {lines.program.roles.depth}{lines.first}"
    return f"tile::store_line<Lines>({place}, {value});"


_TEXTS: dict[Do, Callable[[Statement, Lines], str]] = {
    Do.LOAD: _load,
    Do.MAP: _map,
    Do.SUM: _sum,
    Do.STORE: _store,
    Do.KEEP: lambda s, lines: f"tile::store_resident({s.out}, token, {s.args[0]});",
}


def statistics(writer: Writer, program: TileProgram) -> None:
    """Write what a block computes of its tokens before the loop, in two functions of a token."""
    lines = Lines(program, "first_token + token", summed=False)
    loads = [s for s in program.lines if s.do is Do.LOAD]
    rest = [s for s in program.lines if s.do is not Do.LOAD]
    writer.write(*lines.head(program.roles.depth, "tile::kWarpLanes"))
    for s in program.statistics:
        writer.line(f"const auto {s.out} = Shared::{camel(s.out)}::at_bytes({shared_at(s)});")
    writer.table(rows_of((f"tile::Line<Lines, T> {s.out};", s) for s in loads))
    with writer.block("const auto load_lines = [&](int token) {", "};"):
        writer.write(*(_load(s, lines).removeprefix("const auto ") for s in loads))
    with writer.block("const auto compute_statistics = [&](int token) {", "};"):
        writer.table(line_rows(rest, lines))
    call = "tile::token_pass<kTokens, kWarps>(load_lines, compute_statistics)"
    writer.line(f"const auto statistics = {call};")


def parts(program: TileProgram, variants: Sequence[Variant]) -> list[Part]:
    """Return the form of a kernel without a loop."""
    name = "elementwise" if program.parted else "row_wise"
    lines = lines_of(_write, program, camel(name))
    return [Part(name, ABOUT[name], ("tile/tile.cuh",), (), lines, describes=True)]


def _write(writer: Writer, program: TileProgram, name: str) -> None:
    """Write the kernel and its launch: one token per block, or a part of one."""
    tokens, depth = program.roles.tokens, program.roles.depth
    writer.write("template <class Config>", f"__global__ void __launch_bounds__({THREADS}, 1)")
    head = f"    {program.recipe}(const __grid_constant__ LaunchArgs args) {{"
    with writer.block(head), declared(writer, program):
        lines = Lines(program, "token", summed=True, first=" + first" if program.parted else "")
        own = "Config::kLine" if program.parted else depth
        writer.write(*lines.head(own, "kThreads"), "tile::launch_dependents();", "")
        operands(writer, program.inputs, program)
        writer.line(f"const int64_t {tokens} = args.dims[0], token = blockIdx.x;")
        if program.parted:
            writer.line(f"const int first = blockIdx.y * {own};")
        writer.write(*scalars(program), "")
        loads = [s for s in program.lines if s.do is Do.LOAD]
        if shared := [s for s in loads if s.layout is Layout.LINE_VECTOR]:
            writer.line(EARLY)
            writer.table(line_rows(shared, lines))
        writer.line("tile::grid_dependency_wait();")
        rest = [s for s in program.lines if s.do is not Do.LOAD]
        writer.table(line_rows([*(s for s in loads if s not in shared), *rest], lines))
    writer.line()
    with launch_function(writer, name), declared(writer, program):
        pieces = f"{depth} / Config::kLine" if program.parted else "1"
        writer.write(
            f"const tile::Grid grid{{args.dims[0], {pieces}, kThreads, 0}};",
            f"return tile::launch({program.recipe}<Config>, grid, args, stream);",
        )
    writer.line()
