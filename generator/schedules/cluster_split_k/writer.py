"""Cluster split-K as CUDA: one more kernel of a muGraph, over csrc/tile/cluster_split_k."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mirage_kernels.generator.emit.after_loop import LINES
from mirage_kernels.generator.emit.names import declared, dims_text, vocabulary
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
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.program import Do, Layout, Statement, TileProgram
from mirage_kernels.generator.schedules.cluster_split_k.knobs import (
    Split,
    split,
)
from mirage_kernels.generator.schedules.schedule import Variant

INCLUDES = (
    *("tile/cluster_split_k/reduce.cuh", "tile/cluster_split_k/steps.cuh", "tile/tile.cuh"),
)
ABOUT = "cluster split-K: two blocks of a cluster share rows and split the depth"
SPLIT = BoxPlan("cluster_split_k", "tile::kClusterBlocks")
_SUMS = {
    Layout.ACCUM: "tile::WideAccum<Block::kTiles, Block::kTokens>",
    Layout.TOKEN_SUMS: "tile::TokenPartial<Block::kTokens / tile::kGroupWarps>",
}


def parts(program: TileProgram, variants: Sequence[Variant]) -> list[Part]:
    """Return the form of a kernel whose clusters split the depth."""
    return [Part(SPLIT.name, ABOUT, INCLUDES, (), lines_of(_write, program))]


def _write(writer: Writer, program: TileProgram) -> None:
    """Write the plan's constants, its map of shared memory, the kernel and its launch."""
    made = split(program)
    assert made is not None
    _plan(writer, program, made)
    write_args(writer, program, SPLIT)
    _kernel(writer, program, made)
    write_launch(writer, program, SPLIT)


def _vectors(program: TileProgram) -> list[Statement]:
    return [s for s in program.loads if s.layout is Layout.DEPTH]


def _plan(writer: Writer, program: TileProgram, made: Split) -> None:
    writer.line("// Many tokens: the two blocks of a cluster share rows and split the depth.")
    writer.line("template <class Config>")
    rows = len(boxes(program)) - 1
    counts = f"kRowTensors = {rows}, kVectors = {len(_vectors(program))}"
    flags = f"kTransforms = {_word(made.prepared)}, kRewrites = {_word(made.rewritten)}"
    with writer.block("struct ClusterSplitKPlan : Config {", "};"):
        writer.line("using Element = typename Config::T;")
        writer.line(f"static constexpr int kDepth = Config::{program.roles.depth}, {counts};")
        writer.line(f"static constexpr bool {flags};")
        met = [len(_met(program, layout)) for layout in _SUMS]
        writer.line(f"static constexpr int kProducts = {met[0]}, kTokenSums = {met[1]};")
    writer.line("template <class Config>")
    writer.line("using ClusterSplitKBlock = tile::ClusterSplitKBlock<ClusterSplitKPlan<Config>>;")
    writer.line()


def _word(value: object) -> str:
    return "true" if value else "false"


def _met(program: TileProgram, layout: Layout) -> list[Statement]:
    """Return what meets after the loop, of one kind."""
    return [s for s in program.meetings if s.layout is layout]


def _kernel(writer: Writer, program: TileProgram, made: Split) -> None:
    writer.line("template <class Config>")
    writer.line("__global__ void __cluster_dims__(tile::kClusterBlocks, 1, 1)")
    writer.line("    __launch_bounds__(ClusterSplitKBlock<Config>::kThreads, 1)")
    name = f"{program.recipe}_cluster_split_k"
    head = f"        {name}(const __grid_constant__ ClusterSplitKArgs given) {{"
    with writer.block(head), declared(writer, program):
        _prologue(writer, program)
        with writer.block("if (block.is_producer()) {"):
            _copies(writer, program)
        if made.prepared:
            with writer.block("if (block.transforms()) {", ""):
                _role(writer, program, (made.prepared, "transform_tokens", made.rewritten))
            with writer.block("} else {"):
                _role(writer, program, (made.multiplied, "multiply", made.rewritten))
        else:
            _role(writer, program, (made.multiplied, "multiply", made.rewritten))
        _after(writer, program)
    writer.line()


def _prologue(writer: Writer, program: TileProgram) -> None:
    for line in (
        "using Block = ClusterSplitKBlock<Config>;",
        "extern __shared__ __align__(tile::kSwizzleAtomBytes) char stages[];",
        "char* const shared = stages;",
        "tile::launch_dependents();",
        f"const Block block{{shared, tile::cluster_rank(), {TOKEN_LINES}}};",
        "block.begin();",
    ):
        writer.line(line)
    writer.line()
    write_operands(writer, program, SPLIT)
    sums = [(f"{_SUMS[s.layout]} {s.out};", dims_text(s.type.names)) for s in program.accumulators]
    writer.table(sums)
    writer.line()


def _copies(writer: Writer, program: TileProgram) -> None:
    copies = [f"block.copy_vector({i}, {s.args[0]}, k);" for i, s in enumerate(_vectors(program))]
    head = f"const auto copy_vectors = [{'&' if copies else ''}](int{' k' if copies else ''}) {{"
    whole = f"{head} {copies[0]} }};" if copies else f"{head}}};"
    if len(copies) <= 1 and len(whole) <= WIDTH - 2 * len(writer.unit):
        writer.line(whole)
    else:
        with writer.block(head, "};"):
            for line in copies:
                writer.line(line)
    write_copies(writer, program, SPLIT, ("copy_vectors",))
    writer.line("return;")


def _role(writer: Writer, program: TileProgram, role: tuple[Sequence[Statement], str, str]) -> None:
    """Write what warps of one role do with a step."""
    statements, name, rewritten = role
    read = _read(program, statements, name)
    computes = {s.out for s in statements}
    vectors = any(s.layout is Layout.DEPTH and s.out in read for s in program.loads)
    head = f"tile::{name}(block, {_word(vectors)}, [&](const auto& step) {{"
    with writer.block(head, "});"):
        rows = [
            (f"const auto {s.out} = step.{read[s.out]};", dims_text(s.type.names))
            for s in program.loads
            if s.out in read
        ]
        for s in statements:
            args = [
                "step.token_tma()" if a == rewritten and a not in computes else a for a in s.args
            ]
            rows.append((IN_LOOP[s.do](s, args), dims_text(s.type.names)))
            if s.out == rewritten:
                rows.append((f"step.rewrite({s.out});", ""))
        writer.table(rows)


def _read(program: TileProgram, statements: Sequence[Statement], role: str) -> dict[str, str]:
    """Return how a role reads what is loaded: as fragments, or as boxes that are multiplied."""
    products = {a for s in statements if s.do is Do.CONTRACT for a in s.args}
    mapped = {a for s in statements if s.do is not Do.CONTRACT for a in s.args}
    rows = [s.out for s in boxes(program) if s.layout is Layout.ROWS]
    found: dict[str, str] = {}
    for s in program.loads:
        if s.layout is Layout.DEPTH and s.out in mapped:
            found[s.out] = f"vector({_vectors(program).index(s)})"
        elif s.layout is Layout.TOKENS and role == "transform_tokens":
            found[s.out] = "tokens()"
        elif s.layout is Layout.TOKENS and s.out in products:
            found[s.out] = "token_tma()"
        elif s.layout is Layout.ROWS and s.out in products and s.out not in mapped:
            found[s.out] = f"row_tma({rows.index(s.out)})"
        elif s.layout is Layout.ROWS and role == "multiply":
            found[s.out] = f"rows({rows.index(s.out)})"
    return found


def _map_in_step(s: Statement, args: Sequence[str]) -> str:
    out = "T" if s.dtype is not DType.FP32 else "float"
    return f"const auto {s.out} = tile::{vocabulary(s.op)}<{out}>({', '.join(args)});"


IN_LOOP: dict[Do, Callable[[Statement, Sequence[str]], str]] = {
    Do.MAP: _map_in_step,
    Do.CONTRACT: lambda s, args: f"tile::contract({s.out}, {', '.join(args)});",
    Do.SUM: lambda s, args: f"tile::sum_depth({s.out}, {', '.join(args)});",
}


def _after(writer: Writer, program: TileProgram) -> None:
    writer.line()
    products = _met(program, Layout.ACCUM)
    for s in program.meetings:
        left = f"{'auto' if s in products else 'const auto'} {s.out}_parts"
        place = _met(program, s.layout).index(s)
        writer.assignment(f"{left} = tile::store_partials(block, {place}, {s.args[0]});")
    writer.line("tile::wait_for_partials(block);")
    writer.line(f"if (!block.finishes({program.roles.tokens} - first_token)) return;")
    for i, s in enumerate(products):
        writer.line(f"tile::add_partials(block, {i}, {s.out}_parts);")
    writer.line()
    roles = program.roles
    tile = f"{{first_row, {roles.rows}, first_token + block.rank * Block::kHalf, {roles.tokens}}}"
    writer.line(f"const tile::OutputTile out_tile{tile};")
    with writer.block("const auto finish = [&](tile::OwnedElement e) {", "};"):
        rows = [
            (LINES[s.do](s, [program.literals.get(a, a) for a in s.args], program), s)
            for s in program.epilogue
        ]
        writer.table([(text, dims_text(s.type.names)) for text, s in rows])
    writer.line(f"tile::for_each_owned(block, out_tile, {program.output.name}, finish);")
