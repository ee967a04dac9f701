"""Sources of golden records: formatted, nothing volatile, named like the muGraph; they compile."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from compilers import ROOT, compiled, formatted
from sources import foreign_forms, source

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.plan.threads import with_threads, without_threads
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.records.sources import files_of, table_of
from mirage_kernels.generator.schedules.attention.lower import attention_program
from mirage_kernels.generator.schedules.attention.program import Do

GoldenRecord = Callable[[DType], KernelRecord]
DTYPES = [DType.FP16, DType.BF16]
STREAMED = ("K72_N40_fp16", "K72_N40_bf16")
ATTENTION = (
    *("attention_gqa", "attention_qk_norm_attention", "attention_sliding_window_attention"),
    *("attention_gqa_full", "attention_qk_layer_norm_attention", "attention_mla_decode"),
)
TEXTS = [*((name, "cu") for name in (*STREAMED, *ATTENTION)), *((n, "py") for n in STREAMED)]
each_record = pytest.mark.parametrize("name", [*STREAMED, *ATTENTION])
each_attention = pytest.mark.parametrize("name", ATTENTION)
each_text = pytest.mark.parametrize(("name", "ending"), TEXTS)


def golden_of(name: str) -> KernelRecord:
    return load_record(ROOT / "tests" / "golden" / f"{name}.json")


# -- texts -----------------------------------------------------------------------------------------


def test_an_instantiation_and_the_table_are_golden(
    golden_record: GoldenRecord, golden: Callable[[str, str], None]
) -> None:
    record = golden_record(DType.FP16)
    golden("K72_N40_fp16.cu", files_of(record)[record.path.replace(".json", ".cu")])
    golden("table.cpp", table_of("sm_90a", [golden_record(d) for d in DTYPES]))


@each_attention
def test_an_attention_kernel_is_golden(golden: Callable[[str, str], None], name: str) -> None:
    golden(f"{name}.cu", source(golden_of(name), "cu"))


@each_record
def test_a_record_is_read_as_it_is_written(name: str) -> None:
    text = (ROOT / "tests" / "golden" / f"{name}.json").read_text()
    assert golden_of(name).text() == text


@each_text
def test_a_text_is_short_and_formatted_and_has_nothing_volatile(name: str, ending: str) -> None:
    text = source(golden_of(name), ending)
    lines = text.splitlines()
    assert [line for line in lines if len(line) > 100 or line != line.rstrip()] == []
    assert len(lines) <= 250
    assert str(ROOT) not in text
    assert os.uname().nodename not in text.split()
    assert re.search(r"\b20\d\d-\d\d|\b\d\d:\d\d\b", text) is None
    assert ending == "py" or text == formatted(text)


@each_record
def test_every_value_is_named_but_those_inside_the_online_softmax_step(name: str) -> None:
    record, inside = golden_of(name), set()
    if name in ATTENTION:
        step = attention_program(name, record.graph).loop[-1]
        inside = {s.out for s in step.covers if s.do is Do.MAP}
    (block,) = record.graph.blocks
    assert block.body is not None
    unnamed = ("output", "size", "input")
    if name in ATTENTION:
        unnamed += ("accum_rescaled", "last", "const")
    names = {n.name for n in without_threads(block.body).nodes if n.op not in unnamed}
    text = re.sub("//.*", "", source(record, "cu").partition("namespace {")[2])
    assert {n for n in names if not re.search(rf"\b{n}\b", text)} == inside


@pytest.mark.parametrize("name", ["K72_N40_fp16", "attention_gqa"])
def test_the_element_type_is_one_line_of_the_kernel(name: str) -> None:
    half = golden_of(name)
    texts = [source(r, "cu").replace(r.dtype, "") for r in (half, replace(half, dtype="bf16"))]
    pairs = zip(*(text.splitlines() for text in texts), strict=True)
    ((of_half, of_brain),) = ((a, b) for a, b in pairs if a != b)
    assert of_half.startswith("MIRAGE_SHAPE(__half, ")
    assert of_brain == of_half.replace("__half", "__nv_bfloat16")


def test_the_form_that_scales_x_is_emitted_too(
    golden_record: GoldenRecord, fused: Callable[..., Graph]
) -> None:
    graph = with_threads(fused("x", dtype=DType.BF16))
    text = source(replace(golden_record(DType.BF16), graph=graph), "cu")
    assert "tile::mul<T>(step.x_tile, step.norm_weight_tile)" in text
    assert "tile::contract(scaled_x_product, step.weight_tile, scaled_x)" in text


def test_an_op_that_the_vocabulary_lacks_is_refused() -> None:
    made = golden_of("attention_gqa")
    (block,) = made.graph.blocks
    assert block.body is not None
    body = without_threads(block.body)
    nodes = tuple(replace(n, op="iota") if n.op == "exp" else n for n in body.nodes)
    other = replace(block, body=replace(body, nodes=nodes))
    graph = replace(made.graph, nodes=(*made.graph.nodes[:-1], other))
    with pytest.raises(PlanError, match="exp_scaled_k_product = iota"):
        source(replace(made, graph=graph), "cu")


# -- variants --------------------------------------------------------------------------------------


@each_record
def test_every_variant_is_chosen_once(name: str) -> None:
    record, text = golden_of(name), source(golden_of(name), "cu")
    listed = text[text.index("using Variants =") :]
    assert len(re.findall(r"\bUpTo<|\bAny<", listed)) <= len(record.variants)
    assert listed.count("Any<") == 1
    if name in STREAMED:
        for variant in record.variants:
            config = variant.name("M")
            row = f"UpTo<{variant.bucket}, {config}>" if variant.bucket else f"Any<{config}>"
            assert text.count(row) == 1
    else:
        kernels = {v.knobs for v in record.variants}
        assert len(re.findall(r"FlashAttention<Shape,", text)) == len(kernels)


def test_variants_with_the_same_knobs_are_one_kernel() -> None:
    made = golden_of("attention_gqa")
    few, many, usual, last = (made.variants[i] for i in (0, 1, 2, -1))
    more = [replace(v, bucket=32) for v in (many, usual)]
    text = source(replace(made, variants=(few, many, usual, *more, last)), "cu")
    assert "UpTo32Rows" not in text
    listed = " ".join(text[text.index("using Variants =") :].split())
    assert "UpTo<32, UpTo8RowsManyTiles, tile::ManyTiles<UpTo8RowsManyTiles>>" in listed
    assert "UpTo<32, UpTo8Rows>" in listed


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STREAMED)
def test_a_small_shape_has_the_forms_of_the_library(name: str) -> None:
    assert foreign_forms(golden_of(name)) == []


def test_line_1_is_the_command_that_makes_the_file() -> None:
    record = golden_of("K72_N40_fp16")
    first = {path: text.splitlines()[0] for path, text in files_of(record).items()}
    command = "mirage-kernels generate rms_norm_linear"
    assert first["forms/rms_norm_linear/sliced_k.cuh"] == f"// {command}"
    assert first["forms/rms_norm_linear/triton.py"] == f"# {command}"
    of_shape = first[record.path.replace(".json", ".cu")]
    assert of_shape == f"// {command} --arch sm_90a --dtype fp16 --shape K=72,N=40"


def test_a_file_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    record, path = golden_of("K72_N40_fp16"), tmp_path / "record.json"
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


# -- compiled --------------------------------------------------------------------------------------


def with_sizes(made: KernelRecord) -> str:
    """Return a kernel's source that also says what shared memory the planner counts on."""
    program = attention_program(made.recipe, made.graph)
    kernels = {v.knobs: v.name("Rows") for v in reversed(made.variants)}  # named after the first
    planned = {name: knobs.shared_bytes(*program.sizes) for knobs, name in kernels.items()}
    asserts = (
        f"static_assert(Work<{name}>::kBytes <= {most} && {most} < Work<{name}>::kBytes + 1024);\n"
        for name, most in planned.items()
    )
    return source(made, "cu").replace("}  // namespace\n", f"{''.join(asserts)}}}  // namespace\n")


@pytest.mark.parametrize("name", ["K72_N40_bf16", *ATTENTION[1:]])  # `gqa_full` has all of `gqa`
def test_a_kernel_compiles_and_takes_the_shared_memory_that_was_planned(
    name: str, tmp_path: Path
) -> None:
    record = golden_of(name)
    text = with_sizes(record) if name in ATTENTION else source(record, "cu")
    made = compiled(text, tmp_path, "-ptx", "-arch=sm_90a")  # the build takes it on from there
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("names", [(), ("K72_N40_fp16", *ATTENTION[:2])])
def test_a_table_compiles_with_kernels_of_both_kinds_and_none(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    text = table_of("sm_90a", [golden_of(name) for name in names])
    made = compiled(text, tmp_path, "-c", "-o", "table.o")
    assert made.returncode == 0, made.stderr
    assert max(map(len, text.splitlines())) <= 100
