"""Sliced-K as CUDA; producer blocks of an intermediate are written by the same functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirage_kernels.generator.emit import groups, statements
from mirage_kernels.generator.emit.cuda import Part, lines_of
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.plan.arranged import RING
from mirage_kernels.generator.plan.program import Do, Layout, Operand, Statement, TileProgram
from mirage_kernels.generator.schedules import producer_blocks
from mirage_kernels.generator.schedules.row_wise import statistics
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.schedules.sliced_k import Footprint, SlicedK

ABOUT = (
    "sliced-K: each warp of a block streams its own slice of the depth; they add up their sums "
    "after the loop"
)

READ_EARLY = {
    Layout.ACCUM: "tile::early_element<kRows, kTokens, kThreads>",
    Layout.ROW_SUMS: "tile::early_row<kRows, kTokens, kThreads>",
}


def parts(program: TileProgram, variants: Sequence[Variant]) -> list[Part]:
    """Return the form of a kernel whose warps have slices of the depth."""
    beside = (producer_blocks.FORM,) if program.received else ()
    shares = ("tile/sliced_k/store_share.cuh",) if program.also else ()
    received = producer_blocks.includes(replace(program, producers=None))
    knobs = [v.knobs for v in variants if isinstance(v.knobs, SlicedK)]
    lines = lines_of(_write, program, knobs)
    converted = ("tile/sliced_k/eight_bits.cuh",) if program.byte_rows else ()
    includes = (*converted, *shares, *statements.included(program), *received)
    return [Part("sliced_k", ABOUT, includes, beside, lines, describes=True)]


def _write(writer: Writer, program: TileProgram, variants: Sequence[SlicedK]) -> None:
    write_step(writer, program)
    write_map(writer, program, variants)
    threads = f"{statements.THREADS} + tile::kWarpLanes" if program.received else statements.THREADS
    writer.line("template <class Config>")
    writer.line(f"__global__ void __launch_bounds__({threads}, 1)")
    head = f"    {program.recipe}(const __grid_constant__ LaunchArgs args) {{"
    with writer.block(head), statements.declared(writer, program):
        write_body(writer, program)
    writer.line()
    rows, size = statements.given_rows(program), "SharedMap<Config>::kBytes"
    with statements.launch_function(writer, "SlicedK"), statements.declared(writer, program):
        grid = f" = tile::tile_grid<Config>(args.dims[0], {rows}, {size})"
        if program.received:
            grid = "{row_tiles, token_tiles, kThreads + tile::kWarpLanes, kSharedBytes}"
            writer.write(
                producer_blocks.row_tiles(program, f"tile::ceil_div({rows}, Config::kRows)"),
                "const int64_t token_tiles = tile::ceil_div(args.dims[0], Config::kTokens);",
                producer_blocks.shared_bytes(program, size, "kProducerBytes<Config>"),
            )
        writer.line(f"const tile::Grid grid{grid};")
        writer.line(f"return tile::launch({program.recipe}<Config>, grid, args, stream);")
    writer.line()


def write_step(writer: Writer, program: TileProgram) -> None:
    """Write what a warp copies per step."""
    writer.write("// What a warp copies per step of the loop.", "template <class Config>")
    with writer.block("struct Step {", "};"), statements.declared(writer, program, member=True):
        writer.line("static constexpr int kDepth = Config::kChunks * tile::kChunkDepth;")
        if program.byte_rows:
            several = f"{len(program.byte_rows)} * " if len(program.byte_rows) > 1 else ""
            vectors = f"{several}Config::kRows / tile::kLineTile * (Config::kChunks / 2)"
            writer.line(f"static constexpr int kByteVectors = {vectors};  // the first ones")
        ordered = sorted(program.loads, key=lambda s: s not in program.byte_rows)
        fragments = ((f"{statements.fragment(s, program)} {s.out};", s) for s in ordered)
        writer.table(statements.rows_of(fragments))
    writer.line()


def write_map(writer: Writer, program: TileProgram, variants: Sequence[SlicedK]) -> None:
    """Write the map of shared memory without numbers: the same for all variants."""
    early = (*program.fetches, *program.statistics, *program.group_reads)
    late = (*program.reductions, *program.kept, *program.products)
    if program.received:
        early = (*program.fetches, *program.received, *program.products)
        late = program.reductions
    writer.write(
        "// Shared memory in bytes: the pipeline's stages, and after the loop the partial sums.",
        "template <class Config>",
    )
    with (
        writer.block("struct SharedMap {", "};"),
        statements.declared(writer, program, member=True),
    ):
        types = {
            s.out: statements.typed(statements.REDUCTIONS, s, program) for s in program.reductions
        }
        for s in (*program.fetches, *program.kept, *program.received, *program.products):
            types[s.out] = statements.kept_type(s, program)
        types |= {s.out: "TokenTable<Config::kTokens>" for s in program.statistics}
        for s in program.group_reads:
            types[s.out] = groups.type_text(s, program, program.roles.depth)
        writer.write(
            "using Steps = tile::StageBuffers<Step<Config>, Config::kStages, Config::kWarps>;",
            *(
                f"using {statements.camel(name)} = tile::{type_.removeprefix('tile::')};"
                for name, type_ in types.items()
            ),
        )
        below = _below(program, variants)
        rows = [
            *((_offset(s.out, below), "from the start") for s in early),
            (_offset(RING, below), "during the loop"),
            *((_offset(s.out, below), "after the loop") for s in late),
        ]
        writer.table([(f"static constexpr int {text};", when) for text, when in rows])
        ring, last = _end(RING, below), _end(list(below)[-1], below)
        writer.write(
            f"static constexpr int kPartialsBytes = {last};",
            f"static constexpr int kBytes = tile::larger({ring}, kPartialsBytes);",
        )
    writer.line()


def _below(program: TileProgram, variants: Sequence[SlicedK]) -> dict[str, tuple[str, ...]]:
    """Return what each buffer lies on, bottom first."""
    footprint = Footprint.of(program)
    maps = [dict(footprint.arrangement(knobs).below) for knobs in variants]
    if any(m != maps[0] or max(map(len, m.values())) > 1 for m in maps):
        raise PlanError(f"{program.recipe}: its variants arrange shared memory differently")
    return maps[0]


def _offset(name: str, below: Mapping[str, tuple[str, ...]]) -> str:
    start = " + ".join(_end(under, below) for under in below[name]) or "0"
    return f"k{statements.camel(name)}At = {start}"


def _end(name: str, below: Mapping[str, tuple[str, ...]]) -> str:
    buffer, begins_at_0 = statements.camel(name), name == RING and not below[name]
    return f"{buffer}::kBytes" if begins_at_0 else f"k{buffer}At + {buffer}::kBytes"


def write_body(writer: Writer, program: TileProgram) -> None:
    """Write what a block does: up to its loop, the loop, what follows."""
    roles = program.roles
    inner = roles.inner if any(s.layout is Layout.INNER for s in program.loads) else ()
    where = producer_blocks.NAMESPACE if program.produces else "generated"
    writer.write(
        "constexpr int kRows = Config::kRows, kTokens = Config::kTokens, kWarps = Config::kWarps;",
        f"using Step = {where}::Step<Config>;",
        "constexpr int kDepth = Step::kDepth;",
        f"constexpr bool kEvenRows = {_are_even(program)};",
        f"constexpr bool kEvenDepth = {roles.depth} % kDepth == 0;",
        *(f"constexpr bool kEven{dim} = {dim} % tile::kRowTile == 0;" for dim in inner),
        "using Shared = SharedMap<Config>;",
    )
    if not program.produces:
        writer.write("extern __shared__ __align__(16) char shared[];", "tile::launch_dependents();")
    writer.write(*producer_blocks.fork(program), "")
    _before_loop(writer, program)
    _loop(writer, program)
    _after_loop(writer, program)


def _are_even(program: TileProgram) -> str:
    """Return whether tiles leave no rest of rows."""
    parts = f"{statements.row_parts(program)}::even(kRows)"
    return parts if program.row_parts else f"{program.roles.rows} % kRows == 0"


def _before_loop(writer: Writer, program: TileProgram) -> None:
    writer.write(*statements.own_part(program, "blockIdx.x", "kRows"))
    statements.operands(writer, program.inputs, program)
    used = (*program.loop, *program.epilogue) if program.produces else None
    writer.write(statements.number_of_tokens(program), *statements.scalars(program, used))
    if program.produces:
        writer.write(*producer_blocks.producer_tile(program))
    else:
        tile = statements.tile_of(program, producer_blocks.block_index(program))
        writer.line(f"const int first_row = {tile} * kRows, first_token = blockIdx.y * kTokens;")
    writer.line()
    if program.received:
        with writer.block("if (tile::warp_index() == kWarps) {"):
            writer.write(*producer_blocks.receive(program, "kWarps"))
    by_name = {o.name: o for o in program.inputs}
    writer.write(*(_edge(s, by_name[s.args[0]], program) for s in program.loads), "")
    sums = (
        (f"{statements.typed(statements.ACCUMULATORS, s, program)} {s.out};", s)
        for s in program.accumulators
    )
    writer.table(statements.rows_of(sums))
    writer.line()
    for s in program.group_reads:
        place = statements.shared_at(s)
        writer.line(f"const typename Shared::{statements.camel(s.out)} {s.out}_groups{{{place}}};")
    if program.fetches and not program.received:
        writer.write(*statements.fetches(program, "kThreads"), "")


def _edge(s: Statement, operand: Operand, program: TileProgram) -> str:
    """Return the line that says where a load's tile begins and where its tensor ends."""
    roles, name = program.roles, operand.name
    left, inner = f"const auto {name}_edge =", roles.inner_of(s.type)
    if s.layout is Layout.DEPTH:
        edge = "optional_edge" if operand.optional else "depth_edge<kEvenDepth>"
        return f"{left} tile::{edge}({name}, {roles.depth});"
    if s.layout is Layout.TOKENS:
        stride = f"args.row_strides[{operand.index}]"
        if program.produces and program.stacked:
            where = f"{stride}, group, first_token, {roles.depth}"
            return f"{left} tile::gathered_line<kEvenDepth>({name}, {where});"
        where = f"{stride}, {{first_token, {roles.tokens}, {roles.depth}}}"
        return f"{left} tile::lane_edge<Step, kEvenDepth>({name}, {where});"
    even, first = "kEvenRows", f"first_row, {statements.all_rows(program)}"
    if inner is not None:
        even, first = f"kEven{inner.name}", f"0, {inner.name}"
    where = f"tile::Static<{roles.depth}>{{}}, {{{first}, {roles.depth}}}"
    return f"{left} tile::edge<{even}, kEvenDepth>({name}, {where});"


def _loop(writer: Writer, program: TileProgram) -> None:
    if program.produces and program.stacked:
        with writer.block("const auto load = [&](Step& step, int k) {", "};"):
            loads = ((s.out, s.args[0]) for s in program.loads)
            writer.write(*(f"tile::load(step.{out}, {name}_edge, k);" for out, name in loads))
        run = "tile::load_and_compute<Config::kStages, Step>(steps, load, compute);"
    else:
        for what in ("weights", "tokens"):
            head = f"const auto copy_{what} = [&](tile::StageBuffer<Step> buffer, int k) {{"
            with writer.block(head, "};"):
                for s in program.loads:
                    if (s.layout is Layout.TOKENS) is (what == "tokens"):
                        cache = "kStream" if s.layout is Layout.ROWS else "kKeep"
                        where = f"buffer, &Step::{s.out}, {s.args[0]}_edge, k"
                        writer.line(f"tile::copy<tile::Cache::{cache}>({where});")
        run = "tile::pipeline<Config::kStages, Step>(shared + Shared::kStepsAt, steps, "
        early = _early(program) or program.group_reads
        before = "statistics, " if program.lines else "early, " if early else ""
        run += f"copy_weights, copy_tokens, {before}compute);"
    if program.lines:
        statistics(writer, program)
    given = "const Step& step" + ", int k" * bool(program.also or program.group_reads)
    with writer.block(f"const auto compute = [&]({given}) {{", "};"):
        loaded = {s.out for s in program.loads if s not in program.byte_rows}
        rows = [(f"const auto {s.out} = {_converted(s, program)};", s) for s in program.byte_rows]
        rows += [
            (f"const auto {s.out} = tile::step_groups<kDepth>({s.out}_groups, k);", s)
            for s in program.group_reads
        ]
        said = {*program.loads, *program.group_reads}
        for s in (s for s in program.loop if s not in said):
            args = [f"step.{a}" if a in loaded else a for a in s.args]
            if s.do is Do.STORE:  # what all blocks of these tokens compute, by one of them
                extent = f"{{first_token, {program.roles.tokens}, {program.roles.depth}}}"
                call = f"tile::store_share<kEvenDepth>({s.args[1]}, {extent}, {s.args[0]}, k);"
            rows.append((call if s.do is Do.STORE else statements.IN_LOOP[s.do](s, args), s))
        writer.table(statements.rows_of(rows))
    writer.write(*producer_blocks.steps(program))
    _read_early(writer, program)
    writer.line(run)
    if program.fetches and not program.received:
        writer.line("tile::wait_copies<0>();")
    if program.reductions[0].barrier:
        writer.line(statements.barrier(program))
    writer.line()


def _converted(s: Statement, program: TileProgram) -> str:
    """Return the call that converts a step's rows of 8 bits."""
    return f"tile::converted<{groups.converted_type(s, program)}>(step.{s.out})"


def _after_loop(writer: Writer, program: TileProgram) -> None:
    """Write where sums meet, what is kept of them and multiplied, and the epilogue."""
    own = "own" if program.stacked and program.produces else "parts"
    for i, s in enumerate(program.reductions):
        if s.barrier and i > 0:
            writer.line(statements.barrier(program))
        met = f"tile::store_partials<kWarps>({statements.shared_at(s)}, {s.args[0]})"
        writer.line(f"const auto {s.out}_{own} = {met};")
    if program.received:
        writer.write(producer_blocks.received("kWarps"), "")
    for stage in program.stages:
        _wait(writer, stage.statements[0], program)
        kept = [s for s in stage.statements if s.do is Do.KEEP]
        writer.write(*statements.stage_tile(program, stage.dim, kept))
        call = f"tile::for_each_element<{statements.own_lines(stage.dim)}, kTokens, kThreads>"
        tile = f"{stage.dim.lower()}_tile"
        with writer.block(f"{call}({tile}, [&](tile::Element e) {{", "});"):
            statements.per_element(writer, stage.statements, program)
    for s, line in zip(program.products, statements.late_products(program, "kWarps"), strict=True):
        if s.barrier:
            _wait(writer, s, program)
        writer.line(line)
    if not program.received:
        _wait(writer, program.epilogue[0], program)
    if not _early(program):
        writer.line(statements.output_tile(program))
    call = "tile::for_each_element<kRows, kTokens, kThreads>(out_tile"
    if program.produces:
        lines, call = producer_blocks.publish(program)
        writer.write(*lines)
    with writer.block(f"{call}, [&](tile::Element e) {{", "});"):
        statements.per_element(writer, program.epilogue, program, _early(program))


def _early(program: TileProgram) -> list[Statement]:
    """Return what the epilogue reads of inputs if the block has no other work before its loop."""
    busy = program.lines or program.received or program.produces
    return [] if busy else statements.early_reads(program)


def _read_early(writer: Writer, program: TileProgram) -> None:
    """Write what asks for that while the first copies are under way."""
    early, reads = _early(program), program.group_reads
    if not (early or reads):
        return
    if early:
        writer.line(statements.output_tile(program))
    for s in early:
        read = f"{READ_EARLY[s.layout]}(out_tile, {statements.tensor_of(s, program)})"
        writer.line(f"auto {s.out}_early = {read};")
    for s in reads:
        writer.line(groups.copy_line(s, program, "kThreads"))
    asked = [f"{s.out}_early.ask();" for s in early]
    if reads:
        groups.write_work(writer, reads, "__syncthreads();", asked)
        return
    head, end = "const auto early = tile::behind_copies([&] {", "});"
    if len(asked) == 1:  # as clang-format has it
        writer.line(f"{head} {asked[0]} {end}")
    else:
        with writer.block(head, end):
            writer.write(*asked)


def _wait(writer: Writer, then: Statement, program: TileProgram) -> None:
    """Write the barrier before a statement that begins a part of the block's life."""
    writer.write(*([statements.barrier(program)] if then.barrier else []), "")
