"""What `list` and `generate` say about architectures."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_kernels.generator.commands import extension
from mirage_kernels.generator.commands.arguments import package_kernels
from mirage_kernels.generator.commands.list import compiled_paths
from mirage_kernels.generator.records.folder import emitted
from mirage_kernels.generator.target import TARGETS


@pytest.mark.parametrize("arch", TARGETS)
def test_list_says_of_every_architecture_whether_its_kernels_have_been_run(
    mirage_kernels, arch: str
) -> None:
    on, count = TARGETS[arch], len(emitted(package_kernels(), arch))
    printed = mirage_kernels("list").out
    assert re.search(rf"{arch} +{on.gpu} +{count} +{re.escape(on.evidence.value)}\n", printed)


def test_list_says_of_kernels_just_generated_that_they_are_not_measured(
    mirage_kernels, record, tmp_path: Path
) -> None:
    for shape in ({"K": 64, "N": 48}, record.shape):
        made = replace(record, shape=shape)
        path = tmp_path / made.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made.text())
    printed = mirage_kernels("list", "--kernels", str(tmp_path)).out
    assert re.search(r"sm_90a .* 2 +run and measured; 1 generated, not measured\n", printed)


def test_an_architecture_without_kernels_has_no_evidence(mirage_kernels, tmp_path: Path) -> None:
    printed = mirage_kernels("list", "--kernels", str(tmp_path)).out
    assert re.search(r"sm_90a +NVIDIA H200 +0 +-\n", printed)


def test_list_json_holds_the_architectures(mirage_kernels) -> None:
    document = json.loads(mirage_kernels("list", "--json").out)
    by_arch = {a["arch"]: a for a in document["architectures"]}
    assert list(by_arch) == list(TARGETS)
    assert by_arch["sm_90a"]["evidence"] == "measured"
    assert by_arch["sm_120a"]["evidence"] == "compiled"


def test_list_says_when_a_kernel_was_tuned(mirage_kernels) -> None:
    printed = mirage_kernels("list").out
    assert re.search(r"rms_norm_linear/K4096_N6144_fp16 +sm_90a .* 20\d\d-\d\d-\d\d +", printed)
    assert re.search(r"rms_norm_linear/K4096_N6144_fp16 +sm_80 .* - +", printed)
    kernels = json.loads(mirage_kernels("list", "--json").out)["kernels"]
    tuned = {(k["name"], k["arch"]): k["tuned"] for k in kernels}
    assert tuned["rms_norm_linear/K4096_N6144_fp16", "sm_80"] is None
    assert tuned["rms_norm_linear/K4096_N6144_fp16", "sm_90a"].startswith("20")


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


def test_generate_for_an_unknown_architecture_names_those_that_are_known(
    mirage_kernels, tmp_path: Path
) -> None:
    outcome = mirage_kernels("generate", "rms_norm_linear", "--arch", "sm_99")
    assert outcome.code == 2
    assert "no facts about architecture 'sm_99'" in outcome.err
    assert "sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a" in outcome.err
