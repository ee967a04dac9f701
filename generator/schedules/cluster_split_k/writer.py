"""Cluster split-K as CUDA, over csrc/tile/cluster_split_k."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext

from mirage_kernels.generator.emit import groups
from mirage_kernels.generator.emit.cuda import Part, lines_of
from mirage_kernels.generator.emit.statements import (
    IN_LOOP,
    OTHER_TYPES,
    camel,
    declared,
    early_reads,
    included,
    output_tile,
    per_element,
    rows_of,
    tensor_of,
)
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.plan.program import Do, Layout, Statement, TileProgram
from mirage_kernels.generator.schedules import tma
from mirage_kernels.generator.schedules.cluster_split_k import Split, split
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.schedules.tma import vectors

ROOM = "tile/cluster_split_k"
INCLUDES = (f"{ROOM}/reduce.cuh", f"{ROOM}/steps.cuh")
ABOUT = "cluster split-K: two blocks of a cluster share rows and split the depth"
WORDS = ("false", "true")
PLAN = tma.TmaPlan("cluster_split_k", "tile::kClusterBlocks", step="k")
SUMS = {
    Layout.ACCUM: "tile::WideAccum<Block::kTiles, Block::kTokens>",
    Layout.TOKEN_SUMS: "tile::TokenPartial<Block::kTokens / tile::kGroupWarps>",
}
# Of inputs, while partial sums are on their way.
READ_EARLY = {Layout.ACCUM: "tile::load_owned", Layout.ROW_SUMS: "tile::load_owned_rows"}


_THREADS = "Block::kProductWarps * tile::kWarpLanes"  # that multiply


def parts(program: TileProgram, variants: Sequence[Variant]) -> list[Part]:
    """Return the form of a kernel whose clusters split the depth."""
    converted = (f"{ROOM}/eight_bits.cuh",) if program.byte_rows else ()
    includes = (*INCLUDES, *converted, *included(program))
    return [Part(PLAN.name, ABOUT, includes, (), lines_of(_write, program, split(program)))]


def _write(writer: Writer, program: TileProgram, made: Split) -> None:
    """Write the plan's constants, the kernel and its launch."""
    products, token_sums = (len(tma.reductions(program, layout)) for layout in SUMS)
    counts = f"kRowTensors = {len(tma.row_tensors(program))}, kVectors = {len(vectors(program))}"
    kinds = ["ClusterSplitKPlan<Config>", *{OTHER_TYPES[s.dtype] for s in program.byte_rows}]
    kept = _groups(program)
    flags = f"kTransforms = {WORDS[bool(made.prepared)]}, kRewrites = {WORDS[bool(made.rewritten)]}"
    writer.write(
        "// Many tokens: the two blocks of a cluster share rows and split the depth.",
        "template <class Config>",
        "struct ClusterSplitKPlan : Config {",
        "  using Element = typename Config::T;",
        f"  static constexpr int kDepth = Config::{program.roles.depth}, {counts};",
        f"  static constexpr bool {flags};",
        f"  static constexpr int kProducts = {products}, kTokenSums = {token_sums};",
        *(f"  using {camel(s.out)} = {type_};" for s, type_ in kept.items()),
        *([f"  static constexpr int kGroupBytes = {_bytes(kept)};"] if kept else []),
        "};",
        "template <class Config>",
        f"using ClusterSplitKBlock = tile::ClusterSplitKBlock<{', '.join(kinds)}>;",
        "",
        "template <class Config>",
        "__global__ void __cluster_dims__(tile::kClusterBlocks, 1, 1)",
        "    __launch_bounds__(ClusterSplitKBlock<Config>::kThreads, 1)",
    )
    given = f"const __grid_constant__ {tma.args_type(program, PLAN)} given"
    head = f"        {program.recipe}_cluster_split_k({given}) {{"
    with writer.block(head), declared(writer, program):
        _kernel(writer, program, made)
    writer.line()
    tma.write_launch(writer, program, PLAN)


def _kernel(writer: Writer, program: TileProgram, made: Split) -> None:
    writer.write(
        "using Block = ClusterSplitKBlock<Config>;",
        *tma.OPENING,
        f"const Block block{{shared, tile::cluster_rank(), {tma.TOKEN_LINES}}};",
        "block.begin();",
        "",
    )
    tma.write_operands(writer, program, PLAN)
    writer.table(rows_of((f"{SUMS[s.layout]} {s.out};", s) for s in program.accumulators))
    writer.line()
    _place_groups(writer, program)
    tma.write_copies(writer, program, PLAN)
    if made.prepared:
        with writer.block("if (block.transforms()) {", ""):
            _role(writer, program, made, "transform_tokens")
    with writer.block("} else {") if made.prepared else nullcontext():
        if program.group_reads:
            groups.write_work(writer, program.group_reads, f"tile::sync_threads<3, {_THREADS}>();")
        _role(writer, program, made, "multiply")
    writer.line()
    products = tma.reductions(program, Layout.ACCUM)
    for s in program.reductions:
        left = f"{'auto' if s in products else 'const auto'} {s.out}_parts"
        place = tma.reductions(program, s.layout).index(s)
        writer.line(f"{left} = tile::store_partials(block, {place}, {s.args[0]});")
    writer.write(output_tile(program, "first_token + block.rank * Block::kHalf"))
    early = early_reads(program)
    for s in early:
        read = f"{READ_EARLY[s.layout]}(block, out_tile, {tensor_of(s, program)})"
        writer.line(f"const auto {s.out}_early = {read};")
    writer.write(
        "tile::wait_for_partials(block);",
        f"if (!block.finishes({program.roles.tokens} - first_token)) return;",
        *(f"tile::add_partials(block, {i}, {s.out}_parts);" for i, s in enumerate(products)),
        "",
    )
    with writer.block("const auto finish = [&](tile::OwnedElement e) {", "};"):
        per_element(writer, program.epilogue, program, early)
    writer.line(f"tile::for_each_owned(block, out_tile, {program.output.name}, finish);")


def _groups(program: TileProgram) -> dict[Statement, str]:
    """Return the types of elements that groups of rows have, of a block's part of the depth."""
    part = "kDepth / tile::kClusterBlocks"
    return {s: groups.type_text(s, program, part, "Element") for s in program.group_reads}


def _bytes(reads: Iterable[Statement]) -> str:
    """Return what several of them take."""
    return " + ".join(f"{camel(s.out)}::kBytes" for s in reads)


def _place_groups(writer: Writer, program: TileProgram) -> None:
    """Write where they lie in shared memory, and what brings them there."""
    reads = program.group_reads
    if not reads:
        return
    for i, s in enumerate(reads):
        at = " + ".join(filter(None, ("Block::kGroupsAt", _bytes(reads[:i]))))
        name, place = camel(s.out), f"{s.out}_groups{{shared + {at}}};"
        writer.line(f"using {name} = typename ClusterSplitKPlan<Config>::{name};")
        writer.line(f"const {name} {place}")
        writer.line(groups.copy_line(s, program, _THREADS, f" + block.rank * {name}::kGroups"))
    writer.line()


def _role(writer: Writer, program: TileProgram, made: Split, role: str) -> None:
    """Write what warps of one role do with a step."""
    statements = made.multiplied if role == "multiply" else made.prepared
    read = _read(program, statements, role)
    elsewhere = made.rewritten not in {s.out for s in statements}
    reads_vectors = any(s.out in read for s in vectors(program))
    before = "early, " if program.group_reads and role == "multiply" else ""
    head = f"tile::{role}(block, {WORDS[reads_vectors]}, {before}[&](const auto& step) {{"
    with writer.block(head, "});"):
        loaded = [s for s in program.loads if s.out in read]
        rows = rows_of((f"const auto {s.out} = {read[s.out]};", s) for s in loaded)
        for s in (s for s in statements if s in program.group_reads):
            rows += rows_of([(f"const auto {s.out} = tile::step_groups(step, {s.out}_groups);", s)])
        for s in (s for s in statements if s not in program.group_reads):
            args = ["step.token_tma()" if elsewhere and a == made.rewritten else a for a in s.args]
            rows += rows_of([(IN_LOOP[s.do](s, args), s)])
            rows += [(f"step.rewrite({s.out});", "")] * (s.out == made.rewritten)
        writer.table(rows)


def _read(program: TileProgram, statements: Sequence[Statement], role: str) -> dict[str, str]:
    """Return how a role reads what is loaded: as fragments, or as tiles that are multiplied."""
    products = {a for s in statements if s.do is Do.CONTRACT for a in s.args}
    mapped = {a for s in statements if s.do is not Do.CONTRACT for a in s.args}
    rows = tma.row_tensors(program)
    found: dict[str, str] = {}
    for s in program.loads:
        if s.layout is Layout.DEPTH and s.out in mapped:
            found[s.out] = f"step.vector({vectors(program).index(s)})"
        elif s.layout is Layout.TOKENS and role == "transform_tokens":
            found[s.out] = "step.tokens()"
        elif s.layout is Layout.TOKENS and s.out in products:
            found[s.out] = "step.token_tma()"
        elif s in program.byte_rows and role == "multiply":
            kind = groups.converted_type(s, program)
            found[s.out] = f"tile::converted_rows<{kind}>(step, {rows.index(s.out)})"
        elif s.layout is Layout.ROWS and role == "multiply":
            tile = "row_tma" if s.out in products and s.out not in mapped else "rows"
            found[s.out] = f"step.{tile}({rows.index(s.out)})"
    return found
