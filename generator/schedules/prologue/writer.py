"""Prologue kernels as CUDA, over csrc/tile/prologue: a first launch transforms tokens."""

from __future__ import annotations

from mirage_kernels.generator.emit.names import declared, dims_text, operand_dims, pointer
from mirage_kernels.generator.emit.part import Part, lines_of
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.plan.program import Do, Layout, Statement, TileProgram
from mirage_kernels.generator.schedules.loop import prologue_warps
from mirage_kernels.generator.schedules.prologue import prologue_program
from mirage_kernels.generator.schedules.row_wise.writer import Lines, line_rows
from mirage_kernels.generator.schedules.schedule import Knobs

INCLUDES = ("tile/prologue/launch.cuh", "tile/tile.cuh")
ABOUT = "prologue kernel: a launch before the main one computes {} once, a block per token"


def knobs_text(knobs: Knobs) -> str:
    """Return the constant of a variant: the warps of a token's block in front."""
    return f"static constexpr int kPrologueWarps = {prologue_warps(knobs)};"


def front(program: TileProgram, schedule: str) -> Part:
    """Return the form of the kernel in front of a schedule's."""
    about = ABOUT.format(prologue_program(program).output.name)
    return Part("prologue", about, INCLUDES, (schedule,), lines_of(_write, program, schedule))


def _write(writer: Writer, program: TileProgram, plan: str) -> None:
    """Write the kernel in front of a plan's, and the function that launches both."""
    made, index = prologue_program(program), prologue_program(program).output.index
    name, depth, tokens = f"{program.recipe}_prologue", program.roles.depth, program.roles.tokens
    writer.line(f"// Many tokens: a prologue kernel computes {made.output.name} once.")
    writer.line("template <class Config>")
    writer.line("constexpr int kPrologueThreads = Config::kPrologueWarps * tile::kWarpLanes;")
    writer.line()
    writer.line("template <class Config>")
    writer.line("__global__ void __launch_bounds__(kPrologueThreads<Config>)")
    with (
        writer.block(f"    {name}(const __grid_constant__ LaunchArgs args) {{"),
        declared(writer, made),
    ):
        _kernel(writer, made)
    writer.line()
    writer.line("template <class Config>")
    head = "cudaError_t launch_after_prologue(const LaunchArgs& args, cudaStream_t stream) {"
    with writer.block(head), declared(writer, program):
        writer.line("const tile::Grid grid{args.dims[0], 1, kPrologueThreads<Config>, 0};")
        call = f"tile::launch({name}<Config>, grid, args, stream);"
        writer.assignment(f"const cudaError_t status = {call}")
        writer.line("if (status != cudaSuccess) return status;")
        given = f"tile::launch_behind(args, {index}, {depth})"
        writer.line(f"return launch_{plan}<Config>({given}, stream);")
    writer.line()
    writer.line("template <class Config>")
    with writer.block("int64_t workspace(const LaunchArgs& args) {"), declared(writer, program):
        writer.line(f"const int64_t {tokens} = args.dims[0];")
        writer.line(f"return {tokens} * {depth} * static_cast<int64_t>(sizeof(T));")
    writer.line()


def _kernel(writer: Writer, program: TileProgram) -> None:
    lines, roles, out = Lines(program, "token", summed=True), program.roles, program.output
    writer.line(f"using Lines = tile::Lines<{roles.depth}, kPrologueThreads<Config>>;")
    if lines.sums():
        writer.line(f"__shared__ float sums[{len(lines.sums())}][Lines::kWarps];")
    writer.line()
    operands = [(pointer(o), operand_dims(o, program)) for o in program.inputs]
    made = f"T* {out.name} = static_cast<T*>(args.workspace);"
    writer.table([*operands, (made, operand_dims(out, program))])
    writer.line("const int64_t token = blockIdx.x;")
    used = {a for s in program.lines for a in s.args}
    for i, scalar in enumerate(program.scalars):
        if scalar in used:
            writer.line(f"const float {scalar} = args.scalars[{i}];")
    writer.line()
    writer.line("tile::launch_prologue();")
    loads = [s for s in program.lines if s.do is Do.LOAD]
    absent = {o.name for o in program.inputs if o.optional}
    loads.sort(key=lambda s: s.args[0] in absent)
    rest = [s for s in program.lines if s.do is not Do.LOAD]
    rows = [(_load(s, program), dims_text(s.type.names)) for s in loads]
    writer.table([*rows, *line_rows(rest, lines)])


def _load(s: Statement, program: TileProgram) -> str:
    operand = next(o for o in program.inputs if o.name == s.args[0])
    line, how = operand.name, "load_line" if operand.optional else "load_if_given"
    if s.layout is Layout.LINE:
        line += f" + token * args.row_strides[{operand.index}]"
    return f"const auto {s.out} = tile::{how}<Lines>({line});"
