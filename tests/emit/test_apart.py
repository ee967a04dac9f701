"""KernelRecord kernels whose first blocks compute totals for all others."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from compilers import compiled, formatted

from mirage_kernels.generator.emit.cuda import Kernel, emit_cuda
from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.emit.table import Entry, emit_table
from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.records.sources import table_of
from mirage_kernels.generator.schedules.choose import (
    producers_bytes,
    programs_of,
    shared_bytes,
    variants,
)
from mirage_kernels.generator.schedules.producer_blocks import STAMP_BYTES
from mirage_kernels.generator.target import target

KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "sm_90a"
NAMES = ["lora_linear/K4096_N4096_R16_bf16", "lora_linear/K4096_N4096_R64_fp16"]
each_kernel = pytest.mark.parametrize("name", NAMES)
SPACE = "mirage::generated::"


def kernel(name: str) -> Kernel:
    record = load_record(KERNELS / f"{name}.json")
    made = programs_of(record.recipe, record.graph, record.arch)[0]
    header = Header("command", "stem", [("Formula", "none")])
    return Kernel(made, variants(made, target("sm_90a")), record.storage, header)


@each_kernel
def test_it_is_formatted_as_clang_format_would(name: str) -> None:
    text = emit_cuda(kernel(name))
    assert formatted(text) == text


@each_kernel
def test_its_blocks_are_as_large_as_planned(name: str, tmp_path: Path) -> None:
    made = kernel(name)
    checks = []
    for variant, knobs in zip(made.variants, ("UpTo8M", "UpTo16M", "UpTo32M", "AnyM"), strict=True):
        block = f"SharedMap<{SPACE}{knobs}>"
        if variant.schedule == "register_operand":
            block = f"RegisterOperandBlock<{SPACE}{knobs}>"
        planned = shared_bytes(made.program, variant.knobs)
        checks.append(f"static_assert({SPACE}{block}::kBytes == {planned});\n")
        block = f"producing::SharedMap<{SPACE}Producers<{SPACE}{knobs}>>"
        if variant.schedule == "register_operand":
            block = f"ProducersBlock<{SPACE}{knobs}>"
        planned = producers_bytes(made.program, variant.knobs) - STAMP_BYTES
        checks.append(f"static_assert({SPACE}{block}::kBytes == {planned});\n")
    ran = compiled(emit_cuda(made) + "".join(checks), tmp_path, "-ptx", "-arch=sm_90a")
    assert ran.returncode == 0, ran.stderr


@each_kernel
def test_users_in_pairs_are_served_by_pairs_others_by_slices(name: str) -> None:
    text = emit_cuda(kernel(name))
    held = text[text.index("lora_linear_register_operand(const") :]
    assert "if (producers.is_producer()) return lora_linear_produce<Config>(given, shared);" in held
    assert "producing::" not in held
    assert "producers.template receive<tile::kReceivingWarps>(" in held
    slices = text[: text.index("// The arguments of a launch of producer and consumer blocks.")]
    assert "lora_linear_make" not in slices
    assert "producers.receive(" in slices


def test_a_file_of_one_variant_in_pairs_compiles(tmp_path: Path) -> None:
    made = kernel(NAMES[1])
    alone = Kernel(made.program, [replace(made.variants[-1], bucket=0)], made.storage, made.header)
    ran = compiled(emit_cuda(alone), tmp_path, "-ptx", "-arch=sm_90a")
    assert ran.returncode == 0, ran.stderr


@each_kernel
def test_a_workspace_has_room_for_blocks_that_share_rows(name: str) -> None:
    made = kernel(name)
    rows = r"tile::ceil_div\(N, Config::kRows\)"
    room = rf"ProducerBlocks<Config>::bytes\(args\.dims\[0\], (\d+) \* {rows}\)"
    (users_of_rows,) = re.findall(room, emit_cuda(made))
    assert max(v.knobs.blocks for v in made.variants) == int(users_of_rows)


def test_the_table_names_workspaces_where_there_are_some() -> None:
    entries = [Entry("a", "fp16", {"K": 8}, "K8_fp16"), Entry("b", "fp16", {"K": 8}, "K8_fp16")]
    text = emit_table("sm_90a", [entries[0], Entry(**vars(entries[1]) | {"workspace": True})])
    assert "  PLAIN(a, K8_fp16," in text
    assert "  SPACE(b, K8_fp16," in text
    records = [load_record(KERNELS / f"{name}.json") for name in NAMES]
    assert len(re.findall(r"SPACE\(lora_linear, ", table_of("sm_90a", records))) == 2
