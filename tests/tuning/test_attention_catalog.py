"""Attention in the catalog: what is written is read again, later tunings replace kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pretended_attention import KEY, OTHER, RULE, WIDE, WORKLOADS, dense, tried

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.tuning.attention_catalog import (
    Chosen,
    TriedAttention,
    TriedForm,
    TunedAttention,
    TunedRows,
)
from mirage_kernels.generator.tuning.catalog import (
    Catalog,
    Section,
    load_catalog,
    tuned_attention,
    write_catalog,
)
from mirage_kernels.generator.tuning.keys import Key


def kernel(key: Key = KEY) -> TunedAttention:
    few = (tried(RULE, 10, 20, 40), tried(OTHER, 11, 21, 41), TriedAttention(WIDE, failed="hung"))
    rows = TunedRows(8, (Chosen(RULE, False, 1.05, 1.05),), WORKLOADS, few)
    many = TunedRows(0, (Chosen(WIDE, False, 1.5, None),), WORKLOADS[:1], (tried(WIDE, 15),))
    forms = (TriedForm("first", 1.2), TriedForm("second", None))
    return TunedAttention(key, "first", (rows, many), (dense(128, 9, 10),), forms)


def section(*kernels: TunedAttention) -> Section:
    return Section("sm_90a", {"gpu": "a"}, None, (), kernels)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path, catalog = tmp_path / "catalog.json", Catalog((section(kernel()),))
    write_catalog(path, catalog)
    assert load_catalog(path) == catalog
    assert tuned_attention("sm_90a", KEY, path=path) == kernel()
    assert tuned_attention("sm_80", KEY, path=path) is None
    assert tuned_attention("sm_90a", replace(KEY, shape={"D": 64}), path=path) is None


def test_a_type_that_was_not_measured_has_the_other_ones_choice(tmp_path: Path) -> None:
    path, brain = tmp_path / "catalog.json", replace(KEY, dtype="bf16")
    write_catalog(path, Catalog((section(kernel()),)))
    assert tuned_attention("sm_90a", brain, path=path) == kernel()
    part = replace(kernel(brain), buckets=kernel().buckets[:1], dense=())
    write_catalog(path, Catalog((section(kernel(), part),)))
    assert tuned_attention("sm_90a", KEY, path=path) == kernel()
    assert tuned_attention("sm_90a", brain, path=path) == replace(part, buckets=kernel().buckets)


def test_the_catalog_says_who_serves_dense_calls(tmp_path: Path) -> None:
    assert kernel().to_json()["dense"] == [
        {
            "sequences": 1,
            "tokens": 128,
            "heads": 10,
            "keys": 4096,
            "causal": True,
            "us": 9,
            "sdpa_us": 10,
            "peers": {},
            "served_by": "ours",
        }
    ]


def test_a_section_without_attention_is_written_as_before() -> None:
    assert "attention" not in section().to_json()


def test_a_later_tuning_replaces_the_kernels_that_it_measured() -> None:
    other = kernel(replace(KEY, dtype="bf16"))
    new = section(replace(kernel(), dense=()))
    catalog = Catalog((section(kernel(), other),)).with_section(new)
    assert [s.attention for s in catalog.sections] == [(other,), new.attention]
    assert Catalog((section(kernel()),)).with_section(new).sections == (new,)


def test_all_chosen_knobs_are_known() -> None:
    assert kernel().knobs == (RULE, WIDE)


def test_what_is_no_entry_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "catalog.json"
    text = Catalog((section(kernel()),)).text()
    path.write_text(text.replace('"rows": 8', '"rows": "8"', 1))
    with pytest.raises(FileError, match="is not a catalog"):
        load_catalog(path)
