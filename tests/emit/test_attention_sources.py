"""KernelRecord attention: golden, formatted, named like its muGraph, and it compiles."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from compilers import compiled, formatted

from mirage_kernels.generator.emit.cuda import emit_cuda
from mirage_kernels.generator.emit.table import Entry, emit_table
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.plan.threads import without_threads
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.records.sources import recipe_sources, table_of
from mirage_kernels.generator.schedules.attention.lower import attention_program
from mirage_kernels.generator.schedules.attention.plan import kernel_of
from mirage_kernels.generator.schedules.attention.program import Do
from mirage_kernels.generator.schedules.attention.variants import name_of
from mirage_kernels.generator.target import TARGETS

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
RECIPES = (
    *("gqa", "qk_norm_attention", "sliding_window_attention", "gqa_full"),
    *("qk_layer_norm_attention", "mla_decode"),
)
each_recipe = pytest.mark.parametrize("recipe", RECIPES)


def record(recipe: str) -> KernelRecord:
    found = load_record(GOLDEN / f"attention_{recipe}.json")
    assert isinstance(found, KernelRecord)
    return found


def source(of: KernelRecord) -> str:
    return emit_cuda(kernel_of(of))


def files(*of: KernelRecord) -> dict[str, str]:
    """Return the files of records of one recipe, by name."""
    return {path.rpartition("/")[2]: text for path, text in recipe_sources(of).items()}


@each_recipe
def test_an_emitted_file_is_golden(golden: Callable[[str, str], None], recipe: str) -> None:
    golden(f"attention_{recipe}.cu", source(record(recipe)))


@each_recipe
def test_a_record_is_read_as_it_is_written(recipe: str) -> None:
    assert record(recipe).text() == (GOLDEN / f"attention_{recipe}.json").read_text()


def test_shapes_and_element_types_share_a_form() -> None:
    half = record("gqa")
    names = list(files(half, replace(half, dtype="bf16")))
    assert names[2:] == ["flash_attention.cuh", "D128_bf16.cu", "D128_fp16.cu"]


def test_kernels_with_different_texts_have_a_form_each() -> None:
    half, other = record("gqa"), replace(record("qk_norm_attention"), recipe="gqa", dtype="bf16")
    made = files(half, other)
    for stem in (half.stem, other.stem):
        form = f"flash_attention_{stem.partition('_')[2]}.cuh"
        assert f'#include "../../forms/gqa/{form}"' in made[f"{stem}.cu"]
        assert form in made


def test_line_1_is_the_command_that_makes_the_file() -> None:
    made, command = files(record("gqa")), "// mirage-kernels generate gqa"
    assert made["D128_fp16.cu"].splitlines()[0] == (
        f"{command} --arch sm_90a --dtype fp16 --shape D=128"
    )
    assert made["flash_attention.cuh"].splitlines()[0] == command


@each_recipe
def test_no_line_is_longer_than_100_columns_or_ends_in_a_blank(recipe: str) -> None:
    lines = source(record(recipe)).splitlines()
    assert [line for line in lines if len(line) > 100 or line != line.rstrip()] == []


@each_recipe
def test_a_file_has_about_110_lines_at_most(recipe: str) -> None:
    made = files(record(recipe))
    assert all(len(text.splitlines()) <= 120 for name, text in made.items() if "json" not in name)


@each_recipe
def test_every_value_is_named_but_those_inside_the_online_softmax_step(recipe: str) -> None:
    (block,) = record(recipe).graph.blocks
    step = attention_program(recipe, record(recipe).graph).loop[-1]
    inside = {s.out for s in step.covers if s.do is Do.MAP}
    assert block.body is not None
    carried = ("accum_rescaled", "last", "output", "size", "const", "input")
    names = {n.name for n in without_threads(block.body).nodes if n.op not in carried}
    text = re.sub("//.*", "", source(record(recipe)).partition("namespace {")[2])
    assert {n for n in names if not re.search(rf"\b{n}\b", text)} == inside


def test_the_element_type_is_one_line_of_the_kernel() -> None:
    half = record("gqa")
    brain = replace(half, dtype="bf16")
    lines = [source(r).replace(r.dtype, "").splitlines() for r in (half, brain)]
    assert [pair for pair in zip(*lines, strict=True) if pair[0] != pair[1]] == [
        ("MIRAGE_SHAPE(__half, D = 128)", "MIRAGE_SHAPE(__nv_bfloat16, D = 128)")
    ]


@each_recipe
def test_every_variant_is_chosen_once(recipe: str) -> None:
    text = source(record(recipe))
    kernels = {v.knobs for v in record(recipe).variants}
    listed = text[text.index("using Variants =") :]
    assert len(re.findall(r"\bUpTo<|\bAny<", listed)) <= len(record(recipe).variants)
    assert listed.count("Any<") == 1
    assert len(re.findall(r"FlashAttention<Shape,", text)) == len(kernels)


def test_variants_with_the_same_knobs_are_one_kernel() -> None:
    made = record("gqa")
    few, many, usual, last = (made.variants[i] for i in (0, 1, 2, -1))
    more = [replace(v, bucket=32) for v in (many, usual)]
    text = source(replace(made, variants=(few, many, usual, *more, last)))
    assert "UpTo32Rows" not in text
    listed = " ".join(text[text.index("using Variants =") :].split())
    assert "UpTo<32, UpTo8RowsManyTiles, tile::ManyTiles<UpTo8RowsManyTiles>>" in listed
    assert "UpTo<32, UpTo8Rows>" in listed


def test_an_op_that_the_vocabulary_lacks_is_refused() -> None:
    made = record("gqa")
    (block,) = made.graph.blocks
    assert block.body is not None
    body = without_threads(block.body)
    nodes = tuple(replace(n, op="iota") if n.op == "exp" else n for n in body.nodes)
    other = replace(block, body=replace(body, nodes=nodes))
    graph = replace(made.graph, nodes=(*made.graph.nodes[:-1], other))
    with pytest.raises(PlanError, match="exp_scaled_k_product = iota"):
        source(replace(made, graph=graph))


@each_recipe
def test_a_kernel_is_formatted_as_clang_format_would(recipe: str) -> None:
    text = source(record(recipe))
    assert text == formatted(text)


def with_sizes(made: KernelRecord) -> str:
    """Return a kernel's source that also says what shared memory the planner counts on."""
    program = attention_program(made.recipe, made.graph)
    kernels = {v.knobs: name_of(v) for v in reversed(made.variants)}  # named after the first
    planned = {name: knobs.shared_bytes(*program.sizes) for knobs, name in kernels.items()}
    asserts = (
        f"static_assert(Work<{name}>::kBytes <= {most} && {most} < Work<{name}>::kBytes + 1024);\n"
        for name, most in planned.items()
    )
    return source(made).replace("}  // namespace\n", f"{''.join(asserts)}}}  // namespace\n")


@each_recipe
def test_a_kernel_compiles_and_takes_the_shared_memory_that_was_planned(
    recipe: str, tmp_path: Path
) -> None:
    options = ("-ptx", "-arch=sm_90a", "-o", "kernel.ptx")  # the build takes it on from there
    made = compiled(with_sizes(record(recipe)), tmp_path, *options)
    assert made.returncode == 0, made.stderr


def test_the_table_lists_attention_by_symbols() -> None:
    entries = [
        Entry("b", "fp16", {"D": 64}, "D64_fp16", reads_cache=True),
        Entry("a", "bf16", {"C": 8, "P": 16}, "D8", reads_cache=True),
    ]
    text = emit_table("sm_90a", entries)
    assert text == emit_table("sm_90a", entries[::-1])
    assert 'ATTENTION(a, D8, bf16, "", {"C", 8}, {"P", 16})' in text
    assert 'ATTENTION(b, D64_fp16, fp16, "", {"D", 64})' in text


@pytest.mark.parametrize("recipes", [(), ("gqa", "qk_norm_attention")])
def test_a_table_compiles_with_and_without_attention(
    recipes: tuple[str, ...], tmp_path: Path
) -> None:
    text = table_of("sm_90a", [record(r) for r in recipes])
    made = compiled(text, tmp_path, "-c", "-o", "table.o")
    assert made.returncode == 0, made.stderr
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("arch", sorted(TARGETS))
def test_a_table_names_its_architecture(arch: str) -> None:
    assert f'#define ARCH "{arch}"' in emit_table(arch, [])
