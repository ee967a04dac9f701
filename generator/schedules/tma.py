"""What writers of schedules with TMA tiles share: tensor maps, the producer warp, the launch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mirage_kernels.generator.emit import statements
from mirage_kernels.generator.emit.statements import camel, declared, launch_function
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.plan.arranged import Arranged
from mirage_kernels.generator.plan.program import Layout, Statement, TileProgram
from mirage_kernels.generator.schedules import producer_blocks
from mirage_kernels.generator.schedules.loop import GROUP_WARPS, WarpgroupKnobs
from mirage_kernels.generator.schedules.prologue import is_main

OPENING = (
    "extern __shared__ __align__(tile::kSwizzleAtomBytes) char stages[];",
    "char* const shared = stages;",
    "tile::launch_dependents();",
)
TOKEN_LINES = "tile::token_lines<Block>(given.call.dims[0])"


@dataclass(frozen=True)
class TmaPlan:
    """A schedule's name in emitted text, and how many blocks share rows."""

    name: str
    blocks: str = ""  # a constant that the plan has; "": one
    finished: str = ""  # where a block's own rows begin, of those that it shares; "": it has all
    cluster: str = ""  # blocks of a cluster, where the launch has to say so
    maps: str = "maps"  # the argument that has the tensors' maps
    step: str = ""  # a step's place, where vectors are copied step by step; "": they are at once

    @property
    def tile_row(self) -> str:
        """Name the first row of the TMA tiles."""
        return "tile_row" if self.finished else "first_row"

    @property
    def args(self) -> str:
        """Return the type of its kernels' arguments."""
        return f"{camel(self.name)}Args"


# Producer blocks of such a kernel, which are in pairs: they have maps of their own, behind its own.
PRODUCERS = TmaPlan("producers", finished="producers", maps="producer_maps")


def arranged(
    program: TileProgram,
    knobs: WarpgroupKnobs,
    turns: tuple[int, int],
    beside: Collection[Statement],
) -> Arranged:
    """Return what the blocks of a cluster are together, with a ring and what lies beside it.

    `turns`: how many warpgroups take turns at steps, each with a slice of its own, and its depth.
    """
    found = Arranged(
        knobs.block_tiles(program.roles),
        slices=knobs.blocks * turns[0],
        warps=GROUP_WARPS,
        depth=turns[1],
        stages=knobs.stages // turns[0],
    ).with_ring(program)
    return found.with_values(beside, program, at=found.bytes)


def tma_tiles(program: TileProgram) -> list[Statement]:
    """Return the loads that come as TMA tiles: tokens, rows, then what the grid leaves whole."""
    order = (Layout.TOKENS, Layout.ROWS, Layout.INNER)
    return [s for layout in order for s in program.loads if s.layout is layout]


def maps(program: TileProgram) -> list[tuple[Statement, int]]:
    """Return what the maps are of: TMA tiles, those of rows in parts once for each part."""
    pairs = ((s, program.operand(s)) for s in tma_tiles(program))
    return [(s, i) for s, operand in pairs for i in range(program.tensors_of(operand))]


def _map(s: Statement, program: TileProgram, plan: TmaPlan) -> str:
    """Return the map of a tile."""
    at = str(maps(program).index((s, 0)))
    in_parts = program.in_parts(program.operand(s))
    return f"given.{plan.maps}[{f'{at} + part.index' if in_parts else at}]"


def row_tensors(program: TileProgram) -> list[str]:
    """Return the tiles of rows, in the order of their tensor maps."""
    return [s.out for s in tma_tiles(program) if s.layout is Layout.ROWS]


def vectors(program: TileProgram) -> list[Statement]:
    """Return the loads of vectors along the depth, which are copied whole."""
    return [s for s in program.loads if s.layout is Layout.DEPTH]


def reductions(program: TileProgram, layout: Layout) -> list[Statement]:
    """Return what is reduced after the loop, of one kind."""
    return [s for s in program.reductions if s.layout is layout]


def args_type(program: TileProgram, plan: TmaPlan) -> str:
    """Return the type of a kernel's arguments: the call, and a map per tensor."""
    return plan.args if program.producers else f"tile::TmaArgs<{len(maps(program))}>"


def write_args(writer: Writer, program: TileProgram, plan: TmaPlan) -> None:
    """Write the kernel's arguments where producer blocks have maps of their own."""
    names = ", ".join(s.args[0] for s in tma_tiles(program))
    maps = [(f"CUtensorMap maps[{len(tma_tiles(program))}];", names)]
    maps.append((f"CUtensorMap {PRODUCERS.maps}[2];", "the producers' tokens and rows"))
    with writer.block(f"struct {plan.args} {{", "};"):
        writer.line("LaunchArgs call;")
        writer.table(maps)
    writer.line()


def write_operands(writer: Writer, program: TileProgram, plan: TmaPlan) -> None:
    """Write the tensors that do not come as TMA tiles, run-time numbers, where the tile begins."""
    writer.line("const LaunchArgs& args = given.call;")
    tiled = {s.args[0] for s in tma_tiles(program)}
    shared = f" / {plan.blocks}" if plan.blocks else ""
    tile = f"{producer_blocks.block_index(program)}{shared}"
    writer.write(*statements.own_part(program, tile, "Block::kRows"))
    statements.operands(writer, [o for o in program.inputs if o.name not in tiled], program)
    own = [f"const int first_row = {plan.tile_row} + {plan.finished};"] if plan.finished else []
    writer.write(
        statements.number_of_tokens(program),
        *statements.scalars(program, program.epilogue if is_main(program) else None),
        f"const int {plan.tile_row} = {statements.tile_of(program, tile)} * Block::kRows;",
        *own,
        "const int first_token = blockIdx.y * Block::kTokens;",
        "",
    )


def write_copies(writer: Writer, program: TileProgram, plan: TmaPlan) -> None:
    """Write what the producer warp does."""
    tiles, step = list(enumerate(tma_tiles(program)))[1:], f", {plan.step}" if plan.step else ""
    with writer.block("if (block.is_producer()) {"):
        loads = enumerate(vectors(program))
        copies = [f"block.copy_vector({i}, {s.args[0]}{step});" for i, s in loads]
        callbacks = "copy_weights, copy_tokens"
        if copies or step:
            takes = f"(int{' ' + plan.step if copies else ''})" if step else ""
            capture = "[&]" if copies else "[]"
            writer.function(f"const auto copy_vectors = {capture}{takes} {{", *copies)
            callbacks = f"copy_vectors, {callbacks}"
        if not program.stacked:
            rows = [s for _, s in tiles if s.layout is Layout.ROWS]
            kinds = ((_tile(s, program) or "tile", _map(s, program, plan), s) for s in rows)
            found = (
                f"tile::prefetch_{kind}({row}, {plan.tile_row}, {_element(s, program)});"
                for kind, row, s in kinds
            )
            writer.function("const auto prefetch_weights = [&](int k) {", *found)
        with writer.block("const auto copy_weights = [&](const auto& buffer, int k) {", "};"):
            for i, s in tiles:
                inner = s.layout is Layout.INNER
                place = "buffer.inner(), " if inner else f"buffer.rows({i - 1}), "
                place += f"{_map(s, program, plan)}, {'0' if inner else plan.tile_row}"
                copy = "copy_tile" if inner else f"copy_{_tile(s, program) or 'tile_once'}"
                writer.line(f"tile::{copy}({place}, {_element(s, program)}, buffer.full);")
        with writer.block("const auto copy_tokens = [&](const auto& buffer, int k) {", "};"):
            where = f"given.{plan.maps}[0], first_token, k, buffer.full"
            writer.line(f"tile::copy_tile(buffer.tokens(), {where});")
        if program.stacked:
            writer.line(f"tile::copy_when_ready(block, {callbacks});")
        else:
            writer.line(f"block.copy(args.constant_weights, prefetch_weights, {callbacks});")
        writer.line("return;")


def _tile(s: Statement, program: TileProgram) -> str:
    """Return what functions call a tile of rows whose lines are the depth's, "" for others."""
    return "columns<Block::kRows>" if s.out in program.columns else ""


def _element(s: Statement, program: TileProgram) -> str:
    """Return which element of a map a tile begins with: two of 8 bits are one of 16."""
    return "k / 2" if s in program.byte_rows else "k"


def write_launch(writer: Writer, program: TileProgram, plan: TmaPlan) -> None:
    """Write the function that makes the maps and launches the kernel."""
    name = camel(plan.name)
    kernel = f"{program.recipe}_{plan.name}<Config>"
    with launch_function(writer, name), declared(writer, program):
        writer.line(f"using Block = {name}Block<Config>;")
        if program.received:
            _write_maps_and_grid(writer, program, plan)
            writer.line(f"return tile::launch({kernel}, grid, given, stream);")
        else:
            writer.write(
                "const int64_t tokens = args.dims[0];", "const tile::TiledTensor tensors[] = {"
            )
            rows = []
            for s, part in maps(program):
                tensor, size = _tensor(s, program, "tokens", part)
                rows.append((f"    {{{tensor}, {size}}},", s.args[0]))
            writer.table(rows)
            blocks = ", ".join(filter(None, (plan.blocks or "1", plan.cluster)))
            grid = f"tile::tma_grid<Block>(tokens, {statements.given_rows(program)}, {blocks})"
            writer.write("};", f"const tile::Grid grid = {grid};")
            writer.line(f"return tile::launch_tma<T>({kernel}, grid, args, tensors, stream);")
    writer.line()


def _write_maps_and_grid(writer: Writer, program: TileProgram, plan: TmaPlan) -> None:
    writer.line(f"{args_type(program, plan)} given{{args}};")
    _write_maps(writer, program, plan)
    if program.producers:
        writer.line("using Producers = ProducersBlock<Config>;")
        known = {s.args[0] for s in tma_tiles(program)}
        _write_maps(writer, program.producers, PRODUCERS, known)
    shared = f" * {plan.blocks}" if plan.blocks else ""
    rows = f"tile::ceil_div({program.roles.rows}, Block::kRows){shared}"
    size = ", ".join(
        filter(None, (f"k{camel(plan.name)}Threads<Config>", "kSharedBytes", plan.cluster))
    )
    writer.write(
        producer_blocks.row_tiles(program, rows),
        "const int64_t token_tiles = tile::ceil_div(args.dims[0], Block::kTokens);",
        producer_blocks.shared_bytes(program, "Block::kBytes", "kPairBytes<Config>"),
        f"const tile::Grid grid{{row_tiles, token_tiles, {size}}};",
    )


def _write_maps(
    writer: Writer, program: TileProgram, plan: TmaPlan, known: Collection[str] = ()
) -> None:
    """Write the maps of TMA tiles; tensors that are `known` have been named before."""
    for i, s in enumerate(tma_tiles(program)):
        tensor, size = _tensor(s, program, "args.dims[0]")
        if s.args[0] not in known:
            writer.line(f"const tile::Tensor {s.args[0]}{tensor};")
        if plan is PRODUCERS:
            size = size.replace("Block", "Producers")
        call = f"tile::encode<T>(&given.{plan.maps}[{i}], {s.args[0]}, {size});"
        writer.line(f"{'' if i or known else 'cudaError_t '}status = {call}")
        writer.line("if (status != cudaSuccess) return status;")


def _tensor(s: Statement, program: TileProgram, tokens: str, part: int = 0) -> tuple[str, str]:
    """Return a tensor with its lines and their stride, and the lines of a TMA tile.

    Of rows in parts it is that of a part.
    """
    roles = program.roles
    index = part + program.operand(s).index
    inner = roles.inner_of(s.type)
    rows = [*statements.part_dims(program), roles.rows][part]
    lines, stride = inner.name if inner else rows, roles.depth
    if s.out in program.columns:
        size = "tile::kTmaDepth, tile::ColumnTiles<Block::kRows>::kTileRows"
        return f"{{args.inputs[{index}], {roles.depth}, {rows}, {rows}}}", size
    size = statements.inner_lines(s, program, "Block::kRows")
    if s in program.byte_rows:
        pairs = f"{roles.depth} / 2"
        return (
            f"{{args.inputs[{index}], {lines}, {pairs}, {pairs}}}",
            f"{size}, tile::kTmaDepth / 2",
        )
    if s.layout is Layout.TOKENS:
        lines, stride = tokens, f"args.row_strides[{index}]"
        size = f"tile::token_lines<Block>({tokens})"
    return f"{{args.inputs[{index}], {lines}, {roles.depth}, {stride}}}", size
