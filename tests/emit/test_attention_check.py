"""Committed attention kernels are checked like all others: one rescale less, and they fail."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from attention_graphs import GOLDEN, rewritten

from mirage_kernels.generator.cli import main
from mirage_kernels.generator.errors import FileError, VerifyError
from mirage_kernels.generator.pipeline import proved_graphs
from mirage_kernels.generator.records.check import check, proved_again
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.records.sources import recipe_sources, table_of

PATH, FORM = "sm_90a/gqa/D128_fp16.json", "forms/gqa/flash_attention.cuh"


@pytest.fixture(scope="module")
def record() -> KernelRecord:
    found = load_record(GOLDEN / "attention_gqa.json")
    return replace(found, variants=found.variants[-1:])


@pytest.fixture
def kernels(record: KernelRecord, tmp_path: Path) -> Path:
    """A kernels folder with one attention kernel, of one variant, proved for that."""
    proved = proved_again(record)
    for name, text in recipe_sources([proved]).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "sm_90a" / "table.cpp").write_text(table_of("sm_90a", [proved]))
    return tmp_path


def quiet(event: object) -> None:
    pass


RESCALED = {
    "sum_masked_total": ("accum", "sum_masked"),
    "masked_product_total": ("accum", "masked_product"),
    "combine_sum_masked": ("combine", "sum_masked_total"),
    "combine_masked_product": ("combine", "masked_product_total"),
}


def without_rescale(record: KernelRecord, name: str) -> KernelRecord:
    """Return a record in which one value is carried as a plain sum."""
    op, summed = RESCALED[name]
    return replace(record, graph=rewritten("gqa", (name, {"op": op, "args": (summed,)})))


@pytest.mark.parametrize("name", RESCALED)
def test_one_rescale_less_does_not_prove(record: KernelRecord, name: str) -> None:
    with pytest.raises(VerifyError, match="not equal to its recipe"):
        proved_again(without_rescale(record, name))


def test_a_committed_kernel_checks(kernels: Path) -> None:
    assert check(kernels, progress=quiet, jobs=1) == []


def test_one_rescale_less_fails_the_check(kernels: Path) -> None:
    mutant = without_rescale(load_record(kernels / PATH), "sum_masked_total")
    (kernels / PATH).write_text(mutant.text())
    (found,) = check(kernels, progress=quiet, jobs=1)
    assert found.path == PATH
    assert "not equal to its recipe" in found.reason


def test_another_source_fails_the_check(kernels: Path) -> None:
    file = kernels / FORM
    file.write_text(file.read_text().replace("online_softmax", "offline_softmax"))
    assert [d.path for d in check(kernels, progress=quiet, jobs=1)] == [FORM]


def test_a_kernel_is_proved_for_each_variant_with_uneven_edges() -> None:
    whole = load_record(GOLDEN / "attention_gqa.json")
    cases = [*chain(*proved_graphs(whole).values())]
    for tiles in map(whole.tiles, whole.variants):
        mine = [c.sizes for c in cases if c.tiles == tiles]
        assert all(c["D"] == 128 for c in mine)
        assert any(c["L"] > 2 * tiles["L_parts"] and c["L"] % tiles["L"] for c in mine)
        assert any(c["G"] % tiles["G"] for c in mine)


def test_an_unknown_schedule_is_refused(kernels: Path) -> None:
    text = (kernels / PATH).read_text()
    (kernels / PATH).write_text(re.sub('"schedule": "[a-z_]*"', '"schedule": "magic"', text))
    with pytest.raises(FileError, match="there is no schedule called magic"):
        load_record(kernels / PATH)


def test_list_and_show_count_query_rows(kernels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ("--kernels", str(kernels))
    assert main(("list", *folder)) == 0
    assert "gqa/D128_fp16" in capsys.readouterr().out
    assert main(("show", "gqa/D128_fp16", *folder)) == 0
    shown = capsys.readouterr().out
    assert "any G" in shown
    assert "L_parts by" in shown
