"""How the CUDA writer spells types, functions and places; the tables are all there is to know."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.plan.program import Do, Layout, Operand, Statement, TileProgram

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
# Elementwise ops as Triton spells them; CUDA has functions of their names.
ELEMENTWISE = {
    **{op: f"tl.{op}({{0}})" for op in ("exp", "log", "sqrt", "rsqrt", "sigmoid")},
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "max": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "relu": "tl.maximum({0}, 0)",
    "neg": "-{0}",
    "square": "{0} * {0}",
    "silu": "{0} * tl.sigmoid({0})",
    "gelu": "0.5 * {0} * (1 + tl.erf({0} * 0.7071067811865476))",
    "gelu_tanh": "{0} * tl.sigmoid({0} * (1.59576912 + 0.0713548163 * {0} * {0}))",
    "tanh": "2 * tl.sigmoid(2 * {0}) - 1",
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
    return "tile::sync_pipelines<kWarps>();" if alone else "__syncthreads();"


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
    return "maximum" if op == "max" else op  # `max` would meet CUDA's own


def shared_at(s: Statement) -> str:
    """Return where a value begins in shared memory."""
    return f"shared + Shared::k{camel(s.out)}At"


def kept_at(s: Statement) -> str:
    """Return the line that says where a kept tile lies."""
    return f"const typename Shared::{camel(s.out)} {s.out}{{{shared_at(s)}}};"
