"""Row-wise and elementwise kernels as CUDA, and rows that a block takes before a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.emit.cuda import Part, lines_of
from mirage_kernels.generator.emit.statements import (
    EARLY,
    THREADS,
    WHOLE,
    camel,
    declared,
    dims_text,
    launch_function,
    map_text,
    operand_dims,
    operands,
    rows_of,
    scalars,
    shared_at,
    vocabulary,
)
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.plan.program import Do, Layout, Statement, TileProgram
from mirage_kernels.generator.schedules.schedule import Variant

ABOUT = {
    "row_wise": "row-wise: a block holds a token whole in registers",
    "elementwise": "elementwise: every block takes a piece of a token",
}


@dataclass(frozen=True)
class Rows:
    """How blocks hold rows: a config's template, and what a block has of which row."""

    template: str
    piece: str  # elements
    token: str = "blockIdx.x"
    first: str = ""  # element of the row; the row's own if there is none
    grid: str = "args.dims[0], 1, kThreads, 0"
    cluster: bool = False  # blocks of a cluster add up their sums


@dataclass(frozen=True)
class Lines:
    """Where lines are written: whose they are, and where their sums meet."""

    program: TileProgram
    token: str  # the line's number
    rows: Rows | None = None  # of blocks: sums meet in shared memory; None: of warps

    @property
    def first(self) -> str:
        """Return what is added to a row's address."""
        return " + first" if self.rows and self.rows.first else ""

    def sums(self) -> dict[str, int]:
        """Return the number of each sum of lines."""
        summed = [s.out for s in self.program.lines if s.do is Do.SUM]
        return {name: i for i, name in enumerate(summed)}

    def head(self, depth: str, threads: str) -> Iterator[str]:
        """Yield the type of lines that so many threads hold, and where their sums meet."""
        yield f"using Lines = tile::Lines<{depth}, {threads}>;"
        if self.rows and (sums := len(self.sums())):
            pieces = f", pieces[{sums}][Config::kBlocks]" if self.rows.cluster else ""
            yield f"__shared__ float sums[{sums}][Lines::kWarps]{pieces};"


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
    i = lines.sums()[s.out]
    parts = f", sums[{i}]" if lines.rows else ""
    if lines.rows and lines.rows.cluster:
        return f"const float {s.out} = tile::sum_cluster<Lines>({s.args[0]}{parts}, pieces[{i}]);"
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
    lines = Lines(program, "first_token + token")
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
    name, depth = "row_wise", program.roles.depth
    rows = Rows("RowWise", depth)
    if program.parted:
        name, piece = "elementwise", "Config::kLine"
        grid = f"args.dims[0], {depth} / {piece}, kThreads, 0"
        rows = Rows("Elementwise", piece, first=f"blockIdx.y * {piece}", grid=grid)
    lines = lines_of(write_rows, program, rows)
    return [Part(name, ABOUT[name], ("tile/tile.cuh",), (), lines, describes=True)]


def write_rows(writer: Writer, program: TileProgram, rows: Rows) -> None:
    """Write the kernel and its launch: a row, or a piece of one, per block."""
    writer.write("template <class Config>", f"__global__ void __launch_bounds__({THREADS}, 1)")
    kernel = f"{program.recipe}_cluster" if rows.cluster else program.recipe
    head = f"    {kernel}(const __grid_constant__ LaunchArgs args) {{"
    with writer.block(head), declared(writer, program):
        lines = Lines(program, "token", rows)
        writer.write(*lines.head(rows.piece, "kThreads"), "tile::launch_dependents();")
        if rows.cluster:
            writer.line("tile::arrive_cluster();")
        writer.line("")
        operands(writer, program.inputs, program)
        writer.line(f"const int64_t {program.roles.tokens} = args.dims[0], token = {rows.token};")
        if rows.first:
            writer.line(f"const int first = {rows.first};")
        writer.write(*scalars(program), "")
        loads = [s for s in program.lines if s.do is Do.LOAD]
        if shared := [s for s in loads if s.layout is Layout.LINE_VECTOR]:
            writer.line(EARLY)
            writer.table(line_rows(shared, lines))
        writer.line("tile::grid_dependency_wait();")
        own = [s for s in loads if s not in shared]
        rest = [s for s in program.lines if s.do is not Do.LOAD]
        if rows.cluster:
            writer.table(line_rows(own, lines))
            writer.line("tile::wait_cluster();")
            own = []
        writer.table(line_rows([*own, *rest], lines))
    writer.line()
    with launch_function(writer, rows.template), declared(writer, program):
        writer.write(
            f"const tile::Grid grid{{{rows.grid}}};",
            f"return tile::launch({kernel}<Config>, grid, args, stream);",
        )
    writer.line()
