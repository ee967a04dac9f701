"""Emitted files: golden, short, formatted, nothing volatile, and they compile."""

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

from mirage_kernels.generator.emit.cuda import bucket_name, camel, dims_text
from mirage_kernels.generator.emit.table import Entry, emit_table
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.records.record import KernelRecord
from mirage_kernels.generator.records.sources import sources_of, table_of
from mirage_kernels.generator.schedules.schedule import Variant

GoldenRecord = Callable[[DType], KernelRecord]
ROOT = Path(__file__).parents[2]
DTYPES = [DType.FP16, DType.BF16]
FILES = [(dtype, ending) for dtype in DTYPES for ending in ("cu", "py")]

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.value)
each_file = pytest.mark.parametrize(
    ("dtype", "ending"), FILES, ids=[f"{d.value}-{e}" for d, e in FILES]
)


def source(record: KernelRecord, ending: str) -> str:
    return sources_of(record)[record.path.removesuffix("json") + ending]


@each_file
def test_an_emitted_file_is_golden(
    golden_record: GoldenRecord, golden: Callable[[str, str], None], dtype: DType, ending: str
) -> None:
    golden(f"K72_N40_{dtype.value}.{ending}", source(golden_record(dtype), ending))


def test_the_header_says_which_extents_were_proved_whole(golden_record: GoldenRecord) -> None:
    record = golden_record(DType.FP16)
    cut = tuple(replace(c, sizes={**c.sizes, "N": 7}) for c in record.proof.cases)
    fewer_rows = replace(record, proof=replace(record.proof, cases=cut))
    assert "at full extents and uneven edges" in source(record, "cu")
    assert "at full K and uneven edges" in source(fewer_rows, "cu")


def test_the_table_is_golden(
    golden_record: GoldenRecord, golden: Callable[[str, str], None]
) -> None:
    golden("table.cpp", table_of("sm_90a", [golden_record(d) for d in DTYPES]))


@each_dtype
def test_a_kernel_has_three_files(golden_record: GoldenRecord, dtype: DType) -> None:
    base = f"sm_90a/rms_norm_linear/K72_N40_{dtype.value}"
    assert list(sources_of(golden_record(dtype))) == [f"{base}.{e}" for e in ("json", "cu", "py")]


@each_file
def test_line_1_is_the_command_that_makes_the_file(
    golden_record: GoldenRecord, dtype: DType, ending: str
) -> None:
    mark = {"cu": "//", "py": "#"}[ending]
    assert source(golden_record(dtype), ending).splitlines()[0] == (
        f"{mark} mirage-kernels generate rms_norm_linear --arch sm_90a "
        f"--dtype {dtype.value} --shape K=72,N=40"
    )


@each_file
def test_no_line_is_longer_than_100_columns(
    golden_record: GoldenRecord, dtype: DType, ending: str
) -> None:
    lines = source(golden_record(dtype), ending).splitlines()
    assert [line for line in lines if len(line) > 100] == []


@each_file
def test_a_file_has_about_150_lines_at_most(
    golden_record: GoldenRecord, dtype: DType, ending: str
) -> None:
    assert len(source(golden_record(dtype), ending).splitlines()) <= 170


@each_file
def test_no_line_ends_in_a_blank(golden_record: GoldenRecord, dtype: DType, ending: str) -> None:
    assert re.search(r"[ \t]\n", source(golden_record(dtype), ending)) is None


@each_dtype
def test_the_same_record_is_emitted_the_same_again(
    golden_record: GoldenRecord, dtype: DType
) -> None:
    assert sources_of(golden_record(dtype)) == sources_of(golden_record(dtype))


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
def test_a_file_does_not_depend_on_the_hash_seed(
    golden_record: GoldenRecord, tmp_path: Path, dtype: DType, ending: str
) -> None:
    record = golden_record(dtype)
    path = tmp_path / "record.json"
    path.write_text(record.text())
    program = (
        "import sys; from pathlib import Path\n"
        "from mirage_kernels.generator.records.record import load_record\n"
        "from mirage_kernels.generator.records.sources import sources_of\n"
        "print(list(sources_of(load_record(Path(sys.argv[1]))).values())[int(sys.argv[2])], end='')"
    )
    made = subprocess.run(
        [sys.executable, "-c", program, str(path), {"cu": "1", "py": "2"}[ending]],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout == source(record, ending)


@each_dtype
def test_the_triton_program_is_python(golden_record: GoldenRecord, dtype: DType) -> None:
    compile(source(golden_record(dtype), "py"), "program.py", "exec")


def test_the_element_type_is_one_line_of_the_kernel(golden_record: GoldenRecord) -> None:
    half = golden_record(DType.FP16)
    brain = replace(half, dtype=DType.BF16.value)
    lines = [source(r, "cu").replace(r.dtype, "").splitlines() for r in (half, brain)]
    assert [pair for pair in zip(*lines, strict=True) if pair[0] != pair[1]] == [
        ("using T = __half;", "using T = __nv_bfloat16;")
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
        assert text.count(f"launch<{bucket_name(variant, 'M')}>(args, stream)") == 1


def test_a_bucket_is_named_after_its_tokens(golden_record: GoldenRecord) -> None:
    knobs = golden_record(DType.FP16).variants[0].knobs
    assert bucket_name(Variant(8, knobs), "M") == "UpTo8M"
    assert bucket_name(Variant(0, knobs), "M") == "AnyM"


def test_a_values_name_is_camel_cased_for_a_type() -> None:
    assert (camel("sum_sq"), dims_text(["M", "K"])) == ("SumSq", "[M, K]")


def of_the_x_form(record: KernelRecord, graph: Graph) -> KernelRecord:
    return replace(record, graph=with_threads(graph))


def test_the_form_that_scales_x_is_emitted_too(
    golden_record: GoldenRecord, fused: Callable[..., Graph]
) -> None:
    record = of_the_x_form(golden_record(DType.BF16), fused("x", dtype=DType.BF16))
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
