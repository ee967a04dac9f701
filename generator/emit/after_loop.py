"""What emitted kernels do after the loop: sums meet, stages, late products, the epilogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mirage_kernels.generator.emit.names import (
    barrier,
    broken,
    camel,
    dims_text,
    kept_at,
    own_lines,
    shared_at,
    vocabulary,
)
from mirage_kernels.generator.emit.writer import WIDTH, Writer, wrapped
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.plan.program import Do, Layout, Stage, Statement, TileProgram
from mirage_kernels.generator.schedules.batched_lora import writer as batched_lora


def after_loop(writer: Writer, program: TileProgram) -> None:
    """Write all that follows the loop."""
    _meetings(writer, program)
    for stage in program.stages:
        _stage(writer, stage, program)
    if program.received:
        received_products(writer, program)
    else:
        _products(writer, program)
    if program.produces:
        _left(writer, program)
    else:
        _epilogue(writer, program)


def _meetings(writer: Writer, program: TileProgram) -> None:
    for i, s in enumerate(program.meetings):
        if s.barrier and i > 0:
            writer.line(barrier(program))
        met = f"tile::store_partials<kWarps>({shared_at(s)}, {s.args[0]})"
        own = "own" if program.stacked and program.produces else "parts"
        writer.assignment(f"const auto {s.out}_{own} = {met};")
    if program.received:
        writer.line("tile::sync_intermediate<kWarps>();")
        writer.line()
    elif not program.stages:
        _wait(writer, program.epilogue[0], program)


def _wait(writer: Writer, then: Statement, program: TileProgram) -> None:
    """Write the barrier before a statement that begins a part of the block's life."""
    if then.barrier:
        writer.line(barrier(program))
    writer.line()


def _stage(writer: Writer, stage: Stage, program: TileProgram) -> None:
    """Write what runs once per element of [inner, tokens]: totals, kept for products."""
    roles, tile = program.roles, f"{stage.dim.lower()}_tile"
    _wait(writer, stage.statements[0], program)
    kept = [s for s in stage.statements if s.do is Do.KEEP]
    for s in kept:
        kept_at(writer, s)
    extent = f"{{0, {stage.dim}, first_token, {roles.tokens}}}"
    writer.line(f"const tile::OutputTile {tile}{extent};")
    lines = own_lines(stage.dim)
    call = f"tile::for_each_element<{lines}, kTokens, kThreads>"
    with writer.block(f"{call}({tile}, [&](tile::Element e) {{", "});"):
        per_element(writer, stage.statements, program)


def _products(writer: Writer, program: TileProgram) -> None:
    """Write the products of fetched tiles with what stages kept."""
    for s in program.products:
        if s.barrier:
            writer.line(barrier(program))
            writer.line()
        call = ("tile::contract_resident<kWarps>(", f"{shared_at(s)}, {', '.join(s.args)});")
        write_call(writer, f"const auto {s.out}_parts =", call)
    if program.products:
        _wait(writer, program.epilogue[0], program)


def received_products(writer: Writer, program: TileProgram) -> None:
    """Write where the products lie that one warp made of what other blocks left."""
    for s in program.products:
        place = f"Shared::{camel(s.out)}::in({shared_at(s)});"
        writer.assignment(f"const auto {s.out}_parts = {place}")


def write_call(writer: Writer, left: str, call: tuple[str, str]) -> None:
    """Write a call, its name and the rest, broken where clang-format breaks it."""
    name, arguments = call
    room = WIDTH - len(writer.unit) * (writer.depth + 2)
    if len(name + arguments) <= room:
        writer.assignment(f"{left} {name}{arguments}")
    elif len(arguments) <= room:
        broken(writer, f"{left} {name}", arguments)
    else:
        first, *rest = wrapped(arguments, room - len(name))
        broken(writer, left, name + first)
        for line in rest:
            writer.line(f"{writer.unit * 2}{' ' * len(name)}{line}")


def _epilogue(writer: Writer, program: TileProgram) -> None:
    roles = program.roles
    tile = f"{{first_row, {roles.rows}, first_token, {roles.tokens}}}"
    writer.line(f"const tile::OutputTile out_tile{tile};")
    call = "tile::for_each_element<kRows, kTokens, kThreads>"
    with writer.block(f"{call}(out_tile, [&](tile::Element e) {{", "});"):
        per_element(writer, program.epilogue, program)


def _left(writer: Writer, program: TileProgram) -> None:
    """Write what is computed per element for other blocks."""
    roles, (*computed, stored) = program.roles, program.epilogue
    tile = f"{{first_row, {roles.rows}, first_token, {roles.tokens}}}"
    writer.line(f"const tile::OutputTile out_tile{tile};")
    call = "producers.template make<kThreads>(out_tile, tag"
    if program.stacked:
        call = batched_lora.write_left(writer, program)
    with writer.block(f"{call}, [&](tile::Element e) {{", "});"):
        per_element(writer, computed, program)
        writer.line(f"return {stored.args[0]};")


def per_element(writer: Writer, statements: Sequence[Statement], program: TileProgram) -> None:
    """Write what is computed per element, a line per statement."""
    rows = [
        (LINES[s.do](s, [program.literals.get(a, a) for a in s.args], program), s)
        for s in statements
    ]
    writer.table([(text, dims_text(s.type.names)) for text, s in rows])


def _read(s: Statement, args: Sequence[str], program: TileProgram) -> str:
    if s.layout is Layout.ROW_SUMS:
        return f"const float {s.out} = tile::load_row({args[0]}, out_tile, e);"
    if s.layout is Layout.ACCUM:
        index = next(o.index for o in program.inputs if o.name == args[0])
        stride = f"args.row_strides[{index}]"
        return f"const float {s.out} = tile::load_element({args[0]}, {stride}, out_tile, e);"
    if s.layout is Layout.TOKEN_SUMS and args[0] in {k.out for k in program.statistics}:
        return f"const float {s.out} = tile::token_value({args[0]}, e);"
    raise PlanError(f"{s.out}: the epilogue reads no {s.layout.value} values yet")


LINES: dict[Do, Callable[[Statement, Sequence[str], TileProgram], str]] = {
    Do.TOTAL: lambda s, args, p: f"const float {s.out} = tile::sum_over_warps({args[0]}_parts, e);",
    Do.MAP: lambda s, args, p: (
        f"const float {s.out} = tile::{vocabulary(s.op)}({', '.join(args)});"
    ),
    Do.READ: _read,
    Do.KEEP: lambda s, args, p: f"tile::store_resident({s.out}, e, {args[0]});",
    Do.STORE: lambda s, args, p: f"tile::store({p.output.name}, out_tile, e, {args[0]});",
}
