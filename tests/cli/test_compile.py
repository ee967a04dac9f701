"""`compile`: what of a folder becomes shared objects, and when one is compiled again."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mirage_kernels.generator.build import programs
from mirage_kernels.generator.commands.arguments import is_checkout, package_kernels
from mirage_kernels.generator.records.documents import kernel_digest
from mirage_kernels.generator.records.folder import emitted
from mirage_kernels.generator.records.programs import object_text
from mirage_kernels.generator.records.record import KernelRecord

pytestmark = pytest.mark.skipif(not is_checkout(), reason="an installed wheel holds no sources")

ROWS = [{"extent": "M", "times": 1}, 8]
NVCC = """#!/bin/sh
[ "$1" = --version ] && echo "Cuda compilation tools, release 13.0, V13.0.88" && exit
echo "$@" >> "$(dirname "$0")/commands"
while [ "$1" != -o ]; do shift; done
cat "$3" > "$2"
"""


@pytest.fixture(scope="module")
def records() -> dict[str, KernelRecord]:
    return emitted(package_kernels(), "sm_90a")


@pytest.fixture
def folder(workplace: Path, record: KernelRecord, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one kernel, and an nvcc that copies its input."""
    compiler = workplace / "bin" / "nvcc"
    compiler.parent.mkdir()
    compiler.write_text(NVCC)
    compiler.chmod(0o755)
    monkeypatch.setattr(programs, "require_nvcc", lambda: compiler)
    kernels, made = package_kernels(), workplace / "made"
    shutil.copytree(kernels / "forms" / record.recipe, made / "forms" / record.recipe)
    (made / "sm_90a" / record.recipe).mkdir(parents=True)
    for ending in (".json", ".cu"):
        shutil.copy((kernels / record.path).with_suffix(ending), (made / record.path).parent)
    return made


def test_a_kernel_of_the_catalog_exports_its_row_and_a_program(record: KernelRecord) -> None:
    made = object_text(record)
    assert made.text.startswith('#include "K4096_N6144_fp16.cu"\n')
    assert "MIRAGE_PROGRAM(rms_norm_linear_K4096_N6144_fp16," in made.text
    assert 'rms_norm_linear, K4096_N6144_fp16, fp16, 64, "", {"K", 4096}' in made.text
    assert made.text.endswith("MIRAGE_EXPORT_ROWS\n")
    assert made.serves_op


def test_attention_exports_its_row_alone(records: dict[str, KernelRecord]) -> None:
    text = object_text(records["sm_90a/gqa/D128_fp16.json"]).text
    assert 'ATTENTION(gqa, D128_fp16, fp16, "", {"D", 128})' in text
    assert "MIRAGE_PROGRAM" not in text


def test_a_kernel_for_stacks_is_compiled_beside_the_plain_one(
    records: dict[str, KernelRecord],
) -> None:
    made = object_text(records["sm_90a/lora_linear_full/K4096_N4096_R16_fp16.json"])
    assert made.beside == ("../lora_linear_batched/K4096_N4096_R16_fp16.cu",)
    assert "SPACE(lora_linear_batched, K4096_N4096_R16_fp16" in made.text


def test_a_recipe_that_only_has_the_name_of_an_ops_is_a_program(record: KernelRecord) -> None:
    made = object_text(replace(record, summary="x + 1"))
    assert not made.serves_op
    assert "MIRAGE_EXPORT_ROWS" not in made.text


def test_a_first_kernel_says_when_the_next_one_starts(record: KernelRecord) -> None:
    own = replace(record, summary="x + 1")
    first, other = object_text(own, waits_first=True).text, object_text(own).text
    defined = "#define MIRAGE_NEXT_STARTS_AFTER_WAIT\n"
    assert first.startswith(f'{defined}#include "K4096_N6144_fp16.cu"\n')
    assert '\\"lets_next_start\\": \\"after_wait\\"' in first.replace('"\n    "', "")
    assert "lets_next_start" not in other
    assert "#define" not in other


def test_a_kernel_that_ops_launch_stays_as_it_is(record: KernelRecord) -> None:
    assert object_text(record, waits_first=True) == object_text(record)


def _program(folder: Path, *kernels: str, **digests: str) -> None:
    """Write a program that runs kernels of one dim of rows and a weight, one behind the other."""
    inputs = [{"name": n, "shape": s, "dtype": "float16"} for n, s in (("x", ROWS), ("w", [8]))]
    steps = [
        {
            "kernel": name,
            "inputs": [
                {"value": "x", "shape": ROWS, "one": False},
                {"value": "w", "shape": [8], "one": False},
            ],
            "results": [],
            "last": [],
        }
        for name in kernels
    ]
    ways = [{"most": {}, "steps": steps}]
    document = {"name": "f", "arch": "sm_90a", "inputs": inputs, "ways": ways}
    document |= {"dtype": "fp16", "constants": [], "returns": {"value": "x"}, "kernels": digests}
    text = json.dumps(document)
    (folder / "sm_90a/f.program.json").write_text(text)


def test_a_kernel_that_a_program_begins_with_is_compiled_to_wait_first(
    folder: Path, mirage_kernels: Callable[..., SimpleNamespace], record: KernelRecord
) -> None:
    path = folder / record.path
    path.write_text(replace(record, summary="x + 1").text())
    own, (compiled,) = f"{record.recipe}_{record.stem}", [path.with_suffix(".so")]
    for kernels, waits in (((own,), False), ((own, "b"), True), (("b", own), False)):
        _program(folder, *kernels)
        assert mirage_kernels("compile", str(folder)).code == 0
        assert ("MIRAGE_NEXT_STARTS_AFTER_WAIT" in compiled.read_text()) == waits


def test_a_program_of_other_kernels_is_named_and_they_are_compiled(
    folder: Path, mirage_kernels: Callable[..., SimpleNamespace], record: KernelRecord
) -> None:
    own, digest = f"{record.recipe}_{record.stem}", kernel_digest(record)
    _program(folder, own, **{own: digest})
    assert mirage_kernels("compile", str(folder)).code == 0
    (compiled,) = folder.rglob("*.so")
    assert f'mirage_kernel_digest[] = "{digest}"' in compiled.read_text()
    _program(folder, own, **{own: "0", "lost": digest})
    said = mirage_kernels("compile", str(folder))
    assert said.code == 1
    wrong = f"FAILED {folder}/sm_90a/f.program.json: its kernels sm_90a/{own}, sm_90a/lost are"
    assert f"{wrong} others now, or gone; generate its function again" in said.out


def test_what_tuning_changes_leaves_a_kernel_the_same(record: KernelRecord) -> None:
    tuned = replace(record, variants=record.variants[:1], max_tokens=1)
    assert kernel_digest(tuned) == kernel_digest(record)
    assert kernel_digest(replace(record, broadcast=("weight",))) != kernel_digest(record)


def test_a_program_of_another_version_is_not_compiled(
    folder: Path, mirage_kernels: Callable[..., SimpleNamespace]
) -> None:
    (folder / "sm_90a/f.program.json").write_text('{"name": "f", "inputs": [], "ways": []}')
    said = mirage_kernels("compile", str(folder))
    assert said.code == 2
    assert "f.program.json is of another version of mirage-kernels" in said.err


def test_what_is_compiled_says_how_it_is_loaded(
    folder: Path, mirage_kernels: Callable[..., SimpleNamespace]
) -> None:
    said = mirage_kernels("compile", str(folder))
    assert said.code == 0
    assert "1 kernel in" in said.out
    assert f'next: mirage_kernels.load("{folder}"), or MIRAGE_KERNELS_PATH={folder}' in said.out


def _commands(folder: Path) -> int:
    return len((folder.parent / "bin/commands").read_text().splitlines())


def test_a_kernel_is_compiled_again_only_when_something_in_it_changed(
    folder: Path, mirage_kernels: Callable[..., SimpleNamespace]
) -> None:
    mirage_kernels("compile", str(folder))
    moved = folder.rename(folder.parent / "moved")
    assert mirage_kernels("compile", str(moved)).code == 0
    assert _commands(moved) == 1
    (form,) = moved.glob("forms/rms_norm_linear/sliced_k_fp16.cuh")
    form.write_text(form.read_text() + "// changed\n")
    mirage_kernels("compile", str(moved))
    assert _commands(moved) == 2


def test_a_shared_object_that_was_cut_short_is_compiled_again(
    folder: Path, mirage_kernels: Callable[..., SimpleNamespace]
) -> None:
    mirage_kernels("compile", str(folder))
    (compiled,) = folder.rglob("*.so")
    header = b"\x7fELF\x02\x01" + bytes(34) + struct.pack("<Q10xHH2x", 1 << 20, 64, 30)
    compiled.write_bytes(header + compiled.read_bytes())
    assert mirage_kernels("compile", str(folder)).code == 0
    assert _commands(folder) == 2


def test_a_folder_without_kernels_is_named(
    workplace: Path, mirage_kernels: Callable[..., SimpleNamespace]
) -> None:
    said = mirage_kernels("compile", str(workplace))
    assert said.code == 2
    assert "holds no kernels to compile" in said.err
    assert "`mirage-kernels generate RECIPE|FILE --out DIR` writes them" in said.err


def _another(folder: Path) -> Path:
    """Put another record beside the folder's kernel, without its source; return its file."""
    name = "sm_90a/rms_norm_linear/K4096_N6144_bf16.json"
    shutil.copy(package_kernels() / name, folder / name)
    return folder / name


def test_a_record_without_its_source_is_named_and_the_others_are_compiled(
    folder: Path, mirage_kernels: Callable[..., SimpleNamespace]
) -> None:
    missing = _another(folder)
    said = mirage_kernels("compile", str(folder))
    assert said.code == 1
    assert f"FAILED {missing}: its source K4096_N6144_bf16.cu is not there" in said.out
    assert "--arch sm_90a --dtype bf16 --shape K=4096,N=6144 --out" in said.out
    assert [so.stem for so in folder.rglob("*.so")] == ["K4096_N6144_fp16"]


def test_a_kernel_of_a_file_is_generated_again_from_its_file(
    folder: Path, mirage_kernels: Callable[..., SimpleNamespace], record: KernelRecord
) -> None:
    missing = _another(folder)
    missing.write_text(replace(record, summary="x + 1", dtype="bf16").text())
    said = mirage_kernels("compile", str(folder))
    assert f"generate it again: mirage-kernels generate FILE --out {folder}" in said.out


@pytest.mark.parametrize("kept", [0, 1000])
def test_a_truncated_record_is_named_and_the_others_are_compiled(
    folder: Path, mirage_kernels: Callable[..., SimpleNamespace], kept: int
) -> None:
    broken = _another(folder)
    broken.write_text(broken.read_text()[:kept])
    said = mirage_kernels("compile", str(folder))
    assert said.code == 1
    assert f"FAILED {broken} is not a kernel record: it is no JSON" in said.out
    assert [so.stem for so in folder.rglob("*.so")] == ["K4096_N6144_fp16"]


def test_a_folder_of_damaged_records_alone_fails_without_a_compiler(
    workplace: Path,
    mirage_kernels: Callable[..., SimpleNamespace],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs, "require_nvcc", lambda: pytest.fail("nvcc is looked for"))
    broken = workplace / "sm_90a/linear/K1_fp16.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    said = mirage_kernels("compile", str(workplace))
    assert said.code == 1
    assert f"FAILED {broken} is not a kernel record" in said.out
