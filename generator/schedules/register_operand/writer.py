"""Register-operand wgmma as CUDA, over csrc/tile/register_operand."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_kernels.generator.emit.after_loop import per_element, received_products, write_call
from mirage_kernels.generator.emit.names import (
    camel,
    declared,
    dims_text,
    kept_at,
    kept_type,
    own_lines,
    shared_at,
)
from mirage_kernels.generator.emit.part import Part, lines_of
from mirage_kernels.generator.emit.tma_tiles import (
    TOKEN_LINES,
    BoxPlan,
    boxes,
    write_args,
    write_copies,
    write_launch,
    write_operands,
)
from mirage_kernels.generator.emit.writer import WIDTH, Writer
from mirage_kernels.generator.plan.program import Do, Layout, Stage, Statement, TileProgram
from mirage_kernels.generator.schedules.cluster_split_k.writer import IN_LOOP
from mirage_kernels.generator.schedules.producer_blocks import writer as producer_blocks
from mirage_kernels.generator.schedules.schedule import Variant

INCLUDES = ("tile/register_operand/reduce.cuh", "tile/tile.cuh")
ABOUT = (
    "register-operand wgmma: tokens are the A operand in registers, weights are read from shared "
    "memory"
)
HELD = BoxPlan(
    "register_operand",
    "Block::kBlocks",
    "Block::rank() * Block::kOwnRows",
    cluster="Block::kBlocks",
)
LONG_SUM = 3  # terms that no line has room for
_SYNC = "tile::sync_workers(block);"


def parts(program: TileProgram, variants: Sequence[Variant]) -> list[Part]:
    """Return the form of a kernel with tokens in registers."""
    forms = (producer_blocks.FORM, *([producer_blocks.PAIRS] if program.producers else []))
    beside = forms if program.received else ()
    includes = (*INCLUDES, *producer_blocks.includes(program))
    return [Part(HELD.name, ABOUT, includes, beside, lines_of(_write, program))]


def _write(writer: Writer, program: TileProgram) -> None:
    """Write the plan's constants, its map of shared memory, the kernel and its launch."""
    _plan(writer, program)
    if not program.producers:
        write_args(writer, program, HELD)
    _kernel(writer, program)
    write_launch(writer, program, HELD)


def _plan(writer: Writer, program: TileProgram) -> None:
    if _beside(program) or program.kept or program.products:
        writer.line("template <class Config>")
        own = "constexpr int kOwn = Config::kRows / Config::kBlocks;"
        writer.line(f"{own}  // rows that a block finishes")
        writer.line()
    writer.line("// Many tokens: they are the A operand of wgmma, in registers.")
    writer.line("template <class Config>")
    members = declared(writer, program, member=True)
    with writer.block("struct RegisterOperandPlan : Config {", "};"), members:
        writer.line("using Element = typename Config::T;")
        layouts = [s.layout for s in program.loads]
        rows = layouts.count(Layout.ROWS)
        writer.line(
            f"static constexpr int kDepth = Config::{program.roles.depth}, kRowTensors = {rows};"
        )
        writer.line(f"static constexpr int kProducts = {len(_met(program, Layout.ACCUM))};")
        vectors, token_sums = len(_vectors(program)), len(_met(program, Layout.TOKEN_SUMS))
        if vectors or token_sums:
            writer.line(f"static constexpr int kVectors = {vectors}, kTokenSums = {token_sums};")
        whole = () if program.received else program.roles.inner
        inner = " + ".join(own_lines(dim) for dim in whole)
        writer.line(f"static constexpr int kInner = {inner or '0'};")
        beside = [f"tile::{_kept_type(s, program)}::kBytes" for s in _beside(program)]
        _sum(writer, "static constexpr int kExtraBytes = ", beside or ["0"])
    writer.line("template <class Config>")
    writer.line(
        "using RegisterOperandBlock = tile::RegisterOperandBlock<RegisterOperandPlan<Config>>;"
    )
    if program.received:
        writer.line("template <class Config>")
        more = producer_blocks.more_threads(program, "register_operand")
        threads = f"RegisterOperandBlock<Config>::kThreads{more}"
        writer.assignment(f"constexpr int kRegisterOperandThreads = {threads};")
    writer.line()
    _map(writer, program)


def _sum(writer: Writer, left: str, terms: Sequence[str]) -> None:
    """Write a sum, its terms below one another if they are more than a line takes."""
    whole = f"{left}{' + '.join(terms)};"
    if len(terms) < LONG_SUM:
        return writer.assignment(whole)
    ended = [f"{term}{';' if term == terms[-1] else ' +'}" for term in terms]
    if any(len(f"  {left}{line}") > WIDTH for line in ended):
        writer.line(left.rstrip())
        left = " " * 4
    for i, line in enumerate(ended):
        writer.line(f"{left if i == 0 else ' ' * len(left)}{line}")
    return None


def _beside(program: TileProgram) -> tuple[Statement, ...]:
    """Return what is kept beside the ring: tiles of weights, and what other blocks send."""
    if program.received:
        return (*program.fetches, *program.received, *program.products)
    return program.fetches


def _map(writer: Writer, program: TileProgram) -> None:
    writer.line("// Shared memory beside the pipeline, and in its place after the loop.")
    writer.line("template <class Config>")
    with writer.block("struct RegisterOperandMap {", "};"), declared(writer, program, member=True):
        writer.line("using Block = RegisterOperandBlock<Config>;")
        for s in _in_place(program):
            writer.assignment(f"using {camel(s.out)} = tile::{_meeting(s, program)};")
        for s in (*program.fetches, *program.kept, *program.received, *program.products):
            writer.assignment(f"using {camel(s.out)} = tile::{_kept_type(s, program)};")
        writer.line("using Staging = tile::RegisterOperandStaging<Block>;")
        at = "Block::kPipelineBytes"
        for s in _beside(program):
            writer.assignment(f"static constexpr int k{camel(s.out)}At = {at};")
            at = f"k{camel(s.out)}At + {camel(s.out)}::kBytes"
        products = () if program.received else program.products
        late = [camel(s.out) for s in (*_in_place(program), *program.kept, *products)]
        at = "0"
        for name in (*late, "Staging"):
            writer.assignment(f"static constexpr int k{name}At = {at};")
            at = f"k{name}At + {name}::kBytes"
        writer.line(f"static_assert({at} <= Block::kPipelineBytes);")
    writer.line()


def _met(program: TileProgram, layout: Layout) -> list[Statement]:
    """Return what meets after the loop, of one kind."""
    return [s for s in program.meetings if s.layout is layout]


def _in_place(program: TileProgram) -> list[Statement]:
    """Return what meets where the ring was: all but sums of tokens alone, which lie beside it."""
    return [s for s in program.meetings if s.layout is not Layout.TOKEN_SUMS]


def _vectors(program: TileProgram) -> list[Statement]:
    return [s for s in program.loads if s.layout is Layout.DEPTH]


def _kept_type(s: Statement, program: TileProgram) -> str:
    """Return the type of what is kept for the rows that a block finishes."""
    return kept_type(s, program).replace("Config::kRows", "kOwn<Config>")


def _meeting(s: Statement, program: TileProgram) -> str:
    if s.layout is not Layout.INNER_ACCUM:
        return "RegisterOperandReduction<Block>"
    inner = program.roles.inner_of(s.type)
    assert inner is not None
    return f"AccumPartials<{own_lines(inner.name)}, Block::kTokens, Block::kGroups>"


def _kernel(writer: Writer, program: TileProgram) -> None:
    writer.line("template <class Config>")
    threads = (
        "kRegisterOperandThreads<Config>"
        if program.received
        else "RegisterOperandBlock<Config>::kThreads"
    )
    writer.line(f"__global__ void __launch_bounds__({threads}, 1)")
    name = f"{program.recipe}_register_operand"
    head = f"    {name}(const __grid_constant__ RegisterOperandArgs given) {{"
    with writer.block(head), declared(writer, program):
        for line in (
            "using Block = RegisterOperandBlock<Config>;",
            "using Shared = RegisterOperandMap<Config>;",
            "extern __shared__ __align__(tile::kSwizzleAtomBytes) char stages[];",
            "char* const shared = stages;",
            "tile::launch_dependents();",
        ):
            writer.line(line)
        if program.received:
            producer_blocks.write_fork(writer, program, "given.call")
            writer.line()
        else:
            _begin(writer)
        write_operands(writer, program, HELD)
        if program.received:
            with writer.block("if (tile::warp_index() > Block::kWarps) {"):
                writer.line("Block::sync_cluster();")
                producer_blocks.write_received(writer, program, "Block::kWarps", "register_operand")
            _begin(writer)
        sums = [
            (f"tile::{_sums(s, program)} {s.out};", dims_text(s.type.names))
            for s in program.accumulators
        ]
        writer.table(sums)
        writer.line()
        with writer.block("if (block.is_producer()) {"):
            _copies(writer, program)
            writer.line("return;")
        if program.fetches and not program.received:
            _fetches(writer, program)
        write_loop(writer, program)
        _after(writer, program)
    writer.line()


def _begin(writer: Writer) -> None:
    writer.line(f"const Block block{{shared, {TOKEN_LINES}}};")
    writer.line("block.begin();")
    writer.line()


def _sums(s: Statement, program: TileProgram) -> str:
    """Return the type of what a lane adds up in the loop."""
    if s.layout is Layout.TOKEN_SUMS:
        return "TokenPartial<tile::kRowTile>"
    inner = program.roles.inner_of(s.type)
    return f"SwappedAccum<{own_lines(inner.name) if inner else 'Block::kRows'}>"


def _copies(writer: Writer, program: TileProgram) -> None:
    """Write what the copier does."""
    copies = [f"block.copy_vector({i}, {s.args[0]});" for i, s in enumerate(_vectors(program))]
    if not copies:
        return write_copies(writer, program, HELD)
    head = "const auto copy_vectors = [&] {"
    if len(copies) == 1:
        writer.line(f"{head} {copies[0]} }};")
    else:
        with writer.block(head, "};"):
            for line in copies:
                writer.line(line)
    return write_copies(writer, program, HELD, ("copy_vectors",))


def _fetches(writer: Writer, program: TileProgram) -> None:
    """Write the copies of tiles that the loop does not cut; weights, so as early as weights."""
    writer.line("if (!args.constant_weights) tile::grid_dependency_wait();")
    for s in program.fetches:
        kept_at(writer, s)
        where = f"{s.out}, {s.args[0]}, first_row, {program.roles.rows}"
        writer.line(f"tile::fetch<Block::kWorkers>({where});")
    writer.line("tile::commit_copies();")


def write_loop(writer: Writer, program: TileProgram) -> None:
    """Write a pass of the loop, statement by statement."""
    with writer.block("tile::multiply_register_operand(block, [&](const auto& step) {", "});"):
        rows = [s for s in boxes(program) if s.layout is Layout.ROWS]
        lines = [(f"const auto {s.out} = {_read(s, rows, program)};", s) for s in program.loads]
        computed = [s for s in program.loop if s.do is not Do.LOAD]
        lines += [(IN_LOOP[s.do](s, s.args), s) for s in computed]
        writer.table([(text, dims_text(s.type.names)) for text, s in lines])


def _read(s: Statement, rows: list[Statement], program: TileProgram) -> str:
    if s.layout is Layout.DEPTH:
        return f"step.vector({_vectors(program).index(s)})"
    if s.layout is Layout.INNER:
        return "step.inner()"
    return f"step.rows({rows.index(s)})" if s in rows else "step.tokens()"


def _after(writer: Writer, program: TileProgram) -> None:
    if program.fetches and not program.received:
        writer.line("tile::wait_copies<0>();")
    writer.line("tile::end_loop(block);")
    writer.line()
    products = _met(program, Layout.ACCUM)
    for i, s in enumerate(_met(program, Layout.TOKEN_SUMS)):
        writer.assignment(
            f"const auto {s.out}_parts = tile::store_partials(block, {i}, {s.args[0]});"
        )
    for s in _in_place(program):
        whole = s.layout is Layout.INNER_ACCUM
        met = f"tile::meet_whole(block, {shared_at(s)}, {s.args[0]})"
        if not whole:
            met = f"tile::store_partials(block, {shared_at(s)}, {products.index(s)}, {s.args[0]})"
        writer.assignment(f"{'const auto' if whole else 'auto'} {s.out}_parts = {met};")
    writer.line(
        producer_blocks.received(program, "Block::kWarps", "register_operand")
        if program.received
        else _SYNC
    )
    for i, s in enumerate(products):
        writer.assignment(f"tile::add_partials(block, {shared_at(s)}, {i}, {s.out}_parts);")
    writer.line()
    for stage in program.stages:
        _stage(writer, stage, program)
    if program.received:
        received_products(writer, program)
        return _finish(writer, program)
    for s in program.products:
        arguments = f"{shared_at(s)}, {', '.join(s.args)});"
        call = ("tile::contract_resident<Block::kWarps>(", arguments)
        write_call(writer, f"const auto {s.out}_parts =", call)
    if program.products:
        writer.line(_SYNC)
        writer.line()
    return _finish(writer, program)


def _stage(writer: Writer, stage: Stage, program: TileProgram) -> None:
    """Write what runs once per element of [inner, tokens]: totals, kept for products."""
    tile = f"{stage.dim.lower()}_tile"
    kept = [s for s in stage.statements if s.do is Do.KEEP]
    for s in kept:
        kept_at(writer, s)
    extent = f"{{0, {stage.dim}, first_token, {program.roles.tokens}}}"
    writer.line(f"const tile::OutputTile {tile}{extent};")
    sizes = f"{own_lines(stage.dim)}, Block::kTokens, Block::kWorkers"
    with writer.block(f"const auto keep_{tile} = [&](tile::Element e) {{", "};"):
        per_element(writer, stage.statements, program)
    writer.line(f"tile::for_each_element<{sizes}>({tile}, keep_{tile});")
    writer.line(_SYNC)
    writer.line()


def _finish(writer: Writer, program: TileProgram) -> None:
    roles, out = program.roles, program.output.name
    tile = f"{{first_row, {roles.rows}, first_token, {roles.tokens}}}"
    writer.line(f"const tile::OutputTile out_tile{tile};")
    with writer.block("const auto finish = [&](tile::OwnedElement e) {", "};"):
        per_element(writer, program.epilogue, program)
    places = f"block, shared + Shared::kStagingAt, out_tile, {out}"
    writer.line(f"tile::for_each_owned_row({places}, finish);")
