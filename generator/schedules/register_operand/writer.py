"""Register-operand wgmma as CUDA, over csrc/tile/register_operand."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_kernels.generator.emit import statements
from mirage_kernels.generator.emit.cuda import Part, lines_of
from mirage_kernels.generator.emit.statements import (
    camel,
    declared,
    kept_type,
    own_lines,
    shared_at,
)
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.plan.program import Do, Layout, Statement, TileProgram
from mirage_kernels.generator.schedules import producer_blocks, tma
from mirage_kernels.generator.schedules.register_operand.areas import beside, in_place, late
from mirage_kernels.generator.schedules.schedule import Variant

INCLUDES = ("tile/register_operand/reduce.cuh",)
ABOUT = (
    "register-operand wgmma: tokens are the A operand in registers, weights are read from shared "
    "memory"
)
PLAN = tma.TmaPlan(
    "register_operand",
    "Block::kBlocks",
    "Block::rank() * Block::kOwnRows",
    cluster="Block::kBlocks",
)
SYNC = "tile::sync_workers(block);"
BEGIN = (f"const Block block{{shared, {tma.TOKEN_LINES}}};", "block.begin();", "")


def parts(program: TileProgram, variants: Sequence[Variant]) -> list[Part]:
    """Return the form of a kernel with tokens in registers."""
    paired = (producer_blocks.PAIRS,) if program.producers else ()
    beside = (producer_blocks.FORM, *paired) if program.received else ()
    includes = (*INCLUDES, *statements.included(program), *producer_blocks.includes(program))
    return [Part(PLAN.name, ABOUT, includes, beside, lines_of(_write, program))]


def _write(writer: Writer, program: TileProgram) -> None:
    """Write the plan's constants, its map of shared memory, the kernel and its launch."""
    _plan(writer, program)
    _map(writer, program)
    own, beside = "RegisterOperandBlock<Config>::kThreads", "kRegisterOperandThreads<Config>"
    threads = beside if program.received else own
    writer.write("template <class Config>", f"__global__ void __launch_bounds__({threads}, 1)")
    given = f"const __grid_constant__ {tma.args_type(program, PLAN)} given"
    head = f"    {program.recipe}_register_operand({given}) {{"
    with writer.block(head), declared(writer, program):
        _kernel(writer, program)
    writer.line()
    tma.write_launch(writer, program, PLAN)


def receivers(program: TileProgram) -> str:
    """Return how many warps of a consumer receive, where they are several."""
    return producer_blocks.RECEIVING if producer_blocks.in_launch(program) else ""


def _plan(writer: Writer, program: TileProgram) -> None:
    if beside(program) or program.kept or program.products:
        own = "constexpr int kOwn = Config::kRows / Config::kBlocks;"
        writer.write("template <class Config>", f"{own}  // rows that a block finishes", "")
    writer.write(
        "// Many tokens: they are the A operand of wgmma, in registers.", "template <class Config>"
    )
    members = declared(writer, program, member=True)
    with writer.block("struct RegisterOperandPlan : Config {", "};"), members:
        rows, depth = len(tma.row_tensors(program)), program.roles.depth
        products, token_sums = (
            len(tma.reductions(program, layout)) for layout in (Layout.ACCUM, Layout.TOKEN_SUMS)
        )
        writer.write(
            "using Element = typename Config::T;",
            f"static constexpr int kDepth = Config::{depth}, kRowTensors = {rows};",
            f"static constexpr int kProducts = {products};",
        )
        if (count := len(tma.vectors(program))) or token_sums:
            writer.line(f"static constexpr int kVectors = {count}, kTokenSums = {token_sums};")
        whole = () if program.received else program.roles.inner
        writer.line(f"static constexpr int kInner = {' + '.join(map(own_lines, whole)) or '0'};")
        extra = [f"tile::{_kept_type(s, program)}::kBytes" for s in beside(program)]
        _extra_bytes(writer, extra or ["0"])
    writer.write(
        "template <class Config>",
        "using RegisterOperandBlock = tile::RegisterOperandBlock<RegisterOperandPlan<Config>>;",
    )
    if program.received:
        more = " * ".join(filter(None, (receivers(program), "tile::kWarpLanes")))
        threads = f"RegisterOperandBlock<Config>::kThreads + {more}"
        writer.write(
            "template <class Config>", f"constexpr int kRegisterOperandThreads = {threads};"
        )
    writer.line()


def _extra_bytes(writer: Writer, terms: Sequence[str]) -> None:
    """Write the bytes kept beside the ring, many terms below one another as clang-format does."""
    left = "static constexpr int kExtraBytes ="
    if len(terms) < 3:
        return writer.line(f"{left} {' + '.join(terms)};")
    ended = [f"{term} +" for term in terms[:-1]] + [f"{terms[-1]};"]
    if max(map(len, ended)) + len(left) + 1 > writer.room:
        return writer.write(left, *(f"    {term}" for term in ended))
    indent = " " * (len(left) + 1)
    return writer.write(f"{left} {ended[0]}", *(indent + term for term in ended[1:]))


def _map(writer: Writer, program: TileProgram) -> None:
    writer.write(
        "// Shared memory beside the pipeline, and in its place after the loop.",
        "template <class Config>",
    )
    types = {s.out: "RegisterOperandReduction<Block>" for s in in_place(program)}
    for s in tma.reductions(program, Layout.INNER_ACCUM):
        lines = statements.inner_lines(s, program)
        types[s.out] = f"AccumPartials<{lines}, Block::kTokens, Block::kGroups>"
    for s in (*program.fetches, *program.kept, *program.received, *program.products):
        types[s.out] = _kept_type(s, program)
    with writer.block("struct RegisterOperandMap {", "};"), declared(writer, program, member=True):
        writer.write(
            "using Block = RegisterOperandBlock<Config>;",
            *(f"using {camel(name)} = tile::{type_};" for name, type_ in types.items()),
            "using Staging = tile::RegisterOperandStaging<Block>;",
        )
        _offsets(writer, "Block::kPipelineBytes", [camel(s.out) for s in beside(program)])
        met = [camel(s.out) for s in (*in_place(program), *late(program))]
        end = _offsets(writer, "0", [*met, "Staging"])
        writer.line(f"static_assert({end} <= Block::kPipelineBytes);")
    writer.line()


def _offsets(writer: Writer, at: str, names: Sequence[str]) -> str:
    """Write where values lie, one behind the other; return where the last one ends."""
    for name in names:
        writer.line(f"static constexpr int k{name}At = {at};")
        at = f"k{name}At + {name}::kBytes"
    return at


def _kept_type(s: Statement, program: TileProgram) -> str:
    """Return the type of what is kept for the rows that a block finishes."""
    return kept_type(s, program).replace("Config::kRows", "kOwn<Config>")


def _kernel(writer: Writer, program: TileProgram) -> None:
    writer.write(
        "using Block = RegisterOperandBlock<Config>;",
        "using Shared = RegisterOperandMap<Config>;",
        *tma.OPENING,
    )
    if program.received:
        writer.write(*producer_blocks.fork(program, paired=True), "")
    else:
        writer.write(*BEGIN)
    tma.write_operands(writer, program, PLAN)
    if program.received:
        with writer.block("if (tile::warp_index() > Block::kWarps) {"):
            received = producer_blocks.receive(program, "Block::kWarps", receivers(program))
            writer.write("Block::sync_cluster();", *received)
        writer.write(*BEGIN)
    sums = []
    for s in program.accumulators:
        lines = statements.inner_lines(s, program, "Block::kRows")
        partial = s.layout is Layout.TOKEN_SUMS
        type_ = "TokenPartial<tile::kRowTile>" if partial else f"SwappedAccum<{lines}>"
        sums.append((f"tile::{type_} {s.out};", s))
    writer.table(statements.rows_of(sums))
    writer.line()
    tma.write_copies(writer, program, PLAN)
    fetched = program.fetches and not program.received
    if fetched:
        writer.write(*statements.fetches(program, "Block::kWorkers"), "tile::commit_copies();")
    write_loop(writer, program)
    writer.write(*(["tile::wait_copies<0>();"] if fetched else []), "tile::end_loop(block);", "")
    _after_loop(writer, program)


def write_loop(writer: Writer, program: TileProgram) -> None:
    """Write a pass of the loop, statement by statement."""
    with writer.block("tile::multiply_register_operand(block, [&](const auto& step) {", "});"):
        lines = [(f"const auto {s.out} = step.{_read(s, program)};", s) for s in program.loads]
        computed = [s for s in program.loop if s.do is not Do.LOAD]
        writer.table(
            statements.rows_of(
                [*lines, *((statements.IN_LOOP[s.do](s, s.args), s) for s in computed)]
            )
        )


def _read(s: Statement, program: TileProgram) -> str:
    if s.layout is Layout.DEPTH:
        return f"vector({tma.vectors(program).index(s)})"
    if s.layout is Layout.ROWS:
        kind = "columns" if s.out in program.columns else "rows"
        return f"{kind}({tma.row_tensors(program).index(s.out)})"
    return "inner()" if s.layout is Layout.INNER else "tokens()"


def _after_loop(writer: Writer, program: TileProgram) -> None:
    products, inside = tma.reductions(program, Layout.ACCUM), in_place(program)
    for i, s in enumerate(tma.reductions(program, Layout.TOKEN_SUMS)):
        writer.line(f"const auto {s.out}_parts = tile::store_partials(block, {i}, {s.args[0]});")
    for s in inside:
        left, call, place = "const auto", "meet_whole", shared_at(s)
        if s in products:
            left, call, place = "auto", "store_partials", f"{place}, {products.index(s)}"
        writer.line(f"{left} {s.out}_parts = tile::{call}(block, {place}, {s.args[0]});")
    received = producer_blocks.received("Block::kWarps", receivers(program))
    writer.line(received if program.received else SYNC)
    for i, s in enumerate(products):
        writer.line(f"tile::add_partials(block, {shared_at(s)}, {i}, {s.out}_parts);")
    writer.line()
    for stage in program.stages:
        kept, tile = [s for s in stage.statements if s.do is Do.KEEP], f"{stage.dim.lower()}_tile"
        writer.write(*statements.stage_tile(program, stage.dim, kept))
        with writer.block(f"const auto keep_{tile} = [&](tile::Element e) {{", "};"):
            statements.per_element(writer, stage.statements, program)
        sizes = f"{own_lines(stage.dim)}, Block::kTokens, Block::kWorkers"
        writer.write(f"tile::for_each_element<{sizes}>({tile}, keep_{tile});", SYNC, "")
    writer.write(*statements.late_products(program, "Block::kWarps"))
    if program.products and not program.received:
        writer.write(SYNC, "")
    writer.line(statements.output_tile(program))
    with writer.block("const auto finish = [&](tile::OwnedElement e) {", "};"):
        statements.per_element(writer, program.epilogue, program)
    places = f"block, shared + Shared::kStagingAt, out_tile, {program.output.name}"
    writer.line(f"tile::for_each_owned_row({places}, finish);")
