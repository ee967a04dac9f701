"""Selections: the core set has every feature of the whole, and a table lists what was selected."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from mirage_kernels import kernel_table
from mirage_kernels.generator.build import compile as compiler
from mirage_kernels.generator.build.selection import (
    core,
    features_of,
    main,
    selected,
    version_label,
)
from mirage_kernels.generator.errors import ToolchainError
from mirage_kernels.generator.records.folder import emitted
from mirage_kernels.generator.records.sources import table_of

KERNELS = compiler.ROOT / "kernels"
pytestmark = pytest.mark.skipif(not KERNELS.is_dir(), reason="an installed wheel holds no sources")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_core_set_has_every_feature_and_is_a_fraction_of_the_whole(arch: str) -> None:
    records = {f"{r.recipe}/{r.stem}": r for r in emitted(KERNELS, arch).values()}
    of = {name: features_of(record, KERNELS) for name, record in records.items()}
    names = core(records.values(), KERNELS)
    assert set().union(*(of[name] for name in names)) == set().union(*of.values())
    assert len(names) <= max(4, 0.35 * len(records))


def test_the_core_set_serves_every_recipe_with_every_device_file() -> None:
    def recipes_and_files(sources: Iterable[Path]) -> set[str]:
        texts = [p.read_text() for p in sources]
        included = {name for t in texts for name in re.findall(r'#include "(.*/.*)"', t)}
        return included | {p.parent.name for p in sources}

    everything = compiler.all_sources("sm_90a", KERNELS).cuda
    chosen = selected(["core"], "sm_90a", KERNELS).cuda
    assert recipes_and_files(chosen) == recipes_and_files(everything)


def test_a_selection_compiles_and_lists_its_kernels_alone() -> None:
    chosen = selected(["rms_norm_linear/K4096_N[46]???_fp16", "layer_norm"], "sm_90a", KERNELS)
    names = sorted(f"{p.parent.name}/{p.stem}" for p in chosen.cuda)
    assert names == [
        *(f"layer_norm/K4096_{dtype}" for dtype in ("bf16", "fp16")),
        *(f"rms_norm_linear/K4096_N{n}_fp16" for n in (4096, 6144)),
    ]
    records = emitted(KERNELS, "sm_90a")
    listed = [records[f"sm_90a/{name}.json"] for name in names]
    assert chosen.table.read_text() == table_of("sm_90a", listed)


def test_a_selection_that_matches_nothing_names_the_nearest() -> None:
    with pytest.raises(ToolchainError, match="no kernel is called 'gqa/D65_fp16'") as raised:
        selected(["gqa/D65_fp16"], "sm_90a", KERNELS)
    assert "`mirage-kernels list`" in raised.value.hint


def test_the_extension_holds_committed_kernels() -> None:
    sources = (KERNELS / kernel_table()[0].arch).glob("*/*.cu")
    names = {f"{path.parent.name}/{path.stem}" for path in sources}
    assert {entry.name for entry in kernel_table()} <= names


def test_wheels_of_other_kernels_have_other_versions() -> None:
    some, more = (
        version_label(only, "sm_90a", KERNELS) for only in (["layer_norm"], ["layer_norm", "gqa"])
    )
    assert version_label([], "sm_90a", KERNELS) == "sm90a"
    assert re.fullmatch(r"sm90a\.k[0-9a-f]{8}", some)
    assert some != more
    assert version_label(["layer_norm/*", "layer_norm"], "sm_90a", KERNELS) == some


@pytest.mark.parametrize(
    ("only", "arch", "said"),
    [
        ("rms_norm_liner", "sm_90a", "no kernel is called 'rms_norm_liner'"),
        ("model:llama-3.1-8", "sm_90a", "no known model called 'llama-3.1-8'"),
        ("model:llama-3.1-8b@8", "sm_90a", "4 kernels of llama-3.1-8b@8 are not there"),
        ("", "sm_99", "kernels/sm_99 holds no emitted kernels"),
    ],
)
def test_a_wheel_that_cannot_be_made_is_refused_in_a_sentence(
    only: str,
    arch: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MIRAGE_KERNELS_ONLY", only)
    monkeypatch.setenv("MIRAGE_KERNELS_ARCH", arch)
    assert main() == 2
    out, err = capsys.readouterr()
    assert (out, said in err, "  hint: " in err) == ("", True, True)


def test_the_readmes_wheel_of_a_model_has_its_kernels() -> None:
    (named,) = re.findall(r'MODEL="(.+?)"', (compiler.ROOT / "README.md").read_text())
    assert selected([f"model:{named}"], "sm_90a", KERNELS).cuda
