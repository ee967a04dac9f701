"""`generate` and the store: a stored search is taken as it is, and makes the same bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirage_kernels.generator import pipeline
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.jobs import local
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.search.problem import Limits


def test_a_stored_search_makes_the_same_bytes(
    generated: Callable[[DType], Result], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_store = generated(DType.FP16)
    monkeypatch.setattr(pipeline, "LIMITS", Limits(kernels=1, block_ops=9))

    def again() -> Result:
        monkeypatch.setattr(pipeline, "_searched", {})  # as in another process
        request = without_store.request
        return pipeline.generate(request, jobs=2, progress=lambda event: None, store=store)

    def no_worker(*_: object) -> None:
        raise AssertionError("searched again")

    assert again().files == without_store.files
    monkeypatch.setattr(local, "work", no_worker)
    assert again().files == without_store.files
