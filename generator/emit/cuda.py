"""The CUDA writer: a tile program as one readable .cu file over `csrc/tile`.

A table says for every statement how it reads; this module arranges the lines: header, knobs,
step, shared-memory map, kernel, host function. The text is a pure function of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.emit import adapters, apart, front
from mirage_kernels.generator.emit.after_loop import after_loop
from mirage_kernels.generator.emit.edges import edge_text
from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.emit.held import INCLUDES as HELD_INCLUDES
from mirage_kernels.generator.emit.held import held_kernel
from mirage_kernels.generator.emit.host import bucket_name, threads, write_host, write_slices
from mirage_kernels.generator.emit.lines import line_kernel, statistics
from mirage_kernels.generator.emit.shared_map import shared_map
from mirage_kernels.generator.emit.split import INCLUDES as SPLIT_INCLUDES
from mirage_kernels.generator.emit.split import split_kernel, turns
from mirage_kernels.generator.emit.words import (
    ACCUMULATORS,
    FRAGMENTS,
    TYPES,
    barrier,
    camel,
    dims_text,
    kept_at,
    operand_dims,
    pointer,
    result_pointer,
    sharing,
    typed,
    vocabulary,
)
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.apart import makers_of, users_of
from mirage_kernels.generator.plan.front import behind
from mirage_kernels.generator.plan.program import Do, Layout, Statement, TileProgram
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
    def fronted(self) -> bool:
        """Say whether variants have tokens made in front."""
        return any(v.knobs.front for v in self.variants)

    @property
    def paired(self) -> bool:
        """Say whether variants have makers that hold tokens, in pairs."""
        return any(v.knobs.maker_groups for v in self.variants)

    @property
    def all_paired(self) -> bool:
        """Say whether all have them whose users hold tokens."""
        return all(v.knobs.maker_groups for v in self.variants if v.knobs.held)

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
    users = users_of(kernel.program)
    users = replace(users, paired=kernel.paired, all_paired=kernel.all_paired)
    shared = {"tile/sharing.cuh"} if users.shared_by > 1 else set()
    shared |= set(apart.includes(users))
    shared |= {"tile/shares.cuh"} if users.also and users.loop else set()
    shared |= set(front.INCLUDES) if kernel.fronted else set()
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
    if users.received:
        _makers(writer, kernel)
    if kernel.alone:
        if users.loop:
            _step(writer, users)
            shared_map(writer, users, kernel.alone)
        _kernel(writer, users)
        write_slices(writer, users)
    for _, write in others:
        write(writer, behind(users) if kernel.fronted else users)
    if kernel.fronted:
        front.write_front(writer, users, *kernel.plans)
    if users.received:
        apart.write_workspace(writer, users)
    writer.line("}  // namespace")
    writer.line()
    write_host(writer, kernel)
    writer.line()
    writer.line("}  // namespace mirage::generated")
    return writer.text()


def _constants(writer: Writer, kernel: Kernel) -> None:
    program = kernel.program
    writer.line(f"using T = {TYPES[kernel.storage]};")
    extents = {d.name: d for o in program.inputs for d in o.type.dims}
    statics = [d for d in extents.values() if not d.dynamic]
    whole = "cut into parts" if program.parted else "whole in a block"
    depth = "contracted" if program.loop else whole
    words = {program.roles.rows: "rows of the weights", program.roles.depth: depth}
    words |= dict.fromkeys(program.roles.inner, "contracted after the loop")
    rows = [(f"constexpr int {d.name} = {d.size};", words[d.name]) for d in statics]
    if program.shared_by > 1:
        rows.append((f"constexpr int kSharing = {program.shared_by};", "blocks of a cluster"))
    writer.table(rows)
    writer.line()
    for variant in kernel.variants:
        _knobs(writer, program, variant)
    writer.line()
    writer.line("template <class Knobs>")
    writer.line("constexpr int kThreads = Knobs::kWarps * tile::kWarpLanes;")
    writer.line()


def _knobs(writer: Writer, program: TileProgram, variant: Variant) -> None:
    given = variant.knobs.to_json()
    if not program.loop:
        given = {k: given[k] for k in ("warps", "line") if k in given}
    if variant.knobs.plan:
        given = {k: given[k] for k in ("tokens", "rows", "stages")}
    if variant.knobs.held:
        given |= {"groups": variant.knobs.held, "blocks": variant.knobs.blocks}
    knobs = ", ".join(f"k{camel(k)} = {v}" for k, v in given.items() if "maker" not in k)
    with writer.block(f"struct {bucket_name(variant, program.roles.tokens)} {{", "};"):
        writer.line(f"static constexpr int {knobs};")
        if variant.knobs.front:
            writer.line(front.knobs_text(variant.knobs))
        if variant.knobs.apart:
            writer.line(apart.knobs_text(variant.knobs))
        if program.stacked:
            writer.line(adapters.knobs_text(program, variant.knobs))
        if variant.knobs.plan == "split":
            for line in turns(program, variant.knobs):
                writer.line(line)


def _makers(writer: Writer, kernel: Kernel) -> None:
    """Write what the blocks run that compute totals for all others."""
    makers, users = makers_of(kernel.program), users_of(kernel.program)
    if makers.stacked:
        adapters.write_plan(writer, users, kernel.program)
    else:
        apart.write_plan(writer, users)
    writer.line(f"namespace {apart.NAMESPACE} {{")
    writer.line()
    _step(writer, makers)
    if makers.stacked:
        adapters.write_map(writer, makers)
    else:
        alone = [v for v in kernel.variants if not v.knobs.maker_groups] or kernel.variants
        shared_map(writer, makers, [replace(v, knobs=v.knobs.makers) for v in alone])
    with writer.block(apart.write_makers_head(writer, makers)):
        if not makers.stacked:
            writer.line("using Knobs = Makers<Users>;")
        _prologue(writer, makers)
        _loop(writer, makers)
        after_loop(writer, makers)
    writer.line()
    if makers.stacked:
        adapters.write_makers_kernel(writer, makers)
    writer.line(f"}}  // namespace {apart.NAMESPACE}")
    writer.line()
    if makers.stacked:
        return adapters.write_makers_launch(writer, makers)
    writer.line("template <class Knobs>")
    size = f"{apart.NAMESPACE}::SharedMap<Makers<Knobs>>::kBytes + Apart<Knobs>::kStampBytes"
    writer.assignment(f"constexpr int kMakerBytes = {size};")
    writer.line()
    return None


def _step(writer: Writer, program: TileProgram) -> None:
    writer.line("// What a warp copies per step of the loop.")
    writer.line("template <class Knobs>")
    with writer.block("struct Step {", "};"):
        writer.line("static constexpr int kDepth = Knobs::kChunks * tile::kChunkDepth;")
        if not program.swizzled:
            writer.line("using Arrangement = tile::InOrder;")
        rows = [
            (f"{typed(FRAGMENTS, s, program)} {s.out};", dims_text(s.type.names))
            for s in program.loads
        ]
        writer.table(rows)
    writer.line()


def _kernel(writer: Writer, program: TileProgram) -> None:
    writer.line("template <class Knobs>")
    cluster = "__cluster_dims__(kSharing, 1, 1) " if program.shared_by > 1 else ""
    writer.line(f"__global__ void {cluster}__launch_bounds__({threads(program)}, 1)")
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
    where = apart.NAMESPACE if program.leaves else "generated"
    inner = roles.inner if any(s.layout is Layout.INNER for s in program.loads) else ()
    for line in (
        "constexpr int kRows = Knobs::kRows, kTokens = Knobs::kTokens, kWarps = Knobs::kWarps;",
        f"using Step = {where}::Step<Knobs>;",
        "constexpr int kDepth = Step::kDepth;",
        f"constexpr bool kEvenRows = {roles.rows} % {_whole_tiles(program, 'kRows')} == 0;",
        f"constexpr bool kEvenDepth = {roles.depth} % kDepth == 0;",
        *(f"constexpr bool kEven{dim} = {dim} % tile::kRowTile == 0;" for dim in inner),
        "using Shared = SharedMap<Knobs>;",
    ):
        writer.line(line)
    apart.write_start(writer, program)
    if program.received:
        apart.write_fork(writer, program, "args")
    writer.line()
    _arguments(writer, program)
    writer.line()
    if program.received:
        with writer.block("if (tile::warp_index() == kWarps) {"):
            apart.write_received(writer, program, "kWarps")
    by_name = {o.name: o for o in program.inputs}
    for s in program.loads:
        writer.assignment(edge_text(s, by_name[s.args[0]], program))
    writer.line()
    rows = [
        (f"{typed(ACCUMULATORS, s, program)} {s.out};", dims_text(s.type.names))
        for s in program.accumulators
    ]
    writer.table(rows)
    writer.line()
    if program.fetches and not program.received:
        _fetches(writer, program)


def _arguments(writer: Writer, program: TileProgram) -> None:
    """Write tensors, run-time numbers, and where the block's tile begins."""
    roles = program.roles
    rows = [(pointer(o), operand_dims(o, program)) for o in program.inputs]
    if not program.leaves:
        rows += [(result_pointer(o), operand_dims(o, program)) for o in program.results]
    writer.table(rows)
    writer.line(f"const int {roles.tokens} = static_cast<int>(args.dims[0]);")
    used = {a for s in (*program.loop, *program.epilogue) for a in s.args}
    for i, scalar in enumerate(program.scalars):
        if scalar in used or not program.leaves:
            writer.line(f"const float {scalar} = args.scalars[{i}];")
    if program.leaves:
        return apart.write_makers_tile(writer, program)
    block = apart.user(program, "blockIdx.x")
    writer.line(f"const int first_row = {block} * kRows, first_token = blockIdx.y * kTokens;")
    if program.shared_by > 1:
        sharing(writer, program)
    return None


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


def _loop(writer: Writer, program: TileProgram) -> None:
    in_registers = program.leaves and program.stacked
    if in_registers:
        adapters.write_loads(writer, program)
    for what in () if in_registers else ("weights", "tokens"):
        head = f"const auto copy_{what} = [&](tile::Slot<Step> slot, int k) {{"
        with writer.block(head, "};"):
            for s in program.loads:
                if (s.layout is Layout.TOKENS) is (what == "tokens"):
                    cache = "kStream" if s.layout is Layout.ROWS else "kKeep"
                    where = f"slot, &Step::{s.out}, {s.args[0]}_edge, k"
                    writer.line(f"tile::copy<tile::Cache::{cache}>({where});")
    if program.lines:
        statistics(writer, program)
    given = "const Step& step, int k" if program.also else "const Step& step"
    with writer.block(f"const auto compute = [&]({given}) {{", "};"):
        _compute(writer, program)
    if any(s.barrier for s in program.loop):
        even = f"{program.roles.depth} % (kWarps * kDepth) == 0"
        writer.line(f'static_assert({even}, "all warps come to all barriers");')
    warp, warps, early = apart.dealt_out(program)
    writer.line(f"const int first_k = {warp} * kDepth;")
    steps = f"first_k, {program.roles.depth}, {warps} * kDepth, {early}"
    writer.line(f"const tile::Steps steps{{{steps}}};")
    if in_registers:
        writer.line(adapters.CALL)
    else:
        _pipeline(writer, program)
    if program.fetches and not program.received:
        writer.line("tile::wait_copies<0>();")
    if program.meetings[0].barrier:
        writer.line(barrier(program))
    writer.line()


def _pipeline(writer: Writer, program: TileProgram) -> None:
    call = "tile::pipeline<Knobs::kStages, Step>(shared + Shared::kStepsAt, steps, "
    writer.line(f"{call}copy_weights, copy_tokens,")
    last = "statistics, compute" if program.lines else "compute"
    writer.line(f"{' ' * (call.index('(') + 1)}{last});")


def _compute(writer: Writer, program: TileProgram) -> None:
    """Write a pass of the loop, statement by statement."""
    loaded = {s.out for s in program.loads}
    rows = []
    for s in program.loop:
        if s.do is not Do.LOAD:
            args = [f"step.{a}" if a in loaded else a for a in s.args]
            rows += [(barrier(program), "")] if s.barrier else []
            text = _LOOP[s.do](s, args) if s.do is not Do.STORE else _store_share(s, program)
            rows.append((text, dims_text(s.type.names)))
    writer.table(rows)


def _map_in_loop(s: Statement, args: Sequence[str]) -> str:
    out = "T" if s.dtype is not DType.FP32 else "float"
    return f"const auto {s.out} = tile::{vocabulary(s.op)}<{out}>({', '.join(args)});"


def _store_share(s: Statement, program: TileProgram) -> str:
    """Return the line that stores what all blocks of these tokens compute, by one of them."""
    value, tensor = s.args
    extent = f"{{first_token, {program.roles.tokens}, {program.roles.depth}}}"
    return f"tile::store_share<kEvenDepth>({tensor}, {extent}, {value}, k);"


_LOOP: dict[Do, Callable[[Statement, Sequence[str]], str]] = {
    Do.MAP: _map_in_loop,
    Do.CONTRACT: lambda s, args: f"tile::contract({s.out}, {', '.join(args)});",
    Do.SUM: lambda s, args: f"tile::sum_depth({s.out}, {', '.join(args)});",
    Do.READ: lambda s, args: f"const auto {s.out} = tile::token_values({', '.join(args)});",
}
