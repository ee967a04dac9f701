"""How statements of a tile program read in CUDA, whatever the schedule: types, places, calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.program import Do, Layout, Operand, Statement, TileProgram

OTHER_TYPES = {  # of elements that are not of a kernel's own type
    DType.FP32: "float",
    DType.INT8: "int8_t",
    DType.UINT8: "uint8_t",
    DType.FP8_E4M3: "__nv_fp8_e4m3",
    DType.FP8_E5M2: "__nv_fp8_e5m2",
}
FRAGMENTS = {
    Layout.ROWS: "tile::RowFrag<T, Config::kRows, kDepth>",
    Layout.TOKENS: "tile::TokenFrag<T, Config::kTokens, kDepth>",
    Layout.DEPTH: "tile::DepthFrag<T, kDepth>",
    Layout.INNER: "tile::RowFrag<T, {lines}, kDepth>",
}
ACCUMULATORS = {
    Layout.ACCUM: "tile::Accum<kRows, kTokens>",
    Layout.INNER_ACCUM: "tile::Accum<{lines}, kTokens>",
    Layout.TOKEN_SUMS: "tile::TokenPartial<kTokens>",
    Layout.ROW_SUMS: "tile::RowPartial<kRows>",
}
REDUCTIONS = {
    Layout.ACCUM: "AccumPartials<Config::kRows, Config::kTokens, Config::kWarps>",
    Layout.INNER_ACCUM: "AccumPartials<{lines}, Config::kTokens, Config::kWarps>",
    Layout.TOKEN_SUMS: "TokenPartials<Config::kTokens, Config::kWarps>",
    Layout.ROW_SUMS: "RowPartials<Config::kRows, Config::kWarps>",
}
KEPT = {
    Do.FETCH: "Resident<T, Config::kRows, {inner}>",
    Do.KEEP: "Resident<T, Config::kTokens, {inner}>",
    Do.CONTRACT: "AccumPartials<Config::kRows, Config::kTokens, 1>",
}
LARGER = "tl.maximum({}, {}, propagate_nan=tl.PropagateNan.ALL)"  # as Triton spells it
# Elementwise ops as Triton spells them; CUDA has functions of their names.
ELEMENTWISE = {
    **{op: f"tl.{op}({{0}})" for op in ("exp", "log", "sqrt", "rsqrt", "sigmoid")},
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "max": LARGER.format("{0}", "{1}"),
    "relu": LARGER.format("{0}", "0"),
    "neg": "-{0}",
    "square": "{0} * {0}",
    "silu": "{0} * tl.sigmoid({0})",
    "gelu": "0.5 * {0} * (1 + tl.erf({0} * 0.7071067811865476))",
    "gelu_tanh": "{0} * tl.sigmoid({0} * (1.59576912 + 0.0713548163 * {0} * {0}))",
    "abs": "tl.abs({0})",
    "softplus": "tl.maximum({0}, 0) + tl.log(1 + tl.exp(-tl.abs({0})))",
    "mish": (
        "{0} * (2 * tl.sigmoid(2 * (tl.maximum({0}, 0) + tl.log(1 + tl.exp(-tl.abs({0}))))) - 1)"
    ),
    "elu": f"{LARGER.format('{0}', '0')} + tl.exp(tl.minimum({{0}}, 0)) - 1",
    "tanh": "2 * tl.sigmoid(2 * {0}) - 1",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "erf": "tl.erf({0})",
    "floor": "tl.floor({0})",
    # Adding 3 * 2^22 rounds what is smaller than 2^22.
    "round": (
        "tl.where(tl.abs({0}) < 4194304.0, {0} + 12582912.0 - 12582912.0, tl.floor({0} + 0.5))"
    ),
    "inner_exp": "tl.exp({0})",
    "log1p": (
        "tl.where(tl.abs({0}) < 0.01, {0} * (1 - {0} * (0.5 - {0} * (0.3333333 - {0} * 0.25))), "
        "tl.log(1 + {0}))"
    ),
    "gt": "tl.where({0} > {1}, 1.0, 0.0)",
    "ge": "tl.where({0} >= {1}, 1.0, 0.0)",
    "masked": "tl.where({0} != 0.0, {1}, 0.0)",
}
_OWN = {
    **{"max": "maximum", "abs": "magnitude", "sin": "sine", "cos": "cosine", "inner_exp": "exp"},
    **{"gt": "greater", "ge": "greater_equal", "floor": "whole_below", "round": "nearest_whole"},
}
_NAMES = re.compile(r"(?<!::)\b[A-Za-z_]\w*")


@contextmanager
def declared(writer: Writer, program: TileProgram, *, member: bool = False) -> Iterator[None]:
    """Write a scope; at its head stands what its lines name of `Config`.

    That is the element type, static extents, the threads of a block. `member`: the scope is a type.
    """
    start = len(writer.lines)
    yield
    code = (line.partition("//")[0] for line in writer.lines[start:])
    named = {name for line in code for name in _NAMES.findall(line)}
    constant = "static constexpr int" if member else "constexpr int"
    extents = ", ".join(f"{name} = Config::{name}" for name in statics(program) if name in named)
    lines = {
        "using T = typename Config::T;": "T" in named,
        "using Clusters = tile::AdapterProducers<Config>;": "Clusters" in named,
        f"{constant} {extents};": bool(extents),
        f"{constant} kThreads = {THREADS};": "kThreads" in named,
    }
    head = Writer(writer.unit, writer.depth)
    head.write(*(line for line, is_named in lines.items() if is_named))
    writer.lines[start:start] = head.lines


@contextmanager
def launch_function(writer: Writer, schedule: str) -> Iterator[None]:
    """Write the function that launches the configs of a schedule."""
    writer.line("template <class... Knobs>")
    arguments = f"{schedule}<Knobs...>, const LaunchArgs& args, cudaStream_t stream"
    with writer.block(f"cudaError_t launch({arguments}) {{"):
        writer.line(f"using Config = {schedule}<Knobs...>;")
        yield


def statics(program: TileProgram) -> dict[str, int]:
    """Return the static extents of a program, which its text takes from `Config`."""
    dims = {d.name: d for o in program.inputs for d in o.type.dims}
    return {d.name: d.size for d in dims.values() if not d.dynamic} | part_dims(program)


def part_dims(program: TileProgram) -> dict[str, int]:
    """Return the extents of the parts that rows come in, none where they are of one tensor."""
    return {f"{program.roles.rows}_{i}": n for i, n in enumerate(program.row_parts)}


def included(program: TileProgram) -> tuple[str, ...]:
    """Return the headers of what is written here."""
    return ("tile/tile.cuh", *(("tile/row_parts.cuh",) if program.row_parts else ()))


def row_parts(program: TileProgram) -> str:
    """Return the type of the parts that rows come in."""
    return f"tile::RowParts<{', '.join(part_dims(program))}>"


def own_part(program: TileProgram, tile: str, rows: str) -> list[str]:
    """Return the line that says which rows a block has; nothing where they are of one tensor."""
    line = f"const auto part = {row_parts(program)}::of({tile}, {rows});"
    return [line] if program.row_parts else []


def tile_of(program: TileProgram, tile: str) -> str:
    """Return the tile of its part's rows that a block has, by its tile of all."""
    return "part.tile" if program.row_parts else tile


def all_rows(program: TileProgram) -> str:
    """Return how many rows there are, for a block: its part's."""
    return "part.rows" if program.row_parts else program.roles.rows


def given_rows(program: TileProgram) -> str:
    """Return what a grid is made for: a number of rows, or their parts."""
    return f"{row_parts(program)}{{}}" if program.row_parts else program.roles.rows


def place_of(operand: Operand, program: TileProgram) -> str:
    """Return the place of a tensor among the arguments."""
    if not program.in_parts(operand):
        return str(operand.index)
    return f"{operand.index} + part.index" if operand.index else "part.index"


THREADS = "tile::kBlockThreads<Config>"


def barrier(program: TileProgram) -> str:
    """Return a barrier of the warps that stream."""
    alone = program.received or program.produces
    return "tile::sync_pipelines<kWarps>();" if alone else "__syncthreads();"


def dims_text(names: Sequence[str]) -> str:
    """Return dims for a comment: `[M, K]`."""
    return f"[{', '.join(names)}]"


def operand_dims(operand: Operand, program: TileProgram) -> str:
    """Return an operand's dims for a comment; of stacks as `[slices, R, K]`."""
    slices = ("slices",) if operand.name in program.stacked else ()
    return dims_text((*slices, *operand.in_memory))


def pointer(operand: Operand, program: TileProgram) -> str:
    """Return the line that names an input where it lies."""
    place, type_ = place_of(operand, program), OTHER_TYPES.get(operand.type.dtype, "T")
    return f"const {type_}* {operand.name} = static_cast<const {type_}*>(args.inputs[{place}]);"


def camel(name: str) -> str:
    """Return a value's name as a type or constant is written: `sum_sq` -> `SumSq`."""
    return "".join(word.capitalize() for word in name.split("_"))


def fragment(s: Statement, program: TileProgram) -> str:
    """Return the type of what a warp copies per step of a tensor."""
    if s in program.byte_rows:
        return f"tile::ByteRowFrag<{OTHER_TYPES[s.dtype]}, Config::kRows, kDepth>"
    return typed(FRAGMENTS, s, program)


def typed(texts: Mapping[Layout, str], s: Statement, program: TileProgram) -> str:
    """Return the type of a statement's result; `lines` is filled in."""
    return texts[s.layout].format(lines=inner_lines(s, program))


def own_lines(inner: str) -> str:
    """Return how many lines along an inner dim a block has."""
    return f"tile::padded({inner})"


def kept_type(s: Statement, program: TileProgram) -> str:
    """Return the type of what a statement keeps."""
    dim = program.roles.inner_of(s.type)
    if program.stacked and s.do is Do.FETCH and dim:
        return f"SlicePipeline<T, Config::kRows, {dim.name}, Config::kSlices>"
    return KEPT[s.do].format(inner=dim.name if dim else "")


def vocabulary(op: str) -> str:
    """Return an elementwise op's name in csrc/tile/math/elementwise.cuh."""
    if op not in ELEMENTWISE:
        raise PlanError(f"the device vocabulary has no op {op!r} yet", "see csrc/tile/")
    return _OWN.get(op, op)  # they would meet CUDA's own


def shared_at(s: Statement) -> str:
    """Return where a value begins in shared memory."""
    return f"shared + Shared::k{camel(s.out)}At"


def kept_at(s: Statement) -> str:
    """Return the line that says where a kept tile lies."""
    return f"const typename Shared::{camel(s.out)} {s.out}{{{shared_at(s)}}};"


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
    Do.MAP: "const {type} {out} = tile::{word}({args});",
    Do.READ: "const float {out} = tile::{word}, e);",
    Do.KEEP: "tile::store_resident({out}, e, {args});",
    Do.STORE: "tile::store({result}, out_tile, e, {args});",
}


def per_element(
    writer: Writer,
    statements: Sequence[Statement],
    program: TileProgram,
    early: Sequence[Statement] = (),
) -> None:
    """Write what is computed per element; what a program produces is returned, not stored.

    What is read `early` is there by now.
    """
    returned = [s for s in statements if s.do is Do.STORE and program.produces]
    rows = []
    for s in (s for s in statements if s not in returned):
        args = ", ".join(program.literals.get(a, a) for a in s.args)
        word = vocabulary(s.op) if s.do is Do.MAP else ""
        if s.do is Do.READ:
            word = f"early_value({s.out}_early" if s in early else _read(s, program)
        names = {"type": type_of(s), "result": program.output.name}
        text = PER_ELEMENT[s.do].format(out=s.out, args=args, word=word, **names)
        rows.append((text, s))
    writer.table(rows_of(rows))
    for s in returned:
        writer.line(f"return {s.args[0]};")


def early_reads(program: TileProgram) -> list[Statement]:
    """Return what the epilogue reads of inputs: it may be asked for before the sums are there."""
    read = [s for s in program.epilogue if s.do is Do.READ]
    return [s for s in read if s.layout in (Layout.ACCUM, Layout.ROW_SUMS)]


def type_of(s: Statement) -> str:
    """Return the type of a number that an op makes: of a root what is divided by is known."""
    return "tile::Root" if s.op == "sqrt" else "float"


def _read(s: Statement, program: TileProgram) -> str:
    """Return the beginning of the call that reads an element of an input, or a token's number."""
    (name,) = s.args
    if s.layout is Layout.TOKEN_SUMS and name in {k.out for k in program.statistics}:
        return f"token_value({name}"
    if s.layout is Layout.TOKEN_SUMS:
        return f"load_token({tensor_of(s, program)}, out_tile"
    if s.layout is Layout.ROW_SUMS:
        return f"load_row({tensor_of(s, program)}, out_tile"
    if s.layout is Layout.ACCUM:
        return f"load_element({tensor_of(s, program)}, out_tile"
    raise PlanError(f"{s.out}: the epilogue reads no {s.layout.value} values yet")


def tensor_of(s: Statement, program: TileProgram) -> str:
    """Return the tensor that elements are read of, and its stride where the call has one."""
    (name,) = s.args
    operand = next((o for o in program.inputs if o.name == name), None)
    if operand is None or (s.layout is Layout.ROW_SUMS and not operand.broadcast):
        return name
    return f"{name}, args.row_strides[{place_of(operand, program)}]"


def operands(writer: Writer, inputs: Sequence[Operand], program: TileProgram) -> None:
    """Write where inputs and results lie; what a program produces lies nowhere else."""
    pointers = [(pointer(o, program), operand_dims(o, program)) for o in inputs]
    writer.table(pointers + ([] if program.produces else results(program)))


def results(program: TileProgram) -> list[tuple[str, str]]:
    """Return the lines that name results where they lie, with their dims."""
    at = ((o, place_of(o, program)) for o in program.results)
    lines = [(f"T* {o.name} = static_cast<T*>(args.outputs[{place}]);", o) for o, place in at]
    return [(line, operand_dims(o, program)) for line, o in lines]


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
        where = f"{s.out}, {s.args[0]}, first_row, {all_rows(program)}"
        lines += [kept_at(s), f"tile::fetch<{threads}>({where});"]
    return lines


def stage_tile(program: TileProgram, dim: str, kept: Iterable[Statement]) -> list[str]:
    """Return where totals of an inner dim are kept, and the tile that they are."""
    extent = f"{{0, {dim}, first_token, {program.roles.tokens}}}"
    return [*map(kept_at, kept), f"const tile::OutputTile {dim.lower()}_tile{extent};"]


def output_tile(program: TileProgram, first_token: str = "first_token") -> str:
    """Return the line that says which elements of the result a block finishes."""
    roles = program.roles
    extent = f"{{first_row, {all_rows(program)}, {first_token}, {roles.tokens}}}"
    return f"const tile::OutputTile out_tile{extent};"


def late_products(program: TileProgram, warps: str) -> list[str]:
    """Return the products of fetched and kept tiles, or where receiving warps left them."""
    lines = []
    for s in program.products:
        call = f"tile::contract_resident<{warps}>({shared_at(s)}, {', '.join(s.args)})"
        call = f"Shared::{camel(s.out)}::in({shared_at(s)})" if program.received else call
        lines.append(f"const auto {s.out}_parts = {call};")
    return lines


def inner_lines(s: Statement, program: TileProgram, otherwise: str = "") -> str:
    """Return how many lines a block has of a value with an inner dim."""
    inner = program.roles.inner_of(s.type)
    return own_lines(inner.name) if inner else otherwise
