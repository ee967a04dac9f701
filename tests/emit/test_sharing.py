"""Rows that the grid does not cut, shared by the blocks of a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from compilers import compiled, formatted

from mirage_kernels.generator.emit.cuda import Kernel, emit_cuda
from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.plan.tiles import Planning
from mirage_kernels.generator.plan.variants import Footprint, Knobs, variants
from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.target import target

KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "sm_90a"
MANY, FEW = "lora_linear/K4096_N4096_R64_fp16", "lora_linear/K4096_N4096_R16_fp16"


def program(name: str, arch: str = "sm_90a") -> TileProgram:
    record = load_record(KERNELS / f"{name}.json")
    return tile_program(record.recipe, record.graph, Planning(arch=arch, apart=False))


def test_many_rows_are_shared_by_two_blocks() -> None:
    assert program(MANY).shared_by == 2
    assert program(FEW).shared_by == 1


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_100a", "sm_120a"])
def test_other_architectures_share_nothing(arch: str) -> None:
    assert program(MANY, arch).shared_by == 1


def test_what_weights_take_as_they_lie_is_shared_up_to_32_tokens() -> None:
    found = {v.knobs.tokens: v.knobs.plan for v in variants(program(MANY), target("sm_90a"))}
    assert found == {8: "", 16: "", 32: "", 64: "held"}


def test_a_block_has_half_of_the_rows() -> None:
    knobs = Knobs(tokens=16, rows=32, warps=8, chunks=2, stages=2)
    whole = Footprint.of(replace(program(MANY), shared_by=1))
    shared = Footprint.of(program(MANY))
    assert whole.inner_lines == 2 * shared.inner_lines == 64
    assert shared.registers(knobs) < whole.registers(knobs)


def test_what_blocks_send_each_other_lies_beside_the_ring() -> None:
    (kept,) = (k for k in Footprint.of(program(MANY)).kept if k.shared)
    assert kept.since == -1


def test_the_emitted_kernel_is_formatted_and_as_large_as_planned(tmp_path: Path) -> None:
    made = program(MANY)
    chosen = variants(made, target("sm_90a"))
    kernel = Kernel(made, chosen, load_record(KERNELS / f"{MANY}.json").storage, _header())
    text = emit_cuda(kernel)
    assert formatted(text) == text
    planned = Footprint.of(made).shared_bytes(chosen[0].knobs)
    block = "mirage::generated::SharedMap<mirage::generated::UpTo8M>"
    checked = f"{text}static_assert({block}::kBytes == {planned});\n"
    ran = compiled(checked, tmp_path, "-ptx", "-arch=sm_90a")
    assert ran.returncode == 0, ran.stderr


def _header() -> Header:
    return Header("command", "stem", [("Formula", "none")])
