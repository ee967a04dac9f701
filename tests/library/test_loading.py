"""Kernels that an installed library loads for its ops: what is added, and what is refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
import pretend

ROOT = pretend.ROOT
pytestmark = pytest.mark.skipif(not pretend.has_sources(), reason="no sources to compile")

TABLE = "print([(k.name, k.file) for k in mk.kernel_table() if k.file])"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with kernels for the ops."""
    folder = tmp_path_factory.mktemp("loaded")
    pretend.compile_loaded(folder / "kernels.so")
    return folder


def said(program: str, **environment: str) -> str:
    """Return what a process prints, or the last line of its error: what is loaded stays."""
    text = f"import mirage_kernels as mk\n{program}"
    ran = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, env=os.environ | environment
    )
    return ran.stdout.strip() if ran.returncode == 0 else ran.stderr.strip().splitlines()[-1]


def test_calls_launch_what_was_loaded(told: dict[str, str]) -> None:
    assert told["a size that was loaded"] == "loaded K40 3"
    assert told["attention that was loaded"] == "loaded D72 2"
    assert told["not loaded"].startswith("ntrans M=3")


def test_a_loaded_kernel_goes_before_the_builds_own(told: dict[str, str]) -> None:
    assert told["norm"].startswith("norm M=3")
    assert told["loaded in place of the build's own"] == "loaded K64 3"


def test_the_table_says_where_a_kernel_is_from(loaded: Path) -> None:
    names = ["rms_norm/K40_fp16", "rms_norm/K64_fp16", "gqa/D72_fp16"]
    rows = [(name, str(loaded / "kernels.so")) for name in names]
    assert said(f"print(mk.load({str(loaded)!r}))\n{TABLE}") == f"{names}\n{rows}"


def test_what_is_supported_changes_with_a_load(loaded: Path) -> None:
    asked = "print(mk.supports('rms_norm', K=40), mk.supports('gqa', D=72, dtype='fp16'))"
    assert said(f"{asked}\nmk.load({str(loaded)!r})\n{asked}") == "False False\nTrue True"


def test_a_folder_may_be_loaded_again(loaded: Path) -> None:
    again = f"a = mk.load({str(loaded)!r})\nprint(a == mk.load({str(loaded)!r}))"
    assert said(again) == "True"


def test_the_path_variable_is_read_when_the_library_is(loaded: Path) -> None:
    printed = said("print(mk.supports('rms_norm', K=40))", MIRAGE_KERNELS_PATH=str(loaded))
    assert printed == "True"


def test_a_path_without_kernels_is_named(tmp_path: Path) -> None:
    printed = said("mk.kernel_table()", MIRAGE_KERNELS_PATH=str(tmp_path))
    assert printed.startswith(f"FileNotFoundError: {tmp_path} holds no compiled kernels; `mirage-")


def test_one_kernel_of_two_files_is_refused(loaded: Path, tmp_path: Path) -> None:
    shutil.copy(loaded / "kernels.so", tmp_path / "other.so")
    printed = said(f"mk.load({str(loaded)!r})\nmk.load({str(tmp_path)!r})")
    assert (
        f"{tmp_path}/other.so holds rms_norm/K40_fp16, which {loaded}/kernels.so holds" in printed
    )


def test_kernels_of_another_architecture_are_refused(tmp_path: Path) -> None:
    pretend.compile_loaded(tmp_path / "kernels.so", '-DARCH="sm_80"')
    printed = said(f"mk.load({str(tmp_path)!r})")
    assert "kernels.so holds a kernel for sm_80, but this build is for sm_90a; `mirage" in printed


def test_those_of_this_architecture_are_loaded_from_beside_others(
    loaded: Path, tmp_path: Path
) -> None:
    pretend.compile_loaded(tmp_path / "a.so", '-DARCH="sm_80"')
    shutil.copy(loaded / "kernels.so", tmp_path / "b.so")
    printed = said(f"mk.load({str(tmp_path)!r})\nprint({{k.file for k in mk.kernel_table()}})")
    assert "b.so" in printed
    assert "a.so" not in printed


def test_kernels_of_another_version_are_refused(tmp_path: Path) -> None:
    changed = tmp_path / "csrc"
    changed.mkdir()
    for name in ("launch.h", "rows.h", "table.h"):
        text = (ROOT / "csrc" / name).read_text()
        moved = text.replace("  void* workspace; ", "  int64_t more;\n  void* workspace; ")
        (changed / name).write_text(moved)
    pretend.compile_loaded(tmp_path / "kernels.so", csrc=changed)
    printed = said(f"mk.load({str(tmp_path)!r})")
    assert "was compiled for another version of mirage_kernels; `mirage-kernels compile`" in printed


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "kernels.so").write_text("none")
    assert "kernels.so is no compiled kernel (" in said(f"mk.load({str(tmp_path)!r})")


@pytest.mark.parametrize("name", ["LaunchArgs", "AttentionArgs", "Kernel", "AttentionKernel"])
def test_every_field_counts_in_the_number_of_a_layout(name: str) -> None:
    launch, rows = ((ROOT / "csrc" / file).read_text() for file in ("launch.h", "rows.h"))
    body = re.sub(r"//.*", "", launch.partition(f"struct {name} {{")[2].partition("\n};")[0])
    declared = [part.partition("=")[0] for part in body.replace("\n", " ").split(";")]
    fields = {
        re.sub(r"\[.*\]", "", word.split()[-1].lstrip("*"))
        for part in declared
        for word in part.split(",")
        if part.strip()
    }
    layout = rows.partition(f"using Args = {name};")[2].partition("}")[0]
    assert fields == set(re.findall(r"AT\((\w+)\)", layout))
