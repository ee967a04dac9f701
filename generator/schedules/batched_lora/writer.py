"""Stacked weights: slices by token in emitted kernels, over csrc/tile/batched_lora."""

from __future__ import annotations

from mirage_kernels.generator.emit.names import (
    MEETINGS,
    THREADS,
    camel,
    declared,
    kept_at,
    shared_at,
    typed,
)
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.batched_lora import (
    PRODUCER_BLOCKS,
    first_launch,
    slices_ahead,
)
from mirage_kernels.generator.schedules.loop import LoopKnobs
from mirage_kernels.generator.schedules.producer_blocks import WHERE_MEASURED
from mirage_kernels.generator.target import target

INCLUDES = ("tile/batched_lora/lora.cuh",)
READY = "tile::Start::at_once()"  # all that streams was there when the kernel started


def knobs_of(program: TileProgram, knobs: LoopKnobs) -> dict[str, int]:
    """Return the constant of a variant: how many second slices a block has places for."""
    return {"slices": slices_ahead(program, knobs, target(WHERE_MEASURED[0]))}


def write_map(writer: Writer, makers: TileProgram) -> None:
    """Write the makers' map of shared memory."""
    writer.line(
        "// Shared memory in bytes: groups, the warps' sums, what blocks of the cluster send."
    )
    writer.line("template <class Config>")
    with writer.block("struct SharedMap {", "};"), declared(writer, makers, member=True):
        (met,) = makers.meetings
        name = camel(met.out)
        writer.assignment(f"using {name} = tile::{typed(MEETINGS, met, makers)};")
        writer.line(f"static constexpr int k{name}At = tile::kGroupsBytes;")
        writer.line(f"static constexpr int kBlocksAt = k{name}At + {name}::kBytes;")
        writer.line("static constexpr int kBytes = kBlocksAt + Clusters::kBytes;")
    writer.line()


def write_loads(writer: Writer, makers: TileProgram) -> None:
    """Write how a step comes into registers."""
    with writer.block("const auto load = [&](Step& step, int k) {", "};"):
        for s in makers.loads:
            writer.line(f"tile::load(step.{s.out}, {s.args[0]}_edge, k);")


CALL = "tile::load_and_compute<Config::kStages, Step>(steps, load, compute);"


def write_plan(writer: Writer, users: TileProgram, program: TileProgram) -> None:
    """Write the knobs of the first launch."""
    (dim,) = users.roles.inner
    (kept,) = users.received
    knobs = first_launch(program)
    sizes = {
        "Rows": knobs.rows,
        "Tokens": knobs.tokens,
        "Warps": knobs.warps,
        "Chunks": knobs.chunks,
        "Stages": knobs.stages,
        "Blocks": PRODUCER_BLOCKS,
    }
    constants = ", ".join(f"k{name} = {value}" for name, value in sizes.items())
    writer.line(f"// A first launch computes {kept.args[0]}, each token's with its own slice.")
    writer.line("template <class Shape>")
    with writer.block("struct Producers : Shape {", "};"):
        writer.line("using Element = typename Shape::T;")
        writer.line(f"static constexpr int {constants};")
        writer.line(f"static constexpr int kInner = Shape::{dim};")
    writer.line()


def write_makers_head(writer: Writer, makers: TileProgram) -> str:
    """Write what stands before the function that makes a tile; return its head."""
    writer.line("template <class Config>")
    head = f"__device__ void {makers.recipe}(const LaunchArgs& args, char* shared, "
    writer.line(head.rstrip())
    return f"{' ' * (head.index('(') + 1)}const tile::SliceTile& own) {{"


def write_makers_tile(writer: Writer, program: TileProgram) -> None:
    """Write which tokens and which slice a cluster has."""
    writer.line("const int first_row = own.first_row, first_token = own.first_token;")
    writer.line("const tile::AdapterGroup group = own.group;")
    for s in program.loads:
        if s.args[0] in program.stacked:
            rows, depth = program.roles.rows, program.roles.depth
            writer.line(f"{s.args[0]} += int64_t{{group.adapter}} * {rows} * {depth};")
    writer.line("tile::begin_reduction<Clusters>(shared + Shared::kBlocksAt, own.turn);")


def write_makers_kernel(writer: Writer, makers: TileProgram) -> None:
    """Write the makers' kernel: users start when all that came before it has ended."""
    writer.line("template <class Config>")
    writer.line(f"__global__ void __launch_bounds__({THREADS})")
    head = f"    {makers.recipe}_producers(const __grid_constant__ LaunchArgs args) {{"
    with writer.block(head), declared(writer, makers):
        writer.line("extern __shared__ __align__(16) char shared[];")
        writer.line("tile::grid_dependency_wait();")
        writer.line("tile::launch_dependents();")
        writer.line(f"Clusters::for_each_tile(args, shared, {makers.recipe}<Config>);")
    writer.line()


def write_left(writer: Writer, program: TileProgram) -> str:
    """Write that blocks of a cluster meet; return the call that leaves their totals."""
    for s in program.meetings:
        where = f"shared + Shared::kBlocksAt, {s.out}_own, own.turn"
        writer.assignment(f"const auto {s.out}_parts = tile::reduce_blocks<Clusters>({where});")
    writer.line("if (tile::cluster_rank() > 0) return;")
    return "tile::publish_inner<Clusters>(args.workspace, out_tile, group"


def write_makers_launch(writer: Writer, makers: TileProgram) -> None:
    """Write the launch of the makers."""
    tokens = makers.roles.tokens
    head = "cudaError_t launch_first(Shape, const LaunchArgs& args, cudaStream_t stream) {"
    writer.line("template <class Shape>")
    with writer.block(head):
        writer.line("using Config = Producers<Shape>;")
        writer.line("using Clusters = tile::AdapterProducers<Config>;")
        writer.line("constexpr int kSharedBytes = producing::SharedMap<Config>::kBytes;")
        writer.line(f"const int64_t {tokens} = args.dims[0];")
        writer.line(f"const tile::Grid grid = Clusters::grid({tokens}, args.slices, kSharedBytes);")
        call = f"producing::{makers.recipe}_producers<Config>"
        writer.line(f"return tile::launch({call}, grid, args, stream);")
    writer.line()


def write_received(writer: Writer, users: TileProgram, warps: str) -> None:
    """Write what a user's last warp does: it multiplies totals with their tokens' slices."""
    roles = users.roles
    for s in (*users.fetches, *users.received):
        kept_at(writer, s)
    tile = f"{{first_row, {roles.rows}, first_token, {roles.tokens}}}"
    writer.line(f"const tile::OutputTile out_tile{tile};")
    for s in users.products:
        stack = users.fetches[0].args[0]
        arguments = f"{shared_at(s)}, {', '.join(s.args)}, args, {stack}, out_tile"
        writer.assignment(f"tile::contract_adapters({arguments});")
    writer.line(f"tile::sync_intermediate<{warps}>();")
    writer.line("return;")


def shared_bytes(users: str) -> str:
    """Return the shared memory of a block: so much that no multiprocessor has two.

    Where makers still run when they start, two would be put on one, and others would have none.
    """
    return f"tile::larger({users}, tile::kExclusiveBytes)"


def write_workspace(writer: Writer, users: TileProgram) -> None:
    """Write the size of the workspace: the makers' totals."""
    (dim,) = users.roles.inner
    writer.line("template <class Config>")
    head = "int64_t workspace(Config, const LaunchArgs& args) {"
    with writer.block(head), declared(writer, users):
        writer.line(f"return args.dims[0] * {dim} * static_cast<int64_t>(sizeof(T));")
    writer.line()
