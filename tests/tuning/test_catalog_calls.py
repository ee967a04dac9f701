"""Kernels measured at several calls in the catalog: read as written, later tunings replace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pretended_calls import KEY, OTHER, POINTS, RULE, WIDE, dense, tried

from mirage_kernels.generator.errors import FileError
from mirage_kernels.generator.tuning.catalog import (
    Bucket,
    Catalog,
    Chosen,
    Key,
    Section,
    Tried,
    TriedForm,
    Tuned,
    load_catalog,
    tuned_kernel,
    write_catalog,
)


def kernel(key: Key = KEY) -> Tuned:
    few = (tried(RULE, 10, 20, 40), tried(OTHER, 11, 21, 41), Tried(WIDE, failed="hung"))
    rows = Bucket(8, (Chosen(RULE, 1.05, 1.05),), POINTS, few)
    many = Bucket(0, (Chosen(WIDE, 1.5),), POINTS[:1], (tried(WIDE, 15),))
    forms = (TriedForm("first", 1.2), TriedForm("second", None))
    calls = (dense(128, 9, 10),)
    return Tuned(key, (rows, many), dense=calls, form="first", forms=forms)


def section(*kernels: Tuned) -> Section:
    return Section("sm_90a", {"gpu": "a"}, None, kernels)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path, catalog = tmp_path / "catalog.json", Catalog((section(kernel()),))
    write_catalog(path, catalog)
    assert load_catalog(path) == catalog
    assert tuned_kernel("sm_90a", KEY, path=path) == kernel()
    assert tuned_kernel("sm_80", KEY, path=path) is None
    assert tuned_kernel("sm_90a", replace(KEY, shape={"D": 64}), path=path) is None


def test_a_type_that_was_not_measured_has_the_other_ones_choice(tmp_path: Path) -> None:
    path, brain = tmp_path / "catalog.json", replace(KEY, dtype="bf16")
    write_catalog(path, Catalog((section(kernel()),)))
    assert tuned_kernel("sm_90a", brain, path=path, of_any_type=True) == kernel()
    assert tuned_kernel("sm_90a", brain, path=path) is None
    part = replace(kernel(brain), buckets=kernel().buckets[:1], dense=())
    write_catalog(path, Catalog((section(kernel(), part),)))
    assert tuned_kernel("sm_90a", KEY, path=path) == kernel()
    whole = tuned_kernel("sm_90a", brain, path=path, of_any_type=True)
    assert whole == replace(part, buckets=kernel().buckets)


def test_what_is_no_entry_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "catalog.json"
    text = Catalog((section(kernel()),)).text()
    path.write_text(text.replace('"size": 8', '"size": "8"', 1))
    with pytest.raises(FileError, match="is not a catalog"):
        load_catalog(path)
