"""What schedules with TMA tiles share: tensor maps, copies of the producer warp, the launch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.emit.host import launch_function
from mirage_kernels.generator.emit.names import (
    camel,
    declared,
    operand_dims,
    own_lines,
    pointer,
    result_pointer,
)
from mirage_kernels.generator.emit.writer import WIDTH, Writer
from mirage_kernels.generator.plan.program import Layout, Statement, TileProgram
from mirage_kernels.generator.schedules.producer_blocks import writer as producer_blocks
from mirage_kernels.generator.schedules.prologue import is_main


@dataclass(frozen=True)
class BoxPlan:
    """A plan's name in emitted text, and how many blocks share rows."""

    name: str
    blocks: str = ""  # a constant that the plan has; "": one

    finished: str = ""  # where a block's own rows begin, of those that it shares; "": it has all
    cluster: str = ""  # blocks of a cluster, where the launch has to say so
    maps: str = "maps"  # the argument that has the tensors' maps

    @property
    def tile_row(self) -> str:
        """Name the first row of the boxes."""
        return "tile_row" if self.finished else "first_row"

    @property
    def block(self) -> str:
        """Return the type of its blocks."""
        return f"{camel(self.name)}Block"

    @property
    def args(self) -> str:
        """Return the type of its kernels' arguments."""
        return f"{camel(self.name)}Args"


# Producer blocks of such a kernel, which are in pairs: they have maps of their own, behind its own.
PRODUCERS = BoxPlan("producers", finished="producers", maps="producer_maps")
TOKEN_LINES = "tile::token_lines<Block>(given.call.dims[0])"


def boxes(program: TileProgram) -> list[Statement]:
    """Return the loads that come as boxes: tokens first, rows, then what the grid leaves whole."""
    order = (Layout.TOKENS, Layout.ROWS, Layout.INNER)
    return [s for layout in order for s in program.loads if s.layout is layout]


def args_type(program: TileProgram, plan: BoxPlan) -> str:
    """Return the type of a kernel's arguments: the call, and a map per tensor."""
    return plan.args if program.producers else f"tile::TmaArgs<{len(boxes(program))}>"


def write_args(writer: Writer, program: TileProgram, plan: BoxPlan) -> None:
    """Write the kernel's arguments where producer blocks have maps of their own."""
    names = ", ".join(s.args[0] for s in boxes(program))
    maps = [(f"CUtensorMap maps[{len(boxes(program))}];", names)]
    maps.append((f"CUtensorMap {PRODUCERS.maps}[2];", "the producers' tokens and rows"))
    with writer.block(f"struct {plan.args} {{", "};"):
        writer.line("LaunchArgs call;")
        writer.table(maps)
    writer.line()


def write_operands(writer: Writer, program: TileProgram, plan: BoxPlan) -> None:
    """Write the tensors that do not come as boxes, run-time numbers, where the tile begins."""
    roles = program.roles
    writer.line("const LaunchArgs& args = given.call;")
    boxed = {s.args[0] for s in boxes(program)}
    rows = [(pointer(o), operand_dims(o, program)) for o in program.inputs if o.name not in boxed]
    out = program.output
    rows.append((result_pointer(out), operand_dims(out, program)))
    writer.table(rows)
    writer.line(f"const int {roles.tokens} = static_cast<int>(args.dims[0]);")
    used = {a for s in program.epilogue for a in s.args}
    for i, scalar in enumerate(program.scalars):
        if scalar in used or not is_main(program):
            writer.line(f"const float {scalar} = args.scalars[{i}];")
    shared = f" / {plan.blocks}" if plan.blocks else ""
    block = producer_blocks.user(program, "blockIdx.x")
    writer.line(f"const int {plan.tile_row} = {block}{shared} * Block::kRows;")
    if plan.finished:
        writer.line(f"const int first_row = {plan.tile_row} + {plan.finished};")
    writer.line("const int first_token = blockIdx.y * Block::kTokens;")
    writer.line()


def write_copies(
    writer: Writer, program: TileProgram, plan: BoxPlan, vectors: Sequence[str] = ()
) -> None:
    """Write what the copier does, and that it does nothing else; `vectors`: a callback before."""
    if not program.stacked:
        _find(writer, program, plan)
    with writer.block("const auto copy_weights = [&](const auto& buffer, int k) {", "};"):
        for i, s in enumerate(boxes(program)[1:]):
            place = "buffer.inner()" if s.layout is Layout.INNER else f"buffer.rows({i})"
            line = _first(s, program, plan)
            where = f"{place}, given.{plan.maps}[{i + 1}], {line}, k, buffer.full"
            writer.line(f"tile::copy_tile({where});")
    with writer.block("const auto copy_tokens = [&](const auto& buffer, int k) {", "};"):
        where = f"given.{plan.maps}[0], first_token, k, buffer.full"
        writer.line(f"tile::copy_tile(buffer.tokens(), {where});")
    callbacks = ", ".join((*vectors, "copy_weights", "copy_tokens"))
    if program.stacked:
        writer.line(f"tile::copy_when_ready(block, {callbacks});")
    else:
        writer.line(f"block.copy(args.constant_weights, prefetch_weights, {callbacks});")


def _find(writer: Writer, program: TileProgram, plan: BoxPlan) -> None:
    """Write how weights that may not be read yet come into L2."""
    found = [
        f"tile::prefetch_tile(given.{plan.maps}[{i + 1}], {plan.tile_row}, k);"
        for i, s in enumerate(boxes(program)[1:])
        if s.layout is Layout.ROWS
    ]
    head = "const auto prefetch_weights = [&](int k) {"
    whole = f"{head} {found[0]} }};"
    if len(found) == 1 and len(whole) <= WIDTH - 2 * len(writer.unit):
        return writer.line(whole)
    with writer.block(head, "};"):
        for line in found:
            writer.line(line)
    return None


def write_launch(writer: Writer, program: TileProgram, plan: BoxPlan) -> None:
    """Write the function that makes the maps and launches the kernel."""
    with launch_function(writer, camel(plan.name)), declared(writer, program):
        writer.line(f"using Block = {plan.block}<Config>;")
        if program.received:
            _write_received_launch(writer, program, plan)
        else:
            _write_plain_launch(writer, program, plan)
    writer.line()


def _write_plain_launch(writer: Writer, program: TileProgram, plan: BoxPlan) -> None:
    operands = {o.name: o for o in program.inputs}
    rows = []
    for s in boxes(program):
        index = operands[s.args[0]].index
        lines, stride, size = _extent(s, program, index, plain=True)
        tensor = f"{{args.inputs[{index}], {lines}, {program.roles.depth}, {stride}}}"
        rows.append((f"    {{{tensor}, {size}}},", s.args[0]))
    writer.line("const int64_t tokens = args.dims[0];")
    writer.line("const tile::TiledTensor tensors[] = {")
    writer.table(rows)
    writer.line("};")
    blocks = ", ".join(filter(None, (plan.blocks or "1", plan.cluster)))
    grid = f"tile::tma_grid<Block>(tokens, {program.roles.rows}, {blocks})"
    writer.assignment(f"const tile::Grid grid = {grid};")
    kernel = f"{program.recipe}_{plan.name}<Config>"
    writer.assignment(f"return tile::launch_tma<T>({kernel}, grid, args, tensors, stream);")


def _write_received_launch(writer: Writer, program: TileProgram, plan: BoxPlan) -> None:
    roles = program.roles
    writer.line(f"{args_type(program, plan)} given{{args}};")
    _write_maps(writer, program, plan)
    if program.producers:
        writer.line("using Producers = ProducersBlock<Config>;")
        _write_maps(writer, program.producers, PRODUCERS, {s.args[0] for s in boxes(program)})
    shared = f" * {plan.blocks}" if plan.blocks else ""
    rows = f"tile::ceil_div({roles.rows}, Block::kRows){shared}"
    writer.assignment(f"const int64_t row_tiles = {producer_blocks.makers_before(program)}{rows};")
    tokens = "tile::ceil_div(args.dims[0], Block::kTokens)"
    writer.line(f"const int64_t token_tiles = {tokens};")
    bytes_ = producer_blocks.shared_bytes(program, "Block::kBytes")
    writer.assignment(f"constexpr int kSharedBytes = {bytes_};")
    size = f"k{camel(plan.name)}Threads<Config>, kSharedBytes"
    size = f"{size}, {plan.cluster}" if plan.cluster else size
    writer.assignment(f"const tile::Grid grid{{row_tiles, token_tiles, {size}}};")
    kernel = f"{program.recipe}_{plan.name}<Config>"
    writer.line(f"return tile::launch({kernel}, grid, given, stream);")


def _write_maps(
    writer: Writer, program: TileProgram, plan: BoxPlan, known: Collection[str] = ()
) -> None:
    """Write the maps of what comes as boxes; tensors that are `known` have been named before."""
    operands = {o.name: o for o in program.inputs}
    for i, s in enumerate(boxes(program)):
        index = operands[s.args[0]].index
        lines, stride, size = _extent(s, program, index)
        if s.args[0] not in known:
            tensor = f"{{args.inputs[{index}], {lines}, {program.roles.depth}, {stride}}}"
            writer.line(f"const tile::Tensor {s.args[0]}{tensor};")
        if plan is PRODUCERS:
            size = size.replace("Block", "Producers")
        call = f"tile::encode<T>(&given.{plan.maps}[{i}], {s.args[0]}, {size});"
        writer.assignment(f"{'' if i or known else 'cudaError_t '}status = {call}")
        writer.line("if (status != cudaSuccess) return status;")


def _first(s: Statement, program: TileProgram, plan: BoxPlan) -> str:
    """Return the first line of a weight's box."""
    inner = program.roles.inner_of(s.type)
    return plan.tile_row if inner is None else "0"


def _extent(
    s: Statement, program: TileProgram, index: int, *, plain: bool = False
) -> tuple[str, str, str]:
    """Return a tensor's lines, their stride, and the lines of a box."""
    roles = program.roles
    if s.layout is Layout.TOKENS:
        tokens = "tokens" if plain else "args.dims[0]"
        return tokens, f"args.row_strides[{index}]", f"tile::token_lines<Block>({tokens})"
    inner = roles.inner_of(s.type)
    if inner is not None:
        return inner.name, roles.depth, own_lines(inner.name)
    return roles.rows, roles.depth, "Block::kRows"
