"""The CUDA writer: a tile program as one readable .cu file over `csrc/tile`.

A table says for every statement how it reads; this module arranges the lines: header, knobs,
step, shared-memory map, kernel, host function. The text is a pure function of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.emit.writer import WIDTH, Writer
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.program import Do, Layout, Operand, Statement, TileProgram
from mirage_kernels.generator.plan.variants import RING, Footprint, Variant

_TYPES = {DType.FP16: "__half", DType.BF16: "__nv_bfloat16", DType.FP32: "float"}
_FRAGMENTS = {
    Layout.ROWS: "tile::RowFrag<T, Knobs::kRows, kDepth>",
    Layout.TOKENS: "tile::TokenFrag<T, Knobs::kTokens, kDepth>",
    Layout.DEPTH: "tile::DepthFrag<T, kDepth>",
}
_ACCUMULATORS = {
    Layout.ACCUM: "tile::{}<kRows, kTokens>",
    Layout.TOKEN_SUMS: "tile::TokenPartial<kTokens>",
    Layout.ROW_SUMS: "tile::RowPartial<kRows>",
}
_MEETINGS = {
    Layout.ACCUM: ("AccumMeeting<Knobs::kRows, Knobs::kTokens, Knobs::kWarps>", "w, m, n"),
    Layout.TOKEN_SUMS: ("TokenMeeting<Knobs::kTokens, Knobs::kWarps>", "m, w"),
    Layout.ROW_SUMS: ("RowMeeting<Knobs::kRows, Knobs::kWarps>", "n, w"),
}
_ELEMENTWISE = {
    **{name: name for name in ("neg", "exp", "log", "sqrt", "rsqrt", "square", "sigmoid", "silu")},
    **{name: name for name in ("gelu", "tanh", "relu", "add", "sub", "mul", "div")},
    "max": "maximum",  # `max` would meet CUDA's own
}

_BARRIER = "__syncthreads();"


@dataclass(frozen=True)
class Kernel:
    """What one emitted file is made of."""

    program: TileProgram
    variants: Sequence[Variant]
    storage: DType
    header: Header

    @property
    def symbol(self) -> str:
        """Name of the host function: recipe and file stem."""
        return f"{self.program.recipe}_{self.header.stem}"


def emit_cuda(kernel: Kernel) -> str:
    """Return the .cu file of a planned kernel.

    Raises PlanError for an op that the device vocabulary lacks.
    """
    writer = Writer()
    kernel.header.write(writer, "//")
    writer.line()
    writer.line('#include "launch.h"')
    writer.line('#include "tile/tile.cuh"')
    if kernel.program.tokens_on_m:
        writer.line('#include "bench/turned.cuh"')
    writer.line()
    writer.line("namespace mirage::generated {")
    writer.line("namespace {")
    writer.line()
    _constants(writer, kernel)
    _step(writer, kernel)
    _shared_map(writer, kernel)
    _kernel(writer, kernel)
    _launch(writer, kernel)
    writer.line("}  // namespace")
    writer.line()
    _host(writer, kernel)
    writer.line()
    writer.line("}  // namespace mirage::generated")
    return writer.text()


def dims_text(names: Sequence[str]) -> str:
    """Return dims for a comment: `[M, K]`."""
    return f"[{', '.join(names)}]"


def camel(name: str) -> str:
    """Return a value's name as a type or constant is written: `sum_sq` -> `SumSq`."""
    return "".join(word.capitalize() for word in name.split("_"))


def bucket_name(variant: Variant, dim: str) -> str:
    """Return the name of a variant's knobs: `UpTo8M`, `AnyM`."""
    return f"UpTo{variant.bucket}{dim}" if variant.bucket else f"Any{dim}"


def _constants(writer: Writer, kernel: Kernel) -> None:
    program = kernel.program
    writer.line(f"using T = {_TYPES[kernel.storage]};")
    extents = {d.name: d for o in program.inputs for d in o.type.dims}
    statics = [d for d in extents.values() if not d.dynamic]
    words = {program.roles.rows: "rows of the weights", program.roles.depth: "contracted"}
    writer.table([(f"constexpr int {d.name} = {d.size};", words[d.name]) for d in statics])
    writer.line()
    for variant in kernel.variants:
        knobs = ", ".join(f"k{camel(k)} = {v}" for k, v in variant.knobs.to_json().items())
        with writer.block(f"struct {bucket_name(variant, program.roles.tokens)} {{", "};"):
            writer.line(f"static constexpr int {knobs};")
    writer.line()
    writer.line("template <class Knobs>")
    writer.line("constexpr int kThreads = Knobs::kWarps * tile::kWarpLanes;")
    writer.line()


def _step(writer: Writer, kernel: Kernel) -> None:
    writer.line("// What a warp copies per step of the loop.")
    writer.line("template <class Knobs>")
    with writer.block("struct Step {", "};"):
        writer.line("static constexpr int kDepth = Knobs::kChunks * tile::kChunkDepth;")
        if not kernel.program.swizzled:
            writer.line("using Arrangement = tile::InOrder;")
        rows = [
            (f"{_FRAGMENTS[s.layout]} {s.out};", dims_text(s.type.names))
            for s in kernel.program.loads
        ]
        writer.table(rows)
    writer.line()


def _shared_map(writer: Writer, kernel: Kernel) -> None:
    meetings = kernel.program.meetings
    writer.line(
        "// Shared memory in bytes: the ring of steps, and after the loop the partial sums."
    )
    writer.line("template <class Knobs>")
    with writer.block("struct SharedMap {", "};"):
        writer.line("using Steps = tile::Ring<Step<Knobs>, Knobs::kStages, Knobs::kWarps>;")
        for s in meetings:
            writer.line(f"using {camel(s.out)} = tile::{_MEETINGS[s.layout][0]};")
        rows = [("static constexpr int kStepsAt = 0;", "during the loop")]
        below = _below(kernel)
        for s in meetings:
            start = " + ".join(_end(name) for name in below[s.out]) or "0"
            rows.append((f"static constexpr int k{camel(s.out)}At = {start};", "after the loop"))
        writer.table(rows)
        writer.line(f"static constexpr int kMeetingBytes = {_end(list(below)[-1])};")
        writer.line("static constexpr int kBytes = tile::larger(Steps::kBytes, kMeetingBytes);")
    writer.line()


def _below(kernel: Kernel) -> dict[str, tuple[str, ...]]:
    """Return what each buffer lies on, bottom first: the same for all variants of a kernel."""
    footprint = Footprint.of(kernel.program)
    maps = [dict(footprint.arrangement(v.knobs).below) for v in kernel.variants]
    if any(m != maps[0] or max(map(len, m.values())) > 1 for m in maps):
        raise PlanError(f"{kernel.program.recipe}: its variants arrange shared memory differently")
    return maps[0]


def _end(name: str) -> str:
    """Return where a buffer ends, as the shared-memory map writes it; the ring begins at 0."""
    return "Steps::kBytes" if name == RING else f"k{camel(name)}At + {camel(name)}::kBytes"


def _kernel(writer: Writer, kernel: Kernel) -> None:
    program = kernel.program
    writer.line("template <class Knobs>")
    writer.line("__global__ void __launch_bounds__(kThreads<Knobs>, 1)")
    with writer.block(f"    {program.recipe}(const __grid_constant__ LaunchArgs args) {{"):
        _prologue(writer, program)
        _loop(writer, program)
        _meetings(writer, program)
        _epilogue(writer, kernel)
    writer.line()


def _prologue(writer: Writer, program: TileProgram) -> None:
    roles = program.roles
    for line in (
        "constexpr int kRows = Knobs::kRows, kTokens = Knobs::kTokens, kWarps = Knobs::kWarps;",
        "using Step = generated::Step<Knobs>;",
        "constexpr int kDepth = Step::kDepth;",
        f"constexpr bool kEvenRows = {roles.rows} % kRows == 0;",
        f"constexpr bool kEvenDepth = {roles.depth} % kDepth == 0;",
        "using Shared = SharedMap<Knobs>;",
        "extern __shared__ __align__(16) char shared[];",
    ):
        writer.line(line)
    writer.line()
    rows = [
        (f"const T* {o.name} = static_cast<const T*>(args.inputs[{o.index}]);", _dims_of(o))
        for o in program.inputs
    ]
    rows.append(
        (f"T* {program.output.name} = static_cast<T*>(args.outputs[0]);", _dims_of(program.output))
    )
    writer.table(rows)
    writer.line(f"const int {roles.tokens} = static_cast<int>(args.dims[0]);")
    for i, scalar in enumerate(program.scalars):
        writer.line(f"const float {scalar} = args.scalars[{i}];")
    writer.line("const int first_row = blockIdx.x * kRows, first_token = blockIdx.y * kTokens;")
    writer.line()
    by_name = {o.name: o for o in program.inputs}
    for s in program.loads:
        writer.assignment(_edge(s, by_name[s.args[0]], program))
    writer.line()
    product = "TurnedAccum" if program.tokens_on_m else "Accum"
    rows = [
        (f"{_ACCUMULATORS[s.layout].format(product)} {s.out};", dims_text(s.type.names))
        for s in program.accumulators
    ]
    writer.table(rows)
    writer.line()


def _dims_of(operand: Operand) -> str:
    return dims_text(operand.type.names)


def _edge(s: Statement, operand: Operand, program: TileProgram) -> str:
    """Return the line that says where a load's tile begins and where its tensor ends."""
    roles, name = program.roles, operand.name
    if s.layout is Layout.DEPTH:
        return f"const auto {name}_edge = tile::depth_edge<kEvenDepth>({name}, {roles.depth});"
    if s.layout is Layout.ROWS:
        extent = f"{{first_row, {roles.rows}, {roles.depth}}}"
        stride = f"tile::Static<{roles.depth}>{{}}"
        even = "kEvenRows"
    else:
        extent = f"{{first_token, {roles.tokens}, {roles.depth}}}"
        stride = f"args.row_strides[{operand.index}]"
        even = "false"
    return f"const auto {name}_edge = tile::edge<{even}, kEvenDepth>({name}, {stride}, {extent});"


def _loop(writer: Writer, program: TileProgram) -> None:
    with writer.block("const auto copy = [&](tile::Slot<Step> slot, int k) {", "};"):
        for s in program.loads:
            cache = "kStream" if s.layout is Layout.ROWS else "kKeep"
            where = f"slot, &Step::{s.out}, {s.args[0]}_edge, k"
            writer.line(f"tile::copy<tile::Cache::{cache}>({where});")
    with writer.block("const auto compute = [&](const Step& step) {", "};"):
        _compute(writer, program)
    if any(s.barrier for s in program.loop):
        even = f"{program.roles.depth} % (kWarps * kDepth) == 0"
        writer.line(f'static_assert({even}, "all warps come to all barriers");')
    writer.line("const int first_k = tile::warp_index() * kDepth;")
    steps = f"{{first_k, {program.roles.depth}, kWarps * kDepth}}"
    writer.line(f"tile::pipeline<Knobs::kStages, Step>(shared + Shared::kStepsAt, {steps},")
    writer.line("                                     copy, compute);")
    if program.meetings[0].barrier:
        writer.line(_BARRIER)
    writer.line()


def _compute(writer: Writer, program: TileProgram) -> None:
    """Write a pass of the loop, statement by statement."""
    loaded = {s.out for s in program.loads}
    rows = []
    for s in program.loop:
        if s.do is not Do.LOAD:
            args = [f"step.{a}" if a in loaded else a for a in s.args]
            rows += [(_BARRIER, "")] if s.barrier else []
            rows.append((_LOOP[s.do](s, args), dims_text(s.type.names)))
    writer.table(rows)


def _map_in_loop(s: Statement, args: Sequence[str]) -> str:
    out = "T" if s.dtype is not DType.FP32 else "float"
    return f"const auto {s.out} = tile::{_vocabulary(s.op)}<{out}>({', '.join(args)});"


def _vocabulary(op: str) -> str:
    if op not in _ELEMENTWISE:
        raise PlanError(f"the device vocabulary has no op {op!r} yet", "see csrc/tile/")
    return _ELEMENTWISE[op]


_LOOP: dict[Do, Callable[[Statement, Sequence[str]], str]] = {
    Do.MAP: _map_in_loop,
    Do.CONTRACT: lambda s, args: f"tile::contract({s.out}, {', '.join(args)});",
    Do.SUM: lambda s, args: f"tile::sum_depth({s.out}, {', '.join(args)});",
}


def _meetings(writer: Writer, program: TileProgram) -> None:
    for i, s in enumerate(program.meetings):
        if s.barrier and i > 0:
            writer.line(_BARRIER)
        place = f"shared + Shared::k{camel(s.out)}At"
        writer.assignment(f"const auto {s.out}_parts = tile::meet<kWarps>({place}, {s.args[0]});")
    if program.epilogue[0].barrier:
        writer.line(_BARRIER)
    writer.line()


def _epilogue(writer: Writer, kernel: Kernel) -> None:
    program = kernel.program
    roles = program.roles
    tile = f"{{first_row, {roles.rows}, first_token, {roles.tokens}}}"
    writer.line(f"const tile::OutputTile out_tile{tile};")
    call = "tile::for_each_element<kRows, kTokens, kThreads<Knobs>>"
    with writer.block(f"{call}(out_tile, [&](tile::Element e) {{", "});"):
        rows = [
            (_EPILOGUE[s.do](s, [program.literals.get(a, a) for a in s.args], program), s)
            for s in program.epilogue
        ]
        writer.table([(text, dims_text(s.type.names)) for text, s in rows])


def _read(s: Statement, args: Sequence[str], program: TileProgram) -> str:
    if s.layout is Layout.ROW_SUMS:
        return f"const float {s.out} = tile::load_row({args[0]}, out_tile, e);"
    if s.layout is Layout.ACCUM:
        stride = f"args.row_strides[{[o.name for o in program.inputs].index(args[0])}]"
        return f"const float {s.out} = tile::load_element({args[0]}, {stride}, out_tile, e);"
    raise PlanError(f"{s.out}: the epilogue reads no {s.layout.value} values yet")


_EPILOGUE: dict[Do, Callable[[Statement, Sequence[str], TileProgram], str]] = {
    Do.TOTAL: lambda s, args, p: f"const float {s.out} = tile::sum_over_warps({args[0]}_parts, e);",
    Do.MAP: lambda s, args, p: (
        f"const float {s.out} = tile::{_vocabulary(s.op)}({', '.join(args)});"
    ),
    Do.READ: _read,
    Do.STORE: lambda s, args, p: f"tile::store({p.output.name}, out_tile, e, {args[0]});",
}


def _launch(writer: Writer, kernel: Kernel) -> None:
    roles = kernel.program.roles
    writer.line("template <class Knobs>")
    with writer.block("cudaError_t launch(const LaunchArgs& args, cudaStream_t stream) {"):
        writer.line(f"const int64_t row_tiles = tile::ceil_div({roles.rows}, Knobs::kRows);")
        writer.line("const int64_t token_tiles = tile::ceil_div(args.dims[0], Knobs::kTokens);")
        writer.line("constexpr int kSharedBytes = SharedMap<Knobs>::kBytes;")
        writer.line("const tile::Grid grid{row_tiles, token_tiles, kThreads<Knobs>, kSharedBytes};")
        writer.line(f"return tile::launch({kernel.program.recipe}<Knobs>, grid, args, stream);")
    writer.line()


def _host(writer: Writer, kernel: Kernel) -> None:
    roles = kernel.program.roles
    signature = f"cudaError_t {kernel.symbol}(const LaunchArgs& args, cudaStream_t stream) {{"
    if len(signature) > WIDTH:
        signature = signature.replace("(const", "(\n    const")
    with writer.block(signature):
        writer.line(f"const int64_t {roles.tokens} = args.dims[0];")
        writer.line(f"if ({roles.tokens} == 0) return cudaSuccess;")
        for s in kernel.program.loads:
            if s.layout is Layout.ROWS:
                index = [o.name for o in kernel.program.inputs].index(s.args[0])
                stride = f"args.row_strides[{index}] != {roles.depth}"
                writer.line(f"if ({stride}) return cudaErrorInvalidValue;")
        for variant in kernel.variants:
            call = f"return launch<{bucket_name(variant, roles.tokens)}>(args, stream);"
            guard = f"if ({roles.tokens} <= {variant.bucket}) " if variant.bucket else ""
            writer.line(guard + call)
