"""The files of a recipe: a text per form for all shapes, a short file per shape."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from compilers import ROOT, compiled, misformatted
from sources import source, written

from mirage_kernels.generator.emit.cuda import recipe_files, suffixes
from mirage_kernels.generator.records import check, folder
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.records.sources import files_of, recipe_sources, table_of
from mirage_kernels.generator.schedules.streaming import Kernel, kernel_of

KERNELS = ROOT / "kernels"
MOST_LINES = {"flash_attention.cuh": 120, ".cuh": 200, ".cu": 70, ".py": 200}
RECORDS = {
    "gated_mlp/K4096_N4096_fp16": {"sliced_k", "register_operand"},
    "layer_norm_linear/K4096_N6144_fp16": {"sliced_k", "register_operand", "prologue"},
    "lora_linear/K4096_N4096_R64_bf16": {
        *("producers", "paired_producers", "sliced_k", "register_operand")
    },
    "rms_norm_linear/K4096_N6144_fp16": {"sliced_k", "cluster_split_k"},
    "rms_norm/K4096_bf16": {"row_wise"},
    "silu_and_mul/N4096_fp16": {"elementwise"},
}
COMPILED = [*RECORDS][1:]  # whose forms have all schedules
each_kernel = pytest.mark.parametrize("name", RECORDS)
COMMITTED = folder.emitted(KERNELS)


@cache
def record(name: str, arch: str = "sm_90a") -> KernelRecord:
    return load_record(KERNELS / arch / f"{name}.json")


def own_files(name: str) -> dict[str, str]:
    """Return the files of a kernel, without those of other kernels that its record makes."""
    recipe = name.partition("/")[0]
    files = files_of(record(name))
    return {path: text for path, text in files.items() if f"/{recipe}/" in path}


@each_kernel
def test_each_schedule_has_a_form_and_the_shape_a_file_that_includes_them(name: str) -> None:
    files, recipe = own_files(name), name.partition("/")[0]
    forms = [f"forms/{recipe}/{form}.cuh" for form in RECORDS[name]]
    shape = f"sm_90a/{name}.cu"
    assert set(files) == {*forms, shape, f"sm_90a/{name}.json", f"forms/{recipe}/triton.py"}
    included = re.findall('#include "(.*)"', files[shape])
    assert included == sorted(f"../../{form}" for form in forms)


@each_kernel
def test_a_file_comes_after_all_that_it_includes(name: str) -> None:
    seen = {"variants.h"}
    for path, text in files_of(record(name)).items():
        beside = re.findall('#include "(.*)"', text) if "cu" in Path(path).suffix else []
        assert {Path(n).name for n in beside if not n.startswith("tile/")} <= seen
        seen.add(Path(path).name)


@each_kernel
def test_a_form_names_no_element_type_and_no_extent(name: str) -> None:
    sizes = [size for size in record(name).shape.values() if size > 64]
    words = ["__half", "__nv_bfloat16", "fp16", "bf16", *map(str, sizes)]
    for path, text in own_files(name).items():
        if path.startswith("forms/"):
            assert [word for word in words if re.search(rf"\b{word}\b", text)] == []


@pytest.mark.parametrize("name", COMPILED)
def test_files_and_the_one_text_compile_to_the_same_and_headers_by_themselves(
    name: str, tmp_path: Path
) -> None:
    path, one = written(record(name), tmp_path), tmp_path / "one" / Path(name).name
    one.parent.mkdir()
    one.with_suffix(".cu").write_text(source(record(name), "cu"))
    codes = []
    for file in (path, one.with_suffix(".cu")):
        ran = compiled(file.read_text(), file.parent, "-ptx", "-arch=sm_90a", "-o", "kernel.ptx")
        assert ran.returncode == 0, ran.stderr
        codes.append(re.sub(r"_[0-9a-f]{8}_", "_", (file.parent / "kernel.ptx").read_text()))
    assert codes[0] == codes[1]
    for header in own_files(name):
        if header.endswith(".cuh"):
            options = ("-ptx", "-arch=sm_90a", f"-I{tmp_path}")
            ran = compiled(f'#include "{header}"\n', tmp_path, *options)
            assert ran.returncode == 0, ran.stderr


def test_a_form_says_its_schedule_and_needs_and_a_shape_what_was_proved_of_it() -> None:
    files = files_of(record("rms_norm_linear/K4096_N6144_fp16"))
    form = files["forms/rms_norm_linear/sliced_k.cuh"].partition("#pragma")[0]
    shape = files["sm_90a/rms_norm_linear/K4096_N6144_fp16.cu"].partition("#include")[0]
    words = [re.findall(r"^// (\w+)  +\S", text, re.MULTILINE) for text in (form, shape)]
    assert words[0] == ["Schedule", "Formula", "Expects"]
    assert words[1] == ["Shape", "Proved"]
    assert form.startswith("// mirage-kernels generate rms_norm_linear\n")


def emitted(*records: KernelRecord) -> list[Kernel]:
    return [kernel_of(r) for r in records]


def marks(*records: KernelRecord) -> list[tuple[str, ...]]:
    return [kernel.marks for kernel in emitted(*records)]


def test_shapes_types_and_architectures_with_one_mugraph_share_a_form() -> None:
    alike = emitted(
        record("gated_mlp/K4096_N4096_fp16"),
        record("gated_mlp/K4096_N14336_bf16"),
        record("gated_mlp/K4096_N4096_bf16", "sm_80"),
    )
    forms = [path for path in recipe_files(alike) if path.startswith("forms/")]
    assert forms == ["forms/gated_mlp/sliced_k.cuh", "forms/gated_mlp/register_operand.cuh"]


def test_a_suffix_tells_forms_apart_by_the_first_thing_that_does() -> None:
    half, brain = (record(f"rms_norm_linear/K4096_N6144_{d}") for d in ("fp16", "bf16"))
    other = record("rms_norm_linear/K8192_N10240_fp16")
    made = marks(half, brain, other)
    assert suffixes(made, {0: "a", 1: "a"}) == {0: "", 1: ""}
    assert suffixes(made, {0: "a", 1: "b"}) == {0: "_fp16", 1: "_bf16"}
    assert suffixes(made, {0: "a", 1: "a", 2: "b"}) == {0: "_K4096", 1: "_K4096", 2: "_K8192"}
    assert suffixes(marks(half, replace(half, arch="sm_80")), {0: "a", 1: "b"}) == {
        0: "_sm_90a",
        1: "_sm_80",
    }
    mixed = marks(half, other, brain, replace(other, dtype="bf16"))
    assert suffixes(mixed, {0: "a", 1: "b", 2: "b", 3: "a"}) == {
        **dict.fromkeys((0, 3), "_K4096_N6144_fp16_sm_90a"),
        **dict.fromkeys((1, 2), "_K8192_N10240_fp16_sm_90a"),
    }


def test_names_do_not_depend_on_the_order_of_records() -> None:
    made = [record(f"rms_norm_linear/K4096_N6144_{d}") for d in ("fp16", "bf16")]
    assert recipe_sources(made) == recipe_sources(made[::-1])
    forms = [path for path in recipe_sources(made) if "sliced_k" in path]
    assert forms == [f"forms/rms_norm_linear/sliced_k_{d}.cuh" for d in ("bf16", "fp16")]


def test_forms_are_no_strays_where_a_record_does_not_prove(tmp_path: Path) -> None:
    gone = replace(record("gated_mlp/K4096_N4096_fp16"), recipe="gone")
    written(gone, tmp_path)
    (tmp_path / "sm_90a/table.cpp").write_text(table_of("sm_90a", [gone]))
    (found,) = check.check(tmp_path, progress=lambda event: None, jobs=1)
    assert found.reason.startswith("recipe gone is not in the catalog")


# -- what is committed -----------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", sorted({r.recipe for r in COMMITTED.values()}))
def test_committed_sources_are_what_their_records_give_and_short(recipe: str) -> None:
    made = recipe_sources([r for r in COMMITTED.values() if r.recipe == recipe])
    assert [p for p, text in made.items() if (KERNELS / p).read_text() != text] == []
    for path, text in made.items():
        most = MOST_LINES.get(Path(path).name) or MOST_LINES.get(Path(path).suffix)
        assert most is None or len(text.splitlines()) <= most, path


def test_committed_sources_are_formatted_as_clang_format_would() -> None:
    made = [*KERNELS.glob("forms/*/*.cuh"), *KERNELS.glob("sm_*/*/*.cu")]
    assert misformatted(made) == ""


@pytest.mark.parametrize("name", ["silu_and_mul/N4096_fp16", "rms_norm/K4096_bf16"])
def test_rows_are_stored_sixteen_bytes_at_once(name: str, tmp_path: Path) -> None:
    text = f'#include "{ROOT / "kernels/sm_90a" / name}.cu"\n'
    ran = compiled(text, tmp_path, "-ptx", "-arch=sm_90a", "-o", "kernel.ptx")
    assert ran.returncode == 0, ran.stderr
    stores = re.findall(r"st\.global\S*", (tmp_path / "kernel.ptx").read_text())
    assert {*stores} == {"st.global.v4.u32"}
