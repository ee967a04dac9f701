"""The CUDA writer: a tile program as one readable .cu file over `csrc/tile`.

A table says for every statement how it reads; this module arranges the lines: header, knobs,
step, shared-memory map, kernel, host function. The text is a pure function of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.emit.after_loop import after_loop
from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.emit.held import INCLUDES as HELD_INCLUDES
from mirage_kernels.generator.emit.held import held_kernel
from mirage_kernels.generator.emit.lines import line_kernel, statistics
from mirage_kernels.generator.emit.shared_map import shared_map
from mirage_kernels.generator.emit.split import INCLUDES as SPLIT_INCLUDES
from mirage_kernels.generator.emit.split import split_kernel, turns
from mirage_kernels.generator.emit.words import (
    ACCUMULATORS,
    BARRIER,
    FRAGMENTS,
    TYPES,
    camel,
    dims_text,
    kept_at,
    sharing,
    typed,
    vocabulary,
)
from mirage_kernels.generator.emit.writer import WIDTH, Writer
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.program import Do, Layout, Operand, Statement, TileProgram
from mirage_kernels.generator.plan.variants import Variant

__all__ = ["Kernel", "bucket_name", "camel", "dims_text", "emit_cuda"]


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

    @property
    def alone(self) -> list[Variant]:
        """The variants of the plan of slices."""
        return [v for v in self.variants if not v.knobs.plan]

    @property
    def plans(self) -> set[str]:
        """The other plans that variants have."""
        return {v.knobs.plan for v in self.variants} - {""}


# What the other plans bring: the vocabulary that they include, and their kernels.
_PLANS = {"held": (HELD_INCLUDES, held_kernel), "split": (SPLIT_INCLUDES, split_kernel)}


def emit_cuda(kernel: Kernel) -> str:
    """Return the .cu file of a planned kernel.

    Raises PlanError for an op that the device vocabulary lacks.
    """
    writer = Writer()
    kernel.header.write(writer, "//")
    writer.line()
    writer.line('#include "launch.h"')
    others = [_PLANS[plan] for plan in sorted(kernel.plans)]
    shared = {"tile/sharing.cuh"} if kernel.program.shared_by > 1 else set()
    included = shared.union({"tile/tile.cuh"}, *(includes for includes, _ in others))
    for include in sorted(included):
        writer.line(f'#include "{include}"')
    if kernel.program.tokens_on_m:
        writer.line('#include "bench/turned.cuh"')
    writer.line()
    writer.line("namespace mirage::generated {")
    writer.line("namespace {")
    writer.line()
    _constants(writer, kernel)
    if kernel.program.loop:
        _step(writer, kernel)
        shared_map(writer, kernel.program, kernel.alone)
    _kernel(writer, kernel)
    _launch(writer, kernel)
    for _, write in others:
        write(writer, kernel.program)
    writer.line("}  // namespace")
    writer.line()
    _host(writer, kernel)
    writer.line()
    writer.line("}  // namespace mirage::generated")
    return writer.text()


def bucket_name(variant: Variant, dim: str) -> str:
    """Return the name of a variant's knobs: `UpTo8M`, `AnyM`."""
    return f"UpTo{variant.bucket}{dim}" if variant.bucket else f"Any{dim}"


def _constants(writer: Writer, kernel: Kernel) -> None:
    program = kernel.program
    writer.line(f"using T = {TYPES[kernel.storage]};")
    extents = {d.name: d for o in program.inputs for d in o.type.dims}
    statics = [d for d in extents.values() if not d.dynamic]
    depth = "contracted" if program.loop else "whole in a block"
    words = {program.roles.rows: "rows of the weights", program.roles.depth: depth}
    words |= dict.fromkeys(program.roles.inner, "contracted after the loop")
    rows = [(f"constexpr int {d.name} = {d.size};", words[d.name]) for d in statics]
    if program.shared_by > 1:
        rows.append((f"constexpr int kSharing = {program.shared_by};", "blocks of a cluster"))
    writer.table(rows)
    writer.line()
    for variant in kernel.variants:
        given = variant.knobs.to_json() if program.loop else {"warps": variant.knobs.warps}
        if variant.knobs.plan:
            given = {k: given[k] for k in ("tokens", "rows", "stages")}
        if variant.knobs.held:
            given["groups"] = variant.knobs.held
        knobs = ", ".join(f"k{camel(k)} = {v}" for k, v in given.items())
        with writer.block(f"struct {bucket_name(variant, program.roles.tokens)} {{", "};"):
            writer.line(f"static constexpr int {knobs};")
            if variant.knobs.blocks > 1:
                for line in turns(program, variant.knobs):
                    writer.line(line)
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
            (f"{typed(FRAGMENTS, s, kernel.program)} {s.out};", dims_text(s.type.names))
            for s in kernel.program.loads
        ]
        writer.table(rows)
    writer.line()


def _kernel(writer: Writer, kernel: Kernel) -> None:
    program = kernel.program
    writer.line("template <class Knobs>")
    cluster = "__cluster_dims__(kSharing, 1, 1) " if program.shared_by > 1 else ""
    writer.line(f"__global__ void {cluster}__launch_bounds__(kThreads<Knobs>, 1)")
    with writer.block(f"    {program.recipe}(const __grid_constant__ LaunchArgs args) {{"):
        if program.loop:
            _prologue(writer, program)
            _loop(writer, program)
            after_loop(writer, program)
        else:
            line_kernel(writer, program)
    writer.line()


def _prologue(writer: Writer, program: TileProgram) -> None:
    roles = program.roles
    for line in (
        "constexpr int kRows = Knobs::kRows, kTokens = Knobs::kTokens, kWarps = Knobs::kWarps;",
        "using Step = generated::Step<Knobs>;",
        "constexpr int kDepth = Step::kDepth;",
        f"constexpr bool kEvenRows = {roles.rows} % {_whole_tiles(program, 'kRows')} == 0;",
        f"constexpr bool kEvenDepth = {roles.depth} % kDepth == 0;",
        *(f"constexpr bool kEven{dim} = {dim} % tile::kRowTile == 0;" for dim in roles.inner),
        "using Shared = SharedMap<Knobs>;",
        "extern __shared__ __align__(16) char shared[];",
        "tile::let_next_start();",
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
    if program.shared_by > 1:
        sharing(writer, program)
    writer.line()
    by_name = {o.name: o for o in program.inputs}
    for s in program.loads:
        writer.assignment(_edge(s, by_name[s.args[0]], program))
    writer.line()
    rows = [
        (f"{typed(ACCUMULATORS, s, program)} {s.out};", dims_text(s.type.names))
        for s in program.accumulators
    ]
    writer.table(rows)
    writer.line()
    if program.fetches:
        _fetches(writer, program)


def _whole_tiles(program: TileProgram, rows: str) -> str:
    """Return the rows of a block, or of the blocks of a cluster."""
    return f"({rows} * kSharing)" if program.shared_by > 1 else rows


def _fetches(writer: Writer, program: TileProgram) -> None:
    """Write the copies of tiles that the loop does not cut; weights, so as early as weights."""
    writer.line("if (!args.constant_weights) tile::wait_for_previous();")
    for s in program.fetches:
        kept_at(writer, s)
        where = f"{s.out}, {s.args[0]}, first_row, {program.roles.rows}"
        writer.line(f"tile::fetch<kThreads<Knobs>>({where});")
    writer.line()


def _dims_of(operand: Operand) -> str:
    return dims_text(operand.type.names)


def _edge(s: Statement, operand: Operand, program: TileProgram) -> str:
    """Return the line that says where a load's tile begins and where its tensor ends."""
    roles, name = program.roles, operand.name
    if s.layout is Layout.DEPTH and operand.optional:
        return f"const auto {name}_edge = tile::optional_edge({name}, {roles.depth});"
    if s.layout is Layout.DEPTH:
        return f"const auto {name}_edge = tile::depth_edge<kEvenDepth>({name}, {roles.depth});"
    inner = roles.inner_of(s.type)
    stride = f"tile::Static<{roles.depth}>{{}}"
    if inner is not None:
        first = f"first_{inner.name.lower()}" if program.shared_by > 1 else "0"
        extent = f"{{{first}, {inner.name}, {roles.depth}}}"
        even = f"kEven{inner.name}"
    elif s.layout is Layout.ROWS:
        extent = f"{{first_row, {roles.rows}, {roles.depth}}}"
        even = "kEvenRows"
    else:
        extent = f"{{first_token, {roles.tokens}, {roles.depth}}}"
        stride = f"args.row_strides[{operand.index}]"
        even = "false"
    return f"const auto {name}_edge = tile::edge<{even}, kEvenDepth>({name}, {stride}, {extent});"


def _loop(writer: Writer, program: TileProgram) -> None:
    for what in ("weights", "tokens"):
        head = f"const auto copy_{what} = [&](tile::Slot<Step> slot, int k) {{"
        with writer.block(head, "};"):
            for s in program.loads:
                if (s.layout is Layout.TOKENS) is (what == "tokens"):
                    cache = "kStream" if s.layout is Layout.ROWS else "kKeep"
                    where = f"slot, &Step::{s.out}, {s.args[0]}_edge, k"
                    writer.line(f"tile::copy<tile::Cache::{cache}>({where});")
    if program.lines:
        statistics(writer, program)
    with writer.block("const auto compute = [&](const Step& step) {", "};"):
        _compute(writer, program)
    if any(s.barrier for s in program.loop):
        even = f"{program.roles.depth} % (kWarps * kDepth) == 0"
        writer.line(f'static_assert({even}, "all warps come to all barriers");')
    writer.line("const int first_k = tile::warp_index() * kDepth;")
    steps = f"first_k, {program.roles.depth}, kWarps * kDepth, args.constant_weights"
    writer.line(f"const tile::Steps steps{{{steps}}};")
    call = "tile::pipeline<Knobs::kStages, Step>(shared + Shared::kStepsAt, steps, "
    writer.line(f"{call}copy_weights, copy_tokens,")
    last = "statistics, compute" if program.lines else "compute"
    writer.line(f"{' ' * (call.index('(') + 1)}{last});")
    if program.fetches:
        writer.line("tile::wait_copies<0>();")
    if program.meetings[0].barrier:
        writer.line(BARRIER)
    writer.line()


def _compute(writer: Writer, program: TileProgram) -> None:
    """Write a pass of the loop, statement by statement."""
    loaded = {s.out for s in program.loads}
    rows = []
    for s in program.loop:
        if s.do is not Do.LOAD:
            args = [f"step.{a}" if a in loaded else a for a in s.args]
            rows += [(BARRIER, "")] if s.barrier else []
            rows.append((_LOOP[s.do](s, args), dims_text(s.type.names)))
    writer.table(rows)


def _map_in_loop(s: Statement, args: Sequence[str]) -> str:
    out = "T" if s.dtype is not DType.FP32 else "float"
    return f"const auto {s.out} = tile::{vocabulary(s.op)}<{out}>({', '.join(args)});"


_LOOP: dict[Do, Callable[[Statement, Sequence[str]], str]] = {
    Do.MAP: _map_in_loop,
    Do.CONTRACT: lambda s, args: f"tile::contract({s.out}, {', '.join(args)});",
    Do.SUM: lambda s, args: f"tile::sum_depth({s.out}, {', '.join(args)});",
    Do.READ: lambda s, args: f"const auto {s.out} = tile::token_values({', '.join(args)});",
}


def _launch(writer: Writer, kernel: Kernel) -> None:
    roles = kernel.program.roles
    writer.line("template <class Knobs>")
    with writer.block("cudaError_t launch(const LaunchArgs& args, cudaStream_t stream) {"):
        if kernel.program.loop:
            tokens = "tile::ceil_div(args.dims[0], Knobs::kTokens)"
            shared = " * kSharing" if kernel.program.shared_by > 1 else ""
            tiles = f"tile::ceil_div({roles.rows}, Knobs::kRows{shared}){shared}"
            writer.line(f"const int64_t row_tiles = {tiles};")
            writer.line(f"const int64_t token_tiles = {tokens};")
            writer.line("constexpr int kSharedBytes = SharedMap<Knobs>::kBytes;")
        grid = "row_tiles, token_tiles, kThreads<Knobs>, kSharedBytes"
        grid = grid if kernel.program.loop else "args.dims[0], 1, kThreads<Knobs>, 0"
        writer.line(f"const tile::Grid grid{{{grid}}};")
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
        operands = {o.name: o for o in kernel.program.inputs}
        for s in (*kernel.program.loads, *kernel.program.fetches):
            if s.layout in (Layout.ROWS, Layout.INNER, Layout.FACTORS):
                operand = operands[s.args[0]]
                stride = f"args.row_strides[{operand.index}] != {operand.type.names[-1]}"
                writer.line(f"if ({stride}) return cudaErrorInvalidValue;")
        for variant in kernel.variants:
            plan = variant.knobs.plan
            how = f"launch_{plan}" if plan else "launch"
            call = f"return {how}<{bucket_name(variant, roles.tokens)}>(args, stream);"
            guard = f"if ({roles.tokens} <= {variant.bucket}) " if variant.bucket else ""
            writer.line(guard + call)
