"""The plan of slices as CUDA: each warp of a block multiplies a slice of the depth.

So are emitted the blocks that compute totals for all others (`makers.py`), and kernels of lines,
which have no loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mirage_kernels.generator.emit.after_loop import after_loop
from mirage_kernels.generator.emit.host import threads, write_slices
from mirage_kernels.generator.emit.names import (
    ACCUMULATORS,
    FRAGMENTS,
    barrier,
    declared,
    dims_text,
    kept_at,
    operand_dims,
    pointer,
    result_pointer,
    typed,
    vocabulary,
)
from mirage_kernels.generator.emit.part import Part, lines_of
from mirage_kernels.generator.emit.predicated_copies import edge_text
from mirage_kernels.generator.emit.shared_map import shared_map
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.program import Do, Layout, Statement, TileProgram
from mirage_kernels.generator.schedules.batched_lora import writer as batched_lora
from mirage_kernels.generator.schedules.producer_blocks import writer as producer_blocks
from mirage_kernels.generator.schedules.row_wise.writer import statistics
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.schedules.sliced_k.knobs import SlicedK

ABOUT = (
    "sliced-K: each warp of a block streams its own slice of the depth; they add up their sums "
    "after the loop"
)


def parts(program: TileProgram, variants: Sequence[Variant]) -> list[Part]:
    """Return the form of a kernel whose warps have slices of the depth."""
    beside = (producer_blocks.FORM,) if program.received else ()
    shares = ("tile/sliced_k/store_share.cuh",) if program.also else ()
    received = producer_blocks.includes(replace(program, producers=None))
    includes = (*shares, "tile/tile.cuh", *received)
    lines = lines_of(_write, program, variants)
    return [Part("sliced_k", ABOUT, includes, beside, lines, describes=True)]


def _write(writer: Writer, program: TileProgram, variants: Sequence[Variant]) -> None:
    """Write the step, the map of shared memory, the kernel and its launch."""
    write_step(writer, program)
    shared_map(writer, program, [v.knobs for v in variants if isinstance(v.knobs, SlicedK)])
    _kernel(writer, program)
    write_slices(writer, program)


def write_step(writer: Writer, program: TileProgram) -> None:
    """Write what a warp copies per step."""
    writer.line("// What a warp copies per step of the loop.")
    writer.line("template <class Config>")
    with writer.block("struct Step {", "};"), declared(writer, program, member=True):
        writer.line("static constexpr int kDepth = Config::kChunks * tile::kChunkDepth;")
        rows = [
            (f"{typed(FRAGMENTS, s, program)} {s.out};", dims_text(s.type.names))
            for s in program.loads
        ]
        writer.table(rows)
    writer.line()


def _kernel(writer: Writer, program: TileProgram) -> None:
    writer.line("template <class Config>")
    writer.line(f"__global__ void __launch_bounds__({threads(program)}, 1)")
    with (
        writer.block(f"    {program.recipe}(const __grid_constant__ LaunchArgs args) {{"),
        declared(writer, program),
    ):
        write_body(writer, program)
    writer.line()


def write_body(writer: Writer, program: TileProgram) -> None:
    """Write what a block does: up to its loop, the loop, what follows."""
    _prologue(writer, program)
    _loop(writer, program)
    after_loop(writer, program)


def _prologue(writer: Writer, program: TileProgram) -> None:
    roles = program.roles
    where = producer_blocks.NAMESPACE if program.produces else "generated"
    inner = roles.inner if any(s.layout is Layout.INNER for s in program.loads) else ()
    for line in (
        "constexpr int kRows = Config::kRows, kTokens = Config::kTokens, kWarps = Config::kWarps;",
        f"using Step = {where}::Step<Config>;",
        "constexpr int kDepth = Step::kDepth;",
        f"constexpr bool kEvenRows = {roles.rows} % kRows == 0;",
        f"constexpr bool kEvenDepth = {roles.depth} % kDepth == 0;",
        *(f"constexpr bool kEven{dim} = {dim} % tile::kRowTile == 0;" for dim in inner),
        "using Shared = SharedMap<Config>;",
    ):
        writer.line(line)
    producer_blocks.write_start(writer, program)
    if program.received:
        producer_blocks.write_fork(writer, program, "args")
    writer.line()
    _arguments(writer, program)
    writer.line()
    if program.received:
        with writer.block("if (tile::warp_index() == kWarps) {"):
            producer_blocks.write_received(writer, program, "kWarps")
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
    if not program.produces:
        rows += [(result_pointer(o), operand_dims(o, program)) for o in program.results]
    writer.table(rows)
    writer.line(f"const int {roles.tokens} = static_cast<int>(args.dims[0]);")
    used = {a for s in (*program.loop, *program.epilogue) for a in s.args}
    for i, scalar in enumerate(program.scalars):
        if scalar in used or not program.produces:
            writer.line(f"const float {scalar} = args.scalars[{i}];")
    if program.produces:
        return producer_blocks.write_makers_tile(writer, program)
    block = producer_blocks.user(program, "blockIdx.x")
    writer.line(f"const int first_row = {block} * kRows, first_token = blockIdx.y * kTokens;")
    return None


def _fetches(writer: Writer, program: TileProgram) -> None:
    """Write the copies of tiles that the loop does not cut; weights, so as early as weights."""
    writer.line("if (!args.constant_weights) tile::grid_dependency_wait();")
    for s in program.fetches:
        kept_at(writer, s)
        where = f"{s.out}, {s.args[0]}, first_row, {program.roles.rows}"
        writer.line(f"tile::fetch<kThreads>({where});")
    writer.line()


def _loop(writer: Writer, program: TileProgram) -> None:
    in_registers = program.produces and program.stacked
    if in_registers:
        batched_lora.write_loads(writer, program)
    for what in () if in_registers else ("weights", "tokens"):
        head = f"const auto copy_{what} = [&](tile::StageBuffer<Step> buffer, int k) {{"
        with writer.block(head, "};"):
            for s in program.loads:
                if (s.layout is Layout.TOKENS) is (what == "tokens"):
                    cache = "kStream" if s.layout is Layout.ROWS else "kKeep"
                    where = f"buffer, &Step::{s.out}, {s.args[0]}_edge, k"
                    writer.line(f"tile::copy<tile::Cache::{cache}>({where});")
    if program.lines:
        statistics(writer, program)
    given = "const Step& step, int k" if program.also else "const Step& step"
    with writer.block(f"const auto compute = [&]({given}) {{", "};"):
        _compute(writer, program)
    warp, warps, early = producer_blocks.dealt_out(program)
    writer.line(f"const int first_k = {warp} * kDepth;")
    steps = f"first_k, {program.roles.depth}, {warps} * kDepth, {early}"
    writer.line(f"const tile::Steps steps{{{steps}}};")
    if in_registers:
        writer.line(batched_lora.CALL)
    else:
        _pipeline(writer, program)
    if program.fetches and not program.received:
        writer.line("tile::wait_copies<0>();")
    if program.meetings[0].barrier:
        writer.line(barrier(program))
    writer.line()


def _pipeline(writer: Writer, program: TileProgram) -> None:
    call = "tile::pipeline<Config::kStages, Step>(shared + Shared::kStepsAt, steps, "
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
