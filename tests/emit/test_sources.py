"""KernelRecord files: golden, short, formatted, nothing volatile, and they compile."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from compilers import compiled, formatted
from sources import foreign_forms, source

from mirage_kernels.generator.emit.cuda import bucket_name
from mirage_kernels.generator.emit.table import Entry, emit_table
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.records.sources import files_of, table_of
from mirage_kernels.generator.schedules.schedule import Variant

GoldenRecord = Callable[[DType], KernelRecord]
ROOT = Path(__file__).parents[2]
DTYPES = [DType.FP16, DType.BF16]
FILES = [(dtype, ending) for dtype in DTYPES for ending in ("cu", "py")]

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.value)
each_file = pytest.mark.parametrize(
    ("dtype", "ending"), FILES, ids=[f"{d.value}-{e}" for d, e in FILES]
)


@each_dtype
def test_a_small_shape_has_the_forms_of_the_library(
    golden_record: GoldenRecord, dtype: DType
) -> None:
    assert foreign_forms(golden_record(dtype)) == []


def test_an_instantiation_is_golden(
    golden_record: GoldenRecord, golden: Callable[[str, str], None]
) -> None:
    record = golden_record(DType.FP16)
    golden("K72_N40_fp16.cu", files_of(record)[record.path.replace(".json", ".cu")])


def test_the_table_is_golden(
    golden_record: GoldenRecord, golden: Callable[[str, str], None]
) -> None:
    golden("table.cpp", table_of("sm_90a", [golden_record(d) for d in DTYPES]))


def test_line_1_is_the_command_that_makes_the_file(golden_record: GoldenRecord) -> None:
    first = {p: text.splitlines()[0] for p, text in files_of(golden_record(DType.FP16)).items()}
    command, recipe = "mirage-kernels generate", "rms_norm_linear"
    assert first[f"forms/{recipe}/sliced_k.cuh"] == f"// {command} {recipe}"
    assert first[f"forms/{recipe}/triton.py"] == f"# {command} {recipe}"
    assert first[f"sm_90a/{recipe}/K72_N40_fp16.cu"] == (
        f"// {command} {recipe} --arch sm_90a --dtype fp16 --shape K=72,N=40"
    )


@each_file
def test_nothing_volatile_is_emitted(
    golden_record: GoldenRecord, dtype: DType, ending: str
) -> None:
    text = source(golden_record(dtype), ending)
    host = os.uname().nodename
    assert str(ROOT) not in text
    assert host not in text.split()
    assert re.search(r"\b20\d\d-\d\d|\b\d\d:\d\d\b", text) is None


@each_file
def test_lines_are_short_and_end_in_no_blank(
    golden_record: GoldenRecord, dtype: DType, ending: str
) -> None:
    lines = source(golden_record(dtype), ending).splitlines()
    assert [line for line in lines if len(line) > 100 or line != line.rstrip()] == []


@each_dtype
def test_a_file_does_not_depend_on_the_hash_seed(
    golden_record: GoldenRecord, tmp_path: Path, dtype: DType
) -> None:
    record = golden_record(dtype)
    path = tmp_path / "record.json"
    path.write_text(record.text())
    program = (
        "import sys; from pathlib import Path\n"
        "from mirage_kernels.generator.records.record import load_record\n"
        "from mirage_kernels.generator.records.sources import files_of\n"
        "print(''.join(files_of(load_record(Path(sys.argv[1]))).values()), end='')"
    )
    made = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout == "".join(files_of(record).values())


def test_the_element_type_is_one_line_of_the_kernel(golden_record: GoldenRecord) -> None:
    half = golden_record(DType.FP16)
    brain = replace(half, dtype=DType.BF16.value)
    lines = [source(r, "cu").replace(r.dtype, "").splitlines() for r in (half, brain)]
    assert [pair for pair in zip(*lines, strict=True) if pair[0] != pair[1]] == [
        ("MIRAGE_SHAPE(__half, K = 72, N = 40)", "MIRAGE_SHAPE(__nv_bfloat16, K = 72, N = 40)")
    ]


def test_every_value_of_the_mugraph_is_named_in_the_kernel(golden_record: GoldenRecord) -> None:
    record = golden_record(DType.FP16)
    body = record.graph.blocks[0].body
    assert body is not None
    names = {n.name for n in body.nodes if n.op not in ("output", "size", "input")}
    text = source(record, "cu")
    assert {n for n in names if not re.search(rf"\b{n}\b", text)} == set()


def test_every_bucket_is_dispatched_once(golden_record: GoldenRecord) -> None:
    record = golden_record(DType.FP16)
    text = source(record, "cu")
    for variant in record.variants:
        name = bucket_name(variant, "M")
        listed = f"UpTo<{variant.bucket}, {name}>" if variant.bucket else f"Any<{name}>"
        assert text.count(listed) == 1


def test_a_bucket_is_named_after_its_tokens(golden_record: GoldenRecord) -> None:
    knobs = golden_record(DType.FP16).variants[0].knobs
    assert bucket_name(Variant(8, knobs), "M") == "UpTo8M"
    assert bucket_name(Variant(0, knobs), "M") == "AnyM"


def test_the_form_that_scales_x_is_emitted_too(
    golden_record: GoldenRecord, fused: Callable[..., Graph]
) -> None:
    graph = with_threads(fused("x", dtype=DType.BF16))
    record = replace(golden_record(DType.BF16), graph=graph)
    text = source(record, "cu")
    assert "tile::mul<T>(step.x_tile, step.norm_weight_tile)" in text
    assert "tile::contract(scaled_x_product, step.weight_tile, scaled_x)" in text


@each_dtype
def test_a_kernel_is_formatted_as_clang_format_would(
    golden_record: GoldenRecord, dtype: DType
) -> None:
    text = source(golden_record(dtype), "cu")
    assert text == formatted(text)


@each_dtype
def test_a_kernel_compiles_for_its_architecture(
    golden_record: GoldenRecord, tmp_path: Path, dtype: DType
) -> None:
    made = compiled(
        source(golden_record(dtype), "cu"), tmp_path, "-cubin", "-arch=sm_90a", "-o", "kernel.cubin"
    )
    assert made.returncode == 0, made.stderr


def test_the_dispatch_table_compiles(golden_record: GoldenRecord, tmp_path: Path) -> None:
    entries = [Entry(r.recipe, r.dtype, r.shape, r.stem) for r in map(golden_record, DTYPES)]
    made = compiled(emit_table("sm_90a", entries), tmp_path, "-c", "-o", "table.o")
    assert made.returncode == 0, made.stderr
