"""Producer blocks by register-operand wgmma: pairs share a tile and split the depth."""

from __future__ import annotations

from mirage_kernels.generator.emit.after_loop import per_element
from mirage_kernels.generator.emit.names import declared, dims_text
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.plan.program import Do, Layout, Statement, TileProgram
from mirage_kernels.generator.schedules.producer_blocks import PAIR

INCLUDES = ("tile/producer_blocks/register_operand.cuh",)
MAPS = "CUtensorMap producer_maps[2];"


def write_makers(writer: Writer, users: TileProgram, makers: TileProgram) -> None:
    """Write what the makers run that share a tile in pairs, blocks of the plan of held tokens."""
    _plan(writer, users, makers)
    roles = makers.roles
    writer.line("template <class Config>")
    head = f"__device__ void {name(makers)}(const RegisterOperandArgs& given, char* shared) {{"
    with writer.block(head), declared(writer, makers):
        _start(writer, makers)
        (met,) = makers.meetings
        accumulator = f"tile::SwappedAccum<Block::kRows> {met.out};"
        writer.table([(accumulator, dims_text(met.type.names))])
        writer.line()
        with writer.block("if (block.is_producer()) {"):
            _copies(writer)
        _loop(writer, makers)
        writer.line("tile::end_loop(block);")
        writer.line()
        writer.assignment(
            f"auto {met.out}_parts = tile::store_partials(block, shared, 0, {met.out});"
        )
        writer.line("tile::sync_workers(block);")
        writer.assignment(f"tile::add_partials(block, shared, 0, {met.out}_parts);")
        writer.line()
        tile = f"{{first_row, {roles.rows}, first_token, {roles.tokens}}}"
        writer.line(f"const tile::OutputTile out_tile{tile};")
        writer.line("char* const lines = shared + tile::RegisterOperandReduction<Block>::kBytes;")
        call = "tile::produce_register_operand(block, producers, lines, out_tile"
        (*computed, stored) = makers.epilogue
        with writer.block(f"{call}, [&](tile::OwnedElement e) {{", "});"):
            per_element(writer, computed, makers)
            writer.line(f"return {stored.args[0]};")
    writer.line()


def name(makers: TileProgram) -> str:
    """Return the name of the function that such makers run."""
    return f"{makers.recipe}_produce"


def makers_bytes(users: TileProgram) -> str:
    """Return the shared memory that makers take beside users that hold tokens."""
    return "kPairBytes<Config>"


def write_maps(writer: Writer, users: TileProgram, makers: TileProgram) -> None:
    """Write the maps of what such makers read, boxes of their own size; tokens have a tensor."""
    tokens, rows = _boxes(makers)
    operands = {o.name: o for o in makers.inputs}
    index, roles = operands[rows.args[0]].index, makers.roles
    writer.line("using Producers = ProducersBlock<Config>;")
    lines = "tile::token_lines<Producers>(args.dims[0])"
    call = f"tile::encode<T>(&given.producer_maps[0], {tokens.args[0]}, {lines});"
    writer.assignment(f"status = {call}")
    writer.line("if (status != cudaSuccess) return status;")
    tensor = f"{{args.inputs[{index}], {roles.rows}, {roles.depth}, {roles.depth}}}"
    writer.line(f"const tile::Tensor {rows.args[0]}{tensor};")
    call = f"tile::encode<T>(&given.producer_maps[1], {rows.args[0]}, Producers::kRows);"
    writer.assignment(f"status = {call}")
    writer.line("if (status != cudaSuccess) return status;")


def _boxes(makers: TileProgram) -> tuple[Statement, Statement]:
    (tokens,) = (s for s in makers.loads if s.layout is Layout.TOKENS)
    (rows,) = (s for s in makers.loads if s.layout is Layout.ROWS)
    return tokens, rows


def _plan(writer: Writer, users: TileProgram, makers: TileProgram) -> None:
    writer.line("// Producers share a tile in pairs, too, and split the depth.")
    writer.line("template <class Consumers>")
    with writer.block("struct ProducersPlan {", "};"):
        writer.line("using Element = typename Consumers::T;")
        rows = f"kRows = {PAIR} * Consumers::kProducerRows, kTokens = Consumers::kProducerTokens"
        writer.line(f"static constexpr int {rows};")
        ring = "kStages = Consumers::kProducerStages, kGroups = Consumers::kProducerGroups"
        writer.line(f"static constexpr int {ring};")
        writer.line(f"static constexpr int kBlocks = {PAIR};")
        writer.line(
            f"static constexpr int kDepth = Consumers::{makers.roles.depth}, kRowTensors = 1;"
        )
        writer.line("static constexpr int kProducts = 1, kInner = 0, kExtraBytes = 0;")
    writer.line("template <class Consumers>")
    writer.line("using ProducersBlock = tile::RegisterOperandBlock<ProducersPlan<Consumers>>;")
    writer.line()
    writer.line("template <class Config>")
    size = "ProducersBlock<Config>::kBytes + ProducerBlocks<Config>::kTagBytes"
    writer.line(f"constexpr int kPairBytes = {size};")
    writer.line()


def _start(writer: Writer, makers: TileProgram) -> None:
    used = {a for s in makers.epilogue for a in s.args}
    writer.line("using Block = ProducersBlock<Config>;")
    writer.line("const LaunchArgs& args = given.call;")
    writer.line(f"const int {makers.roles.tokens} = static_cast<int>(args.dims[0]);")
    for i, scalar in enumerate(makers.scalars):
        if scalar in used:
            writer.line(f"const float {scalar} = args.scalars[{i}];")
    for line in (
        "const ProducerBlocks<Config> producers(args);",
        "const int first_row = producers.first_row(), first_token = producers.first_token();",
        "const int tile_row = first_row / Block::kRows * Block::kRows;",
        "if (tile::warp_index() > Block::kWarps) return;",
        f"const Block block{{shared, tile::token_lines<Block>({makers.roles.tokens})}};",
        "if (threadIdx.x == 0) producers.tag(shared + Block::kBytes) = tile::new_tag();",
        "block.begin();",
        "",
    ):
        writer.line(line)


def _copies(writer: Writer) -> None:
    for line in (
        "const auto prefetch_weights = [&](int k) {",
        "  tile::prefetch_tile(given.producer_maps[1], tile_row, k);",
        "};",
        "const auto copy_weights = [&](const auto& buffer, int k) {",
        "  tile::copy_tile(buffer.rows(0), given.producer_maps[1], tile_row, k, buffer.full);",
        "};",
        "const auto copy_tokens = [&](const auto& buffer, int k) {",
        "  tile::copy_tile(buffer.tokens(), given.producer_maps[0], first_token, k, buffer.full);",
        "};",
        "block.copy(args.constant_weights, prefetch_weights, copy_weights, copy_tokens);",
        "return;",
    ):
        writer.line(line)


def _loop(writer: Writer, makers: TileProgram) -> None:
    with writer.block("tile::multiply_register_operand(block, [&](const auto& step) {", "});"):
        lines = []
        for s in makers.loop:
            read = "step.rows(0)" if s.layout is Layout.ROWS else "step.tokens()"
            text = f"const auto {s.out} = {read};"
            if s.do is Do.CONTRACT:
                text = f"tile::contract({s.out}, {', '.join(s.args)});"
            lines.append((text, dims_text(s.type.names)))
        writer.table(lines)
