"""The forms of producer blocks: in the consumers' launch, in one before it, in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_kernels.generator.emit import statements
from mirage_kernels.generator.emit.cuda import Part, lines_of
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.batched_lora import PRODUCER_BLOCKS, first_launch
from mirage_kernels.generator.schedules.loop import producers_of
from mirage_kernels.generator.schedules.producer_blocks import (
    FORM,
    NAMESPACE,
    PAIR,
    PAIRED,
    PAIRS,
    includes,
)
from mirage_kernels.generator.schedules.register_operand.writer import PLAN, write_loop
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.schedules.sliced_k import PRODUCER_CHUNKS, SlicedK
from mirage_kernels.generator.schedules.sliced_k.writer import write_body, write_map, write_step
from mirage_kernels.generator.schedules.tma import (
    PRODUCERS,
    vectors,
    write_args,
    write_copies,
)

ABOUT = "producer blocks: the first blocks of a launch compute {} once, for all others"
OF_STACKS = "producer blocks: a first launch computes {}, each token's with its own slice"
IN_PAIRS = (
    "producer blocks with register operands: pairs that split the depth compute {} for pairs of "
    "consumer blocks"
)
CONFIG = "template <class Config>"
WORKSPACE = "int64_t workspace(Config, const LaunchArgs& args) {"
CONSTANTS = ("kRows = Consumers::kProducerRows", "kTokens = Consumers::kProducerTokens")


def producers(consumers: TileProgram, variants: Sequence[Variant]) -> Part:
    """Return the form of producer blocks by sliced-K, which `consumers` receive from."""
    own = includes(replace(consumers, producers=None))
    if consumers.stacked:
        about, lines = OF_STACKS, lines_of(_write_first_launch, consumers)
    else:
        about, lines = ABOUT, lines_of(_write_in_launch, consumers, variants)
    return Part(FORM, about.format(_total(consumers)), (*own, "tile/tile.cuh"), (), lines)


def _total(consumers: TileProgram) -> str:
    (kept,) = consumers.received
    return kept.args[0]


def _write_in_launch(writer: Writer, consumers: TileProgram, variants: Sequence[Variant]) -> None:
    """Write which blocks of the consumers' launch produce, and what they run."""
    program, roles = consumers.producers, consumers.roles
    assert program is not None
    writer.write(
        f"// The first blocks of the grid compute {_total(consumers)} for all others.",
        CONFIG,
        "struct ProducerPlan : Config {",
        "  using Element = typename Config::T;",
        f"  static constexpr int kInner = Config::{roles.inner[0]};",
        "};",
        CONFIG,
        "using ProducerBlocks = tile::ProducerBlocks<ProducerPlan<Config>>;",
        "",
        "template <class Consumers>",
        "struct Producers : Consumers {",
        f"  static constexpr int {CONSTANTS[0]}, {CONSTANTS[1]};",
        "  static constexpr int kWarps = Consumers::kProducerWarps, kChunks = 2;",
        "  static constexpr int kStages = Consumers::kProducerStages;",
        "};",
        "",
        f"namespace {NAMESPACE} {{",
        "",
    )
    write_step(writer, program)
    sliced = (v.knobs for v in variants if isinstance(v.knobs, SlicedK))
    knobs = [k.producer_knobs for k in sliced if k.producers]
    pairs = (producers_of(v.knobs) for v in variants)  # whose arrangement is the same
    alike = [SlicedK(p.tokens, p.rows, 4, PRODUCER_CHUNKS, p.stages) for p in pairs if p]
    write_map(writer, program, knobs or alike)
    writer.line("template <class Consumers>")
    head = f"__device__ void {program.recipe}(const LaunchArgs& args, char* shared) {{"
    with writer.block(head):
        writer.line("using Config = Producers<Consumers>;")
        with statements.declared(writer, program):
            write_body(writer, program)
    size = f"{NAMESPACE}::SharedMap<Producers<Config>>::kBytes"
    size += " + ProducerBlocks<Config>::kTagBytes"
    end = f"}}  // namespace {NAMESPACE}"
    writer.write("", end, "", CONFIG, f"constexpr int kProducerBytes = {size};", "", CONFIG)
    with writer.block(WORKSPACE), statements.declared(writer, consumers):
        blocks = f"{PAIR} * tile::ceil_div({roles.rows}, Config::kRows)"
        writer.line("// Two blocks may share rows, and each is told.")
        writer.line(f"return ProducerBlocks<Config>::bytes(args.dims[0], {blocks});")
    writer.line()


# -- a launch of their own, where each token has slices of stacks ----------------------------------


def _write_first_launch(writer: Writer, consumers: TileProgram) -> None:
    """Write the plan of the first launch, and what its blocks run."""
    program, knobs = consumers.producers, first_launch(consumers)
    assert program is not None
    (inner,), (met,) = consumers.roles.inner, program.reductions
    sizes = f"kRows = {knobs.rows}, kTokens = {knobs.tokens}, kWarps = {knobs.warps}, "
    sizes += f"kChunks = {knobs.chunks}, kStages = {knobs.stages}, kBlocks = {PRODUCER_BLOCKS}"
    writer.write(
        f"// A first launch computes {_total(consumers)}, each token's with its own slice.",
        "template <class Shape>",
        "struct Producers : Shape {",
        "  using Element = typename Shape::T;",
        f"  static constexpr int {sizes};",
        f"  static constexpr int kInner = Shape::{inner};",
        "};",
        "",
        f"namespace {NAMESPACE} {{",
        "",
    )
    write_step(writer, program)
    writer.write(
        "// Shared memory in bytes: groups, the warps' sums, what blocks of the cluster send.",
        CONFIG,
    )
    with (
        writer.block("struct SharedMap {", "};"),
        statements.declared(writer, program, member=True),
    ):
        name = statements.camel(met.out)
        writer.write(
            f"using {name} = tile::{statements.typed(statements.REDUCTIONS, met, program)};",
            f"static constexpr int k{name}At = tile::kGroupsBytes;",
            f"static constexpr int kBlocksAt = k{name}At + {name}::kBytes;",
            "static constexpr int kBytes = kBlocksAt + Clusters::kBytes;",
        )
    head = f"__device__ void {program.recipe}(const LaunchArgs& args, char* shared,"
    own = " " * (head.index("(") + 1) + "const tile::SliceTile& own) {"
    writer.write("", CONFIG, head)
    with writer.block(own), statements.declared(writer, program):
        write_body(writer, program)
    _write_launch_first(writer, program)
    writer.line(CONFIG)
    with writer.block(WORKSPACE), statements.declared(writer, consumers):
        writer.line(f"return args.dims[0] * {inner} * static_cast<int64_t>(sizeof(T));")
    writer.line()


def _write_launch_first(writer: Writer, program: TileProgram) -> None:
    """Write the kernel and its launch: consumers start when all that came before has ended."""
    name, tokens = f"{program.recipe}_producers", program.roles.tokens
    writer.write("", CONFIG, f"__global__ void __launch_bounds__({statements.THREADS})")
    head = f"    {name}(const __grid_constant__ LaunchArgs args) {{"
    with writer.block(head), statements.declared(writer, program):
        writer.write(
            "extern __shared__ __align__(16) char shared[];",
            "tile::grid_dependency_wait();",
            "tile::launch_dependents();",
            f"Clusters::for_each_tile(args, shared, {program.recipe}<Config>);",
        )
    writer.write("", f"}}  // namespace {NAMESPACE}", "", "template <class Shape>")
    head = "cudaError_t launch_first(Shape, const LaunchArgs& args, cudaStream_t stream) {"
    with writer.block(head):
        writer.write(
            "using Config = Producers<Shape>;",
            "using Clusters = tile::AdapterProducers<Config>;",
            f"constexpr int kSharedBytes = {NAMESPACE}::SharedMap<Config>::kBytes;",
            f"const int64_t {tokens} = args.dims[0];",
            f"const tile::Grid grid = Clusters::grid({tokens}, args.slices, kSharedBytes);",
            f"return tile::launch({NAMESPACE}::{name}<Config>, grid, args, stream);",
        )
    writer.line()


# -- register operands, in pairs -------------------------------------------------------------------


def pairs(consumers: TileProgram) -> Part:
    """Return the form of producer blocks in pairs, which `consumers` receive from."""
    about = IN_PAIRS.format(_total(consumers))
    return Part(PAIRS, about, (PAIRED,), (FORM,), lines_of(_write_pairs, consumers))


def _write_pairs(writer: Writer, consumers: TileProgram) -> None:
    """Write the arguments of a launch with consumers in pairs, and what producers of it run."""
    program = consumers.producers
    assert program is not None
    count = len(vectors(program))
    writer.line("// The arguments of a launch of producer and consumer blocks.")
    write_args(writer, consumers, PLAN)
    writer.write(
        "// Producers share a tile in pairs, too, and split the depth.",
        "template <class Consumers>",
        "struct ProducersPlan {",
        "  using Element = typename Consumers::T;",
        f"  static constexpr int kRows = {PAIR} * Consumers::kProducerRows, {CONSTANTS[1]};",
        "  static constexpr int kStages = Consumers::kProducerStages, "
        "kGroups = Consumers::kProducerGroups;",
        f"  static constexpr int kBlocks = {PAIR};",
        f"  static constexpr int kDepth = Consumers::{program.roles.depth}, kRowTensors = 1;",
        "  static constexpr int kProducts = 1, kInner = 0, kExtraBytes = 0;",
        *([f"  static constexpr int kVectors = {count}, kTokenSums = 0;"] if count else []),
        "};",
        "template <class Consumers>",
        "using ProducersBlock = tile::RegisterOperandBlock<ProducersPlan<Consumers>>;",
        "",
        CONFIG,
        "constexpr int kPairBytes = "
        "ProducersBlock<Config>::kBytes + ProducerBlocks<Config>::kTagBytes;",
        "",
        CONFIG,
    )
    head = f"void {program.recipe}_produce(const RegisterOperandArgs& given, char* shared) {{"
    with writer.block(f"__device__ {head}"), statements.declared(writer, program):
        _pair(writer, program)
    writer.line()


def _pair(writer: Writer, program: TileProgram) -> None:
    (met,) = program.reductions
    copied = {s.args[0] for s in vectors(program)}
    writer.write(
        "using Block = ProducersBlock<Config>;",
        "const LaunchArgs& args = given.call;",
        statements.number_of_tokens(program),
        *statements.scalars(program, program.epilogue),
        *(statements.pointer(o, program) for o in program.inputs if o.name in copied),
        "const ProducerBlocks<Config> producers(args);",
        "const int first_row = producers.first_row(), first_token = producers.first_token();",
        "const int tile_row = first_row / Block::kRows * Block::kRows;",
        "if (tile::warp_index() > Block::kWarps) return;",
        f"const Block block{{shared, tile::token_lines<Block>({program.roles.tokens})}};",
        "if (threadIdx.x == 0) producers.tag(shared + Block::kBytes) = tile::new_tag();",
        "block.begin();",
        "",
    )
    writer.table(statements.rows_of([(f"tile::SwappedAccum<Block::kRows> {met.out};", met)]))
    writer.line()
    write_copies(writer, program, PRODUCERS)
    write_loop(writer, program)
    writer.write(
        "tile::end_loop(block);",
        "",
        f"auto {met.out}_parts = tile::store_partials(block, shared, 0, {met.out});",
        "tile::sync_workers(block);",
        f"tile::add_partials(block, shared, 0, {met.out}_parts);",
        "",
        statements.output_tile(program),
        "char* const lines = shared + tile::RegisterOperandReduction<Block>::kBytes;",
    )
    call = "tile::produce_register_operand(block, producers, lines, out_tile"
    with writer.block(f"{call}, [&](tile::OwnedElement e) {{", "});"):
        statements.per_element(writer, program.epilogue, program)
