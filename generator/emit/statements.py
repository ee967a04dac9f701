"""How statements of a tile program read in CUDA, whatever the schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mirage_kernels.generator.emit.names import (
    camel,
    dims_text,
    kept_at,
    operand_dims,
    own_lines,
    pointer,
    shared_at,
    vocabulary,
)
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.program import Do, Layout, Operand, Statement, TileProgram

EARLY = "if (!args.constant_weights) tile::grid_dependency_wait();"
WHOLE = (Layout.LINE, Layout.LINE_VECTOR)


def rows_of(statements: Iterable[tuple[str, Statement]]) -> list[tuple[str, str]]:
    """Return code and comment of statements that are written: the dims of their results."""
    return [(text, dims_text(s.type.names)) for text, s in statements]


def map_text(s: Statement, args: Sequence[str]) -> str:
    """Return an elementwise op of fragments or rows, of the type in which its result is stored."""
    out = "float" if s.dtype is DType.FP32 else "T"
    return f"const auto {s.out} = tile::{vocabulary(s.op)}<{out}>({', '.join(args)});"


IN_LOOP: dict[Do, Callable[[Statement, Sequence[str]], str]] = {
    Do.MAP: map_text,
    Do.CONTRACT: lambda s, args: f"tile::contract({s.out}, {', '.join(args)});",
    Do.SUM: lambda s, args: f"tile::sum_depth({s.out}, {', '.join(args)});",
    Do.READ: lambda s, args: f"const auto {s.out} = tile::token_values({', '.join(args)});",
}


PER_ELEMENT = {
    Do.TOTAL: "const float {out} = tile::sum_over_warps({args}_parts, e);",
    Do.MAP: "const float {out} = tile::{word}({args});",
    Do.READ: "const float {out} = tile::{word}, e);",
    Do.KEEP: "tile::store_resident({out}, e, {args});",
    Do.STORE: "tile::store({result}, out_tile, e, {args});",
}


def per_element(writer: Writer, statements: Sequence[Statement], program: TileProgram) -> None:
    """Write what is computed per element; what a program produces is returned, not stored."""
    returned = [s for s in statements if s.do is Do.STORE and program.produces]
    rows = []
    for s in (s for s in statements if s not in returned):
        args = ", ".join(program.literals.get(a, a) for a in s.args)
        word = vocabulary(s.op) if s.do is Do.MAP else ""
        word = _read(s, program) if s.do is Do.READ else word
        text = PER_ELEMENT[s.do].format(out=s.out, args=args, word=word, result=program.output.name)
        rows.append((text, s))
    writer.table(rows_of(rows))
    for s in returned:
        writer.line(f"return {s.args[0]};")


def _read(s: Statement, program: TileProgram) -> str:
    """Return the beginning of the call that reads an element of an input, or a token's number."""
    (name,) = s.args
    if s.layout is Layout.ROW_SUMS:
        return f"load_row({name}, out_tile"
    if s.layout is Layout.ACCUM:
        index = next(o.index for o in program.inputs if o.name == name)
        return f"load_element({name}, args.row_strides[{index}], out_tile"
    if s.layout is Layout.TOKEN_SUMS and name in {k.out for k in program.statistics}:
        return f"token_value({name}"
    raise PlanError(f"{s.out}: the epilogue reads no {s.layout.value} values yet")


def operands(writer: Writer, inputs: Sequence[Operand], program: TileProgram) -> None:
    """Write where inputs and results lie; what a program produces lies nowhere else."""
    results = () if program.produces else program.results
    lines = [(pointer(o), o) for o in inputs]
    lines += [(f"T* {o.name} = static_cast<T*>(args.outputs[{o.index}]);", o) for o in results]
    writer.table([(line, operand_dims(o, program)) for line, o in lines])


def scalars(program: TileProgram, statements: Iterable[Statement] | None = None) -> list[str]:
    """Return the lines that name run-time scalars: all, or those that `statements` take."""
    used = program.scalars if statements is None else {a for s in statements for a in s.args}
    named = [(i, name) for i, name in enumerate(program.scalars) if name in used]
    return [f"const float {name} = args.scalars[{i}];" for i, name in named]


def number_of_tokens(program: TileProgram) -> str:
    """Return the line that says how many tokens a call has."""
    return f"const int {program.roles.tokens} = static_cast<int>(args.dims[0]);"


def fetches(program: TileProgram, threads: str) -> list[str]:
    """Return the copies of tiles that the loop does not cut; weights, so as early as weights."""
    lines = [EARLY] if program.fetches else []
    for s in program.fetches:
        where = f"{s.out}, {s.args[0]}, first_row, {program.roles.rows}"
        lines += [kept_at(s), f"tile::fetch<{threads}>({where});"]
    return lines


def stage_tile(program: TileProgram, dim: str, kept: Iterable[Statement]) -> list[str]:
    """Return where totals of an inner dim are kept, and the tile that they are."""
    extent = f"{{0, {dim}, first_token, {program.roles.tokens}}}"
    return [*map(kept_at, kept), f"const tile::OutputTile {dim.lower()}_tile{extent};"]


def output_tile(program: TileProgram, first_token: str = "first_token") -> str:
    """Return the line that says which elements of the result a block finishes."""
    roles = program.roles
    extent = f"{{first_row, {roles.rows}, {first_token}, {roles.tokens}}}"
    return f"const tile::OutputTile out_tile{extent};"


def late_products(program: TileProgram, warps: str) -> list[str]:
    """Return the products of fetched and kept tiles, or where receiving warps left them."""
    lines = []
    for s in program.products:
        call = f"tile::contract_resident<{warps}>({shared_at(s)}, {', '.join(s.args)});"
        received = f"Shared::{camel(s.out)}::in({shared_at(s)});"
        lines.append(f"const auto {s.out}_parts = {received if program.received else call}")
    return lines


def inner_lines(s: Statement, program: TileProgram, otherwise: str = "") -> str:
    """Return how many lines a block has of a value with an inner dim."""
    inner = program.roles.inner_of(s.type)
    return own_lines(inner.name) if inner else otherwise
