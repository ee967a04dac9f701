"""KernelRecord kernels whose tokens are made by a launch in front."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from compilers import compiled, formatted

from mirage_kernels.generator.emit.cuda import Kernel, emit_cuda
from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.schedules.choose import shared_bytes, variants
from mirage_kernels.generator.schedules.loop import prologue_warps
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.target import target

KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "sm_90a"
NAMES = ["layer_norm_linear/K4096_N6144_fp16", "layer_norm_linear_full/K4096_N4096_bf16"]
each_kernel = pytest.mark.parametrize("name", NAMES)
SPACE = "mirage::generated::"


def kernel(name: str) -> Kernel:
    record = load_record(KERNELS / f"{name}.json")
    assert isinstance(record, KernelRecord)
    made = tile_program(record.recipe, record.graph)
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
        if prologue_warps(variant.knobs):
            planned = shared_bytes(made.program, variant.knobs)
            block = f"{SPACE}RegisterOperandBlock<{SPACE}{knobs}>"
            checks.append(f"static_assert({block}::kBytes == {planned});\n")
    assert len(checks) == 3
    ran = compiled(emit_cuda(made) + "".join(checks), tmp_path, "-ptx", "-arch=sm_90a")
    assert ran.returncode == 0, ran.stderr
    assert "warning" not in ran.stderr


@each_kernel
def test_both_launches_serve_many_tokens_and_few_need_no_workspace(name: str) -> None:
    text = emit_cuda(kernel(name))
    assert re.findall(r"using (\w+M) =\s+(\w+)<Shape", text) == [
        ("UpTo8M", "SlicedK"),
        ("UpTo16M", "AfterPrologue"),
        ("UpTo32M", "AfterPrologue"),
        ("AnyM", "AfterPrologue"),
    ]
    assert re.findall(r"int64_t workspace\((\w+)", text) == ["AfterPrologue"]


def test_what_follows_starts_when_the_kernels_before_have_ended() -> None:
    text = emit_cuda(kernel(NAMES[0]))
    front = text[text.index("layer_norm_linear_prologue(") : text.index("launch(AfterPrologue")]
    assert front.index("launch_prologue()") < front.index("load_if_given")
    behind = "return launch(RegisterOperand<Config>{}, tile::launch_behind(args, 0, K), stream);"
    assert behind in text


def test_a_file_whose_variants_are_all_of_few_tokens_has_no_launch_in_front() -> None:
    made = kernel(NAMES[0])
    few = Kernel(made.program, made.variants[:1], made.storage, made.header)
    text = emit_cuda(few)
    assert "front" not in text
    assert "workspace" not in text


def test_a_file_may_have_nothing_but_made_tokens(tmp_path: Path) -> None:
    made = kernel(NAMES[0])
    many = [Variant(0, made.variants[-1].knobs)]
    text = emit_cuda(Kernel(made.program, many, made.storage, made.header))
    ran = compiled(text, tmp_path, "-ptx", "-arch=sm_90a")
    assert ran.returncode == 0, ran.stderr
