"""Kernels of several plans: a file for each, which together are the kernel as one text."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from compilers import ROOT, compiled, formatted, nvcc

from mirage_kernels.generator.emit.cuda import Kernel, cuda_files, emit_cuda
from mirage_kernels.generator.emit.parts import NAMES, file_of, parts_of
from mirage_kernels.generator.records.folder import check
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.records.sources import kernel_of, sources_of, table_of

KERNELS = ROOT / "kernels"
MOST_LINES = 200
RECORDS = {
    "gated_mlp/K4096_N4096_fp16": {"slices", "held"},
    "layer_norm_linear/K4096_N6144_fp16": {"slices", "held", "front"},
    "lora_linear/K4096_N4096_R64_bf16": {"makers", "slices", "held_makers", "held"},
    "rms_norm_linear/K4096_N6144_fp16": {"slices", "split"},
}
each_kernel = pytest.mark.parametrize("name", RECORDS)


def record(name: str) -> KernelRecord:
    return load_record(KERNELS / "sm_90a" / f"{name}.json")


def kernel(name: str) -> Kernel:
    """Return a committed kernel."""
    of = record(name)
    return kernel_of(of)


def code(text: str) -> list[str]:
    """Return the lines of a kernel, without headers, includes and what opens and closes a file."""
    frame = r"//.*|#.*|namespace mirage::generated \{|namespace \{|\}  // namespace.*|"
    return [line for line in text.splitlines() if not re.fullmatch(frame, line)]


@each_kernel
def test_each_plan_has_a_file_that_is_included_before_what_dispatches(name: str) -> None:
    made = kernel(name)
    files = cuda_files(made)
    stem = made.header.stem
    parts = [file_of(stem, part) for part in ("shape", *RECORDS[name])]
    assert list(files)[-1] == f"{stem}.cu"
    assert set(files) == {*parts, f"{stem}.cu"}
    assert re.findall('#include "(.*)"', files[f"{stem}.cu"]) == ["launch.h", *sorted(parts)]


@each_kernel
def test_a_file_includes_all_that_it_is_written_in_terms_of(name: str) -> None:
    made = kernel(name)
    texts = cuda_files(made)
    for part in parts_of(made.program, made.variants):
        text = texts[file_of(made.header.stem, part.name)]
        beside = {n for n in NAMES if f'"{file_of(made.header.stem, n)}"' in text}
        assert beside == {*part.beside}
        assert text.count("#pragma once") == 1


@each_kernel
def test_files_and_the_one_text_are_the_same_kernel(name: str) -> None:
    made = kernel(name)
    files = [line for text in cuda_files(made).values() for line in code(text)]
    assert sorted(files) == sorted(code(emit_cuda(made)))


@each_kernel
def test_every_file_says_in_its_header_which_plan_it_is_and_what_is_launched(name: str) -> None:
    made = kernel(name)
    texts = cuda_files(made)
    for part in parts_of(made.program, made.variants):
        text = texts[file_of(made.header.stem, part.name)]
        head = " ".join(text[: text.index("#pragma")].replace("//", "").split())
        name = part.name.capitalize().replace("_", " ")
        launched = "; ".join(made.header.launches[b] for b in part.buckets)
        said = f"What {made.header.stem}.cu launches: {launched}."
        assert head == f"{made.header.command} {name} {part.about}. {said}"


@each_kernel
def test_every_file_is_formatted_as_clang_format_would(name: str) -> None:
    for file, text in cuda_files(kernel(name)).items():
        assert formatted(text, file) == text


@each_kernel
def test_every_file_compiles_by_itself(name: str, tmp_path: Path) -> None:
    texts = cuda_files(kernel(name))
    for file, text in texts.items():
        (tmp_path / file).write_text(text)
    for file in texts:
        ran = compiled(f'#include "{file}"\n', tmp_path, "-ptx", "-arch=sm_90a")
        assert ran.returncode == 0, ran.stderr


@each_kernel
def test_files_and_the_one_text_compile_to_the_same(name: str, tmp_path: Path) -> None:
    made = kernel(name)
    for file, text in cuda_files(made).items():
        (tmp_path / file).write_text(text)
    (tmp_path / "one").mkdir()
    codes = []
    for folder, text in ((tmp_path, None), (tmp_path / "one", emit_cuda(made))):
        path = folder / f"{made.header.stem}.cu"
        if text is not None:
            path.write_text(text)
        ptx = folder / "kernel.ptx"
        command = [nvcc(), "-std=c++17", f"-I{ROOT / 'csrc'}", "-ptx", "-arch=sm_90a"]
        subprocess.run([*command, "-o", str(ptx), str(path)], check=True, capture_output=True)
        codes.append(re.sub(r"_[0-9a-f]{8}_", "_", ptx.read_text()))
    assert codes[0] == codes[1]


def test_a_kernel_of_one_plan_is_one_file() -> None:
    made = kernel("rms_norm_linear/K4096_N6144_fp16")
    few = Kernel(made.program, made.variants[:1], made.storage, made.header)
    assert cuda_files(few) == {f"{made.header.stem}.cu": emit_cuda(few)}


@each_kernel
def test_a_records_sources_come_after_what_they_include(name: str) -> None:
    seen: set[str] = set()
    for path, text in sources_of(record(name)).items():
        beside = [n for n in re.findall('#include "(.*)"', text) if "/" not in n]
        assert set(beside) <= {*seen, "launch.h"}
        seen.add(Path(path).name)


def test_files_of_plans_are_no_strays_where_a_record_does_not_prove(tmp_path: Path) -> None:
    gone = replace(record("gated_mlp/K4096_N4096_fp16"), recipe="gone")
    texts = sources_of(gone) | {"sm_90a/table.cpp": table_of("sm_90a", [gone])}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (found,) = check(tmp_path, progress=lambda event: None, jobs=1)
    assert found.reason.startswith("recipe gone is not in the catalog")


def test_no_committed_source_is_long() -> None:
    counts = {p: len(p.read_text().splitlines()) for p in KERNELS.glob("sm_*/*/*.cu*")}
    assert counts
    assert {str(p): n for p, n in counts.items() if n > MOST_LINES} == {}
