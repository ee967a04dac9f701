"""How the CUDA writer spells types, functions and places; the tables are all there is to know."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from mirage_kernels.generator.emit.writer import WIDTH, Writer
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.program import Do, Layout, Operand, Statement, TileProgram

TYPES = {DType.FP16: "__half", DType.BF16: "__nv_bfloat16", DType.FP32: "float"}
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
MEETINGS = {
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
ELEMENTWISE = {
    **{name: name for name in ("neg", "exp", "log", "sqrt", "rsqrt", "square", "sigmoid", "silu")},
    **{name: name for name in ("gelu", "gelu_tanh", "tanh", "relu", "add", "sub", "mul", "div")},
    "max": "maximum",  # `max` would meet CUDA's own
}

BARRIER = "__syncthreads();"
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
    head = Writer(writer.unit, writer.depth)
    if "T" in named:
        head.line("using T = typename Config::T;")
    if "Clusters" in named:
        head.line("using Clusters = tile::AdapterProducers<Config>;")
    extents = [f"{name} = Config::{name}" for name in statics(program) if name in named]
    if extents:
        head.line(f"{constant} {', '.join(extents)};")
    if "kThreads" in named:
        head.line(f"{constant} kThreads = {THREADS};")
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
    return {d.name: d.size for d in dims.values() if not d.dynamic}


THREADS = "tile::kBlockThreads<Config>"


def barrier(program: TileProgram) -> str:
    """Return a barrier of the warps that stream."""
    alone = program.received or program.produces
    return "tile::sync_pipelines<kWarps>();" if alone else BARRIER


def dims_text(names: Sequence[str]) -> str:
    """Return dims for a comment: `[M, K]`."""
    return f"[{', '.join(names)}]"


def operand_dims(operand: Operand, program: TileProgram) -> str:
    """Return an operand's dims for a comment; of stacks as `[slices, R, K]`."""
    slices = ("slices",) if operand.name in program.stacked else ()
    return dims_text((*slices, *operand.type.names))


def pointer(operand: Operand) -> str:
    """Return the line that names an input where it lies."""
    return f"const T* {operand.name} = static_cast<const T*>(args.inputs[{operand.index}]);"


def camel(name: str) -> str:
    """Return a value's name as a type or constant is written: `sum_sq` -> `SumSq`."""
    return "".join(word.capitalize() for word in name.split("_"))


def write_shape(writer: Writer, storage: DType, extents: Mapping[str, int]) -> None:
    """Write what all variants of a shape have: the element type and the static extents."""
    texts = ", ".join(f"{name} = {size}" for name, size in extents.items())
    writer.line(f"MIRAGE_SHAPE({TYPES[storage]}, {texts})")


def write_config(writer: Writer, name: str, schedule: str, knobs: Mapping[str, object]) -> None:
    """Write a config in the words of csrc/variants.h: its schedule, `Shape`, its knobs."""
    items = ["Shape", *(f"{camel(knob)}<{value}>" for knob, value in knobs.items())]
    write_alias(writer, name, schedule, items)


def write_alias(writer: Writer, name: str, template: str, arguments: Sequence[str]) -> None:
    """Write an alias of a template, broken where clang-format breaks it."""
    left = f"using {name} ="
    ended = [f"{a}," for a in arguments[:-1]] + [f"{arguments[-1]}>;"]
    beside = _packed(f"{left} {template}<", ended)
    below = [left, *_packed(f"    {template}<", ended)]
    for row in beside if len(beside) == 1 else min(below, beside, key=len):
        writer.line(row)


def _packed(opening: str, items: Sequence[str]) -> list[str]:
    """Return as few lines as arguments take, below the first of them."""
    rows = [opening + items[0]]
    for item in items[1:]:
        if len(f"{rows[-1]} {item}") <= WIDTH:
            rows[-1] += f" {item}"
        else:
            rows.append(" " * len(opening) + item)
    return rows


def typed(texts: Mapping[Layout, str], s: Statement, program: TileProgram) -> str:
    """Return the type of a statement's result; `lines` is filled in."""
    dim = program.roles.inner_of(s.type)
    return texts[s.layout].format(lines=own_lines(dim.name) if dim else "")


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
    return ELEMENTWISE[op]


def shared_at(s: Statement) -> str:
    """Return where a value begins in shared memory."""
    return f"shared + Shared::k{camel(s.out)}At"


def kept_at(s: Statement) -> str:
    """Return the line that says where a kept tile lies."""
    return f"const typename Shared::{camel(s.out)} {s.out}{{{shared_at(s)}}};"
