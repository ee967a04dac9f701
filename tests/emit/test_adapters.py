"""KernelRecord kernels whose tokens have slices of stacked weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from compilers import compiled, formatted

from mirage_kernels.generator.emit.cuda import Kernel, emit_cuda
from mirage_kernels.generator.plan.program import Layout
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.records.sources import files_of, table_of
from mirage_kernels.generator.schedules.batched_lora import (
    PRODUCER_BLOCKS,
    TASKS_BYTES,
    first_launch,
    slices_ahead,
)
from mirage_kernels.generator.schedules.choose import shared_bytes
from mirage_kernels.generator.schedules.loop import BARRIER_BYTES, kept_bytes
from mirage_kernels.generator.schedules.sliced_k import Area
from mirage_kernels.generator.schedules.streaming import stacked_kernel
from mirage_kernels.generator.target import target

KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "sm_90a" / "lora_linear_full"
NAMES = ["K4096_N4096_R16_bf16", "K4096_N4096_R64_fp16"]
ON = target("sm_90a")
each_kernel = pytest.mark.parametrize("name", NAMES)
SPACE = "mirage::generated::"


def record(name: str) -> KernelRecord:
    return replace(load_record(KERNELS / f"{name}.json"), stacked=("lora_a", "lora_b"))


def kernel(name: str) -> Kernel:
    made = stacked_kernel(record(name))
    assert made is not None
    return made


@each_kernel
def test_it_is_formatted_as_clang_format_would(name: str) -> None:
    text = emit_cuda(kernel(name))
    assert formatted(text) == text


@each_kernel
def test_its_blocks_are_as_large_as_planned(name: str, tmp_path: Path) -> None:
    made = kernel(name)
    program = made.program
    rank = {d.name: d.size for o in program.inputs for d in o.type.dims}["R"]
    checks = []
    for variant, knobs in zip(made.variants, ("UpTo8M", "UpTo16M", "UpTo32M", "AnyM"), strict=True):
        block = "RegisterOperandBlock" if (variant.schedule == "register_operand") else "SharedMap"
        more = slices_ahead(program, variant.knobs, ON) - 1
        planned = shared_bytes(program, variant.knobs) + TASKS_BYTES
        planned += more * kept_bytes(variant.knobs.rows // variant.knobs.blocks, rank)
        checks.append(f"static_assert({SPACE}{block}<{SPACE}{knobs}>::kBytes == {planned});\n")
        assert planned <= ON.shared_bytes
    first, sums = first_launch(program), Area("sums", Layout.ACCUM, partial=True)
    met = sums.bytes(first) + sums.bytes(replace(first, warps=PRODUCER_BLOCKS))
    block = f"producing::SharedMap<{SPACE}Producers<{SPACE}Shape>>"
    planned = TASKS_BYTES + met + BARRIER_BYTES
    checks.append(f"static_assert({SPACE}{block}::kBytes == {planned});\n")
    ran = compiled(emit_cuda(made) + "".join(checks), tmp_path, "-ptx", "-arch=sm_90a")
    assert ran.returncode == 0, ran.stderr


def test_a_record_whose_weights_may_be_stacked_has_a_second_kernel_and_row() -> None:
    plain = load_record(KERNELS / f"{NAMES[0]}.json")
    stacked = record(NAMES[0])
    path = f"sm_90a/lora_linear_batched/{NAMES[0]}.cu"
    assert path in files_of(stacked)
    assert path not in files_of(replace(plain, stacked=()))
    row = "SPACE(lora_linear_batched, K4096_N4096_R16_bf16, bf16,"
    assert row in table_of("sm_90a", [stacked])
    assert row not in table_of("sm_90a", [replace(plain, stacked=())])


@pytest.mark.parametrize("arch", ["sm_80", "sm_120a"])
def test_elsewhere_there_is_none(arch: str) -> None:
    assert stacked_kernel(replace(record(NAMES[0]), arch=arch)) is None


@pytest.mark.parametrize("stacked", [(), ("lora_a",), ("weight", "lora_b")])
def test_what_is_stacked_is_both_factors_of_the_adapter(stacked: tuple[str, ...]) -> None:
    assert stacked_kernel(replace(record(NAMES[0]), stacked=stacked)) is None


def test_its_tiles_are_those_of_the_record() -> None:
    proved = record(NAMES[1])
    for variant in kernel(NAMES[1]).variants:
        assert proved.tiles(variant) in proved.all_tiles
