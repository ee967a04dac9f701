"""KernelRecord kernels of the plan of held tokens: formatted, and as large as planned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from compilers import compiled, formatted

from mirage_kernels.generator.emit.cuda import Kernel, emit_cuda
from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.schedules.choose import shared_bytes, variants
from mirage_kernels.generator.schedules.producer_blocks import with_producer_blocks
from mirage_kernels.generator.target import target

KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "sm_90a"
NAMES = [
    "gated_mlp/K4096_N4096_fp16",
    "gated_mlp/K4096_N14336_bf16",
    "lora_linear/K4096_N4096_R64_fp16",
    "rms_norm_linear/K8192_N10240_bf16",
    "rms_norm_gated_mlp/K4096_N14336_bf16",
]
each_kernel = pytest.mark.parametrize("name", NAMES)


def kernel(name: str) -> Kernel:
    record = load_record(KERNELS / f"{name}.json")
    made = with_producer_blocks(tile_program(record.recipe, record.graph), target("sm_90a"))
    header = Header("command", "stem", [("Formula", "none")])
    return Kernel(made, variants(made, target("sm_90a")), record.storage, header)


@each_kernel
def test_it_is_formatted_as_clang_format_would(name: str) -> None:
    text = emit_cuda(kernel(name))
    assert formatted(text) == text


@pytest.mark.parametrize("name", NAMES[:2])
def test_many_tokens_are_launched_as_held(name: str) -> None:
    configs = re.findall(r"using (\w+M) =\s+(\w+)<Shape", emit_cuda(kernel(name)))
    schedules = ["SlicedK", "SlicedK", "RegisterOperand", "RegisterOperand"]
    assert configs == list(zip(("UpTo8M", "UpTo16M", "UpTo32M", "AnyM"), schedules, strict=True))


@each_kernel
def test_it_takes_the_shared_memory_that_was_planned(name: str, tmp_path: Path) -> None:
    made = kernel(name)
    planned = shared_bytes(made.program, made.variants[-1].knobs)
    block = "mirage::generated::RegisterOperandBlock<mirage::generated::AnyM>"
    text = f"{emit_cuda(made)}static_assert({block}::kBytes == {planned});\n"
    ran = compiled(text, tmp_path, "-ptx", "-arch=sm_90a")
    assert ran.returncode == 0, ran.stderr


def test_what_is_computed_of_tokens_stands_in_the_loop_and_beside_the_ring() -> None:
    lines = [line.strip() for line in emit_cuda(kernel(NAMES[3])).splitlines()]
    for line in (
        "static constexpr int kVectors = 1, kTokenSums = 1;",
        "tile::TokenPartial<tile::kRowTile> x_squared;       // [M]",
        "const auto copy_vectors = [&] { block.copy_vector(0, norm_weight); };",
        "const auto x_squared_parts = tile::store_partials(block, 0, x_squared);",
    ):
        assert line in lines
    assert any(line.startswith("tile::contract(scaled_x_product, weight_tile, ") for line in lines)


def test_blocks_of_a_pair_copy_the_same_rows_and_finish_half_of_them() -> None:
    lines = [line.strip() for line in emit_cuda(kernel(NAMES[2])).splitlines()]
    copied = "const int tile_row = producers.consumer() / Block::kBlocks * Block::kRows;"
    assert copied in lines
    assert "const int first_row = tile_row + Block::rank() * Block::kOwnRows;" in lines
    assert "tile::copy_tile(buffer.rows(0), given.maps[1], tile_row, k, buffer.full);" in lines
    assert "const tile::OutputTile out_tile{first_row, N, first_token, M};" in lines


def test_every_warp_of_a_user_tells_the_cluster_once() -> None:
    text = emit_cuda(kernel(NAMES[2]))
    user = text[text.index("lora_linear_register_operand(const __grid_constant__") :]
    assert user.count("Block::sync_cluster();") == 1  # the warp that receives
    assert user.count("block.begin();") == 1  # all others
