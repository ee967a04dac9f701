"""The host side of an emitted file: which variant serves a call, its grid, its workspace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mirage_kernels.generator.emit.names import THREADS, camel, declared
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.plan.program import Layout, TileProgram
from mirage_kernels.generator.schedules.loop import prologue_warps
from mirage_kernels.generator.schedules.producer_blocks import writer as producer_blocks
from mirage_kernels.generator.schedules.schedule import Variant

if TYPE_CHECKING:
    from mirage_kernels.generator.emit.cuda import Kernel

_WHOLE = (Layout.ROWS, Layout.INNER, Layout.FACTORS)  # weights, whose rows are contiguous


def bucket_name(variant: Variant, dim: str) -> str:
    """Return the name of a variant's config: `UpTo8M`, `AnyM`."""
    return f"UpTo{variant.bucket}{dim}" if variant.bucket else f"Any{dim}"


def schedule_name(variant: Variant, program: TileProgram) -> str:
    """Return the config template of a variant's schedule in csrc/variants.h."""
    if prologue_warps(variant.knobs):
        return "AfterPrologue"
    return camel(variant.schedule) if program.loop else lines_name(program)


def lines_name(program: TileProgram) -> str:
    """Return the config template of kernels without a loop."""
    return "Elementwise" if program.parted else "RowWise"


@contextmanager
def launch_function(writer: Writer, schedule: str) -> Iterator[None]:
    """Write the function that launches the configs of a schedule."""
    writer.line("template <class... Knobs>")
    rest = "const LaunchArgs& args, cudaStream_t stream) {"
    head = f"cudaError_t launch({schedule}<Knobs...>, {rest}"
    with writer.block(head):
        writer.line(f"using Config = {schedule}<Knobs...>;")
        yield


def threads(program: TileProgram) -> str:
    """Return the threads of a block: those that stream, perhaps a warp that receives."""
    return f"{THREADS} + tile::kWarpLanes" if program.received else THREADS


def write_slices(writer: Writer, program: TileProgram) -> None:
    """Write the function that launches the plan of slices, or of lines."""
    roles = program.roles
    name = "SlicedK" if program.loop else lines_name(program)
    with launch_function(writer, name), declared(writer, program):
        if program.received:
            tokens = "tile::ceil_div(args.dims[0], Config::kTokens)"
            tiles = f"tile::ceil_div({roles.rows}, Config::kRows)"
            makers = producer_blocks.makers_before(program)
            writer.line(f"const int64_t row_tiles = {makers}{tiles};")
            writer.line(f"const int64_t token_tiles = {tokens};")
            size = producer_blocks.shared_bytes(program, "SharedMap<Config>::kBytes")
            writer.assignment(f"constexpr int kSharedBytes = {size};")
            grid = "row_tiles, token_tiles, kThreads + tile::kWarpLanes, kSharedBytes"
            writer.line(f"const tile::Grid grid{{{grid}}};")
        elif program.loop:
            given = f"args.dims[0], {roles.rows}, SharedMap<Config>::kBytes"
            writer.line(f"const tile::Grid grid = tile::tile_grid<Config>({given});")
        else:
            parts = f"{roles.depth} / Config::kLine" if program.parted else "1"
            writer.line(f"const tile::Grid grid{{args.dims[0], {parts}, kThreads, 0}};")
        writer.line(f"return tile::launch({program.recipe}<Config>, grid, args, stream);")
    writer.line()


def write_host(writer: Writer, kernel: Kernel) -> None:
    """Write what callers see: the launch, and the size of the workspace."""
    program = kernel.program
    operands = {o.name: o for o in program.inputs}
    whole = (operands[s.args[0]] for s in (*program.loads, *program.fetches) if s.layout in _WHOLE)
    strides = (f"{{{o.index}, Shape::{o.type.names[-1]}}}" for o in whole)
    writer.line(f"MIRAGE_KERNEL({', '.join((kernel.symbol, *strides))})")
