"""Kernels of a recipe file, and a muGraph without a plan: what is said of them, what is checked."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sources import relu_linear

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.recipe import Recipe, load_recipe
from mirage_kernels.generator.records import check, folder
from mirage_kernels.generator.records.sources import files_of
from mirage_kernels.generator.report import Report
from mirage_kernels.generator.request import Request

KERNEL = "sm_90a/relu_linear/K72_N40_fp16"
FORM = "forms/relu_linear/sliced_k.cuh"
KEPT = "sm_90a/relu_linear/K20_N40_fp16.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe file, and beside it the kernels of both its shapes."""
    return relu_linear(tmp_path_factory.mktemp("made"), most_tokens=16)


@pytest.fixture
def checked(made: Path, tmp_path: Path, mirage_kernels) -> Callable[..., tuple[int, str]]:
    shutil.copytree(made / "kernels", tmp_path / "kernels")

    def check(*files: str) -> tuple[int, str]:
        given = [str(made / file) for file in files]
        outcome = mirage_kernels(
            "check", *given, "--kernels", str(tmp_path / "kernels"), "--jobs", "1"
        )
        return outcome.code, outcome.out + outcome.err

    return check


def test_a_size_that_no_fast_schedule_reads_gets_a_general_kernel(made: Path) -> None:
    emitted = (made / "kernels" / KEPT).with_suffix(".cu").read_text()
    assert "// Schedule  general." in emitted
    assert 'extern "C"' in emitted


def test_kernels_of_a_recipe_file_are_proved_again(checked) -> None:
    code, said = checked("relu_linear.py")
    assert code == 0
    assert "2 kernels: every muGraph proved again" in said


def test_without_the_recipe_file_the_hint_names_it(checked) -> None:
    code, said = checked()
    assert code == 1
    assert f"{KERNEL}.json: recipe relu_linear is not in the catalog" in said
    assert "`mirage-kernels check FILE --kernels DIR`" in said


RECORD, OTHER = f"{KERNEL}.json", "is not what the generator makes"
# Which file, what is replaced, by what, and what is said of it.
CHANGES = [
    (KEPT, '"log2_failure": -', '"log2_failure": -9', OTHER),
    (KEPT, '"relu"', '"silu"', "not equal to its recipe"),
    (KEPT, "}\n", "}\r\n", OTHER),
    (RECORD, '"relu"', '"silu"', "not equal to its recipe"),
    (f"{KERNEL}.cu", "relu", "re\udcffu", OTHER),
    (FORM, "\n", "\r\n", OTHER),
    # What no kernel can be of.
    (RECORD, '"shape": {"K": 72, "N": 40}', '"shape": {}', ""),
    (RECORD, '"dtype": "fp16"', '"dtype": "fp32"', ""),
    (RECORD, '"tokens": 8', '"tokens": -1', ""),
    (RECORD, '"rows": 8', '"rows": 0', ""),
    (RECORD, '"tokens": "M"', '"tokens": "K"', ""),
    # What it tells of something else.
    (RECORD, '"error": ', '"error": 7', "its errors on inputs"),
    (RECORD, '"distribution": "unit"', '"distribution": "kind"', "its errors on inputs kind are"),
    (RECORD, '"summary": "linear(relu(x), weight)"', '"summary": "weight"', KERNEL),
]


@pytest.mark.parametrize(("path", "old", "new", "reason"), CHANGES)
def test_every_change_is_told(
    checked, tmp_path: Path, path: str, old: str, new: str, reason: str
) -> None:
    file, wrong = tmp_path / "kernels" / path, new.encode("utf-8", "surrogateescape")
    content = file.read_bytes()
    assert old.encode() in content
    file.write_bytes(content.replace(old.encode(), wrong, 1))
    code, said = checked("relu_linear.py")
    assert code == 1
    assert f"{path}: " in said
    assert reason in said
    assert "Traceback" not in said


def test_a_record_that_is_nested_without_end_is_named(checked, tmp_path: Path) -> None:
    (tmp_path / "kernels" / f"{KERNEL}.json").write_text("[" * 100_000)
    code, said = checked("relu_linear.py")
    assert code == 2
    assert f"{KERNEL}.json is not a kernel record" in said


def test_a_recipe_file_is_read_once_by_a_process(made: Path, monkeypatch) -> None:
    read: list[str] = []

    def load(file: str) -> Recipe:
        read.append(file)
        return load_recipe(file)

    monkeypatch.setattr(check, "load_recipe", load)
    check._known.cache_clear()
    record = folder.emitted(made / "kernels")[f"{KERNEL}.json"]
    files = (f"{made}/relu_linear.py",)
    assert {check._recipe_of(record, files, None)[0].name for _ in range(3)} == {"relu_linear"}
    assert read == list(files)


def killed(*_: object) -> None:
    os._exit(9)


def test_a_lost_process_is_a_sentence(checked, monkeypatch) -> None:
    monkeypatch.setattr(check, "_remade", killed)
    code, said = checked("relu_linear.py")
    assert code == 2
    assert "a process that proved kernels again was killed" in said
    assert "--jobs 1" in said


def test_the_table_is_listed_and_written_alone(made: Path, tmp_path: Path, monkeypatch) -> None:
    """Another process that wrote in between would leave a table that lacks a kernel."""
    held: list[bool] = []

    def table_of(*_: object) -> str:
        descriptor = os.open(tmp_path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.append(True)
        os.close(descriptor)
        return ""

    shutil.copytree(made / "kernels", tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(folder, "table_of", table_of)
    source = load_recipe(f"{made}/relu_linear.py")
    record = folder.emitted(tmp_path)[f"{KERNEL}.json"]
    report = Report(0, {}, 0, 0, 0, 0, {}, (), ())
    request = Request(source, source.shapes[0], DType.FP16)
    folder.write([Result(request, record, report, files_of(record))], tmp_path)
    assert held == [True]
