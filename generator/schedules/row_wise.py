"""Row-wise kernels: a block holds a row, or a tile of one where nothing is summed.

Their knobs serve any number of tokens. What writes rows as CUDA serves cluster rows, prologue
kernels, and rows that a block of sliced-K takes before its loop, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from mirage_kernels.generator.emit import statements
from mirage_kernels.generator.emit.cuda import Part, lines_of
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.plan.arranged import Arranged
from mirage_kernels.generator.plan.layouts import WARP_LANES
from mirage_kernels.generator.plan.program import Do, Layout, Roles, Statement, TileProgram
from mirage_kernels.generator.schedules.latency import ELEMENT_BYTES, ROW_WARP_US
from mirage_kernels.generator.schedules.loop import ALIGNED_ELEMENTS
from mirage_kernels.generator.schedules.schedule import Knobs, Model, Ranked, Variant
from mirage_kernels.generator.target import Target

WARPS, CHUNKS = (1, 2, 4, 8, 16), 4  # of a block that holds a row; of its threads
TILE_CHUNKS = 1  # of a row tile's threads; two pieces were 3 to 9 % slower
TILE_WARPS, TILE_PIECES = 4, 384  # least warps of its block, and 16-byte pieces that it moves
MOST_CHUNKS = 8  # 16-byte pieces of a row that a thread holds
START_US = 1.9  # and end
COMPARED_AT = 64  # tokens: one variant serves any number
ABOUT = {
    "row_wise": "row-wise: a block holds a token whole in registers",
    "elementwise": "elementwise: every block takes a piece of a token",
}


@dataclass(frozen=True)
class RowWise(Knobs):
    """Template constants of a row-wise or an elementwise kernel."""

    schedule: ClassVar[str] = "row_wise"

    warps: int
    chunks: int  # 16-byte pieces that a thread takes
    elements: int = 0  # of a row that a block takes; 0: all of them

    @property
    def template(self) -> str:
        """Name the C++ template of its configs, for which the form overloads `launch`."""
        return "Elementwise" if self.elements else "RowWise"

    @property
    def preference(self) -> tuple[int, ...]:
        """Order knobs that are predicted to be equally fast."""
        return (-self.warps, -self.chunks)

    def config(self, program: TileProgram) -> dict[str, int]:
        """Return the constants of an emitted kernel's config, by name."""
        return {"warps": self.warps} | ({"line": self.elements} if self.elements else {})

    def tiles(self, roles: Roles) -> dict[str, int]:
        """Return the tile sizes of the muGraph that such a kernel runs, by dim."""
        return {roles.tokens: 1} | ({roles.depth: self.elements} if self.elements else {})


def row_wise_knobs(depth: int) -> RowWise:
    """Return the knobs of a block per token: few elements per thread."""
    vectors = -(-depth // ALIGNED_ELEMENTS)
    warps = next((w for w in WARPS if vectors <= w * WARP_LANES * CHUNKS), max(WARPS))
    return RowWise(warps, -(-vectors // (warps * WARP_LANES)))


def elementwise_knobs(depth: int, moved: int) -> RowWise:
    """Return the knobs of row tiles: the longest that divides a row evenly.

    A few elements per thread, of each of the `moved` rows; the depth is a multiple of 8. Of small
    blocks with many tokens so many start that it takes time: 20 % of a relu's.
    """
    wanted = TILE_WARPS if TILE_WARPS * WARP_LANES * moved >= TILE_PIECES else 2 * TILE_WARPS
    vectors, most = depth // ALIGNED_ELEMENTS, wanted * WARP_LANES * TILE_CHUNKS
    tile = max(n for n in range(1, min(vectors, most) + 1) if vectors % n == 0)
    warps = min(wanted, -(-tile // WARP_LANES))
    return RowWise(warps, -(-tile // (warps * WARP_LANES)), tile * ALIGNED_ELEMENTS)


def whole_row_blocks(depth: int) -> Iterator[tuple[int, int]]:
    """Yield warps of a row's block, all of which have work, and the pieces of a thread."""
    vectors = ceil(depth / ALIGNED_ELEMENTS)
    for warps in WARPS:
        chunks = ceil(vectors / (warps * WARP_LANES))
        idle = warps > 1 and (warps - 1) * WARP_LANES * chunks >= vectors
        if chunks <= MOST_CHUNKS and not idle:
            yield warps, chunks


def fits(program: TileProgram, on: Target) -> tuple[str, ...]:
    """Return why a row-wise kernel does not fit a program."""
    depth = program.extents[program.roles.depth]
    if program.loop:
        return ("it has a loop",)
    if not program.parted and row_wise_knobs(depth).chunks > MOST_CHUNKS:
        return (f"rows of {depth} elements are more than a block holds in registers",)
    return ()


def choose(program: TileProgram, size: int, on: Target) -> RowWise:
    """Return the knobs, the same for any number of tokens."""
    depth = program.extents[program.roles.depth]
    return elementwise_knobs(depth, _moved(program)) if program.parted else row_wise_knobs(depth)


def candidates(program: TileProgram, size: int, on: Target) -> Iterator[RowWise]:
    """Yield blocks that hold a row each; a tile of one as the rule has it."""
    if program.parted:
        yield choose(program, size, on)
        return
    for warps, chunks in whole_row_blocks(program.extents[program.roles.depth]):
        yield RowWise(warps, chunks)


def _moved(program: TileProgram) -> int:
    """Return how many tensors of tokens are read and written."""
    moved = [s for s in program.lines if s.do in (Do.LOAD, Do.STORE)]
    return sum(program.roles.tokens in s.type.names for s in moved)


def row_model(program: TileProgram, on: Target, tokens: int, warps: int, chunks: float) -> float:
    """Return the predicted time of rows, of so many warps and pieces of a thread: microseconds."""
    row_us = (
        _moved(program)
        * program.extents[program.roles.depth]
        * ELEMENT_BYTES
        / on.memory_bytes_per_us
    )
    crowded = ROW_WARP_US * warps * max(1.0, tokens / on.multiprocessors)
    return row_us * tokens + crowded + chunks * ROW_WARP_US


def predict(program: TileProgram, on: Target) -> Model:
    """Return the model of a program (`schedules/latency.py`)."""
    return lambda knobs, tokens: (
        START_US + row_model(program, on, tokens, knobs.warps, knobs.chunks)
    )


SCHEDULE = Ranked(
    knobs=RowWise,
    fits=fits,
    choose=choose,
    candidates=candidates,
    predict=predict,
    arranged=lambda program, knobs: Arranged(knobs.tiles(program.roles)),
    buckets=(COMPARED_AT,),
)


# -- as CUDA ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """How blocks hold rows: a config's template, and what a block has of which row."""

    template: str
    piece: str  # elements
    token: str = "blockIdx.x"
    first: str = ""  # element of the row; the row's own if there is none
    grid: str = "args.dims[0], 1, kThreads, 0"
    cluster: bool = False  # blocks of a cluster add up their sums


@dataclass(frozen=True)
class Lines:
    """Where lines are written: whose they are, and where their sums meet."""

    program: TileProgram
    token: str  # the line's number
    rows: Rows | None = None  # of blocks: sums meet in shared memory; None: of warps

    def sums(self) -> list[str]:
        """Return the sums of lines."""
        return [s.out for s in self.program.lines if s.do is Do.SUM]

    def head(self, depth: str, threads: str) -> Iterator[str]:
        """Yield the type of lines that so many threads hold, and where their sums meet."""
        yield f"using Lines = tile::Lines<{depth}, {threads}>;"
        if self.rows and (sums := len(self.sums())):
            pieces = f", pieces[{sums}][Config::kBlocks]" if self.rows.cluster else ""
            yield f"__shared__ float sums[{sums}][Lines::kWarps]{pieces};"

    def places(self) -> list[tuple[str, str]]:
        """Return where each line that is loaded lies, as code and comment."""
        program = self.program
        loads = (s for s in program.lines if s.do is Do.LOAD)
        of_tokens = {s.args[0] for s in loads if s.layout is Layout.LINE}
        table = []
        for o in program.inputs:
            terms = [f"{self.token} * args.row_strides[{o.index}]"] if o.name in of_tokens else []
            terms += ["first"] if self.rows and self.rows.first else []
            where = f", {' + '.join(terms)}" if terms else ""
            how = "line_if_given" if o.optional else "line_at"
            given = f"args.inputs[{statements.place_of(o, program)}]{where}"
            code = f"const auto {o.name} = tile::{how}<Lines, T>({given});"
            table.append((code, statements.operand_dims(o, program)))
        return table

    def table(self, given: Sequence[Statement]) -> list[tuple[str, str]]:
        """Return each statement as code and comment; what is stored has the tensor's dims."""
        program = self.program
        stored = {
            o.name: statements.operand_dims(o, program) for o in (*program.results, program.output)
        }
        dims = (
            stored[s.args[1]] if s.do is Do.STORE else statements.dims_text(s.type.names)
            for s in given
        )
        return list(zip(map(self.text, given), dims, strict=True))

    def text(self, s: Statement) -> str:
        """Return a statement of lines as code."""
        program, rows, name = self.program, self.rows, s.args[0]
        if s.do is Do.LOAD and rows:
            return f"const auto {s.out} = {name}.load();"
        if s.do is Do.LOAD:
            index = next(o.index for o in program.inputs if o.name == name)
            where = f"args.row_strides[{index}], {self.token}, {program.roles.tokens}"
            return f"const auto {s.out} = tile::load_line<Lines>(tile::line_of({name}, {where}));"
        if s.do is Do.SUM:
            i = self.sums().index(s.out)
            parts = f", sums[{i}]" if rows else ""
            parts += f", pieces[{i}]" if rows and rows.cluster else ""
            call = "sum_cluster" if rows and rows.cluster else "sum_line"
            return f"const float {s.out} = tile::{call}<Lines>({name}{parts});"
        if s.do is Do.STORE:
            first = " + first" if rows and rows.first else ""
            place = f"{s.args[1]} + {self.token} * {program.roles.depth}{first}"
            return f"tile::store_line<Lines>({place}, {name});"
        if s.do is Do.KEEP:
            return f"tile::store_resident({s.out}, token, {name});"
        args = [program.literals.get(a, a) for a in s.args]
        if s.layout in statements.WHOLE:
            return statements.map_text(s, args)
        type_ = statements.type_of(s)
        return f"const {type_} {s.out} = tile::{statements.vocabulary(s.op)}({', '.join(args)});"


def statistics(writer: Writer, program: TileProgram) -> None:
    """Write what a block computes of its tokens before the loop, in two functions of a token."""
    lines = Lines(program, "first_token + token")
    loads = [s for s in program.lines if s.do is Do.LOAD]
    rest = [s for s in program.lines if s.do is not Do.LOAD]
    writer.write(*lines.head(program.roles.depth, "tile::kWarpLanes"))
    for s in program.statistics:
        table = f"Shared::{statements.camel(s.out)}::at_bytes({statements.shared_at(s)})"
        writer.line(f"const auto {s.out} = {table};")
    writer.table(statements.rows_of((f"tile::Line<Lines, T> {s.out};", s) for s in loads))
    with writer.block("const auto load_lines = [&](int token) {", "};"):
        writer.write(*(lines.text(s).removeprefix("const auto ") for s in loads))
    with writer.block("const auto compute_statistics = [&](int token) {", "};"):
        writer.table(lines.table(rest))
    call = "tile::token_pass<kTokens, kWarps>(load_lines, compute_statistics)"
    writer.line(f"const auto statistics = {call};")


def parts(program: TileProgram, variants: Sequence[Variant]) -> list[Part]:
    """Return the form of a kernel without a loop."""
    name, depth = "row_wise", program.roles.depth
    rows = Rows("RowWise", depth)
    if program.parted:
        name, piece = "elementwise", "Config::kLine"
        # A token's pieces are neighbours in the grid: 64.4 us, not 66.8 (relu of 134 MB, H200).
        pieces = f"({depth} / {piece})"
        token, first = f"blockIdx.x / {pieces}", f"blockIdx.x % {pieces} * {piece}"
        grid = f"args.dims[0] * {pieces}, 1, kThreads, 0"
        rows = Rows("Elementwise", piece, token, first, grid)
    lines = lines_of(write_rows, program, rows)
    return [Part(name, ABOUT[name], ("tile/tile.cuh",), (), lines, describes=True)]


def write_rows(writer: Writer, program: TileProgram, rows: Rows) -> None:
    """Write the kernel and its launch: a row, or a piece of one, per block."""
    writer.write(
        "template <class Config>", f"__global__ void __launch_bounds__({statements.THREADS}, 1)"
    )
    kernel = f"{program.recipe}_cluster" if rows.cluster else program.recipe
    head = f"    {kernel}(const __grid_constant__ LaunchArgs args) {{"
    with writer.block(head), statements.declared(writer, program):
        lines = Lines(program, "token", rows)
        writer.write(*lines.head(rows.piece, "kThreads"), "tile::launch_dependents();")
        if rows.cluster:
            writer.line("tile::arrive_cluster();")
        writer.line("")
        writer.line(f"const int64_t token = {rows.token};")
        if rows.first:
            writer.line(f"const int first = {rows.first};")
        writer.table([*lines.places(), *statements.results(program)])
        writer.write(*statements.scalars(program), "")
        loads = [s for s in program.lines if s.do is Do.LOAD]
        if shared := [s for s in loads if s.layout is Layout.LINE_VECTOR]:
            writer.line(statements.EARLY)
            writer.table(lines.table(shared))
        writer.line("tile::grid_dependency_wait();")
        own = [s for s in loads if s not in shared]
        rest = [s for s in program.lines if s.do is not Do.LOAD]
        if rows.cluster:
            writer.table(lines.table(own))
            writer.line("tile::wait_cluster();")
            own = []
        writer.table(lines.table([*own, *rest]))
    writer.line()
    with statements.launch_function(writer, rows.template), statements.declared(writer, program):
        writer.write(
            f"const tile::Grid grid{{{rows.grid}}};",
            f"return tile::launch({kernel}<Config>, grid, args, stream);",
        )
    writer.line()
