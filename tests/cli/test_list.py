"""What `list` and `generate` say about architectures."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_kernels.generator.commands import extension
from mirage_kernels.generator.commands.arguments import package_kernels
from mirage_kernels.generator.commands.extension import compiled_paths
from mirage_kernels.generator.records.folder import emitted
from mirage_kernels.generator.target import TARGETS


def architectures(outcome) -> dict[str, dict[str, object]]:
    return {a["arch"]: a for a in json.loads(outcome.out)["architectures"]}


def test_list_says_of_every_architecture_how_far_its_kernels_have_been_tried(
    mirage_kernels,
) -> None:
    found = architectures(mirage_kernels("list", "--json"))
    assert list(found) == list(TARGETS)
    for arch, on in TARGETS.items():
        assert found[arch]["kernels"] == len(emitted(package_kernels(), arch))
        assert (found[arch]["gpu"], found[arch]["evidence"]) == (on.gpu, on.evidence.value)
    assert found["sm_90a"]["tuned"] > 50
    assert found["sm_80"]["tuned"] == 0


def test_only_kernels_with_times_of_their_own_count_as_measured(
    mirage_kernels, record, tmp_path: Path
) -> None:
    """One that was just generated has none, whatever others of its architecture have."""
    tuned, new = dict(record.shape), {"K": 5120, "N": 7168}
    for shape in (tuned, new):
        made = replace(record, shape=shape)
        path = tmp_path / made.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made.text())
    printed = mirage_kernels("list", "--kernels", str(tmp_path)).out
    assert re.search(r"sm_90a +NVIDIA H200 +2 +1 +run and measured\n", printed)
    assert re.search(r"rms_norm_linear/K5120_N7168_fp16 +sm_90a .* - +", printed)
    assert re.search(r"rms_norm_linear/K4096_N6144_fp16 +sm_90a .* 20\d\d-\d\d-\d\d +", printed)


def test_only_kernels_of_the_extensions_architecture_are_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "_C.abi3.so"
    file.write_bytes(b"\0sm_80\0rms_norm_linear/K4096_N6144_fp16\0")
    monkeypatch.setattr(extension, "extension_file", lambda: file)
    paths = compiled_paths(emitted(package_kernels()))
    assert paths == {"sm_80/rms_norm_linear/K4096_N6144_fp16.json"}


def test_show_takes_the_measured_architecture_where_several_have_the_kernel(mirage_kernels) -> None:
    printed = mirage_kernels("show", "rms_norm_linear/K4096_N6144_fp16").out
    assert "fp16, sm_90a (" in printed


@pytest.mark.parametrize("ending", ["json", "mugraph.json"])
def test_files_in_folders_of_no_architecture_are_not_ours(
    mirage_kernels, without_search, record, tmp_path: Path, ending: str
) -> None:
    other = tmp_path / f"node_modules/package/about.{ending}"
    other.parent.mkdir(parents=True)
    other.write_text("{}")
    words = ("--shape", "K=4096,N=6144", "--dtype", "fp16", "--out", str(tmp_path))
    assert mirage_kernels("generate", "rms_norm_linear", *words).code == 0
    assert mirage_kernels("list", "--kernels", str(tmp_path)).code == 0
    assert mirage_kernels("check", "--kernels", str(tmp_path), "--jobs", "1").code == 0
    assert [*emitted(tmp_path)] == [record.path]
