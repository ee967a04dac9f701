"""The host side of an emitted file: which variant serves a call, its grid, its workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.emit.names import THREADS, declared
from mirage_kernels.generator.emit.writer import WIDTH, Writer
from mirage_kernels.generator.plan.program import Layout, TileProgram
from mirage_kernels.generator.schedules.batched_lora import writer as batched_lora
from mirage_kernels.generator.schedules.producer_blocks import writer as producer_blocks
from mirage_kernels.generator.schedules.schedule import Variant

if TYPE_CHECKING:
    from mirage_kernels.generator.emit.cuda import Kernel


def bucket_name(variant: Variant, dim: str) -> str:
    """Return the name of a variant's knobs: `UpTo8M`, `AnyM`."""
    return f"UpTo{variant.bucket}{dim}" if variant.bucket else f"Any{dim}"


def threads(program: TileProgram) -> str:
    """Return the threads of a block: those that stream, perhaps a warp that receives."""
    return f"{THREADS} + tile::kWarpLanes" if program.received else THREADS


def write_slices(writer: Writer, program: TileProgram) -> None:
    """Write the function that launches the plan of slices, or of lines."""
    roles = program.roles
    writer.line("template <class Config>")
    with (
        writer.block("cudaError_t launch(const LaunchArgs& args, cudaStream_t stream) {"),
        declared(writer, program),
    ):
        if program.loop:
            tokens = "tile::ceil_div(args.dims[0], Config::kTokens)"
            tiles = f"tile::ceil_div({roles.rows}, Config::kRows)"
            makers = producer_blocks.makers_before(program)
            writer.line(f"const int64_t row_tiles = {makers}{tiles};")
            writer.line(f"const int64_t token_tiles = {tokens};")
            size = producer_blocks.shared_bytes(program, "SharedMap<Config>::kBytes")
            writer.assignment(f"constexpr int kSharedBytes = {size};")
        many = "kThreads + tile::kWarpLanes" if program.received else "kThreads"
        grid = f"row_tiles, token_tiles, {many}, kSharedBytes"
        parts = f"{roles.depth} / Config::kLine" if program.parted else "1"
        grid = grid if program.loop else f"args.dims[0], {parts}, kThreads, 0"
        writer.line(f"const tile::Grid grid{{{grid}}};")
        writer.line(f"return tile::launch({program.recipe}<Config>, grid, args, stream);")
    writer.line()


def write_host(writer: Writer, kernel: Kernel) -> None:
    """Write what callers see: the launch, and the size of the workspace if there is one."""
    roles = kernel.program.roles
    signature = f"cudaError_t {kernel.symbol}(const LaunchArgs& args, cudaStream_t stream) {{"
    if len(signature) > WIDTH:
        signature = signature.replace("(const", "(\n    const")
    with writer.block(signature):
        writer.line(f"const int64_t {roles.tokens} = args.dims[0];")
        writer.line(f"if ({roles.tokens} == 0) return cudaSuccess;")
        operands = {o.name: o for o in kernel.program.inputs}
        for s in (*kernel.program.loads, *kernel.program.fetches):
            if s.layout in (Layout.ROWS, Layout.INNER, Layout.FACTORS):
                operand = operands[s.args[0]]
                stride = f"args.row_strides[{operand.index}] != Shape::{operand.type.names[-1]}"
                writer.line(f"if ({stride}) return cudaErrorInvalidValue;")
        if kernel.program.stacked:
            batched_lora.write_first_launch(writer)
        for variant in kernel.variants:
            name = bucket_name(variant, roles.tokens)
            call = f"return {variant.knobs.launch}<{name}>(args, stream);"
            writer.line(_guard(variant, roles.tokens) + call)
    if not any(v.knobs.has_workspace for v in kernel.variants) and not kernel.program.stacked:
        return
    writer.line()
    with writer.block(f"int64_t {kernel.symbol}_workspace(const LaunchArgs& args) {{"):
        writer.line(f"const int64_t {roles.tokens} = args.dims[0];")
        for variant in kernel.variants:
            call = f"return workspace<{bucket_name(variant, roles.tokens)}>(args);"
            if not variant.knobs.has_workspace and not kernel.program.stacked:
                call = "return 0;"
            writer.line(_guard(variant, roles.tokens) + call)


def _guard(variant: Variant, tokens: str) -> str:
    return f"if ({tokens} <= {variant.bucket}) " if variant.bucket else ""
