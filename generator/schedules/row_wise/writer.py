"""How emitted kernels spell lines, before a loop or instead of one, and the kernels without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.emit.host import threads, write_slices
from mirage_kernels.generator.emit.names import (
    camel,
    declared,
    dims_text,
    operand_dims,
    pointer,
    result_pointer,
    shared_at,
    vocabulary,
)
from mirage_kernels.generator.emit.part import Part, lines_of
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.program import Do, Layout, Statement, TileProgram
from mirage_kernels.generator.schedules.schedule import Variant

ABOUT = {
    "row_wise": "row-wise: a block holds a token whole in registers",
    "elementwise": "elementwise: every block takes a piece of a token",
}
_WHOLE = (Layout.LINE, Layout.LINE_VECTOR)


@dataclass(frozen=True)
class Lines:
    """Where lines are written: whose they are, and where their sums meet."""

    program: TileProgram
    token: str  # the line's number
    summed: bool  # in a block, through shared memory
    first: str = ""  # where the block's part of a line begins

    def operand(self, name: str) -> str:
        """Return how an operand is written: constants by value or by their dim's name."""
        return self.program.literals.get(name, name)

    def sums(self) -> dict[str, int]:
        """Return the number of each sum of lines."""
        summed = [s.out for s in self.program.lines if s.do is Do.SUM]
        return {name: i for i, name in enumerate(summed)}


def line_rows(statements: Sequence[Statement], lines: Lines) -> list[tuple[str, str]]:
    """Return each statement as code and comment; what is stored has the tensor's dims."""
    program = lines.program
    stored = {o.name: operand_dims(o, program) for o in (*program.results, program.output)}

    def dims(s: Statement) -> str:
        return stored[s.args[1]] if s.do is Do.STORE else dims_text(s.type.names)

    return [(_TEXTS[s.do](s, lines), dims(s)) for s in statements]


def _load(s: Statement, lines: Lines) -> str:
    program, (name,) = lines.program, s.args
    if s.layout is not Layout.LINE:
        return f"const auto {s.out} = tile::load_line<Lines>({name}{lines.first});"
    index = next(o.index for o in program.inputs if o.name == name)
    place = f"{name}, args.row_strides[{index}], {lines.token}, {program.roles.tokens}"
    return f"const auto {s.out} = tile::load_line<Lines>(tile::line_of({place}){lines.first});"


def _map(s: Statement, lines: Lines) -> str:
    args = ", ".join(map(lines.operand, s.args))
    if s.layout not in _WHOLE:
        return f"const float {s.out} = tile::{vocabulary(s.op)}({args});"
    made = "float" if s.dtype is DType.FP32 else "T"
    return f"const auto {s.out} = tile::{vocabulary(s.op)}<{made}>({args});"


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
    writer.line(f"using Lines = tile::Lines<{program.roles.depth}, tile::kWarpLanes>;")
    for s in program.statistics:
        writer.assignment(f"const auto {s.out} = Shared::{camel(s.out)}::at_bytes({shared_at(s)});")
    rows = [(f"tile::Line<Lines, T> {s.out};", dims_text(s.type.names)) for s in loads]
    writer.table(rows)
    with writer.block("const auto load_lines = [&](int token) {", "};"):
        for s in loads:
            writer.assignment(_load(s, lines).removeprefix("const auto "))
    with writer.block("const auto compute_statistics = [&](int token) {", "};"):
        writer.table(line_rows(rest, lines))
    call = "tile::token_pass<kTokens, kWarps>(load_lines, compute_statistics)"
    writer.assignment(f"const auto statistics = {call};")


def parts(program: TileProgram, variants: Sequence[Variant]) -> list[Part]:
    """Return the form of a kernel without a loop."""
    name = "elementwise" if program.parted else "row_wise"
    lines = lines_of(_write, program)
    return [Part(name, ABOUT[name], ("tile/tile.cuh",), (), lines, describes=True)]


def _write(writer: Writer, program: TileProgram) -> None:
    """Write the kernel and its launch."""
    writer.line("template <class Config>")
    writer.line(f"__global__ void __launch_bounds__({threads(program)}, 1)")
    with (
        writer.block(f"    {program.recipe}(const __grid_constant__ LaunchArgs args) {{"),
        declared(writer, program),
    ):
        _body(writer, program)
    writer.line()
    write_slices(writer, program)


def _body(writer: Writer, program: TileProgram) -> None:
    """Write the body of a kernel without a loop: one token per block, or a part of one."""
    tokens = program.roles.tokens
    depth = "Config::kLine" if program.parted else program.roles.depth
    lines = Lines(program, "token", summed=True, first=" + first" if program.parted else "")
    shared = [s for s in program.lines if s.do is Do.LOAD and s.layout is Layout.LINE_VECTOR]
    own = [s for s in program.lines if s.do is Do.LOAD and s.layout is Layout.LINE]
    rest = [s for s in program.lines if s.do is not Do.LOAD]
    writer.line(f"using Lines = tile::Lines<{depth}, kThreads>;")
    if lines.sums():
        writer.line(f"__shared__ float sums[{len(lines.sums())}][Lines::kWarps];")
    writer.line("tile::launch_dependents();")
    writer.line()
    operands = [(pointer(o), operand_dims(o, program)) for o in program.inputs]
    operands += [(result_pointer(o), operand_dims(o, program)) for o in program.results]
    writer.table(operands)
    writer.line(f"const int64_t {tokens} = args.dims[0], token = blockIdx.x;")
    if program.parted:
        writer.line(f"const int first = blockIdx.y * {depth};")
    for i, scalar in enumerate(program.scalars):
        writer.line(f"const float {scalar} = args.scalars[{i}];")
    writer.line()
    if shared:
        writer.line("if (!args.constant_weights) tile::grid_dependency_wait();")
        writer.table(line_rows(shared, lines))
    writer.line("tile::grid_dependency_wait();")
    writer.table(line_rows([*own, *rest], lines))
