"""Producer blocks by register-operand wgmma: pairs share a tile and split the depth."""

from __future__ import annotations

from mirage_kernels.generator.emit.after_loop import per_element
from mirage_kernels.generator.emit.names import declared, dims_text
from mirage_kernels.generator.emit.part import Part, lines_of
from mirage_kernels.generator.emit.tma_tiles import PRODUCERS, write_args, write_copies
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.producer_blocks import PAIR
from mirage_kernels.generator.schedules.producer_blocks import writer as producer_blocks
from mirage_kernels.generator.schedules.register_operand.writer import HELD, write_loop

ABOUT = (
    "producer blocks with register operands: pairs that split the depth compute {} for pairs of "
    "consumer blocks"
)


def pairs(users: TileProgram) -> Part:
    """Return the form of producer blocks in pairs, which `users` receive from."""
    (kept,) = users.received
    about, lines = ABOUT.format(kept.args[0]), lines_of(write_producers, users)
    return Part(
        producer_blocks.PAIRS, about, producer_blocks.PAIRED, (producer_blocks.FORM,), lines
    )


def write_producers(writer: Writer, consumers: TileProgram) -> None:
    """Write the arguments of a launch with consumers in pairs, and what producers of it run."""
    makers = consumers.producers
    assert makers is not None
    writer.line("// The arguments of a launch of producer and consumer blocks.")
    write_args(writer, consumers, HELD)
    _plan(writer, makers)
    roles, name = makers.roles, f"{makers.recipe}_produce"
    writer.line("template <class Config>")
    head = f"__device__ void {name}(const RegisterOperandArgs& given, char* shared) {{"
    with writer.block(head), declared(writer, makers):
        _start(writer, makers)
        (met,) = makers.meetings
        accumulator = f"tile::SwappedAccum<Block::kRows> {met.out};"
        writer.table([(accumulator, dims_text(met.type.names))])
        writer.line()
        with writer.block("if (block.is_producer()) {"):
            write_copies(writer, makers, PRODUCERS)
            writer.line("return;")
        write_loop(writer, makers)
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


def _plan(writer: Writer, makers: TileProgram) -> None:
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
