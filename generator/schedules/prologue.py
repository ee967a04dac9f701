"""A prologue kernel: it makes tokens once, in its own launch, where every block would make them.

A loop that computes with tokens alone before it multiplies them (a LayerNorm's difference,
quotient, product and sum) does so in every block, and reads them twice if that needs statistics.
Many tokens are made once, by a row-wise kernel, and left in the workspace in the storage type, as
they would be multiplied. The program falls into two plain ones: row-wise, and a loop that
multiplies what it loads, which register operands can serve. The muGraph stays as it is.
"""

from __future__ import annotations

from dataclasses import replace

from mirage_kernels.generator.emit import statements
from mirage_kernels.generator.emit.cuda import Part, lines_of
from mirage_kernels.generator.emit.statements import (
    camel,
    declared,
    launch_function,
    operand_dims,
)
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.lower import ROW_WISE
from mirage_kernels.generator.plan.program import (
    Do,
    Layout,
    Operand,
    Roles,
    Statement,
    TileProgram,
    needed,
)
from mirage_kernels.generator.schedules.row_wise import Lines, Rows
from mirage_kernels.generator.target import Target

WHERE_MEASURED = ("sm_90a",)
MADE = "_made"  # behind the name of the tensor that tokens are made of
INCLUDES = ("tile/prologue/launch.cuh", "tile/tile.cuh")
ABOUT = "prologue kernel: a launch before the main one computes {} once, a block per token"


def prologue_statement(program: TileProgram) -> Statement | None:
    """Return the statement that makes what a loop multiplies; None where it stays in the loop.

    Nothing else that the loop computes may be needed behind it but its products, whose other
    operands are multiplied as they are loaded.
    """
    computed = [s for s in program.loop if s.do is not Do.LOAD]
    products = [s for s in computed if s.do is Do.CONTRACT]
    operands = {s.args[1] for s in products}
    statistics = {s.out for s in program.statistics}
    if program.roles.inner or program.also or len(operands) != 1:
        return None
    if any(s.do in (Do.SUM, Do.STORE) for s in computed):
        return None
    if statistics & {a for s in program.epilogue for a in s.args}:
        return None
    made = next((s for s in computed if s.out in operands), None)
    loaded = {s.out for s in program.loads}
    rows_as_loaded = all(s.args[0] in loaded for s in products)
    if made is None or made.dtype is DType.FP32 or not rows_as_loaded:
        return None
    return made


def has_prologue(program: TileProgram, on: Target) -> bool:
    """Say whether many tokens are made in front: such as need statistics of their whole row."""
    measured = on.arch in WHERE_MEASURED and bool(program.statistics)
    return measured and prologue_statement(program) is not None


def prologue_program(program: TileProgram) -> TileProgram:
    """Return the program of the launch in front: a token at a time, as a line."""
    made = prologue_statement(program)
    assert made is not None
    lines = [s for s in program.lines if s.do is not Do.KEEP]
    names = {s.out: s.args[0] for s in program.statistics}  # what stands for values of the loop
    loaded = {s.args[0]: s.out for s in lines if s.do is Do.LOAD}
    for s in needed(program.loop, {made.out}):
        if s.do is Do.READ:
            names[s.out] = names[s.args[0]]
        elif s.do is Do.LOAD and s.args[0] in loaded:
            names[s.out] = loaded[s.args[0]]
        else:
            line = f"{s.out}_line" if s.out in s.args else s.out
            names[s.out], args = line, tuple(names.get(a, a) for a in s.args)
            layout = ROW_WISE.get(s.layout, s.layout)
            lines.append(replace(s, out=line, args=args, layout=layout, barrier=False))
    out = _tensor(program, made)
    stored = (names[made.out], out.name)
    lines.append(Statement(Do.STORE, f"{made.out}_stored", stored, made.type, Layout.LINE))
    return replace(
        program,
        roles=Roles(program.roles.tokens, program.roles.depth),
        inputs=program.read_by(*lines),
        output=out,
        loop=(),
        reductions=(),
        epilogue=(),
        lines=tuple(sorted(lines, key=lambda s: s.do is not Do.LOAD)),
    )


def main_program(program: TileProgram) -> TileProgram:
    """Return the program of what follows the prologue; the same where there is none."""
    made = prologue_statement(program)
    if made is None:
        return program
    tokens = _tensor(program, made)
    products = [s for s in program.loop if s.do is Do.CONTRACT]
    wanted = {s.args[0] for s in products}
    rows = [s for s in program.loads if s.out in wanted]
    load = Statement(Do.LOAD, made.out, (tokens.name,), made.type, Layout.TOKENS)
    loop = (load, *rows, *(replace(s, barrier=False) for s in products))
    inputs = (tokens, *program.read_by(*loop, *program.epilogue))
    return replace(program, inputs=inputs, loop=loop, lines=())


def is_main(program: TileProgram) -> bool:
    """Say whether a program follows a prologue kernel."""
    return any(o.name.endswith(MADE) for o in program.inputs)


def _tensor(program: TileProgram, made: Statement) -> Operand:
    """Return what is made as a tensor, in the place of the one that it is made of."""
    loads = [s for s in needed(program.loop, {made.out}) if s.layout is Layout.TOKENS]
    names = {s.args[0] for s in loads if s.do is Do.LOAD}
    tokens = next(o for o in program.inputs if o.name in names)
    return replace(tokens, name=tokens.name + MADE, type=replace(tokens.type, dtype=made.dtype))


# -- as CUDA, over csrc/tile/prologue --------------------------------------------------------------


def part(program: TileProgram, schedule: str) -> Part:
    """Return the form of the kernel in front of a schedule's."""
    made = prologue_program(program)
    lines = lines_of(_write, made, schedule)
    return Part("prologue", ABOUT.format(made.output.name), INCLUDES, (schedule,), lines)


def _write(writer: Writer, program: TileProgram, schedule: str) -> None:
    """Write the kernel in front of a schedule's, and the function that launches both."""
    out, depth, name = program.output, program.roles.depth, f"{program.recipe}_prologue"
    writer.write(
        f"// Many tokens: a prologue kernel computes {out.name} once.",
        "template <class Config>",
        "constexpr int kPrologueThreads = Config::kPrologueWarps * tile::kWarpLanes;",
        "",
        "template <class Config>",
        "__global__ void __launch_bounds__(kPrologueThreads<Config>)",
    )
    head = f"    {name}(const __grid_constant__ LaunchArgs args) {{"
    with writer.block(head), declared(writer, program):
        _kernel(writer, program)
    writer.line()
    with launch_function(writer, "AfterPrologue"), declared(writer, program):
        main = f"tile::launch_behind(args, {out.index}, {depth})"
        writer.write(
            "const tile::Grid grid{args.dims[0], 1, kPrologueThreads<Config>, 0};",
            f"const cudaError_t status = tile::launch({name}<Config>, grid, args, stream);",
            "if (status != cudaSuccess) return status;",
            f"return launch({camel(schedule)}<Config>{{}}, {main}, stream);",
        )
    writer.write("", "template <class... Knobs>")
    with writer.block("int64_t workspace(AfterPrologue<Knobs...>, const LaunchArgs& args) {"):
        size = "static_cast<int64_t>(sizeof(typename Config::T))"
        writer.line("using Config = AfterPrologue<Knobs...>;")
        writer.line(f"return args.dims[0] * Config::{depth} * {size};")
    writer.line()


def _kernel(writer: Writer, program: TileProgram) -> None:
    out = program.output
    lines = Lines(program, "token", Rows("AfterPrologue", program.roles.depth))
    writer.write(*lines.head(program.roles.depth, "kPrologueThreads<Config>"), "")
    writer.line("const int64_t token = blockIdx.x;")
    made = f"T* {out.name} = static_cast<T*>(args.workspace);"
    writer.table([*lines.places(), (made, operand_dims(out, program))])
    writer.write(
        *statements.scalars(program, program.lines),
        "",
        "tile::launch_prologue();",
    )
    optional = {o.name for o in program.inputs if o.optional}
    loads = [s for s in program.lines if s.do is Do.LOAD]
    loads.sort(key=lambda s: s.args[0] in optional)
    rest = [s for s in program.lines if s.do is not Do.LOAD]
    writer.table(lines.table([*loads, *rest]))
